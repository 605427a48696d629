"""A cluster of qpid brokers, with a manager beside each, or with a person who promotes by hand."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from nodes.reference.config import parse_config
from nodes.reference.designs.qpid.manager.config import ManagerConfig, parse_manager_config
from nodes.reference.designs.qpid.manager.programs import BROKER
from nodes.reference.designs.qpid.options import BUILTIN
from nodes.reference.designs.qpid.states import PRIMARY, READY
from nodes.reference.manager import ManagerProcess
from nodes.reference.server.process import BrokerProcess
from nodes.reference.server.runtime import LoopRuntime
from nodes.stomp import ProtocolError
from nodes.systems.qpid.admin import best_store, first_start
from nodes.systems.qpid.programs import LaunchedPrograms
from nodes.systems.reference.cluster import CLIENT_PORT, ReferenceCluster
from nodes.systems.reference.code import module_command
from nodes.systems.reference.layout import Group
from stormproof.contracts.backend import Launcher, Shells
from stormproof.contracts.cluster import MAIN, POLL, Deployment, NodeStatus

MANAGER = "manager"
"""The program beside each broker."""
MANAGER_PORT = 61616
"""Where managers hear each other."""
LESSOR_PORT = 61617
"""Where a broker asks its manager whether it may go on."""
MANAGER_OPTIONS = ("manager_lease",)
"""What of a test's options is the managers' as well."""
PATIENCE = 5.0
"""Seconds for which a person waits whether a manager finds a primary."""
_STOP_SECONDS = 8.0
"""For a manager to end its broker, and itself."""


class QpidCluster(ReferenceCluster):
    """Brokers that their managers start, restart and promote; without managers the harness starts them."""

    reliable_connections = False

    def __init__(self, groups: tuple[Group, ...], deployment: Deployment) -> None:
        super().__init__(groups, deployment)
        self._done_by_hand: list[str] = []

    @property
    def managed(self) -> bool:
        """Whether there is a manager beside each broker."""
        return bool(self.test.options["manager"] == BUILTIN)

    def programs(self, machine: str) -> tuple[str, ...]:
        """The broker, and its manager if it has one."""
        return (MAIN, MANAGER) if self.managed else (MAIN,)

    def restarted(self, machine: str, program: str) -> bool:
        """Brokers are, by their managers; nobody starts a manager but the harness."""
        return self.managed and program == MAIN

    async def install(self) -> None:
        """Upload code and configurations to all nodes."""
        await super().install()
        if self.managed and isinstance(self.backend, Shells):
            await asyncio.gather(*(self._configure_manager(node) for node in self.test.node_names))

    async def start_program(self, machine: str, program: str) -> None:
        """Start a broker, or a manager."""
        if program != MANAGER:
            await super().start_program(machine, program)
            return
        backend, log = self.backend, self.log_path(machine, program)
        if isinstance(backend, Launcher):
            config = parse_manager_config(self._manager_config(machine))
            await backend.launch(machine, program, self._manager_launcher(machine, config), log)
            return
        assert isinstance(backend, Shells)
        path = f"{backend.node_dir(machine)}/{MANAGER}.json"
        await backend.start(machine, program, module_command(backend, machine, "nodes.reference.manager", path), log)

    async def stop(self) -> None:
        """Stop the managers first, which end their brokers: else these would be started again."""
        if self.managed:
            await asyncio.gather(*(self.backend.stop(node, MANAGER, _STOP_SECONDS) for node in self.test.node_names))
        await super().stop()

    def healthy(self, statuses: Sequence[NodeStatus]) -> bool:
        """Whether there is one primary, whose backups are ready: all others."""
        if not all(status.reachable for status in statuses):
            return False
        serving = [status for status in statuses if status.serving]
        if len(serving) != 1:
            return False
        states: Mapping[str, str] = (serving[0].detail or {}).get("backups", {})
        return all(states.get(status.node) == READY for status in statuses if status is not serving[0])

    async def await_healthy(self, timeout: float) -> bool:
        """Wait until the cluster is healthy, with a person who looks after it meanwhile; False when ``timeout`` passes.

        The person does what no manager does: after the loss of all brokers, takes the best store [LM6]; without
        managers, names the primary.
        """
        loop = asyncio.get_running_loop()
        deadline, waits_since = loop.time() + timeout, loop.time()
        while True:
            statuses = await self.statuses()
            if self.healthy(statuses):
                return True
            now = loop.time()
            patience = self._patience(statuses)
            if patience is None:
                waits_since = now
            elif now >= waits_since + patience:
                await self._act_as_person(statuses)
                waits_since = now
            if now >= deadline:
                return False
            await asyncio.sleep(POLL)

    async def ask(self, node: str, **request: Any) -> Mapping[str, Any]:
        """A broker's answer to an administrator's request, once it has told its status; raises as ``design`` does."""
        return dict(await self._admins[node].design(request, self._status_timeout))

    async def repair(self) -> str:
        """What a person did while the cluster became healthy."""
        done, self._done_by_hand = "; ".join(self._done_by_hand), []
        return done

    def _patience(self, statuses: Sequence[NodeStatus]) -> float | None:
        """For how long all brokers have to be there without a primary until a person acts; None while one is missing.

        Managers that have somebody to promote get longer. They may have nobody else than brokers that the last primary
        had noted it would go on without, while it lost its own place before it could.
        """
        found = [status.detail or {} for status in statuses]
        if not all(status.reachable for status in statuses) or any(each["state"] == PRIMARY for each in found):
            return None
        able = self.managed and (any(each["eligible"] for each in found) or first_start(found))
        return 4 * PATIENCE if able else PATIENCE

    async def _act_as_person(self, statuses: Sequence[NodeStatus]) -> None:
        found = {status.node: status.detail or {} for status in statuses}
        chosen = best_store(found) or max(found, key=lambda node: int(found[node]["generation"]))
        done = f"accepted the store of {chosen} as the best"
        request: dict[str, Any] = {"op": "accept-store"}
        fresh = not self.managed and first_start(list(found.values()))
        if not self.managed:
            eligible = [node for node in found if found[node]["eligible"]]
            chosen = next(iter(found)) if fresh else next(iter(eligible), chosen)
            done = f"promoted {chosen}"
            request = {"op": "promote", "bootstrap": fresh, "force": not (fresh or eligible)}
        try:
            answer = await self.ask(chosen, **request)
        except (OSError, TimeoutError, EOFError, ProtocolError, ValueError) as error:
            answer = {"error": str(error) or type(error).__name__}
        if not answer.get("ok"):
            done = f"tried in vain: {chosen} says {answer.get('error')}"
        elif fresh:
            return  # no repair: every first start is like that
        self._done_by_hand.append(done)

    def _manager_launcher(self, machine: str, config: ManagerConfig) -> Callable[[LoopRuntime], ManagerProcess]:
        broker = partial(BrokerProcess, parse_config(self._config(machine)))
        programs = LaunchedPrograms(self.backend, machine, {BROKER: (broker, self.log_path(machine, MAIN))})
        return lambda runtime: ManagerProcess(config, runtime, programs)

    def _config(self, node: str) -> dict[str, Any]:
        config = super()._config(node)
        if self.managed:
            config["options"]["manager_address"] = [self.backend.address(node), LESSOR_PORT]
        return config

    async def _configure_manager(self, node: str) -> None:
        assert isinstance(self.backend, Shells)
        path = f"{self.backend.node_dir(node)}/{MANAGER}.json"
        await self.backend.upload(node, json.dumps(self._manager_config(node)).encode(), path)
        await self.backend.exec(node, f"chmod 600 {shlex.quote(path)}")  # it holds passcode and secret

    def _manager_config(self, node: str) -> dict[str, Any]:
        """Other managers are at their nodes' addresses; the broker is started as the harness would start it."""
        backend, base = self.backend, self.backend.node_dir(node)
        config = {
            "node": node,
            "data": f"{base}/data",
            "members": {name: [backend.address(name), MANAGER_PORT] for name in self.test.node_names},
            "listen": [backend.address(node), LESSOR_PORT],
            "broker": [backend.address(node), CLIENT_PORT],
            "login": self.login,
            "passcode": self.passcode,
            "secret": self._secret,
            "options": {name: self.test.options[name] for name in MANAGER_OPTIONS},
        }
        if isinstance(backend, Shells):
            config["command"] = module_command(backend, node, "nodes.reference", f"{base}/config.json")
            config["pid_file"], config["log"] = f"{base}/{MAIN}.pid", self.log_path(node, MAIN)
        return config
