"""The reference broker as a system under test: upload, configure, start, ask."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import io
import json
import secrets
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import nodes
from harness.errors import BackendError, UsageError
from harness.history import moments
from harness.protocols import Backend, InProcessBackend, NodeStatus, Option
from harness.slowness import SLOW, slowness
from harness.spec import Test
from nodes.reference.api import Config, ConfigError
from nodes.reference.bugs import NONE
from nodes.reference.config import parse_config
from nodes.reference.coverage import BROKER_STATES, State
from nodes.reference.icestorm import promises as icestorm
from nodes.reference.icestorm.coverage import STATES as ICESTORM_STATES
from nodes.reference.icestorm.options import Options as IceStormOptions
from nodes.reference.joram import promises as joram
from nodes.reference.joram.coverage import STATES as JORAM_STATES
from nodes.reference.joram.options import Options as JoramOptions
from nodes.reference.limits import Limits
from nodes.reference.outside import MOVED, split
from nodes.reference.process import BrokerProcess
from nodes.reference.promises import Promise, Trial
from nodes.reference.queues import QUEUE_PREFIX
from nodes.reference.reaction import REACTION
from nodes.reference.services import DEFAULT_SERVICES
from nodes.stomp import ProtocolError
from nodes.systems.admin import AdminConnection

CLIENT_PORT = 61613
LINK_PORT = 61614
NETWORK_PORT = 61615
LOGIN = "stormproof"
STATUS_TIMEOUT = 1.0
_POLL = 0.1
_LONGEST_LINE = 300


MESSAGING = frozenset({"queues", "topics", "transactions"})


@dataclass(frozen=True)
class ReferenceSystem:
    """One design of the reference broker.

    ``options`` are the ``--set`` settings that reach the broker's configuration under the same names;
    ``replicated`` is false for a design whose nodes know nothing of each other. ``provides`` names what workloads may
    need of it. ``states`` are those whose coverage a run reports; ``promises`` and ``modes`` are what the design
    promises in which mode, ``trial`` what the modes are tried with. ``read_options`` raises ConfigError when a broker
    would refuse its configuration's options.
    """

    name: str
    replicated: bool
    options: tuple[Option, ...] = ()
    provides: frozenset[str] = MESSAGING
    states: tuple[State, ...] = BROKER_STATES
    promises: tuple[Promise, ...] = ()
    modes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trial: Trial = field(default_factory=Trial)
    read_options: Callable[[Config], object] = field(default=lambda config: None)
    min_nodes: int = 1
    max_nodes: int = 64

    def layout(self, test: Test) -> tuple[Group, ...]:
        """The servers of a test: those of this design, then the local ones that are not replicated.

        Options ``ha_servers`` and ``local_servers``, where a workload has them, say how many of each.
        """
        names, local = test.node_names, local_servers(test.options)
        servers = ha_servers(test.options)
        each = (len(names) - local) // servers
        groups = [Group(number, self, names[number * each : (number + 1) * each]) for number in range(servers)]
        groups += [Group(servers + place, Standalone, (name,)) for place, name in enumerate(names[each * servers :])]
        return tuple(groups)

    def check(self, test: Test) -> None:
        """Raises UsageError when the brokers would refuse one of the test's settings."""
        names = self.layout(test)[0].nodes
        options = {option.name: test.options[option.name] for option in self.options}
        config = Config(names[0], self.name, "", peers=dict.fromkeys(names, ("", 1)), options=options)
        try:
            Limits.from_options(test.options)
            self.read_options(config)
        except ConfigError as error:
            raise UsageError(f"--set {str(error).removeprefix('options.')}") from None

    def cluster(self, test: Test, backend: Backend, passcode: str) -> ReferenceCluster:
        """A cluster of this design on provisioned nodes."""
        return ReferenceCluster(self, test, backend, passcode)


@dataclass(frozen=True)
class Group:
    """One server as the others see it: its number, its design, and the nodes that are its replicas."""

    server: int
    system: ReferenceSystem
    nodes: tuple[str, ...]


BUG = Option("bug", NONE, "bugs of the broker to switch on, joined by commas; `stormproof list bugs` names them")

Standalone = ReferenceSystem(
    "standalone",
    replicated=False,
    max_nodes=1,
    options=(
        Option("idle_timeout", 5.0, "seconds after which a detached reliable connection is closed"),
        BUG,
    ),
)

Joram = ReferenceSystem(
    "joram",
    replicated=True,
    states=JORAM_STATES,
    min_nodes=2,
    promises=joram.PROMISES,
    read_options=JoramOptions.from_config,
    modes=joram.MODES,
    trial=joram.TRIAL,
    options=(
        Option("partitions", "primary-partition", "who may serve when the network splits",
               ("primary-partition", "unspecified")),
        Option("ack", "all", "which replicas must have a command before it is confirmed", ("all", "majority")),
        Option("propagation", "synchronous", "asynchronous: a message is confirmed once the master has it on disk",
               ("synchronous", "asynchronous")),
        Option("sync_interval", 0.05, "seconds between synchronisations of the replicas (asynchronous propagation)"),
        Option("detection_timeout", 1.0, "seconds of silence after which a replica is taken for failed"),
        Option("transfer", "two-step", "how the whole state is sent to a replica that comes new or late",
               ("two-step", "held-back")),
        Option("spares", 0, "nodes that don't belong to the group at first; the nemesis `membership` adds them"),
        Option("log_keep", 10_000, "entries kept for replicas that come back; one further behind gets the whole state"),
        Option("idle_timeout", 5.0, "seconds after which a detached reliable connection is closed"),
        BUG,
    ),
)  # fmt: skip

IceStorm = ReferenceSystem(
    "icestorm",
    replicated=True,
    states=ICESTORM_STATES,
    promises=icestorm.PROMISES,
    read_options=IceStormOptions.from_config,
    modes=icestorm.MODES,
    trial=icestorm.TRIAL,
    min_nodes=3,
    provides=frozenset({"topic manager", "events"}),
    options=(
        Option("election_timeout", 1.0, "seconds that invitations may take; coordinators look around as often"),
        Option("master_timeout", 1.0, "seconds between a slave's questions to its coordinator"),
        Option("response_timeout", 0.5, "seconds that a replica has to answer another"),
        Option("stamp", "counter", "what tells which database is the most recent", ("counter", "wall-clock")),
        Option("reads", "confirmed", "who answers questions: the coordinator, once a majority has confirmed it, or any "
               "replica from its own database", ("confirmed", "local")),
        Option("step_down", "checked", "when a coordinator finds that its majority is gone: at its next look, or when "
               "it can't make a change", ("checked", "on-write")),
        Option("offline_events", "kept", "events for a subscriber that can't be reached: kept until it is removed, or "
               "discarded", ("kept", "discarded")),
        Option("acm_timeout", 0.0, "seconds after which idle connections are closed; 0: never"),
        BUG,
    ),
)  # fmt: skip


@functools.cache
def node_files() -> Mapping[str, bytes]:
    """The code that runs on a node: paths and contents."""
    root = Path(nodes.__file__).parent
    files = [*sorted(root.glob("*.py")), *sorted((root / "reference").rglob("*.py"))]
    return {str(Path("nodes") / file.relative_to(root)): file.read_bytes() for file in files}


def node_archive() -> bytes:
    """The code that runs on a node, as a zip file; the same bytes for the same code."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in node_files().items():
            archive.writestr(zipfile.ZipInfo(path), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def node_hashes() -> str:
    """The SHA-256 of each file of the code, as sha256sum(1) prints and checks them."""
    return "".join(f"{hashlib.sha256(content).hexdigest()}  {path}\n" for path, content in node_files().items())


def is_whole(code: str) -> str:
    """A shell command that succeeds where the folder ``code`` on a node holds exactly this code."""
    return f"(cd {code} 2>/dev/null && sha256sum --check --status <<'END'\n{node_hashes()}END\n)"


class ReferenceCluster:
    """A running (or not yet running) cluster of reference brokers."""

    def __init__(self, system: ReferenceSystem, test: Test, backend: Backend, passcode: str) -> None:
        self.system = system
        self.test = test
        self.backend = backend
        self.login = LOGIN
        self.passcode = passcode
        self.groups = system.layout(test)
        self._group_of = {node: group for group in self.groups for node in group.nodes}
        self._admins: dict[str, AdminConnection] = {}
        self._status_timeout = STATUS_TIMEOUT * slowness(backend)
        self._in_process = cast(InProcessBackend, backend) if backend.in_process else None

    @property
    def node_names(self) -> tuple[str, ...]:
        """The nodes that clients may connect to."""
        return self.test.node_names

    @property
    def servers(self) -> list[tuple[str, ...]]:
        """The nodes of each server, by its number."""
        return [group.nodes for group in self.groups]

    def client_addresses(self) -> list[tuple[str, int]]:
        """Where clients connect: every node's listener, in the order of ``node_names``."""
        return [(self.backend.address(node), CLIENT_PORT) for node in self.node_names]

    async def install(self) -> None:
        """Upload code and configuration to all nodes.

        Raises:
            BackendError: a node has no usable Python, or refused the files.
        """
        if self._in_process is not None:
            return
        archive = node_archive()
        await asyncio.gather(*(self._install_node(node, archive) for node in self.test.node_names))

    async def start(self) -> None:
        """Start the broker on all nodes."""
        await asyncio.gather(*(self.start_node(node) for node in self.test.node_names))

    async def start_node(self, node: str) -> None:
        """Start the broker on one node."""
        base = self.backend.node_dir(node)
        if self._in_process is not None:
            config = parse_config(self._config(node))
            await self._in_process.launch(node, partial(BrokerProcess, config), f"{base}/broker.log")
            return
        argv = ["env", f"PYTHONPATH={self._code(node)}", "PYTHONUNBUFFERED=1", self.backend.python(node),
                "-m", "nodes.reference", f"{base}/config.json"]  # fmt: skip
        await self.backend.start(node, argv, f"{base}/broker.log")

    async def stop(self) -> None:
        """Stop all brokers in order."""
        for admin in self._admins.values():
            admin.close()
        await asyncio.gather(*(self.backend.stop(node) for node in self.test.node_names))

    async def status(self, node: str) -> NodeStatus:
        """Ask one node; an unreachable one has ``reachable=False``."""
        admin = self._admins.get(node)
        if admin is None:
            address = self.backend.address(node)
            admin = self._admins[node] = AdminConnection(address, CLIENT_PORT, self.login, self.passcode)
        try:
            return _node_status(node, await admin.status(self._status_timeout))
        except (OSError, TimeoutError, EOFError, ProtocolError, ValueError) as error:
            return NodeStatus(node, reachable=False, detail={"error": str(error) or type(error).__name__})

    async def statuses(self) -> list[NodeStatus]:
        """Ask all nodes at once."""
        return list(await asyncio.gather(*(self.status(node) for node in self.test.node_names)))

    async def master(self) -> str | None:
        """The node of the first server that serves, the one with the highest epoch if several do."""
        status = _serving(await self.statuses(), self.groups[0])
        return status.node if status else None

    async def depths(self) -> dict[str, int] | None:
        """Queue name -> messages left, as the serving nodes count them; None when some server does not serve.

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

    async def await_healthy(self, timeout: float) -> bool:
        """Wait until every node is reachable and all agree on who serves."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            if self._healthy(await self.statuses()):
                return True
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(_POLL)

    def _healthy(self, statuses: list[NodeStatus]) -> bool:
        return all(status.reachable for status in statuses) and all(_agree(statuses, group) for group in self.groups)

    def spares(self) -> tuple[str, ...]:
        """The nodes that don't belong to the group at the beginning."""
        count = int(self.test.options.get("spares", 0))
        names = self.groups[0].nodes
        return names[len(names) - count :]

    async def group(self) -> tuple[str, ...]:
        """Who belongs to the group, as the serving node says; empty when nobody serves."""
        master = await self.master()
        status = await self.status(master) if master else None
        return _members_of(status, ()) if status else ()

    async def add_node(self, node: str) -> str | None:
        """Ask the serving node to take a node into the group; None if it will, otherwise why not."""
        master = await self.master()
        if master is None:
            return "nobody serves"
        address = self.backend.address(node)
        try:
            await self._admins[master].add_replica(
                node, (address, LINK_PORT), f"{address}:{CLIENT_PORT}", self._status_timeout
            )
        except (OSError, TimeoutError, EOFError, ProtocolError) as error:
            return str(error) or type(error).__name__
        return None

    async def describe(self) -> str:
        """One line on every node, for an error message."""
        parts = []
        for status in await self.statuses():
            if status.reachable:
                parts.append(f"{status.node} {status.role} epoch {status.epoch} view {','.join(status.view)}")
            else:
                process = await self.backend.process(status.node)
                error = (status.detail or {}).get("error")
                said = f", its last words: {await self._last_words(status.node)}" if process.state == "dead" else ""
                parts.append(f"{status.node} unreachable ({error}; its process is {process.state}{said})")
        return "; ".join(parts)

    async def _last_words(self, node: str) -> str:
        """The last line of a node's log."""
        try:
            log = await self.backend.download(node, f"{self.backend.node_dir(node)}/broker.log")
        except BackendError as error:
            return str(error)
        lines = log.decode(errors="replace").strip().splitlines()
        return lines[-1][:_LONGEST_LINE] if lines else "none"

    async def collect_logs(self, folder: Path) -> None:
        """Copy each node's log into ``folder`` as ``<node>.log``; a node that has none gets an empty file."""
        folder.mkdir(parents=True, exist_ok=True)
        for node in self.test.node_names:
            path = f"{self.backend.node_dir(node)}/broker.log"
            try:
                content = await self.backend.download(node, path)
            except BackendError as error:
                content = f"(no log: {error})\n".encode()
            (folder / f"{node}.log").write_bytes(content)
            if self._in_process is not None and "clock" in self.test.nemesis:
                with suppress(BackendError):
                    content = await self.backend.download(node, path + moments.SUFFIX)
                    (folder / f"{node}.log{moments.SUFFIX}").write_bytes(content)

    async def _install_node(self, node: str, archive: bytes) -> None:
        base, code = self.backend.node_dir(node), self._code(node)
        python = self.backend.python(node)
        if (await self.backend.exec(node, is_whole(code))).status:
            await self.backend.upload(node, archive, f"{base}/code.zip")
            part = f"{code}.{secrets.token_hex(4)}.part"
            # Another run may be doing the same on this host: what is whole stays.
            result = await self.backend.exec(
                node, f"{python} -m zipfile -e {base}/code.zip {part} && {{ mv -T {part} {code} 2>/dev/null; "
                f"{is_whole(code)} || {{ rm -rf {code}; mv -T {part} {code}; }}; }}; rm -rf {part}; {is_whole(code)}",
                timeout=30 * SLOW,
            )  # fmt: skip
            if result.status:
                raise BackendError(f"{node}: can't unpack the broker with {python}: {result.output.strip()[-300:]}")
        await self.backend.exec(node, f"mkdir -p {base}/data")
        await self.backend.upload(node, json.dumps(self._config(node)).encode(), f"{base}/config.json")

    def _code(self, node: str) -> str:
        """The broker's code on a node, in a folder that is named by what is in it."""
        return f"{self.backend.code_dir(node)}/{hashlib.sha256(node_hashes().encode()).hexdigest()[:16]}"

    def _config(self, node: str) -> dict[str, Any]:
        spare = node in self.spares()
        group = self._group_of[node]
        system = group.system
        names = tuple(name for name in group.nodes if name == node or name not in self.spares())
        address = {name: self.backend.address(name) for name in names}
        return {
            "node": node,
            "design": system.name,
            "data": f"{self.backend.node_dir(node)}/data",
            "host": address[node],
            "port": CLIENT_PORT,
            "login": self.login,
            "passcode": self.passcode,
            "peers": {name: [address[name], LINK_PORT] for name in names} if system.replicated else {},
            "client_addresses": {name: f"{address[name]}:{CLIENT_PORT}" for name in names},
            "options": {option.name: self.test.options[option.name] for option in system.options}
            | ({"secret": f"links of {self.passcode}"} if system.replicated or len(self.groups) > 1 else {})
            | ({"join": spare} if system is Joram else {}),
            "services": reactions(self.test.options),
            **self._neighbours(group, names),
        }

    def _neighbours(self, group: Group, names: Sequence[str]) -> dict[str, Any]:
        """What a replica has to know of other servers, if there are any; ``names`` are the replicas that it knows."""
        if len(self.groups) == 1:
            return {}
        networks = {each.server: [[self.backend.address(node), NETWORK_PORT] for node in each.nodes]
                    for each in self.groups if each is not group}
        own = [[self.backend.address(node), NETWORK_PORT] for node in names]
        clustered = {f"{QUEUE_PREFIX}q{key}": list(range(ha_servers(self.test.options)))
                     for key in range(int(self.test.options.get("queues", 0))) if "ha_servers" in self.test.options}
        return {"server": group.server, "networks": [own], "clustered": clustered,
                "servers": {str(server): addresses for server, addresses in networks.items()}}


def local_servers(options: Mapping[str, Any]) -> int:
    """How many nodes are servers of their own, not replicated, beside the servers of the design."""
    return int(options.get("local_servers", 0))


def ha_servers(options: Mapping[str, Any]) -> int:
    """How many servers of the design there are."""
    return int(options.get("ha_servers", 1))


def reactions(options: Mapping[str, Any]) -> list[list[str]]:
    """The services of a broker in which collocated clients run; none if no option asks for that.

    Client number K takes from queue (or topic) ``in.K`` and sends to queue ``out.K``.
    """
    if "quality" not in options:
        return []
    clients = [[REACTION, f"r{lane}", options["quality"], f"/{options['source']}/in.{lane}", f"/queue/out.{lane}"]
               for lane in range(options["queues"])]
    return [*map(list, DEFAULT_SERVICES), *clients]


def _serving(statuses: list[NodeStatus], group: Group) -> NodeStatus | None:
    """The one of a server's nodes that serves, that with the highest epoch if several do."""
    serving = [status for status in statuses if status.serving and status.node in group.nodes]
    return max(serving, key=lambda status: status.epoch) if serving else None


def _agree(statuses: list[NodeStatus], group: Group) -> bool:
    """Whether a server's nodes, which all answered, agree on one of them that serves."""
    found = [status for status in statuses if status.node in group.nodes]
    serving = [status for status in found if status.serving]
    if not group.system.replicated:
        return len(serving) == len(found)
    if len(serving) != 1:
        return False
    members = set(_members_of(serving[0], group.nodes))
    views = {(status.epoch, status.view) for status in found if status.node in members}
    return len(views) == 1 and set(serving[0].view) == members


def _members_of(status: NodeStatus, default: tuple[str, ...]) -> tuple[str, ...]:
    """Who belongs to a node's group, if it tells."""
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
