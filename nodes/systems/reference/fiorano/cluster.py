"""Two servers of the design fiorano, with the gateway and the shared database on separate machines."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from nodes.reference.designs.fiorano.configuration import SHARED_MODE, FioranoOptions
from nodes.reference.designs.fiorano.gateway.config import parse_gateway_config
from nodes.reference.designs.fiorano.gateway.lockfile import decoded, holder_in
from nodes.reference.designs.fiorano.states import ACTIVE, PASSIVE, WAITING
from nodes.reference.gateway import GatewayProcess
from nodes.reference.storage.config import POSTGRES, parse_storage_config
from nodes.reference.storage.process import StorageProcess
from nodes.stomp import ProtocolError
from nodes.systems.reference.cluster import LINK_PORT, ReferenceCluster
from nodes.systems.reference.code import install_code, module_command
from nodes.systems.reference.fiorano.programs import SimulatedLockFile
from nodes.systems.reference.layout import ReplicaGroup
from stormproof.contracts.backend import Shells
from stormproof.contracts.cluster import POLL, Deployment, Lock, NodeStatus
from stormproof.contracts.launch import Launch, Launcher
from stormproof.contracts.system import GATEWAY, SHARED_DATABASE
from stormproof.contracts.topology import endpoint
from stormproof.errors import BackendError

CHANNEL = "channel"
"""The private network of the HA channel."""
CLUSTER = FioranoOptions.cluster
GATEWAY_PORT = 61618
DATABASE = SHARED_DATABASE
"""Name and role of the machine with the shared database, as ``GATEWAY`` is of the machine with the lock file."""
DATABASE_PORT = 61619


ADMINISTRATOR_WAIT_SECONDS, ADMINISTRATOR_WAIT_LEASES = 5.0, 10
"""The waiting time of the simulated administrator, the sum of both. If both servers are still in state WAITING then,
the administrator makes one of them serve.
"""
STATUS_CHECK_SECONDS = 0.5
"""Seconds between two status checks of the administrator on call."""


class FioranoCluster(ReferenceCluster):
    """A primary, a secondary, and the machines that both need.

    If neither server may use its repository, an administrator decides, which is the document's last resort.
    """

    def __init__(self, groups: tuple[ReplicaGroup, ...], deployment: Deployment) -> None:
        super().__init__(groups, deployment)
        self._wait_since: float | None = None
        """The time since which both servers have been seen waiting for each other."""
        self._done_by_hand: list[str] = []

    async def install(self) -> None:
        """Upload code and configurations to all machines."""
        await super().install()
        if isinstance(self.backend, Shells):
            await install_code(self.backend, tuple(helper.name for helper in self.topology.helpers))
            await self._upload(GATEWAY, self._gateway_config())
            if self.shares:
                await self._upload(DATABASE, self._database_config())

    @property
    def shares(self) -> bool:
        """Tell whether the servers share a database."""
        return bool(self.test.options["mode"] == SHARED_MODE)

    def stores_elsewhere(self, machine: str) -> str:
        """Return why a server stores nothing on its own disk: it does not if the servers share a database."""
        return f"mode={SHARED_MODE}: its database is that of {DATABASE}" if self.shares and machine != DATABASE else ""

    def programs(self, machine: str) -> tuple[str, ...]:
        """Return the programs of a machine: PostgreSQL before the service that uses it."""
        behind = machine == DATABASE and self.test.options["store"] == POSTGRES
        return (POSTGRES, *super().programs(machine)) if behind else super().programs(machine)

    async def start_program(self, machine: str, program: str) -> None:
        """Start a server, the gateway, the service of the shared database, or the PostgreSQL server behind that
        service.
        """
        backend, log = self.backend, self.log_path(machine, program)
        if machine not in (GATEWAY, DATABASE):
            await super().start_program(machine, program)
        elif isinstance(backend, Launcher):
            await backend.launch(machine, program, self._helper_launch(machine), log)
        else:
            assert isinstance(backend, Shells)
            module = "nodes.reference.gateway" if machine == GATEWAY else "nodes.reference.storage"
            module = "nodes.reference.storage.postmaster" if program == POSTGRES else module
            path = f"{backend.node_dir(machine)}/config.json"
            await backend.start(machine, program, module_command(backend, machine, module, path), log)

    def _helper_launch(self, machine: str) -> Launch:
        if machine == DATABASE:
            return partial(StorageProcess, parse_storage_config(self._database_config()))
        content = self._gateway_config()
        file = SimulatedLockFile(self.backend, machine, content["Lockfile"])
        return partial(GatewayProcess, parse_gateway_config(content), file)

    def healthy(self, statuses: Sequence[NodeStatus]) -> bool:
        """Tell whether one server is active and the other one its standby."""
        return sorted(status.role for status in statuses if status.reachable) == [ACTIVE, PASSIVE]

    async def await_healthy(self, timeout: float) -> bool:
        """Wait until the pair is healthy, with an administrator on call; return False when ``timeout`` passes."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            statuses = await self.statuses()
            if self.healthy(statuses):
                return True
            if loop.time() >= deadline:
                return False
            if done := await self._seen(statuses):
                if self.helped_since is None:
                    self.helped_since = loop.time()
                self._done_by_hand.append(done)
            await asyncio.sleep(POLL)

    async def attend(self, note: Callable[[str], None]) -> None:
        """Act as the administrator on call during faults, in the same way as after the last heal."""
        while True:
            await asyncio.sleep(STATUS_CHECK_SECONDS)
            if done := await self._seen(await self.statuses()):
                note(done)

    async def repair(self) -> str:
        """Return the administrator's actions while the pair became healthy."""
        done, self._done_by_hand = "; ".join(self._done_by_hand), []
        self.helped_since = None
        return done

    async def _seen(self, statuses: Sequence[NodeStatus]) -> str:
        """Act as an administrator who sees these statuses; return the action in words, empty while there is none. The
        administrator acts only once both servers have waited for long although they are in touch.
        """
        found = {status.node: status.detail or {} for status in statuses if status.reachable}
        now = asyncio.get_running_loop().time()
        if len(found) < len(self.node_names) or not all(
                each.get("state") == WAITING and each.get("channel") for each in found.values()):
            self._wait_since = None
            return ""
        self._wait_since = now if self._wait_since is None else self._wait_since
        leases = ADMINISTRATOR_WAIT_LEASES * float(self.test.options["lease"])
        if now - self._wait_since < ADMINISTRATOR_WAIT_SECONDS + leases:
            return ""
        self._wait_since = None
        best = max(sorted(found), key=lambda node: (found[node]["whole"], *found[node]["repository"]))
        try:
            answer = await self._admins[best].design({"op": "accept"}, self._status_timeout)
        except (OSError, TimeoutError, EOFError, ProtocolError, ValueError) as error:
            answer = {"error": str(error) or type(error).__name__}
        done = f"accepted the repository of {best}"
        return done if answer.get("ok") else f"tried in vain: {best} says {answer.get('error')}"

    def private_networks(self) -> tuple[str, ...]:
        """Return the HA channel's network."""
        return (CHANNEL,)

    async def lock(self) -> Lock | None:
        """Return the present content of the lock file; None if the test runs without the lock."""
        if not self.test.options["lock"]:
            return None
        path = self._lockfile()
        try:
            content = await self.backend.download(GATEWAY, path)
        except BackendError:
            return Lock(GATEWAY, path)
        record = decoded(content)
        return Lock(GATEWAY, path, True, *((holder_in(content), record.epoch) if record else ()))

    async def holds_lock(self, node: str) -> bool | None:
        """Return whether the server itself says that it holds the lock."""
        status = await self.status(node)
        return bool((status.detail or {}).get("lock")) if status.reachable else None

    async def _upload(self, machine: str, config: dict[str, Any]) -> None:
        assert isinstance(self.backend, Shells)
        path = f"{self.backend.node_dir(machine)}/config.json"
        await self.backend.upload(machine, json.dumps(config).encode(), path)
        await self.backend.exec(machine, f"chmod 600 {shlex.quote(path)}")  # it contains the secret

    def _config(self, node: str) -> dict[str, Any]:
        """Build the configuration with the HA layer as the document names it; HA channel addresses are on its network.
        """
        config = super()._config(node)
        address = {name: self.backend.address(endpoint(name, CHANNEL)) for name in self.node_names}
        (other,) = (name for name in self.node_names if name != node)
        config["peers"] = {name: [address[name], LINK_PORT] for name in self.node_names}
        config["options"] |= {
            "Primary": node == self.node_names[0],
            "Lockfile": self._lockfile(),
            "BackupHAIPAddress": address[other],
            "BackupHAPort": LINK_PORT,
            "GatewayServerIPAddress": self.backend.address(GATEWAY),
            "GatewayServerPort": GATEWAY_PORT,
        }
        if self.shares:
            config["options"]["database"] = [self.backend.address(DATABASE), DATABASE_PORT]
        return config

    def _lockfile(self) -> str:
        return f"{self.backend.node_dir(GATEWAY)}/lockfile"

    def _gateway_config(self) -> dict[str, Any]:
        return {"host": self.backend.address(GATEWAY), "port": GATEWAY_PORT, "Lockfile": self._lockfile(),
                "servers": list(self.node_names), "cluster": CLUSTER, "secret": self._secret,
                "lease": float(self.test.options["lease"]), "bug": self.test.options["bug"]}

    def _database_config(self) -> dict[str, Any]:
        return {"data": f"{self.backend.node_dir(DATABASE)}/data", "host": self.backend.address(DATABASE),
                "port": DATABASE_PORT, "clients": list(self.node_names), "cluster": CLUSTER, "secret": self._secret,
                "store": self.test.options["store"], "page_rows": int(self.test.options["database_page"])}
