"""Joram groups in simulation, driven from a test: whole brokers, each with a client in its process that tells all."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from harness.reference.sim_runtime import SimRuntime
from harness.sim.backend import SimBackend
from harness.sim.latency import LatencyModel
from harness.sim.loop import SimLoop, simulation
from harness.sim.process import RUNNING, SimProcess
from nodes.reference.api import Command, Config, Deliver, Done, Effect
from nodes.reference.server.broker import ReferenceBroker
from nodes.reference.server.process import BrokerProcess
from nodes.systems.reference.cluster import CLIENT_PORT, LINK_PORT
from stormproof.contracts.backend import DEAD, PAUSED, LinkConditions
from stormproof.contracts.cluster import MAIN
from stormproof.contracts.topology import Topology
from stormproof.test import Test

QUEUE = "/queue/q"
SLOWNESS = (0.003, 0.03, 0.12)
"""Seconds that packets take at most, of which a seed chooses."""
STEADY = LatencyModel(base=1e-4, jitter=0.0, spikes=0.0, spike=0.0, slices=0.0)
"""A network without any surprise, for tests that say themselves how slow it is."""


class Member(ReferenceBroker):
    """A broker, and a client in its process that takes from ``QUEUE`` while it serves, and sends when it is told to.

    ``listeners``: connection -> who is told of its effects, at the moment in which the broker lets them out.
    """

    def __init__(self, group: Group, config: Config, runtime: SimRuntime, process: SimProcess) -> None:
        super().__init__(config, runtime)
        self.group = group
        self.process = process
        self.client: str | None = None
        self.waiting: dict[str, tuple[str, str]] = {}
        self.listeners: dict[str, Callable[[Effect], None]] = {}
        self._watch_log()

    def _watch_log(self) -> None:
        """Tell the group of each entry that is applied."""
        replica: Any = self.design.replica  # type: ignore[attr-defined]
        advance, log, name = replica.advance, replica.log, self.config.node

        def watched(committed: int) -> list[Effect]:
            first = log.applied + 1
            effects: list[Effect] = advance(committed)
            for index in range(first, log.applied + 1):
                self.group.applied(name, index, log.epoch_at(index), log.entry(index))
            return effects

        replica.advance = watched

    @property
    def awake(self) -> bool:
        return self.process.state == RUNNING

    def do(self, act: Callable[..., Any], *args: Any) -> None:
        """Have its process do something: later, if it is paused, and never, if it is dead."""
        self.process.call(act, *args)

    async def live(self) -> None:
        """From its start on, until it is stopped."""
        await self.start()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await self.stop()

    def _admit_all(self) -> None:
        super()._admit_all()
        self.client = f"{self.config.node}-{self.group.rng.getrandbits(48):x}"
        self.listeners[self.client] = self._heard
        self.submit(Command("open", self.client, 0, {"reliable": False, "login": "x"}))
        self.submit(Command("subscribe", self.client, 0, {
            "id": "s", "destination": QUEUE, "ack": "client-individual", "prefetch": 5}))

    def drop_clients(self, reason: str) -> None:
        self.client = None
        self.waiting.clear()
        self.listeners.clear()
        super().drop_clients(reason)

    def release(self, effects: Iterable[Effect]) -> None:
        rest = []  # the broker closes connections that none of its sessions knows
        for effect in effects:
            told = self.listeners.get(getattr(effect, "conn", ""), rest.append)
            told(effect)
        super().release(rest)

    def _heard(self, effect: Effect) -> None:
        if isinstance(effect, Done) and effect.receipt in self.waiting:
            kind, body = self.waiting.pop(effect.receipt)
            self.group.confirmed(kind, body)
        elif isinstance(effect, Deliver):
            self.group.delivered(effect.body.decode())
            if self.group.rng.random() < 0.9:
                self.request("ack", effect.body.decode(), {"id": effect.ack_id})

    def request(self, kind: str, body: str, args: dict[str, Any]) -> None:
        """Have the client ask for something; nothing if it has none."""
        if self.client is None:
            return
        if kind == "ack":
            self.group.taken.add(body)
        receipt = f"{kind}-{body}-{self.group.rng.getrandbits(32)}"
        self.waiting[receipt] = (kind, body)
        self.do(self.submit, Command(kind, self.client, 0, {**args, "receipt": receipt}))

    def send(self, body: str) -> None:
        self.group.sent.add(body)
        self.request("send", body, {"destination": QUEUE, "headers": {}, "body": body.encode()})


class Program(BrokerProcess):
    """The process of a member."""

    def __init__(self, member: Member, runtime: SimRuntime) -> None:
        self._runtime = runtime
        self._main = asyncio.ensure_future(member.live())
        self._stopping = False


class Group:
    """Several brokers, what their clients have been told, and the faults that strike them.

    ``newcomers``: nodes that join the others when they are added -> the peers that they are configured with.
    ``nodes`` are those whose process has begun and is not dead. The network suits the seed unless ``latency`` says what
    it is like. ``options`` are the brokers'.
    """

    backend: SimBackend
    loop: SimLoop

    def __init__(self, seed: int, nodes: int, newcomers: Mapping[str, Sequence[str]] | None = None, *,
                 latency: LatencyModel | None = None, **options: Any) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.options = options
        self.newcomers = newcomers or {}
        self.founders = [f"n{number + 1}" for number in range(nodes)]
        self.names = [*self.founders, *self.newcomers]
        self.nodes: dict[str, Member] = {}
        self.cuts: set[frozenset[str]] = set()
        self.sent: set[str] = set()
        self.stored: set[str] = set()
        self.acked: set[str] = set()
        self.taken: set[str] = set()
        self.history: dict[int, tuple[int | None, bytes]] = {}
        self.primary = options.get("partitions") != "unspecified"
        self.wrong: list[str] = []
        """What must never happen, and did."""
        self._latency = latency
        self._starting: dict[str, asyncio.Task[Member]] = {}

    async def provision(self) -> None:
        """Make the machines and the network."""
        self.loop = asyncio.get_running_loop()  # type: ignore[assignment]
        self.backend = SimBackend()
        test = Test("joram", "queue", (), "sim", len(self.names), self.seed)
        await self.backend.provision(test, Topology(tuple(self.names), ()), Path())
        if self._latency is not None:
            self.backend._net().latency = self._latency

    # What must hold at all times.

    def applied(self, node: str, index: int, epoch: int | None, entry: bytes) -> None:
        """State machine safety (Raft, figure 3): nobody ever applies another entry at the same index."""
        if self.primary and self.history.setdefault(index, (epoch, entry)) != (epoch, entry):
            self.wrong.append(f"{node} applied another entry than others at {index}")

    def confirmed(self, kind: str, body: str) -> None:
        (self.stored if kind == "send" else self.acked).add(body)

    def delivered(self, body: str) -> None:
        if body not in self.sent:
            self.wrong.append(f"{body} delivered, which nobody sent")
        if self.primary and body in self.acked:
            self.wrong.append(f"{body} delivered after the receipt of its ACK")

    # Processes.

    async def start(self, name: str) -> Member:
        """Give its machine power if that has none, and start its broker; returns when that is about to join."""
        await self.backend.power_on([name])
        begun: asyncio.Future[Member] = self.loop.create_future()

        def begin(runtime: SimRuntime) -> Program:
            member = Member(self, self._config(name), runtime, self.backend._node(name).processes[MAIN])
            self.nodes[name] = member
            begun.set_result(member)
            return Program(member, runtime)

        await self.backend.launch(name, MAIN, begin, f"{self.backend.node_dir(name)}/{MAIN}.log")
        return await begun

    def _config(self, name: str) -> Config:
        address = self.backend.address
        peers = self.newcomers.get(name, self.founders)
        return Config(
            name, "joram", self.backend.node_dir(name), host=address(name), port=CLIENT_PORT,
            peers={other: (address(other), LINK_PORT) for other in peers},
            client_addresses={other: f"{address(other)}:{CLIENT_PORT}" for other in peers},
            options={"join": name in self.newcomers, "secret": "between us", **self.options},
        )  # fmt: skip

    # The backend's own ``kill`` and ``power_off`` take some milliseconds to get there.

    def crash(self, name: str) -> None:
        """Its process dies at this very moment: what it has written is stored, and sent."""
        self._forget(name)
        self.backend._node(name).end(MAIN)

    def lose_power(self, *names: str) -> None:
        """Their power is gone at this very moment, and with it what was not synced, and what is under way."""
        for name in names:
            self._forget(name)
            self.backend._node(name).end_all(powerless=True)
            self.backend._dark(self.backend._node(name))

    def _forget(self, name: str) -> None:
        self.nodes.pop(name, None)
        if (starting := self._starting.pop(name, None)) is not None:
            starting.cancel()

    def add(self, name: str) -> None:
        """Have a newcomer taken in."""
        (master, *_), address = self.serving(), self.backend.address(name)
        master.do(master.add_replica, name, (address, LINK_PORT), f"{address}:{CLIENT_PORT}")

    # The network.

    async def cut(self, *pairs: Iterable[str]) -> None:
        """Let nothing through between the two of each pair, in addition to what is cut already."""
        self.cuts |= {frozenset(pair) for pair in pairs}
        links = [(a, b) for a in self.names for b in self.names if frozenset((a, b)) in self.cuts]
        await self.backend.set_network(frozenset(links))

    async def heal(self) -> None:
        self.cuts.clear()
        await self.backend.set_network(frozenset())

    async def slow(self, seconds: float, *, always: bool = False) -> None:
        """Let each packet take up to so much longer, or, if ``always``, just that."""
        condition = LinkConditions(delay=seconds) if always else LinkConditions(delay=seconds / 2, jitter=seconds / 2)
        links = [link for pair in combinations(self.names, 2) for link in (pair, pair[::-1])]
        await self.backend.set_conditions(dict.fromkeys(links, condition))

    # What it is like now.

    def serving(self) -> list[Member]:
        return [node for node in self.nodes.values() if node.client and node.awake]

    def states(self) -> list[dict[str, Any]]:
        return [node.design.status() for node in self.nodes.values()]

    def view(self) -> list[str]:
        """The members of the view of who serves."""
        return [member for node in self.serving() for member in node.design.status()["view"]]

    def whole(self, names: Sequence[str]) -> bool:
        """Whether these are one group behind one master, and have applied the same log to its end."""
        if not set(names) <= set(self.nodes):
            return False
        states = [self.nodes[name].design.status() for name in names]
        masters = [state for state in states if state["serving"]]
        return len(masters) == 1 and len(masters[0]["view"]) == len(names) and all(
            state["applied"] == masters[0]["log_last"] and state["view"] == masters[0]["view"] for state in states
        )

    def settled(self) -> bool:
        """Whether all are one group, whose master serves clients."""
        return self.whole(self.names) and len(self.nodes) == len(self.names) == len(self.view())

    async def until(self, true: Callable[[], object], what: str, seconds: float = 60) -> None:
        """Wait."""
        for _ in range(round(seconds * 10)):
            if true():
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"never: {what}; {self.states()}")

    def contents(self, name: str) -> list[str]:
        """Bodies of all messages in the node's queues, however far they are."""
        member: Any = self.nodes[name]
        member.design.replica.persist()
        rows = member.database.execute("SELECT body FROM messages ORDER BY id")
        return [bytes(body).decode() for (body,) in rows]

    def log(self, name: str) -> str:
        return "\n".join(line for lines in self.backend._node(name).logs.values() for line in lines)

    def story(self) -> str:
        return "\n".join(f"--- {name}\n{self.log(name)}" for name in self.names)

    # Random faults.

    async def live(self, seconds: float) -> None:
        """Traffic and faults for some time, then repair, and wait until the group is whole."""
        await self.slow(self.rng.choice(SLOWNESS))
        await self.until(self.settled, "one group")
        end = self.loop.now + seconds
        await asyncio.gather(self._work(end), self._strike(end))
        await self._repair()
        await self.until(self.settled, "whole again")

    async def _work(self, end: float) -> None:
        number = 0
        while self.loop.now < end:
            for node in self.serving():
                for _ in range(self.rng.randint(0, 3)):
                    number += 1
                    node.send(f"m{number}")
            await asyncio.sleep(self.rng.uniform(0.005, 0.1))

    async def _strike(self, end: float) -> None:
        rate = self.rng.choice([0.5, 1.0, 3.0])
        await asyncio.sleep(1)
        while self.loop.now < end:
            await self._disturb()
            await asyncio.sleep(self.rng.expovariate(rate))

    async def _disturb(self) -> None:
        """One random fault or repair."""
        rng, name = self.rng, self.rng.choice(self.names)
        action = rng.choice([
            "cut", "isolate", "isolate master", "heal", "heal", "crash", "crash master", "crash all", "power off",
            "start", "start", "start", "start", "pause", "pause master", "resume", "resume", "resume", "resume",
        ])
        if action.endswith("master"):
            name = next((node.config.node for node in self.serving()), name)
            action = action.removesuffix(" master")
        if action == "cut":
            await self.cut(rng.sample(self.names, 2))
        elif action == "isolate":
            await self.cut(*((name, other) for other in self.names if other != name))
        elif action == "heal":
            await self.heal()
        elif action == "crash":
            self.crash(name)
        elif action == "crash all":
            for each in self.names:
                self.crash(each)
        elif action == "power off":
            self.lose_power(*rng.choice([[name], self.names]))
        elif action == "start":
            for each in self.names:
                if self._is_dead(each) and rng.random() < 0.7:
                    self._starting[each] = asyncio.create_task(self.start(each))
        elif action == "pause" and name in self.nodes:
            await self.backend.pause(name, MAIN)
        elif action == "resume" and name in self.nodes:
            await self.backend.resume(name, MAIN)

    def _is_dead(self, name: str) -> bool:
        starting = self._starting.get(name)
        return self.backend._node(name).state(MAIN).state == DEAD and (starting is None or starting.done())

    async def _repair(self) -> None:
        await self.heal()
        for name in self.names:
            if self._is_dead(name):
                self._starting[name] = asyncio.create_task(self.start(name))
            elif self.backend._node(name).state(MAIN).state == PAUSED:
                await self.backend.resume(name, MAIN)
        await asyncio.gather(*self._starting.values())


def simulate(scenario: Callable[[Group], Coroutine[Any, Any, None]], group: Group) -> Group:
    """Start the founders, let the scenario run when they serve, and see to it that nothing went wrong meanwhile.

    The story of one that fails is printed.
    """
    failures: list[dict[str, Any]] = []

    async def run() -> None:
        await group.provision()
        try:
            await asyncio.gather(*map(group.start, group.founders))
            await group.until(lambda: sorted(group.view()) == group.founders, "the group begins")
            await scenario(group)
            assert not group.wrong
            assert "ERROR" not in group.story()
            assert not failures
        except BaseException:
            print(group.story())
            raise
        finally:
            await group.backend.release()

    with simulation() as loop:
        loop.set_exception_handler(lambda _, context: failures.append(context))
        loop.run_until_complete(loop.create_task(run()))
    return group
