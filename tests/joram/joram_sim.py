"""Joram groups in virtual time, on a network that loses links and with nodes that crash and sleep."""

from __future__ import annotations

import asyncio
import io
import random
import selectors
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any

from nodes.reference.api import Command, Config, Deliver, Done, Effect, Handler
from nodes.reference.engine import StoreEngine
from nodes.reference.joram.design import Joram
from nodes.reference.runtime import RealRuntime

QUEUE = "/queue/q"


class _NoSelector(selectors.SelectSelector):
    """Waiting takes no time: the clock jumps instead."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen")
        self.loop.clock += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is virtual."""

    def __init__(self) -> None:
        self.clock = 0.0
        selector = _NoSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.clock


class Network:
    """Connections between nodes; ``cuts`` holds pairs between which nothing gets through."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.listeners: dict[str, Handler] = {}
        self.cuts: set[frozenset[str]] = set()
        self.asleep: set[str] = set()
        self.changed = asyncio.Event()
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.slowest = rng.choice([0.003, 0.03, 0.12])

    def task(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks[task] = None
        task.add_done_callback(lambda done: self.tasks.pop(done, None))
        return task

    def change(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def passable(self, a: str, b: str) -> None:
        while frozenset((a, b)) in self.cuts or b in self.asleep:
            await self.changed.wait()

    async def connect(self, a: str, b: str) -> tuple[asyncio.StreamReader, Any]:
        await asyncio.sleep(self.rng.uniform(0.0005, self.slowest))
        await self.passable(a, b)
        if b not in self.listeners:
            raise ConnectionRefusedError(b)
        there, back = Pipe(self, a, b), Pipe(self, b, a)
        there.other, back.other = back, there
        self.task(self.listeners[b](there.reader, back))  # type: ignore[arg-type]
        return back.reader, there


class Pipe:
    """One direction of a connection; for its sender it is StreamWriter and transport in one."""

    other: Pipe

    def __init__(self, network: Network, source: str, target: str) -> None:
        self.reader = asyncio.StreamReader()
        self.transport = self
        self._receiver: Any = None
        self._network, self._source, self._target = network, source, target
        self._queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self._closing = False
        self._pump = network.task(self._deliver())

    def write(self, data: bytes) -> None:
        if not self._closing:
            self._put(data)

    def _put(self, data: bytes) -> None:
        rng, now = self._network.rng, asyncio.get_running_loop().time()
        self._queue.put_nowait((now + rng.uniform(0.0002, self._network.slowest), data))

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._closing:
            self._closing = self.other._closing = True
            self.other.end()
            self._put(b"")
            self.other._pump.cancel()

    def is_closing(self) -> bool:
        return self._closing

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        self.other._receiver = protocol

    def end(self) -> None:
        if self._receiver is None:
            self.reader.feed_eof()
        else:
            asyncio.get_running_loop().call_soon(self._receiver.connection_lost, None)

    def get_write_buffer_size(self) -> int:
        return 0

    async def _deliver(self) -> None:
        while True:
            due, data = await self._queue.get()
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
            await self._network.passable(self._source, self._target)
            if not data:
                self.end()
                return
            if self._receiver is None:
                self.reader.feed_data(data)
            else:
                self._receiver.data_received(data)


class SimRuntime(RealRuntime):
    """The node's world; its log goes to memory."""

    def __init__(self, config: Config, network: Network, database: sqlite3.Connection) -> None:
        self.output = io.StringIO()
        super().__init__(config, self.output)
        self._network, self._node, self._database = network, config.node, database

    async def connect(self, host: str, port: int) -> Any:
        return await self._network.connect(self._node, host)

    async def serve(self, handler: Handler, host: str, port: int) -> Any:
        async def owned(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.spawn(handler(reader, writer), "connection")  # type: ignore[arg-type]

        self._network.listeners[self._node] = owned
        return self

    def close(self) -> None:
        """Nothing listens any more."""

    def log(self, event: str, level: str | None = None, **fields: Any) -> None:
        self.output.write(f"{self.now():.3f} {(level or '').upper()} {event} {fields}\n")

    def end(self) -> None:
        for task in list(self._tasks):
            task.cancel()


class SimNode:
    """What a design is given, with a client that sends and one that consumes while the node serves."""

    def __init__(self, group: Group, config: Config) -> None:
        self.group, self.config = group, config
        self.runtime = SimRuntime(config, group.network, group.databases[config.node])
        self.database = group.databases[config.node]
        self.engine = StoreEngine(self.database)
        self.design = Joram(self)
        self.client: str | None = None
        self.waiting: dict[str, tuple[str, str]] = {}
        advance = self.design._replica.advance

        def watched(committed: int) -> list[Effect]:
            log = self.design._replica.log
            first = log.applied + 1
            effects = advance(committed)
            for index in range(first, log.applied + 1):
                group.applied(config.node, index, log.epoch_at(index), log.entry(index))
            return effects

        self.design._replica.advance = watched  # type: ignore[method-assign]

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.database.execute("BEGIN")
        yield
        self.engine.flush()
        self.database.execute("COMMIT")

    def began_serving(self) -> None:
        for conn in self.engine.connections():
            self.design.submit(Command("close", conn, 0, {"reason": "failover"}))
        self.client = f"{self.config.node}-{self.group.rng.getrandbits(48):x}"
        self.design.submit(Command("open", self.client, 0, {"reliable": False, "login": "x"}))
        self.design.submit(Command("subscribe", self.client, 0, {
            "id": "s", "destination": QUEUE, "ack": "client-individual", "prefetch": 5}))

    def drop_clients(self, reason: str) -> None:
        self.client = None
        self.waiting.clear()

    def observe(self, effects: Iterable[Effect]) -> None:
        """No thread of a client is collocated here."""

    def release(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if effect.conn != self.client:
                continue
            if isinstance(effect, Done) and effect.receipt in self.waiting:
                kind, body = self.waiting.pop(effect.receipt)
                self.group.confirmed(kind, body)
            elif isinstance(effect, Deliver):
                self.group.delivered(effect.body.decode())
                if self.group.rng.random() < 0.9:
                    self.request("ack", effect.body.decode(), {"id": effect.ack_id})

    def request(self, kind: str, body: str, args: dict[str, Any]) -> None:
        if kind == "ack":
            self.group.taken.add(body)
        receipt = f"{kind}-{body}-{self.group.rng.getrandbits(32)}"
        self.waiting[receipt] = (kind, body)
        self.design.submit(Command(kind, self.client or "", 0, {**args, "receipt": receipt}))

    def send(self, body: str) -> None:
        self.group.sent.add(body)
        self.request("send", body, {"destination": QUEUE, "headers": {}, "body": body.encode()})


class Group:
    """Several nodes, what their clients have been told, and the faults that strike them.

    ``newcomers``: nodes that join the others when they are added -> the peers that they are configured with.
    """

    def __init__(
        self, seed: int, nodes: int, newcomers: Mapping[str, Sequence[str]] | None = None, **options: Any
    ) -> None:
        self.rng = random.Random(seed)
        self.options = options
        self.newcomers = newcomers or {}
        self.founders = [f"n{number + 1}" for number in range(nodes)]
        self.names = [*self.founders, *self.newcomers]
        self.databases = {name: sqlite3.connect(":memory:", isolation_level=None) for name in self.names}
        self.network = Network(self.rng)
        self.nodes: dict[str, SimNode] = {}
        self.sent: set[str] = set()
        self.stored: set[str] = set()
        self.acked: set[str] = set()
        self.taken: set[str] = set()
        self.history: dict[int, tuple[int | None, bytes]] = {}
        self.primary = options.get("partitions") != "unspecified"
        self.logs: dict[str, list[io.StringIO]] = {name: [] for name in self.names}
        self._sleeping: dict[str, Any] = {}

    # What must hold at all times.

    def applied(self, node: str, index: int, epoch: int | None, entry: bytes) -> None:
        """State machine safety (Raft, figure 3): nobody ever applies another entry at the same index."""
        if self.primary:
            assert self.history.setdefault(index, (epoch, entry)) == (epoch, entry), f"{node} at {index}"

    def confirmed(self, kind: str, body: str) -> None:
        (self.stored if kind == "send" else self.acked).add(body)

    def delivered(self, body: str) -> None:
        assert body in self.sent
        if self.primary:
            assert body not in self.acked, f"{body} delivered after the receipt of its ACK"

    # Faults.

    async def start(self, name: str) -> None:
        peers = {other: (other, 1) for other in self.newcomers.get(name, self.founders)}
        options = {"seed": self.rng.getrandbits(32), "join": name in self.newcomers, **self.options}
        node = SimNode(self, Config(name, "joram", "", peers=peers, options=options))
        self.nodes[name] = node
        self.logs[name].append(node.runtime.output)
        await node.design.start()

    def add(self, name: str) -> None:
        """Have a newcomer taken in."""
        self.serving()[0].design.add_replica(name, (name, 1), f"{name}:1")

    def view(self) -> list[str]:
        """The members of the view of who serves."""
        return [member for node in self.serving() for member in node.design.status()["view"]]

    async def until(self, true: Callable[[], object], what: str, seconds: float = 60) -> None:
        """Wait."""
        for _ in range(round(seconds * 10)):
            if true():
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"never: {what}; {[node.design.status() for node in self.nodes.values()]}")

    def crash(self, name: str) -> None:
        """Power loss: what was not committed is gone, and so are the connections."""
        self.wake(name)
        node = self.nodes.pop(name)
        self.network.listeners.pop(name, None)
        node.client = None
        if node.design._leader is not None:
            node.design._leader.stop()
        node.runtime.end()
        node.design._replica.links._stopping = True

    def sleep(self, name: str) -> None:
        """As SIGSTOP: no timers, no reading; what is under way to it waits."""
        design: Any = self.nodes[name].design
        self._sleeping[name] = (design._tick, design._leader, self.network)
        design._tick = lambda beat: None
        if design._leader is not None:
            design._leader._flush = lambda: None
        self.network.asleep.add(name)

    def wake(self, name: str) -> None:
        if name in self._sleeping:
            tick, leader, network = self._sleeping.pop(name)
            design: Any = self.nodes[name].design
            if leader is not None:
                del leader._flush
                leader._wake.set()
            network.asleep.discard(name)
            network.change()
            design._tick = tick
            # A real pause keeps the timer from running at all, and it notices that when it runs again.

    async def disturb(self) -> None:
        """One random fault or repair."""
        rng, name = self.rng, self.rng.choice(self.names)
        action = rng.choice([
            "cut", "isolate", "isolate master", "heal", "crash", "crash master", "crash all", "start", "start",
            "sleep", "sleep master", "wake", "wake",
        ])
        if action.endswith("master"):
            name = next(iter(node.config.node for node in self.serving()), name)
            action = action.split()[0]
        if action == "cut":
            self.network.cuts.add(frozenset(rng.sample(self.names, 2)))
        elif action == "isolate":
            self.network.cuts |= {frozenset((name, other)) for other in self.names if other != name}
        elif action == "heal":
            self.network.cuts.clear()
            self.network.change()
        elif action == "crash" and name in self.nodes:
            self.crash(name)
        elif action == "crash all":
            for each in list(self.nodes):
                self.crash(each)
        elif action == "start":
            for each in self.names:
                if each not in self.nodes and rng.random() < 0.7:
                    await self.start(each)
        elif action == "sleep" and name in self.nodes and name not in self._sleeping:
            self.sleep(name)
        elif action == "wake":
            self.wake(name)

    async def repair(self) -> None:
        self.network.cuts.clear()
        self.network.change()
        for name in self.names:
            if name not in self.nodes:
                await self.start(name)
            self.wake(name)

    def serving(self) -> list[SimNode]:
        return [node for name, node in self.nodes.items() if node.client and name not in self._sleeping]

    def settled(self) -> bool:
        states = [node.design.status() for node in self.nodes.values()]
        masters = [state for state in states if state["serving"]]
        return len(masters) == 1 and len(masters[0]["view"]) == len(self.names) and all(
            state["applied"] == masters[0]["log_last"] and state["view"] == masters[0]["view"] for state in states
        )

    async def live(self, seconds: float) -> None:
        """Traffic and faults for some time, then repair, and wait until the group is whole."""
        loop, number = asyncio.get_running_loop(), 0
        end = loop.time() + seconds
        strike, rate = loop.time() + 3, self.rng.choice([0.5, 1.0, 3.0])
        while loop.time() < end:
            for node in self.serving():
                for _ in range(self.rng.randint(0, 3)):
                    number += 1
                    node.send(f"m{number}")
            if loop.time() > strike:
                await self.disturb()
                strike = loop.time() + self.rng.expovariate(rate)
            await asyncio.sleep(self.rng.uniform(0.005, 0.1))
        await self.repair()
        for _ in range(600):
            await asyncio.sleep(0.1)
            if self.settled():
                return
        raise AssertionError(f"never whole again: {[node.design.status() for node in self.nodes.values()]}")

    def contents(self, name: str) -> list[str]:
        """Bodies of all messages in the node's queue, however far they are."""
        self.nodes[name].design._replica.persist()
        rows = self.databases[name].execute("SELECT body FROM messages ORDER BY id")
        return [bytes(body).decode() for (body,) in rows]

    def end(self) -> None:
        for name in list(self.nodes):
            self.crash(name)
        for task in list(self.network.tasks):
            task.cancel()

    def story(self) -> str:
        return "\n".join(f"--- {name}\n" + "...\n".join(part.getvalue() for part in parts)
                         for name, parts in self.logs.items())


@asynccontextmanager
async def ending(group: Group) -> AsyncIterator[None]:
    """End the group afterwards; a failure is told with its story."""
    try:
        yield
    except BaseException:
        print(group.story())
        raise
    finally:
        group.end()
        await asyncio.sleep(0.01)


def in_virtual_time(scenario: Callable[[Group], Coroutine[Any, Any, None]], group: Group) -> None:
    """Start the founders, and let the scenario run."""

    async def run() -> None:
        async with ending(group):
            for name in group.founders:
                await group.start(name)
            await group.until(lambda: group.view() == group.founders, "the group begins")
            await scenario(group)

    with closing(VirtualLoop()) as loop:
        loop.run_until_complete(run())


def simulate(seed: int, nodes: int, seconds: float, **options: Any) -> Group:
    """Run a group; returns it after its end, whole, for a look at what it holds."""
    loop = VirtualLoop()

    async def run() -> Group:
        group = Group(seed, nodes, **options)
        failures: list[Any] = []
        loop.set_exception_handler(lambda _, context: failures.append(context))
        for name in group.names:
            await group.start(name)
        async with ending(group):
            await group.live(seconds)
            final = {name: group.contents(name) for name in group.names}
            states = {name: list(node.engine.dump()) for name, node in group.nodes.items()}
        group.final, group.states = final, states  # type: ignore[attr-defined]
        text = group.story()
        assert "ERROR" not in text, text
        assert not failures, failures
        return group

    try:
        return loop.run_until_complete(run())
    finally:
        loop.close()
