"""A system that refuses is asked less and less often; one that answers is not asked more slowly."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from harness.run.interpreter import Interpreter, NoClient
from harness.sim.loop import SimLoop
from stormproof import generator as gen
from stormproof.backoff import LONGEST, SHORTEST, Backoff
from stormproof.contracts.client import NotDone
from stormproof.operation import FAIL, INVOKE, OK, Op
from stormproof.test import Test
from workloads.generic_client import GenericQueueClient
from workloads.queue import Drain, QueueWorkload
from workloads.watch import until_told
from workloads.watch_client import GenericWatchClient

THREADS = 4
SECONDS = 60
TAKE = Op(INVOKE, "drain", None, 0)
MOST = THREADS * (SECONDS / (LONGEST / 2) + 10)
"""Attempts: one in half of the longest pause, and those before the pauses are as long as that."""


class Rows:
    def __init__(self) -> None:
        self.ops: list[Op] = []

    def record(self, op: Op) -> None:
        self.ops.append(op)

    def flush(self) -> None:
        pass

    def ended(self, kind: str) -> list[float]:
        return [op.time / 1e9 for op in self.ops if op.type == kind]


class Refusing:
    """A client of a system that refuses in one of three ways; it serves from ``until`` on."""

    def __init__(self, how: str, until: float, asked: Counter[str]) -> None:
        self.how, self.until, self.asked = how, until, asked
        self.unserved = False

    def _refuses(self, how: str) -> bool:
        return self.how == how and asyncio.get_running_loop().time() < self.until

    async def open(self) -> None:
        self.asked["open"] += 1
        if self._refuses("open"):
            raise ConnectionRefusedError("refused")

    async def invoke(self, op: Op) -> Op:
        self.asked["invoke"] += 1
        await asyncio.sleep(0.001)
        if self._refuses("info"):
            return op.info("connection broken")
        self.unserved = self._refuses("fail")
        if self.unserved:
            return op.fail("not done: try again later")
        return op.ok() if self.how != "empty" else op.fail("empty")

    async def close(self) -> None:
        pass


def asked(how: str, until: float = 1e9, seconds: float = SECONDS) -> tuple[Counter[str], Rows]:
    """Operations one after the other on all threads, in simulated time."""
    counts: Counter[str] = Counter()
    rows = Rows()
    loop = SimLoop()

    async def main() -> None:
        test = Test("none", "none", concurrency=THREADS)
        interpreter = Interpreter(test, lambda *_: Refusing(how, until, counts), NoClient(), rows)
        assert await interpreter.run(gen.clients(gen.time_limit(seconds, gen.repeat(TAKE))))
        await interpreter.close()

    try:
        loop.run_until_complete(main())
    finally:
        loop.end()
    return counts, rows


@pytest.mark.parametrize("how", ["open", "info", "fail"])
def test_who_is_refused_asks_less_and_less_often(how: str) -> None:
    counts, rows = asked(how)
    attempts = sum(op.type == INVOKE for op in rows.ops)
    assert THREADS * SECONDS / LONGEST <= attempts <= MOST
    assert max(counts.values()) <= attempts
    assert not rows.ended(OK)


@pytest.mark.parametrize("how", ["serves", "empty"])
def test_answers_are_followed_by_the_next_question_at_once(how: str) -> None:
    counts, _ = asked(how, seconds=2)
    assert counts["invoke"] >= THREADS * 2 / 0.001 * 0.9


@pytest.mark.parametrize("how", ["open", "info", "fail"])
def test_who_serves_again_is_noticed_soon_and_asked_as_before(how: str) -> None:
    _, rows = asked(how, until=30.0, seconds=34)
    first = min(rows.ended(OK))
    assert 30.0 <= first <= 30.0 + LONGEST + 0.01
    assert len(rows.ended(OK)) >= THREADS * (34 - 30 - LONGEST) / 0.001 * 0.9


def test_threads_that_pause_take_part_in_the_next_phase() -> None:
    rows = Rows()
    loop = SimLoop()

    async def main() -> None:
        test = Test("none", "none", concurrency=THREADS)
        interpreter = Interpreter(test, lambda *_: Refusing("info", 10.0, Counter()), NoClient(), rows)
        assert await interpreter.run(gen.clients(gen.time_limit(10, gen.repeat(TAKE))))
        assert await interpreter.run(gen.on_threads(range(THREADS), gen.per_thread(lambda _: gen.once(TAKE))))
        await interpreter.close()

    try:
        loop.run_until_complete(main())
    finally:
        loop.end()
    assert {op.process % THREADS for op in rows.ops if op.type == OK} == set(range(THREADS))


def test_pauses_double_up_to_the_longest_and_begin_again_after_an_answer() -> None:
    backoff = Backoff(random.Random(1))
    for _ in range(2):
        pauses = [backoff.failed() for _ in range(40)]
        assert pauses[0] == 0.0
        for number, pause in enumerate(pauses[1:]):
            whole = min(SHORTEST * 2**number, LONGEST)
            assert whole / 2 <= pause <= whole
        assert len(set(pauses)) > 30
        backoff.served()


class Dialled:
    """A connection that dials a TCP port and reads one byte."""

    async def connect(self, host: str, port: int, local: str) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            if not await reader.read(1):
                raise ConnectionError("closed at once")
        finally:
            writer.close()

    async def close(self) -> None:
        pass


def cluster_of(port: int, connection: Callable[[], Any], **more: Any) -> Any:
    options = {option.name: option.default for option in QueueWorkload.options} | more
    return SimpleNamespace(
        test=Test("none", "queue", nodes=1, options=options, concurrency=2), node_names=("n1",),
        client_addresses=lambda: [("127.0.0.1", port)], queue_connection=connection,
        demands=SimpleNamespace(queues=("q0",)), own_name=lambda name: name,
        backend=SimpleNamespace(address=lambda _: "127.0.0.1"),
    )  # fmt: skip


async def test_a_port_that_closes_at_once_is_dialled_a_few_times() -> None:
    """Two consumers that drain for three real seconds: without pauses they dial thousands of times."""
    dialled = 0

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dialled
        dialled += 1
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    cluster = cluster_of(server.sockets[0].getsockname()[1], Dialled)
    rows = Rows()

    def make(thread: int, process: int, host: str) -> GenericQueueClient:
        return GenericQueueClient(cluster, Dialled(), host, thread)  # type: ignore[arg-type]

    interpreter = Interpreter(cluster.test, make, NoClient(), rows)
    async with server:
        await interpreter.run(gen.clients(gen.time_limit(3, gen.per_thread(lambda _: Drain(0)))))
    await interpreter.close()
    assert 2 <= dialled <= 2 * 14
    assert all("closed at once" in (op.error or "") for op in rows.ops if op.type == FAIL)


def in_simulation(work: Callable[[], Awaitable[None]]) -> None:
    loop = SimLoop()
    try:
        loop.run_until_complete(work())
    finally:
        loop.end()


def test_a_drain_of_a_broker_that_keeps_messages_back_asks_once_in_a_poll() -> None:
    """``take`` returns None at once though it should wait."""
    asked = Counter[str]()

    class Keeps:
        async def connect(self, *_: Any) -> None:
            pass

        async def close(self) -> None:
            pass

        async def take(self, queue: str, seconds: float) -> None:
            asked["take"] += 1

        async def depth(self, queue: str) -> int:
            asked["depth"] += 1
            return 7

    async def main() -> None:
        client = GenericQueueClient(cluster_of(1, Keeps, poll=0.25, drain_patience=10.0), Keeps(), "c1", 0)  # type: ignore[arg-type]
        done = await client.invoke(TAKE._replace(process=0))
        assert done.type == FAIL and "keeps 7 messages back" in (done.error or "") and client.unserved

    in_simulation(main)
    assert 38 <= asked["take"] <= 42 and asked["depth"] <= 42


def test_reads_of_a_node_that_refuses_pause() -> None:
    """A watch from the beginning is asked for until it is told whole."""
    dialled = 0

    class Refuses:
        async def connect(self, *_: Any) -> None:
            nonlocal dialled
            dialled += 1
            raise NotDone("not now")

        async def close(self) -> None:
            pass

        async def put(self, *_: Any) -> int:
            return 0

        async def head(self, *_: Any) -> int:
            return 0

        async def watch(self, *_: Any) -> None:
            pass

        async def event(self, *_: Any) -> None:
            pass

    cluster = cluster_of(1, Refuses)

    async def main() -> None:
        interpreter = Interpreter(cluster.test, lambda thread, _, host: GenericWatchClient(
            cluster, Refuses(), host, thread), NoClient(), Rows())  # fmt: skip
        await interpreter.run(gen.clients(gen.on_threads([0], gen.time_limit(SECONDS, until_told(0, 0)))))
        await interpreter.close()

    in_simulation(main)
    assert SECONDS / LONGEST <= dialled <= SECONDS / (LONGEST / 2) * 2 + 20
