"""The cluster of a broker that is known by its protocol alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from stormproof.apart import OwnLoop, at_home, left_after
from stormproof.contracts.backend import RUNNING
from stormproof.contracts.client import NotDone, Starting
from stormproof.contracts.cluster import Cluster, Deployment, NodeStatus
from stormproof.contracts.project import RunsProject
from stormproof.contracts.protocol_client import Access, Broker, BrokerSetup, ProtocolClient
from stormproof.errors import BackendError, UsageError
from stormproof.text import reason
from stormproof.timeout_scale import timeout_scale

T = TypeVar("T")

CONNECT_SECONDS = 3.0
"""The time limit for a replica to let a client of the harness in."""
TIME_SECONDS = 10.0
"""The time limit for a broker to tell its time: HTTP's tells whole seconds, and is asked until a second begins."""
HOOK_SECONDS = 30.0
"""The time limit for a command of the user's."""
LAST_LINES, LINE_LENGTH = 3, 200
"""The lines of a container's log, and their characters, that an error shows: a program's last error fits in."""
HEALTHY = "healthy"
LEADER = "leader"
"""The role of the replica that the protocol, or the user's command, calls the leader."""


class AnyBrokerCluster(Cluster):
    """Replicas that a Compose project starts, or that run already."""

    def __init__(self, protocol: ProtocolClient, deployment: Deployment) -> None:
        super().__init__(deployment)
        self.protocol = protocol
        self._project: RunsProject | None = self.backend if isinstance(self.backend, RunsProject) else None
        self._patience = timeout_scale(self.backend)
        self._asking: OwnLoop | None = None
        self._leader_asked: asyncio.Future[str | None] | None = None

    async def install(self) -> None:
        """Do nothing: the project's containers are there."""

    async def start(self) -> None:
        """Start the project."""
        if self._project is None:
            raise UsageError(f"{self.test.system} starts no broker: give --compose FILE, or --attach HOST:PORT")
        await self._project.up()

    async def start_program(self, machine: str, program: str) -> None:
        """Start a container again."""
        assert self._project is not None
        await self._project.start_machine(machine)

    def restarted(self, machine: str, program: str) -> bool:
        """Return whether the project restarts it (``restart:``)."""
        return self._project.restarts(machine) if self._project is not None else super().restarted(machine, program)

    async def status(self, node: str) -> NodeStatus:
        """Return whether the replica serves, and whether it leads, if that is known."""
        found, leader = await asyncio.gather(self._served(node), self._leader())
        return replace(found, role=LEADER) if found.reachable and leader == node else found

    async def _served(self, node: str) -> NodeStatus:
        """Return whether the replica serves: by the project's health check, or if it lets a client in."""
        try:
            if self._project is not None and (health := await self._project.health(node)):
                return NodeStatus(node, reachable=health == HEALTHY, role=health, serving=health == HEALTHY,
                                  detail={"error": f"its health check says {health}"})
            await left_after(CONNECT_SECONDS * self._patience, self._ask(lambda: self._get_in(self._broker(node))))
        except NotDone as error:  # it answers: a replica that follows another one may refuse clients
            return NodeStatus(node, reachable=True, role="standby", detail={"error": str(error)})
        except Exception as error:
            return NodeStatus(node, reachable=False, detail={"error": reason(error)})
        return NodeStatus(node, reachable=True, role="up", serving=True)

    def healthy(self, statuses: Sequence[NodeStatus]) -> bool:
        """Return whether all replicas answer, and one of them serves."""
        return all(status.reachable for status in statuses) and any(status.serving for status in statuses)

    async def prepare(self) -> None:
        """Create what the workload uses, by the protocol and by the user's command, and sync it: faults are to hit the
        load, not this.

        Raises:
            BackendError: a replica tells clients to connect to an address that they can't reach.
        """
        setup = self._setup()
        if self._project is not None and self._project.has_hook("prepare"):
            await self._project.run_hook("prepare", self._names(), HOOK_SECONDS)
        await self._ask(lambda: self.protocol.prepare(setup))
        if self._project is not None:
            self._demand_reachable(await self._ask(lambda: self.protocol.advertised(setup)))
            await self._project.sync_disks()

    async def repair(self) -> str:
        """Run the user's command for it; return its last line."""
        if self._project is None or not self._project.has_hook("repair"):
            return ""
        output = await self._project.run_hook("repair", self._names(), HOOK_SECONDS)
        return output.strip().splitlines()[-1] if output.strip() else "the project's repair command was run"

    async def _leader(self) -> str | None:
        """Return the leader. The concurrent statuses of all replicas share one answer."""
        if self._leader_asked is None or self._leader_asked.done():
            self._leader_asked = asyncio.ensure_future(self._ask_leader())
        return await asyncio.shield(self._leader_asked)

    async def _ask_leader(self) -> str | None:
        """Return the leader by the user's command, or by the protocol if one replica leads all objects."""
        if self._project is not None and self._project.has_hook("leader"):
            try:
                named = (await self._project.run_hook("leader", self._names(), HOOK_SECONDS)).split()
            except BackendError:
                return None
            return named[0] if named and named[0] in self.node_names else None
        if not self.protocol.one_leader:
            return None
        found = set((await self.leaders()).values())
        return found.pop() if len(found) == 1 else None

    async def leaders(self) -> Mapping[str, str]:
        """Return the leader of each object, as the protocol tells it."""
        setup = self._setup()
        try:
            return await left_after(HOOK_SECONDS, self._ask(lambda: self.protocol.leaders(setup)))
        except Exception:  # as for a status
            return {}

    async def move_leader(self, name: str, node: str) -> None:
        """Ask by the protocol to hand over the leadership of an object."""
        setup = self._setup()
        await left_after(HOOK_SECONDS, self._ask(lambda: self.protocol.move_leader(setup, name, node)))

    async def time_of(self, node: str) -> float | None:
        """Return the time that the broker tells; None while it does not answer."""
        setup, broker = self._setup(), self._broker(node)
        try:
            return await left_after(TIME_SECONDS, self._ask(lambda: self.protocol.time_of(setup, broker)))
        except Exception:  # as for a status
            return None

    @property
    def leader_witnesses(self) -> tuple[str, ...]:
        """Return the protocol as the only witness, if it tells leaders."""
        return ("",) if type(self.protocol).leaders is not ProtocolClient.leaders else ()

    async def leave(self) -> str:
        """Delete what the run has created on a broker that continues to run."""
        setup, names = self._setup(), sorted(self.own_names)
        left = await self._ask(lambda: self.protocol.clear(setup, names)) if names else ()
        return f"left there, since its clients can't delete them: {', '.join(left)}" if left else ""

    def queue_connection(self) -> Any:
        """Return a new connection of the protocol, which connects from its client's place."""
        connection = self.protocol.connection(self._setup())
        if self._project is not None:
            connection.__class__ = _placed(type(connection))
            connection.cluster = self
        return connection

    def client_addresses(self) -> Sequence[tuple[str, int]]:
        """Return the replicas' names and ports for clients."""
        return [(broker.host, broker.port) for broker in self._setup().brokers]

    def enter_place(self, address: str) -> None:
        """Move the calling thread into a client place."""
        assert self._project is not None
        self._project.enter_place(address)

    async def depth_by_hook(self, queue: str) -> int | None:
        """Return a queue's depth by the user's command; None if there is none."""
        project = self._project
        if project is None or not project.has_hook("depth"):
            return None
        environment = {**self._names(), "STORMPROOF_QUEUE": queue}
        output = await at_home(lambda: project.run_hook("depth", environment, HOOK_SECONDS))
        try:
            return int(output.split()[-1])
        except (ValueError, IndexError):
            raise BackendError(f"the project's depth command printed no number: {output[-200:]!r}") from None

    async def collect_logs(self, folder: Path) -> None:
        """Keep the output of each container."""
        folder.mkdir(parents=True, exist_ok=True)
        if self._project is None:
            return
        for machine in self.topology.machines:
            try:
                content = await self._project.log(machine)
            except BackendError as error:
                content = f"(no log: {error})\n".encode()
            (folder / f"{machine}.log").write_bytes(content)

    async def _described(self, status: NodeStatus) -> str:
        if status.reachable or self._project is None:
            return await super()._described(status)
        process = await self.backend.process(status.node, "")
        said = (await self._project.log(status.node)).decode("utf-8", "replace").strip().splitlines()
        state = "" if process.state == RUNNING else f"; its container is {process.state}"
        if (ended := await self._project.exit_status(status.node)) is not None:
            job = " (a job is no replica: leave it out of --replicas)" if ended == 0 else ""
            state = f"; its container has ended with status {ended}{job}"
        last = " | ".join(line.partition(" ")[2].strip()[:LINE_LENGTH] for line in said[-LAST_LINES:])
        words = f"; its last words: {last}" if last else ""
        return f"{status.node} does not serve ({(status.detail or {}).get('error')}{state}{words})"

    async def _get_in(self, broker: Broker) -> None:
        connection = self.protocol.own_connection(self._setup())
        try:
            await connection.connect(broker.host, broker.port, "")
        finally:
            await connection.close()

    def _broker(self, node: str) -> Broker:
        return next(broker for broker in self._setup().brokers if broker.node == node)

    def _setup(self) -> BrokerSetup:
        if self._project is not None:
            port, access = self._project.access()
            hosts = [(self._project.host_name(node), port or self._port(access)) for node in self.node_names]
        else:
            assert self.attached is not None
            access = Access(self.credentials)
            hosts = [(self.backend.address(node), self.attached.port(node)) for node in self.node_names]
        brokers = [Broker(node, *place) for node, place in zip(self.node_names, hosts, strict=True)]
        setup = BrokerSetup(brokers, access, self.demands, self.test.options, tell=self.tell_client_line)
        # In a project, a connection's thread is in its place when it starts a program, which belongs there, too.
        return setup if self._project is not None else replace(setup, place_command=self.place_command)

    def _port(self, access: Access) -> int:
        return self.protocol.port_of(self.test.options, access.tls is not None)

    def _names(self) -> dict[str, str]:
        """Return the environment of the user's commands: the names of the objects that the workload uses."""
        kinds = {"QUEUES": self.demands.queues, "TOPICS": self.demands.topics, "LOGS": self.demands.logs}
        return {f"STORMPROOF_{kind}": " ".join(names) for kind, names in kinds.items() if names}

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a request of the harness itself, made from its own place."""
        if self._project is None:
            return await call()
        project = self._project
        self._asking = self._asking or OwnLoop()

        def there() -> Awaitable[T]:
            project.enter_place("")
            return call()

        found: T = await self._asking.call("a request of the harness", there)
        return found

    def _demand_reachable(self, advertised: Mapping[str, tuple[str, int]]) -> None:
        expected = {broker.node: broker for broker in self._setup().brokers}
        for node, (host, port) in advertised.items():
            local = host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "")
            if local or (node in expected and port != expected[node].port):
                raise BackendError(
                    f"{node} tells clients to connect to {host}:{port}, which they can't reach in the project's "
                    f"networks; set its advertised address to {expected[node].host}:{expected[node].port} "
                    "(Kafka: advertised.listeners)")


_kinds: dict[type, type] = {}


def _placed(kind: type[Any]) -> type[Any]:
    """Return a kind of connection that connects from its client's place, by name, and asks the user's command for
    depths."""
    if kind not in _kinds:
        members: dict[str, Any] = {"cluster": None}
        for name in ("connect", "connect_copy"):
            if hasattr(kind, name):
                members[name] = _entering(getattr(kind, name))
        if hasattr(kind, "depth"):
            members["depth"] = _by_hook(kind.depth)
        _kinds[kind] = type(kind.__name__, (kind,), members)
    return _kinds[kind]


def _entering(connect: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    async def connect_from_place(self: Any, host: str, port: int, local: str) -> None:
        if isinstance(self, Starting):  # its program is in the place
            await self.start(local)
        else:
            self.cluster.enter_place(local)
        await connect(self, host, port, "")

    return connect_from_place


def _by_hook(depth: Callable[..., Awaitable[int | None]]) -> Callable[..., Awaitable[int | None]]:
    async def depth_by_hook(self: Any, queue: str) -> int | None:
        found: int | None = await self.cluster.depth_by_hook(queue)
        return found if found is not None else await depth(self, queue)

    return depth_by_hook
