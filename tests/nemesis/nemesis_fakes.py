"""A cluster in memory that refuses what no real cluster could do, and notes what was done to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stormproof.contracts.backend import KILL, LINKS, PAUSE, Link, ProcessState
from stormproof.contracts.cluster import MAIN, Cluster, Deployment, NodeStatus
from stormproof.contracts.topology import Topology
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import BackendError
from stormproof.test import Test


class FakeBackend:
    """Nodes with process states and a network; ``fail`` names calls that raise."""

    name = "fake"
    in_process = False

    def __init__(self, test: Test) -> None:
        self.abilities: Mapping[str, str] = {LINKS: "sets", PAUSE: "flags", KILL: "flags"}
        self.test = test
        self.states = dict.fromkeys(test.node_names, "running")
        self.pids = {node: 100 + i for i, node in enumerate(test.node_names)}
        self.cut: frozenset[Link] = frozenset()
        self.drops: dict[Link, int] = {}
        self.log: list[str] = []
        self.fail: set[str] = set()
        self.leaky = False  # the network does not really cut
        self.bash = True
        self._addresses = {name: f"10.0.0.{i}" for i, name in enumerate((*test.node_names, *test.client_hosts), 1)}

    def lacks(self) -> Mapping[str, str]:
        return {}

    def address(self, name: str) -> str:
        return self._addresses[name]

    async def probe(self, link: Link, timeout: float) -> str:
        if not self.bash:
            return "unknown"
        blocked = [way for way in (link, link[::-1]) if way in self.cut]
        if not blocked or self.leaky:
            return "open"
        self.drops[blocked[0]] = self.drops.get(blocked[0], 0) + 1
        return "cut"

    async def process(self, node: str, program: str) -> ProcessState:
        assert program == MAIN, "each machine has one program"
        state = self.states[node]
        return ProcessState(state, None if state == "dead" else self.pids[node])

    async def pause(self, node: str, program: str) -> None:
        self._do("pause", node, {"running"}, "paused")

    async def resume(self, node: str, program: str) -> None:
        self._do("resume", node, {"paused", "running"}, "running")

    async def kill(self, node: str, program: str) -> None:
        self._do("kill", node, {"running"}, "dead")

    def start(self, node: str) -> None:
        self.pids[node] += 100
        self._do("start", node, {"dead"}, "running")

    async def set_network(self, cut: frozenset[Link]) -> None:
        self.before("network")
        self.log.append("cut" if cut else "uncut")
        self.cut = cut

    async def dropped(self) -> Mapping[Link, int]:
        return {link: self.drops.get(link, 0) for link in self.cut}

    def down(self) -> int:
        return sum(state != "running" for state in self.states.values())

    def _do(self, what: str, node: str, allowed: set[str], state: str) -> None:
        self.before(what)
        assert self.states[node] in allowed, f"{what} {node}, which is {self.states[node]}"
        self.log.append(f"{what} {node}")
        self.states[node] = state

    def before(self, what: str) -> None:
        """Called before anything is done."""
        if what in self.fail:
            raise BackendError(f"{what} did not work")


class FakeCluster(Cluster):
    """The first node is the primary, unless there is none."""

    def __init__(self, test: Test) -> None:
        topology = Topology(test.node_names, test.client_hosts)
        super().__init__(Deployment(test, Demands(), FakeBackend(test), topology))  # type: ignore[arg-type]
        self.leader: str | None = test.node_names[0]
        self.joined_roles, self.replicas_are = ("follows",), "follows"
        self.well = True

    async def install(self) -> None:
        """Nothing is to be installed."""

    async def status(self, node: str) -> NodeStatus:
        role = "leads" if node == self.leader else self.replicas_are
        return NodeStatus(node, reachable=self.backend.states[node] == "running", role=role)

    def leading(self, statuses: Sequence[NodeStatus]) -> str | None:
        return self.leader

    async def start_program(self, machine: str, program: str) -> None:
        self.backend.start(machine)

    async def await_healthy(self, timeout: float) -> bool:
        return self.well
