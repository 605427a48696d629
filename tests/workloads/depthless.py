"""A small broker in simulated time, in one process, that tells nobody how many messages a queue holds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from harness.run.interpreter import Interpreter, NoClient
from harness.sim.loop import SimLoop
from stormproof.contracts.client import DeadLettering, Delivery
from stormproof.contracts.workload import Workload
from stormproof.operation import Op
from stormproof.test import Test
from workloads.fenced_drain import is_fence
from workloads.queue import QueueWorkload


class Broker:
    """One queue. ``fifo``: messages come in the order in which they were sent, or were returned; otherwise in any.

    It sends a connection that takes ``ahead`` messages at a time. A lost connection's unacknowledged messages return
    after up to ``delay`` seconds. ``fails`` decides, at each step of a client, whether its connection breaks there; a
    request that breaks has had its effect, or not.
    """

    def __init__(self, seed: int = 0, *, fifo: bool = True, delay: float = 0.0, ahead: int = 1,
                 fails: Callable[[], bool] = lambda: False) -> None:
        self.rng = random.Random(seed)
        self.fifo, self.delay, self.ahead, self.fails = fifo, delay, ahead, fails
        self.queue: list[bytes] = []
        self.away: dict[int, bytes] = {}
        """Messages that were delivered or wait for their return, by a number of their own."""
        self.eats: Callable[[bytes], bool] = lambda body: False
        """Whether the broker confirms a message and then forgets it."""
        self.fences = 0
        self._number = 0

    def put(self, body: bytes) -> None:
        if not self.eats(body):
            self.queue.append(body)

    def pick(self) -> tuple[int, bytes] | None:
        if not self.queue:
            return None
        place = 0 if self.fifo else self.rng.randrange(len(self.queue))
        self._number += 1
        self.away[self._number] = body = self.queue.pop(place)
        return self._number, body

    def comes_back(self, number: int) -> None:
        """Return a message after a while, at the front or the back."""
        asyncio.get_running_loop().call_later(self.rng.random() * self.delay, self._back, number)

    def _back(self, number: int) -> None:
        body = self.away.pop(number)
        self.queue.insert(0 if self.rng.random() < 0.5 else len(self.queue), body)

    def messages(self) -> list[bytes]:
        """All that it still has of the workload."""
        return [body for body in (*self.queue, *self.away.values()) if not is_fence(body)]

    def is_empty(self) -> bool:
        return not self.queue and not self.away


class Connection:
    """A client's connection."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.held: set[int] = set()
        self.over = False
        self._came: list[tuple[int, bytes]] = []

    async def connect(self, host: str, port: int, local: str) -> None:
        await asyncio.sleep(0.001)

    async def _step(self, effect: Callable[[], Any]) -> Any:
        await asyncio.sleep(0.001)
        if self.over:
            raise ConnectionError("closed")
        if self.broker.fails():
            if self.broker.rng.random() < 0.5:
                effect()
            self._lose()
            raise ConnectionError("broken")
        return effect()

    async def send(self, queue: str, body: bytes) -> None:
        self.broker.fences += is_fence(body)
        await self._step(lambda: self.broker.put(body))

    async def take(self, queue: str, timeout: float) -> Delivery | None:
        until = asyncio.get_running_loop().time() + timeout
        while (found := await self._step(self._pick)) is None:
            if asyncio.get_running_loop().time() >= until:
                return None
            await asyncio.sleep(0.05)
        number, body = found

        async def ack() -> None:
            await self._step(lambda: self._settle(number))

        return Delivery(body, ack)

    def _pick(self) -> tuple[int, bytes] | None:
        while len(self._came) < self.broker.ahead and (found := self.broker.pick()) is not None:
            self.held.add(found[0])
            self._came.append(found)
        return self._came.pop(0) if self._came else None

    def _settle(self, number: int) -> None:
        self.held.discard(number)
        self.broker.away.pop(number)

    async def depth(self, queue: str) -> int | None:
        return None

    def _lose(self) -> None:
        self.over = True
        for number in sorted(self.held):
            self.broker.comes_back(number)
        self.held.clear()

    async def close(self) -> None:
        self._lose()


def in_simulation(work: Callable[[], Awaitable[Any]]) -> Any:
    """Return the result of a coroutine in simulated time."""
    loop = SimLoop()

    async def main() -> Any:
        return await work()

    try:
        return loop.run_until_complete(main())
    finally:
        loop.end()


class Rows:
    """A history in memory."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def record(self, op: Op) -> None:
        self.ops.append(op)

    def flush(self) -> None:
        pass


def cluster_on(broker: Broker, options: dict[str, Any], depths: Callable[[], Any] = lambda: None,
               connection: Callable[[Broker], Any] = Connection) -> Any:
    """A cluster of one node whose clients connect to the broker."""
    async def told() -> Any:
        return depths()

    test = Test("none", "queue", nodes=1, options=options, time_limit=3.0, rate=40.0, seed=1,
                concurrency=QueueWorkload.concurrency(options))  # fmt: skip
    return SimpleNamespace(
        test=test, node_names=("n1",), client_addresses=lambda: [("127.0.0.1", 1)], depths=told,
        queue_connection=lambda: connection(broker), demands=SimpleNamespace(queues=("q0", "q1")),
        own_name=lambda name: name, backend=SimpleNamespace(address=lambda _: "127.0.0.1"),
    )  # fmt: skip


def options_of(workload: type[Workload], **changed: Any) -> dict[str, Any]:
    return {option.name: option.default for option in workload.options} | {"min_ok": 5} | changed


def recorded(cluster: Any, workload: QueueWorkload) -> list[Op]:
    """The history of a whole run: load, drain, and what follows when all clients have closed."""
    rows, test = Rows(), cluster.test

    async def run() -> None:
        phases = [workload.main, workload.drain, workload.depth]
        if isinstance(cluster.queue_connection(), DeadLettering):
            phases.append(workload.dead_letters)
        interpreter = Interpreter(test, lambda thread, _, host: workload.client(cluster, thread, host), NoClient(),
                                  rows)
        for phase in phases:
            assert await interpreter.run(phase(test))
            await interpreter.close()

    in_simulation(run)
    return rows.ops
