"""Managers in simulated time, each with a small fake broker, and the invariant that they exist for."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from harness.reference.sim_runtime import SimRuntime
from harness.sim.backend import SimBackend
from harness.sim.loop import SimLoop, simulation
from harness.sim.process import SimProcess
from nodes.reference.designs.qpid.manager.config import ManagerConfig
from nodes.reference.designs.qpid.manager.lease_server import PROTOCOL, manager_name
from nodes.reference.designs.qpid.manager.manager import ClusterManager
from nodes.reference.designs.qpid.manager.options import ManagerOptions
from nodes.reference.designs.qpid.manager.programs import BROKER
from nodes.reference.manager import ManagerProcess
from nodes.reference.replication.handshake import FrameParser, Handshake, LinkError, encode_frame
from nodes.reference.server.process import NodeProcess
from nodes.stomp import Frame, Parser, encode
from nodes.systems.reference.qpid.addresses import LaunchedAddresses
from nodes.systems.reference.qpid.programs import LaunchedPrograms
from stormproof.contracts.backend import DEAD
from stormproof.contracts.topology import Topology
from stormproof.test import Test

MANAGER = "manager"
MANAGER_PORT, LESSOR_PORT, CLIENT_PORT = 61616, 61617, 61613
SECRET = "between us"
VIRTUAL = "virtual"
LEFT_OVER = 1.25
"""Seconds for which a machine may have the virtual address though its broker's lease is over: what is left of the
address's lifetime, by a clock that may be slower."""
FIRST_GRANT = 5.0
"""Seconds for which a fake broker waits for the first word of its manager."""


class NoQuorum(Exception):
    """The lease ran out."""


class FakeBroker:
    """Renews its lease, tells its status, and becomes primary when it is told to.

    It takes every grant, whatever its term: the manager alone must see to it that there are no two primaries.
    """

    def __init__(self, world: World, node: str, runtime: SimRuntime, process: SimProcess) -> None:
        self.world, self.node, self.runtime, self.process = world, node, runtime, process
        self.state = "connecting"
        self.term = 0
        self.lease_until = float("-inf")
        self.granted = False
        self.forced = False
        self.version = 0
        self.excluded: tuple[str, ...] = ()
        world.brokers[node] = self

    @property
    def valid(self) -> bool:
        """Whether it may act, by its own clock, at this very moment; a paused one may as soon as it goes on."""
        return self.process.state != DEAD and self.process.local() < self.lease_until

    async def run(self) -> None:
        server = await self.runtime.serve(self.serve, self.world.address(self.node), CLIENT_PORT)
        self.runtime.spawn(self.renew(), "renew")
        began = self.runtime.now()
        self.lease_until = float("-inf")
        try:
            while True:
                await asyncio.sleep(0.01)
                now = self.runtime.now()
                if self.state != "primary":
                    self.state = "ready" if self.world.primaries() else "connecting"
                if now >= (self.lease_until if self.granted else began + FIRST_GRANT):
                    raise NoQuorum
        finally:
            server.close()

    async def renew(self) -> None:
        while True:
            with suppress(OSError, LinkError, asyncio.IncompleteReadError):
                reader, writer = await self.runtime.connect(self.world.address(self.node), LESSOR_PORT)
                await Handshake(PROTOCOL, "qpid", self.node, SECRET, self.runtime.random).dial(
                    reader, writer, manager_name(self.node))
                asking = self.runtime.spawn(self.ask(writer), "ask")
                parser = FrameParser()
                try:
                    while data := await reader.read(4096):
                        for _, sent, seconds, term, version in parser.feed(data):
                            self.granted = True
                            self.lease_until = max(self.lease_until, sent + seconds)
                            self.world.granted(self, term)
                            if version:
                                self.world.noted = max(self.world.noted, (term, version))
                finally:
                    asking.cancel()
                    writer.transport.abort()
            await asyncio.sleep(0.05)

    async def ask(self, writer: asyncio.StreamWriter) -> None:
        while True:
            if self.state == "primary" and self.world.rng.random() < 0.1:
                others = [name for name in self.world.names if name != self.node]
                self.version += 1
                self.excluded = tuple(sorted(self.world.rng.sample(others, self.world.rng.randint(0, len(others)))))
                self.world.wishes[self.term, self.version] = self.excluded
            writer.write(encode_frame(["renew", self.runtime.now(), self.term, self.version, list(self.excluded)]))
            await asyncio.sleep(self.world.options.lease / 4)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = Parser()
        while data := await reader.read(4096):
            for frame in parser.feed(data):
                assert isinstance(frame, Frame)
                if frame.command == "CONNECT":
                    assert frame.headers["x-admin"] == "true"
                    writer.write(encode(Frame("CONNECTED", {"version": "1.2"})))
                    continue
                answer = json.dumps(self.answer(json.loads(frame.body))).encode()
                writer.write(encode(Frame("MESSAGE", {"subscription": "admin", "message-id": "1"}, answer)))

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        store = self.world.stores[self.node]
        if request["op"] == "status":
            return {"ok": True, "state": self.state, "eligible": self.eligible, "generation": store["generation"],
                    "store": {"role": "backup", **store}, "primary": None, "backups": {},
                    "forced": self.forced}  # fmt: skip
        assert request["op"] == "promote"
        if self.state == "primary" and self.term == request["term"]:
            return {"ok": True}
        able = self.eligible or (request["bootstrap"] and self.world.bootstraps(self))
        if not able or request["term"] < self.term or self.node in self.world.declining:
            self.world.refusals.append(self.node)
            return {"ok": False, "error": "not eligible"}
        self.world.promoted(self, request)
        self.state, self.term = "primary", request["term"]
        return {"ok": True}

    @property
    def eligible(self) -> bool:
        return self.forced or self.state == "ready" or self.node in self.world.eligible


class _ManagerProcess(ManagerProcess):
    """A manager that the world can look into."""

    def __init__(self, world: World, config: ManagerConfig, runtime: SimRuntime, programs: LaunchedPrograms) -> None:
        addresses = LaunchedAddresses(world.backend, config.node, config.virtual_address)
        manager = world.managers[config.node] = ClusterManager(config, runtime, programs, addresses)
        NodeProcess.__init__(self, manager.run(), runtime, MANAGER)


class World:
    """Machines with managers, and what must never happen."""

    loop: SimLoop
    backend: SimBackend

    def __init__(self, seed: int, nodes: int, lease: float = 1.0, eligible: bool = True) -> None:
        """``eligible``: brokers would take over at any time, not only when they have seen a primary."""
        self.rng = random.Random(seed)
        self.seed = seed
        self.names = [f"n{number + 1}" for number in range(nodes)]
        self.options = ManagerOptions(lease)
        self.brokers: dict[str, FakeBroker] = {}
        self.managers: dict[str, ClusterManager] = {}
        self.stores: dict[str, dict[str, Any]] = {
            name: {"state": "empty", "uuid": "", "generation": 0} for name in self.names}
        self.eligible = set(self.names) if eligible else set()
        self.wishes: dict[tuple[int, int], tuple[str, ...]] = {}
        """(Term, version) -> whom that primary wants to be excluded."""
        self.noted = (0, 0)
        """The newest of them that its primary was told to be taken."""
        self.declining: set[str] = set()
        """Whose broker says that it is eligible, and then isn't."""
        self.promotions: list[tuple[float, int, str, bool]] = []
        self.refusals: list[str] = []
        self.both_for = 0.0
        """The longest that two machines had the virtual address at once, in seconds."""
        self.wrong: list[str] = []

    # What must hold.

    def primaries(self) -> list[str]:
        """Who may act as primary now."""
        return [node for node, broker in self.brokers.items() if broker.state == "primary" and broker.valid]

    def promoted(self, broker: FakeBroker, request: Mapping[str, Any]) -> None:
        others = [node for node in self.primaries() if self.brokers[node] is not broker]
        if others:
            self.wrong.append(f"{self.loop.now:.3f}: {broker.node} promoted beside {others}")
        if self.promotions and request["term"] <= self.promotions[-1][1]:
            self.wrong.append(f"{self.loop.now:.3f}: {broker.node} promoted in the term {request['term']} again")
        # A later wish may have been taken as well, though its primary was never told.
        counting = [names for order, names in self.wishes.items() if order >= self.noted]
        if counting and self.noted[0] and not request["bootstrap"] and all(broker.node in names for names in counting):
            self.wrong.append(f"{self.loop.now:.3f}: {broker.node} promoted, which lacks something: {self.noted}")
        self.promotions.append((self.loop.now, request["term"], broker.node, request["bootstrap"]))
        self.stores[broker.node].update(state="dirty", uuid="", generation=len(self.promotions))

    def granted(self, broker: FakeBroker, term: int) -> None:
        if len(found := self.primaries()) > 1:
            self.wrong.append(f"{self.loop.now:.3f}: {broker.node} granted {term}, two primaries: {found}")
        # A grant that was on its way to a backup may arrive at a primary.
        if broker.state == "primary" and term not in (0, broker.term):
            self.wrong.append(f"{self.loop.now:.3f}: {broker.node}, primary of {broker.term}, granted {term}")

    def bootstraps(self, broker: FakeBroker) -> bool:
        """A broker's own look at it: nobody has been primary since all stores were empty, or clean."""
        return self.stores[broker.node]["state"] in ("empty", "clean")

    def holders(self) -> list[str]:
        """Who has the virtual address."""
        return [node for node in self.names if self.backend.has_address(node, self.address(VIRTUAL))]

    async def watch(self) -> None:
        """Look all the time, not only when something happens."""
        alone, rightly = 0.0, dict.fromkeys(self.names, 0.0)
        while True:
            now, holders = self.loop.now, self.holders()
            if len(found := self.primaries()) > 1:
                self.wrong.append(f"{now:.3f}: two primaries: {found}")
            if len(holders) < 2:
                alone = now
            self.both_for = max(self.both_for, now - alone)
            for node in self.names:
                if node not in holders or node in found:
                    rightly[node] = now
                elif now > rightly[node] + LEFT_OVER:
                    self.wrong.append(f"{now:.3f}: {node} has the virtual address, and is not primary")
            await asyncio.sleep(0.02)

    # Machines.

    def address(self, node: str) -> str:
        return self.backend.address(node)

    async def provision(self) -> None:
        self.loop = asyncio.get_running_loop()  # type: ignore[assignment]
        self.backend = SimBackend()
        test = Test("qpid", "queue", (), "sim", len(self.names), self.seed)
        await self.backend.provision(test, Topology(tuple(self.names), (), addresses=(VIRTUAL,)), Path())

    def process(self, node: str, program: str) -> SimProcess | None:
        return self.backend._node(node).processes.get(program)

    def config(self, node: str) -> ManagerConfig:
        return ManagerConfig(node, "data", {name: (self.address(name), MANAGER_PORT) for name in self.names},
                             (self.address(node), LESSOR_PORT), (self.address(node), CLIENT_PORT), secret=SECRET,
                             options={"manager_lease": self.options.lease},
                             virtual_address=self.address(VIRTUAL))  # fmt: skip

    async def start_manager(self, node: str) -> None:
        if self.process(node, MANAGER) is None:
            await self.backend.launch(node, MANAGER, partial(self._begin_manager, node), f"/{node}/{MANAGER}.log")

    def _begin_manager(self, node: str, runtime: SimRuntime) -> ManagerProcess:
        programs = LaunchedPrograms(self.backend, node, {BROKER: (partial(self._begin_broker, node),
                                                                 f"/{node}/{BROKER}.log")})  # fmt: skip
        return _ManagerProcess(self, self.config(node), runtime, programs)

    def _begin_broker(self, node: str, runtime: SimRuntime) -> NodeProcess:
        process = self.process(node, BROKER)
        assert process is not None
        return NodeProcess(FakeBroker(self, node, runtime, process).run(), runtime, BROKER)

    async def start(self) -> None:
        await asyncio.gather(*(self.start_manager(node) for node in self.names))

    def log(self, node: str, program: str = MANAGER) -> str:
        return "\n".join(self.backend._node(node).logs.get(f"/{node}/{program}.log", []))

    async def cut(self, *pairs: tuple[str, str]) -> None:
        """Lose all packets from the first to the second of each pair, and only these."""
        await self.backend.set_network(frozenset(pairs))

    async def isolate(self, *side: str) -> None:
        """Cut these off from the others, both ways."""
        others = [name for name in self.names if name not in side]
        await self.cut(*((a, b) for one in side for two in others for a, b in ((one, two), (two, one))))

    async def until(self, condition: Callable[[], bool], seconds: float) -> float:
        """Simulated seconds until something is so."""
        began = self.loop.now
        while not condition():
            assert self.loop.now < began + seconds, f"not within {seconds} s: {self.describe()}"
            await asyncio.sleep(0.02)
        return self.loop.now - began

    def one_primary(self) -> bool:
        return len(self.primaries()) == 1

    async def primary(self, seconds: float = 10.0) -> str:
        """The only primary, once there is one."""
        await self.until(self.one_primary, seconds)
        return self.primaries()[0]

    def describe(self) -> str:
        states = {node: (broker.state, broker.term, broker.valid) for node, broker in self.brokers.items()}
        return f"seed {self.seed} at {self.loop.now:.3f}: {states}, promotions {self.promotions[-3:]}"


def run(world: World, scenario: Callable[[World], Coroutine[Any, Any, None]]) -> World:
    """A scenario in its own simulation; nothing wrong may have happened in it."""

    async def whole() -> None:
        await world.provision()
        watching = asyncio.ensure_future(world.watch())
        try:
            await scenario(world)
        finally:
            watching.cancel()
            await world.backend.release()

    with simulation() as loop:
        loop.run_until_complete(loop.create_task(whole()))
    assert not world.wrong, (world.seed, world.wrong[:5])
    return world


RATES = (0.92, 1.0, 1.1)
"""Of clocks: the fastest runs a fifth faster than the slowest."""
FAULTS = ("split", "bridge", "one-way", "pause manager", "pause broker", "kill manager", "kill broker", "power",
          "clock", "aimed", "aimed")


async def chaos(world: World, seconds: float) -> None:
    """Faults of all kinds, several at a time, each over after a while; then everything is healed."""
    rng, end = world.rng, world.loop.now + seconds
    running: list[asyncio.Future[None]] = []
    while world.loop.now < end:
        running.append(asyncio.ensure_future(_fault(world, rng.choice(FAULTS))))
        await asyncio.sleep(rng.choice((0.05, 0.3, 1.0, 2.0)) * rng.uniform(0.5, 1.5))
    for fault in running:
        await fault
    await world.cut()


async def _fault(world: World, kind: str) -> None:
    rng, backend = world.rng, world.backend
    node, lasting = rng.choice(world.names), rng.choice((0.1, 0.6, 1.2, 2.0, 4.0)) * rng.uniform(0.7, 1.3)
    if kind in ("split", "bridge", "one-way"):
        await _cut(world, kind, node)
        await asyncio.sleep(lasting)
        if rng.random() < 0.7:
            await world.cut()
    elif kind.startswith(("pause", "kill")):
        _, _, program = kind.partition(" ")
        if world.process(node, program) is None:
            return
        if kind.startswith("kill"):
            await backend.kill(node, program)
            await asyncio.sleep(lasting if program == MANAGER else 0.0)
            if backend._node(node).on:
                await world.start_manager(node)
            return
        process = world.process(node, program)
        if process is not None:
            process.pause()
            await asyncio.sleep(lasting)
            process.resume()
    elif kind == "aimed":
        await _aim(world, lasting)
    elif kind == "power":
        if not backend._node(node).on:
            return
        await backend.power_off([node])
        await asyncio.sleep(lasting)
        await backend.power_on([node])
        await world.start_manager(node)
    else:
        await backend.set_clock(node, 0.0, rng.choice(RATES))


async def _aim(world: World, lasting: float) -> None:
    """The coordinator hears nothing of a primary that others still hear, and whose manager then often can't end it."""
    rng = world.rng
    coordinators = [node for node, manager in world.managers.items() if manager.coordinator.ballot]
    primaries = world.primaries()
    if not primaries or not coordinators or primaries == coordinators:
        return
    primary, coordinator = primaries[-1], coordinators[-1]
    await world.cut((primary, coordinator), *([(coordinator, primary)] if rng.random() < 0.7 else []))
    before = len(world.promotions)
    for _ in range(60):
        await asyncio.sleep(0.05)
        if world.managers[coordinator].coordinator.record.primary != primary:
            break
    process = world.process(primary, MANAGER)
    if rng.random() < 0.4:
        await asyncio.sleep(lasting)
    elif process is not None and len(world.promotions) == before:
        process.pause()
        await asyncio.sleep(lasting)
        process.resume()
    await world.cut()


async def _cut(world: World, kind: str, node: str) -> None:
    rng, names = world.rng, world.names
    if kind == "split":
        await world.isolate(*rng.sample(names, rng.randint(1, len(names) - 1)))
    elif kind == "bridge":
        others = [name for name in names if name != node]
        side = rng.sample(others, len(others) // 2)
        rest = [name for name in others if name not in side]
        await world.cut(*((a, b) for x in side for y in rest for a, b in ((x, y), (y, x))))
    else:
        await world.cut(*((node, name) for name in names if name != node and rng.random() < 0.7))
