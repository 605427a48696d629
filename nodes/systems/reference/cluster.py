"""A running (or not yet running) cluster of reference brokers."""

from __future__ import annotations

import asyncio
import json
import secrets
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nodes.reference.config import parse_config
from nodes.reference.engine.model import QUEUE_PREFIX
from nodes.reference.engine.server_queues import MOVED, split
from nodes.reference.engine.topics import TOPIC_PREFIX
from nodes.reference.server.process import BrokerProcess
from nodes.reference.server.reaction import REACTION
from nodes.reference.server.services import DEFAULT_SERVICES
from nodes.stomp import ProtocolError
from nodes.systems.reference.admin_connection import AdminConnection
from nodes.systems.reference.code import OWN, install_code, module_command
from nodes.systems.reference.layout import SPARES, ReplicaGroup, broker_options
from stormproof.contracts.backend import Shells
from stormproof.contracts.cluster import Cluster, Deployment, NodeStatus
from stormproof.contracts.launch import Launcher
from stormproof.contracts.workload_requirements import Reaction
from stormproof.errors import BackendError
from stormproof.timeout_scale import timeout_scale

CLIENT_PORT = 61613
LINK_PORT = 61614
NETWORK_PORT = 61615
STATUS_TIMEOUT = 1.0
GUEST = "guest"
"""Default login and passcode of a broker (`stormproof broker`)."""
PASSCODE_COST = 256
"""Passcodes of a test protect nothing; their hashes should be cheap."""


class ReferenceCluster(Cluster):
    """Reference brokers of one design, and local servers if a workload has them."""

    def __init__(self, groups: tuple[ReplicaGroup, ...], deployment: Deployment) -> None:
        super().__init__(deployment)
        if self.attached:
            self.login = self.credentials.login or GUEST
            self.passcode = self.credentials.passcode or GUEST
        self.groups = groups
        self._group_of = {node: group for group in self.groups for node in group.nodes}
        # Unique to this run, and not to be guessed by clients, which know the passcode. No history depends on it.
        self._secret = secrets.token_hex(16)
        self._admins: dict[str, AdminConnection] = {}
        self._changed: dict[str, Mapping[str, Any]] = {}
        """Settings of single nodes that differ from the test's; ``_code``: the code of nodes with another version."""
        self._code: dict[str, Path] = {}
        self._status_timeout = STATUS_TIMEOUT * timeout_scale(self.backend)

    @property
    def servers(self) -> list[tuple[str, ...]]:
        """The nodes of each server, by its number."""
        return [group.nodes for group in self.groups]

    def client_addresses(self) -> list[tuple[str, int]]:
        """Return the addresses for clients: every node's listener, in the order of ``node_names``."""
        return [(self.backend.address(node), self._port(node)) for node in self.node_names]

    def _port(self, node: str) -> int:
        return self.attached.port(node) if self.attached else CLIENT_PORT

    async def install(self) -> None:
        """Upload code and configuration to all nodes."""
        if isinstance(self.backend, Shells):
            await install_code(self.backend, self.test.node_names)
            await asyncio.gather(*(self._configure(node) for node in self.test.node_names))

    async def start_program(self, machine: str, program: str) -> None:
        """Start the broker on one node."""
        backend, base = self.backend, self.backend.node_dir(machine)
        log = self.log_path(machine, program)
        if isinstance(backend, Launcher):
            config = parse_config(self._config(machine))
            await backend.launch(machine, program, partial(BrokerProcess, config), log)
            return
        assert isinstance(backend, Shells)
        code = self._code.get(machine, OWN)
        command = module_command(backend, machine, "nodes.reference", f"{base}/config.json", root=code)
        await backend.start(machine, program, command, log)

    async def change(self, node: str, settings: Mapping[str, Any], version: str = "") -> str | None:
        """Change the settings of a node's broker, and its version, as of its next start; return why not, or None.

        ``version`` is the folder of a checkout of that version, whose package ``nodes`` is used.
        """
        if unknown := [name for name in settings if name not in self._group_of[node].options]:
            return f"brokers have no setting {unknown[0]!r}"
        if version:
            root = Path(version) / "nodes"
            if not (root / "reference" / "__main__.py").is_file():
                return f"{version} holds no version of the reference broker (nodes/reference)"
            if not isinstance(self.backend, Shells):
                return "brokers in this process have its version"
            await install_code(self.backend, (node,), root)
            self._code[node] = root
        self._changed[node] = {**self._changed.get(node, {}), **settings}
        if isinstance(self.backend, Shells):
            await self._configure(node)
        return None

    def _detail(self, status: NodeStatus) -> str:
        """Return nothing: the detail of a broker's status is its whole state."""
        return ""

    def own_name(self, name: str) -> str:
        """Return the name itself: clients that speak STOMP use queues' names unchanged."""
        self.own_names.add(name)
        return name

    async def prepare(self) -> None:
        """Check, for brokers that ran before this test, that the test's queues contain no foreign messages."""
        held = await self.depths() if self.attached else None
        full = {name: count for name, count in (held or {}).items() if count and name in self.demands.queues}
        if full:
            told = ", ".join(f"{name} ({count})" for name, count in sorted(full.items()))
            raise BackendError(f"these queues hold messages that are not this run's: {told}; take them out, or attach "
                               "to a broker without")

    async def stop(self) -> None:
        """Stop all brokers in order."""
        for admin in self._admins.values():
            admin.close()
        await super().stop()

    async def status(self, node: str) -> NodeStatus:
        """Ask one node for its status; an unreachable one has ``reachable=False``."""
        try:
            return _node_status(node, await self._admin(node).status(self._status_timeout))
        except (OSError, TimeoutError, EOFError, ProtocolError, ValueError) as error:
            return NodeStatus(node, reachable=False, detail={"error": str(error) or type(error).__name__})

    async def time_of(self, node: str) -> float | None:
        """Return the broker's time of day; None when it does not answer."""
        try:
            return await self._admin(node).time_of_day(self._status_timeout)
        except (OSError, TimeoutError, EOFError, ProtocolError, ValueError):
            return None

    def _admin(self, node: str) -> AdminConnection:
        if node not in self._admins:
            address = self.backend.address(node)
            self._admins[node] = AdminConnection(address, self._port(node), self.login, self.passcode)
        return self._admins[node]

    def leading(self, statuses: Sequence[NodeStatus]) -> str | None:
        """Return the node of the first server that serves, the one with the highest epoch if several do."""
        status = _serving(statuses, self.groups[0])
        return status.node if status else None

    async def depths(self) -> dict[str, int] | None:
        """Return queue name -> messages left, as the serving nodes count them; None when some server does not serve.

        Messages that one server keeps for another one count for the queue there.
        """
        statuses = await self.statuses()
        total: dict[str, int] = {}
        for group in self.groups:
            status = _serving(statuses, group)
            if status is None or status.depths is None:
                return None
            for name, count in status.depths.items():
                queue = split(name)[1].removeprefix(MOVED).removeprefix(QUEUE_PREFIX)
                total[queue] = total.get(queue, 0) + count
        return total

    @property
    def linger(self) -> float:
        """The time until a detached reliable connection is closed."""
        return float(self.test.options.get("idle_timeout", 0.0))

    def healthy(self, statuses: Sequence[NodeStatus]) -> bool:
        """Tell whether every node is reachable and all agree on the serving node."""
        return all(status.reachable for status in statuses) and all(_agree(statuses, group) for group in self.groups)

    def spares(self) -> tuple[str, ...]:
        """Return the nodes that don't belong to the group at the beginning."""
        count = int(self.test.options.get(SPARES, 0))
        names = self.groups[0].nodes
        return names[len(names) - count :]

    async def members(self) -> tuple[str, ...]:
        """Return the group's members, as reported by the serving node; empty when no node serves."""
        primary = await self.primary()
        status = await self.status(primary) if primary else None
        return _members_of(status, ()) if status else ()

    async def add_member(self, node: str) -> str | None:
        """Ask the serving node to add a node to the group; None if it will, otherwise the reason why not.

        A replica of another server than the first one would be unknown there.
        """
        if node not in self.groups[0].nodes:
            return f"{node} belongs to another server"
        primary = await self.primary()
        if primary is None:
            return "nobody serves"
        address = self.backend.address(node)
        try:
            await self._admins[primary].add_replica(
                node, (address, LINK_PORT), f"{address}:{CLIENT_PORT}", self._status_timeout
            )
        except (OSError, TimeoutError, EOFError, ProtocolError) as error:
            return str(error) or type(error).__name__
        return None

    async def remove_member(self, node: str) -> str | None:
        """Ask the serving node to continue without a replica; None if it will, otherwise the reason why not."""
        primary = await self.primary()
        if primary is None:
            return "nobody serves"
        request = {"op": "remove-replica", "name": node}
        try:
            answer = await self._admins[primary].design(request, self._status_timeout)
        except (OSError, TimeoutError, EOFError, ProtocolError) as error:
            return str(error) or type(error).__name__
        return None if answer["ok"] else str(answer["error"])

    async def _configure(self, node: str) -> None:
        assert isinstance(self.backend, Shells)
        base = self.backend.node_dir(node)
        await self.backend.upload(node, json.dumps(self._config(node)).encode(), f"{base}/config.json")
        # The configuration contains passcode and secret, and other users may be on the machine.
        config, data = shlex.quote(f"{base}/config.json"), shlex.quote(f"{base}/data")
        await self.backend.exec(node, f"chmod 600 {config} && mkdir -p {data}")

    def _config(self, node: str) -> dict[str, Any]:
        spare = node in self.spares()
        group = self._group_of[node]
        names = tuple(name for name in group.nodes if name == node or name not in self.spares())
        address = {name: self.backend.address(name) for name in names}
        options = broker_options(self.test.options, group.options) | dict(self._changed.get(node, {}))
        if SPARES in options:
            options["join"] = spare
        if self.demands.security:
            options |= {"security": True, "passcode_cost": PASSCODE_COST}
        if group.replicated or len(self.groups) > 1:
            options["secret"] = self._secret
        return {
            "node": node,
            "design": group.design,
            "data": f"{self.backend.node_dir(node)}/data",
            "host": address[node],
            "port": CLIENT_PORT,
            "login": self.login,
            "passcode": self.passcode,
            "peers": {name: [address[name], LINK_PORT] for name in names} if group.replicated else {},
            "client_addresses": {name: f"{address[name]}:{CLIENT_PORT}" for name in names},
            "options": options,
            "services": _services(self.demands.reactions),
            **self._neighbours(group, names),
        }

    def _neighbours(self, group: ReplicaGroup, names: Sequence[str]) -> dict[str, Any]:
        """Return a replica's configuration of other servers, if there are any; ``names`` are the replicas that it
        knows.
        """
        if len(self.groups) == 1:
            return {}
        networks = {each.server: [[self.backend.address(node), NETWORK_PORT] for node in each.nodes]
                    for each in self.groups if each is not group}
        own = [[self.backend.address(node), NETWORK_PORT] for node in names]
        everywhere = list(range(self.demands.servers))
        names = [*(QUEUE_PREFIX + name for name in self.demands.queues),
                 *(TOPIC_PREFIX + name for name in self.demands.topics)]
        clustered = dict.fromkeys(names if self.demands.spread else (), everywhere)
        return {"server": group.server, "networks": [own], "clustered": clustered,
                "servers": {str(server): addresses for server, addresses in networks.items()}}


def _services(reactions: Sequence[Reaction]) -> list[list[str]]:
    """Return the services of a broker in which collocated clients run; none without reactions."""
    if not reactions:
        return []
    clients = [[REACTION, each.name, each.quality, each.source, each.target, each.taking] for each in reactions]
    return [*map(list, DEFAULT_SERVICES), *clients]


def _serving(statuses: Sequence[NodeStatus], group: ReplicaGroup) -> NodeStatus | None:
    """Return the status of a server's serving node, the one with the highest epoch if several serve."""
    serving = [status for status in statuses if status.serving and status.node in group.nodes]
    return max(serving, key=lambda status: status.epoch) if serving else None


def _agree(statuses: Sequence[NodeStatus], group: ReplicaGroup) -> bool:
    """Tell whether a server's nodes, which all answered, agree on one of them that serves."""
    found = [status for status in statuses if status.node in group.nodes]
    serving = [status for status in found if status.serving]
    if not group.replicated:
        return len(serving) == len(found)
    if len(serving) != 1:
        return False
    members = set(_members_of(serving[0], group.nodes))
    views = {(status.epoch, status.view) for status in found if status.node in members}
    return len(views) == 1 and set(serving[0].view) == members


def _members_of(status: NodeStatus, default: tuple[str, ...]) -> tuple[str, ...]:
    """Return the members of a node's group, if its status lists them."""
    return tuple((status.detail or {}).get("replicas", default))


def _node_status(node: str, answer: Mapping[str, Any]) -> NodeStatus:
    return NodeStatus(
        node=node,
        reachable=True,
        role=str(answer["role"]),
        serving=bool(answer["serving"]),
        epoch=int(answer["epoch"]),
        view=tuple(answer["view"]),
        depths=answer["depths"],
        detail=answer,
    )
