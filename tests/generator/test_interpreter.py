"""The interpreter's rules, with clients that do what each rule is about."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from harness.run.interpreter import Abandonment, Interpreter, LoadProgress, NoClient
from harness.run.worker import InterpreterError
from stormproof import generator as gen
from stormproof.contracts.client import Abandoned
from stormproof.errors import StormproofError
from stormproof.generator.core import Answer, Context, Generator
from stormproof.history.journal import JournalWriter, read_journal
from stormproof.operation import FAIL, INFO, INVOKE, OK, Op
from stormproof.test import Test

E = Op(INVOKE, "enqueue")
D = Op(INVOKE, "dequeue")


class Rows:
    """A recorder in memory."""

    def __init__(self, fail_after: int | None = None) -> None:
        self.ops: list[Op] = []
        self.fail_after = fail_after

    def record(self, op: Op) -> None:
        if self.fail_after is not None and len(self.ops) >= self.fail_after:
            raise StormproofError("the disk is full")
        self.ops.append(op)

    def flush(self) -> None:
        pass

    def brief(self) -> list[tuple[str, int, str]]:
        return [(op.type, op.process, op.f) for op in self.ops]


class ScriptedClient:
    """Calls ``act`` for each operation, and notes what was opened and closed."""

    def __init__(self, act: Callable[[Op], Awaitable[Op]], log: list[str], name: str) -> None:
        self.act, self.log, self.name = act, log, name

    async def open(self) -> None:
        self.log.append(f"open {self.name}")
        if self.name in getattr(self.act, "closed_to", ()):
            raise ConnectionRefusedError("nobody there")

    async def invoke(self, op: Op) -> Op:
        return await self.act(op)

    async def close(self) -> None:
        self.log.append(f"close {self.name}")


class Bench:
    """An interpreter over scripted clients."""

    def __init__(self, act: Callable[[Op], Awaitable[Op]], concurrency: int = 1, **options) -> None:
        self.log: list[str] = []
        self.rows = options.pop("rows", Rows())
        self.hosts: dict[int, str] = {}
        kind = options.pop("client", ScriptedClient)

        def make(thread: int, process: int, host: str) -> ScriptedClient:
            self.hosts[process] = host
            return kind(act, self.log, str(process))

        nemesis = options.pop("nemesis", NoClient())
        self.interpreter = Interpreter(
            Test("none", "none", concurrency=concurrency), make, nemesis, self.rows, **options
        )

    async def run(self, source: gen.Source) -> bool:
        return await asyncio.wait_for(self.interpreter.run(source), 30)


async def fine(op: Op) -> Op:
    return op.ok()


async def test_operations_are_recorded_with_times_that_only_grow() -> None:
    bench = Bench(fine, concurrency=3)
    assert await bench.run(gen.clients(gen.limit(50, gen.repeat(E))))
    times = [op.time for op in bench.rows.ops]
    assert len(times) == 100
    assert all(a < b for a, b in itertools.pairwise(times))
    assert [type for type, _, _ in bench.rows.brief()].count(OK) == 50


async def test_an_exception_is_info_and_brings_a_new_process_and_client() -> None:
    async def act(op: Op) -> Op:
        if op.process == 0:
            raise TimeoutError("no receipt")
        return op.ok()

    bench = Bench(act)
    await bench.run(gen.clients(gen.limit(3, gen.repeat(E))))
    assert bench.rows.brief() == [
        (INVOKE, 0, "enqueue"), (INFO, 0, "enqueue"),
        (INVOKE, 1, "enqueue"), (OK, 1, "enqueue"),
        (INVOKE, 1, "enqueue"), (OK, 1, "enqueue"),
    ]  # fmt: skip
    assert bench.rows.ops[1].error == "TimeoutError: no receipt"
    await bench.interpreter.close()
    assert bench.log[0] == "open 0"
    assert sorted(bench.log[1:]) == ["close 0", "close 1", "open 1"]


async def test_an_info_completion_brings_a_new_process_a_fail_does_not() -> None:
    async def act(op: Op) -> Op:
        return op.info("unknown") if op.f == "enqueue" else op.fail("empty")

    bench = Bench(act, concurrency=2)
    await bench.run(gen.on_threads([1], [E, D, D, E, D]))
    assert [process for _, process, _ in bench.rows.brief()[::2]] == [1, 3, 3, 3, 5]


async def test_a_client_that_cannot_open_fails_and_brings_a_new_process() -> None:
    act = lambda op: fine(op)  # noqa: E731
    act.closed_to = ("0", "1")  # type: ignore[attr-defined]
    bench = Bench(act)
    await bench.run(gen.clients(gen.limit(3, gen.repeat(E))))
    assert bench.rows.brief() == [
        (INVOKE, 0, "enqueue"), (FAIL, 0, "enqueue"),
        (INVOKE, 1, "enqueue"), (FAIL, 1, "enqueue"),
        (INVOKE, 2, "enqueue"), (OK, 2, "enqueue"),
    ]  # fmt: skip
    assert bench.rows.ops[1].error == "no client: ConnectionRefusedError: nobody there"


async def test_clients_stand_at_the_hosts_in_turn() -> None:
    bench = Bench(fine, concurrency=4)
    await bench.run(gen.clients(gen.each_thread(E)))
    assert bench.hosts == {0: "c1", 1: "c2", 2: "c3", 3: "c1"}


async def test_completions_are_taken_before_new_invocations() -> None:
    """Two operations that follow each other on different threads never seem concurrent."""

    class Alternate(Generator):
        def op(self, test: Test, ctx: Context) -> Answer:
            return (ctx.fill(E), self) if ctx.free == ctx.threads else (gen.PENDING, self)

    bench = Bench(fine, concurrency=5)
    await bench.run(gen.clients(gen.limit(20, Alternate())))
    assert [type for type, _, _ in bench.rows.brief()] == [INVOKE, OK] * 20
    assert {process for _, process, _ in bench.rows.brief()} == {0, 1, 2, 3, 4}


async def test_log_and_sleep_are_not_recorded() -> None:
    bench = Bench(fine)
    await bench.run(gen.clients([gen.log("hello"), gen.sleep(0.01), E]))
    assert bench.rows.brief() == [(INVOKE, 0, "enqueue"), (OK, 0, "enqueue")]
    assert bench.rows.ops[0].time >= 10_000_000


async def test_the_nemesis_is_a_thread_of_its_own_and_always_info() -> None:
    class Slow(NoClient):
        async def invoke(self, op: Op) -> Op:
            await asyncio.sleep(0.01)
            return op.ok(value={"id": 0, "targets": ["n1"]})

    bench = Bench(fine, nemesis=Slow())
    faults = gen.nemesis([Op(INFO, "partition.inject", {"id": 0}), Op(INVOKE, "partition.heal", {"id": 0})])
    await bench.run(gen.any_of(gen.clients(gen.limit(3, gen.repeat(E))), faults))
    rows = [op for op in bench.rows.ops if op.process == -1]
    assert [(op.type, op.f) for op in rows] == [(INFO, "partition.inject")] * 2 + [(INFO, "partition.heal")] * 2
    assert rows[1].value == {"id": 0, "targets": ["n1"]}
    assert [op.type for op in bench.rows.ops if op.process >= 0].count(OK) == 3


async def test_a_nemesis_that_raises_keeps_its_process_and_goes_on() -> None:
    class Broken(NoClient):
        async def invoke(self, op: Op) -> Op:
            raise StormproofError("node n1 does not answer")

    bench = Bench(fine, nemesis=Broken())
    await bench.run(gen.nemesis([Op(INFO, "kill.inject"), Op(INFO, "kill.heal")]))
    assert [(op.process, op.error) for op in bench.rows.ops[1::2]] == [
        (-1, "StormproofError: node n1 does not answer")
    ] * 2


async def test_a_pending_generator_is_asked_again_without_an_event() -> None:
    class Later(Generator):
        def op(self, test: Test, ctx: Context) -> Answer:
            return (ctx.fill(E), None) if ctx.time > 5_000_000 else (gen.PENDING, self)

    bench = Bench(fine)
    await bench.run(gen.clients(Later()))
    assert bench.rows.brief() == [(INVOKE, 0, "enqueue"), (OK, 0, "enqueue")]


async def test_several_runs_share_clock_processes_and_clients() -> None:
    async def act(op: Op) -> Op:
        return op.info("unknown") if op.f == "enqueue" else op.ok()

    bench = Bench(act)
    await bench.run(gen.clients(E))
    assert bench.interpreter.processes == (1,)
    await bench.run(gen.clients(D))
    await bench.run(gen.clients(D))
    assert [process for _, process, _ in bench.rows.brief()[::2]] == [0, 1, 1]
    assert [op.time for op in bench.rows.ops] == sorted(op.time for op in bench.rows.ops)
    assert bench.log.count("open 1") == 1
    await bench.interpreter.close()
    await bench.run(gen.clients(D))  # a closed interpreter opens clients again
    assert bench.log.count("open 1") == 2


async def test_a_failing_generator_ends_the_run_and_the_history_is_whole() -> None:
    hang = asyncio.Event()

    async def act(op: Op) -> Op:
        await hang.wait()
        return op.ok()

    def broken() -> Op:
        raise ZeroDivisionError("in my workload")

    bench = Bench(act, concurrency=2)
    with pytest.raises(gen.GeneratorError, match="ZeroDivisionError: in my workload"):
        await bench.run(gen.clients([E, broken]))
    assert bench.rows.brief() == [(INVOKE, 0, "enqueue"), (INFO, 0, "enqueue")]
    assert bench.rows.ops[1].error == "interrupted"


@pytest.mark.parametrize(
    ("completion", "message"),
    [
        (None, "client answered None to enqueue"),
        (E._replace(process=0), "type 'invoke'"),
        (E._replace(process=5, type=OK), "another operation's completion"),
        (D._replace(process=0, type=OK), "another operation's completion"),
    ],
)
async def test_a_client_that_answers_nonsense_ends_the_run(completion: Op | None, message: str) -> None:
    async def act(op: Op) -> Op:
        return completion  # type: ignore[return-value]

    bench = Bench(act)
    with pytest.raises(InterpreterError, match=message):
        await bench.run(gen.clients(gen.repeat(E)))
    assert [type for type, _, _ in bench.rows.brief()] == [INVOKE, INFO]


async def test_a_factory_that_fails_ends_the_run() -> None:
    def make(thread: int, process: int, host: str) -> NoClient:
        raise TypeError("wrong arguments")

    rows = Rows()
    interpreter = Interpreter(Test("none", "none", concurrency=1), make, NoClient(), rows)
    with pytest.raises(InterpreterError, match="no client could be made: TypeError: wrong arguments"):
        await interpreter.run(gen.clients(gen.repeat(E)))
    assert [type for type, _, _ in rows.brief()] == [INVOKE, FAIL]


async def test_a_full_disk_ends_the_run() -> None:
    bench = Bench(fine, rows=Rows(fail_after=7))
    with pytest.raises(StormproofError, match="the disk is full"):
        await bench.run(gen.clients(gen.repeat(E)))
    assert len(bench.rows.ops) == 7


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_an_interrupted_run_completes_what_is_under_way_as_info(how: str) -> None:
    started = asyncio.Event()

    async def act(op: Op) -> Op:
        if op.process == 1:
            started.set()
            await asyncio.sleep(3600)
        return op.ok()

    bench = Bench(act, concurrency=2)
    task = asyncio.create_task(bench.interpreter.run(gen.clients([E, D, gen.sleep(3600), gen.sleep(3600)])))
    await started.wait()
    await asyncio.sleep(0.01)
    if how == "stop":
        bench.interpreter.stop()
    else:
        task.cancel()
    assert await asyncio.wait_for(task, 10) is False
    assert sorted(bench.rows.brief()) == sorted([
        (INVOKE, 0, "enqueue"), (OK, 0, "enqueue"), (INVOKE, 1, "dequeue"), (INFO, 1, "dequeue"),
    ])  # fmt: skip
    assert bench.interpreter.processes == (0, 3)  # a sleep cut short ends no process
    await bench.run(gen.clients(gen.each_thread(E)))  # and it can go on, to drain
    assert [(t, p) for t, p, _ in bench.rows.brief()[4:]] == [(INVOKE, 3), (INVOKE, 0), (OK, 3), (OK, 0)]


async def test_an_operation_that_hangs_is_given_up() -> None:
    async def act(op: Op) -> Op:
        if op.process == 0:
            await asyncio.sleep(3600)
        return op.ok()

    bench = Bench(act, hang_limit=0.05)
    await bench.run(gen.clients([E, D]))
    assert bench.rows.brief() == [
        (INVOKE, 0, "enqueue"), (INFO, 0, "enqueue"), (INVOKE, 1, "dequeue"), (OK, 1, "dequeue"),
    ]  # fmt: skip
    assert "the harness gave up" in str(bench.rows.ops[1].error)


async def test_a_client_that_swallows_cancellation_cannot_answer_late() -> None:
    async def act(op: Op) -> Op:
        if op.process == 0:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass
        return op.ok()

    bench = Bench(act, hang_limit=0.05)
    await bench.run(gen.clients([E, D, D]))
    assert [(t, p) for t, p, _ in bench.rows.brief()] == [(INVOKE, 0), (INFO, 0), *[(INVOKE, 1), (OK, 1)] * 2]


@pytest.mark.requirement("H26", part=True)
async def test_an_operation_that_never_ends_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no completion, since it may still take effect; its thread goes on as another process."""
    monkeypatch.setattr("harness.run.worker.LEAVE_SECONDS", 0.05)
    release = asyncio.Event()
    told: list[Abandonment] = []

    async def act(op: Op) -> Op:
        while op.process == 0 and not release.is_set():
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass
        if op.process == 1:
            raise Abandoned("send() did not end")
        return op.ok()

    bench = Bench(act, hang_limit=0.05, on_abandoned=told.append)
    await bench.run(gen.clients([E, D, D]))
    assert [(t, p) for t, p, _ in bench.rows.brief()] == [(INVOKE, 0), (INVOKE, 1), (INVOKE, 2), (OK, 2)]
    assert [(each.process, each.f) for each in told] == [(0, "enqueue"), (1, "dequeue")]
    assert "the harness gave up" in told[0].reason and told[1].reason == "send() did not end"
    assert bench.interpreter.progress().info == 2 and bench.interpreter.progress().under_way == 0
    release.set()
    await bench.interpreter.close()


@pytest.mark.requirement("H26", part=True)
async def test_a_client_that_can_not_be_closed_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.run.client_reaper.LEAVE_SECONDS", 0.05)
    monkeypatch.setattr("harness.run.client_reaper.CLOSE_SECONDS", 0.05)
    release, told = asyncio.Event(), list[Abandonment]()

    class Deaf(NoClient):
        async def close(self) -> None:
            while not release.is_set():
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    pass

    interpreter = Interpreter(Test("none", "none", concurrency=1), lambda *_: Deaf(), NoClient(), Rows(),
                              on_abandoned=told.append)  # fmt: skip
    assert await interpreter.run(gen.clients(E))
    await interpreter.close()
    assert [each.f for each in told] == [""] and "close() did not end" in told[0].reason
    release.set()


@pytest.mark.parametrize("error", [SystemExit(7), RuntimeError("\ud800 \n" + "x" * 5_000_000)])
async def test_whatever_a_client_raises_is_told_in_a_short_line(error: BaseException) -> None:
    async def act(op: Op) -> Op:
        if op.process == 0:
            raise error
        return op.ok()

    bench = Bench(act)
    await bench.run(gen.clients([E, D]))
    assert [(t, p) for t, p, _ in bench.rows.brief()] == [(INVOKE, 0), (INFO, 0), (INVOKE, 1), (OK, 1)]
    told = str(bench.rows.ops[1].error)
    assert told.startswith(type(error).__name__) and len(told) < 600 and told.isprintable() and told.encode()


async def test_a_cancellation_inside_a_client_is_info() -> None:
    async def act(op: Op) -> Op:
        if op.process == 0:
            raise asyncio.CancelledError
        return op.ok()

    bench = Bench(act)
    await bench.run(gen.clients([E, D]))
    assert [(t, p) for t, p, _ in bench.rows.brief()] == [(INVOKE, 0), (INFO, 0), (INVOKE, 1), (OK, 1)]


async def test_a_close_that_raises_costs_nobody_anything() -> None:
    class Nasty(NoClient):
        async def close(self) -> None:
            raise OSError("already gone")

    rows = Rows()
    interpreter = Interpreter(Test("none", "none", concurrency=2), lambda *_: Nasty(), NoClient(), rows)
    assert await interpreter.run(gen.clients(gen.each_thread(E)))
    await interpreter.close()


async def test_progress_is_counted() -> None:
    seen: list[LoadProgress] = []
    kinds = iter([OK, FAIL, INFO, OK])

    async def act(op: Op) -> Op:
        return op._replace(type=next(kinds))

    bench = Bench(act, on_progress=seen.append)
    await bench.run(gen.clients(gen.limit(4, gen.repeat(E))))
    last = seen[-1]
    assert (last.invoked, last.ok, last.fail, last.info, last.under_way) == (4, 2, 1, 1, 0)


async def test_the_journal_is_a_recorder(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path / "journal.bin", "run")
    test = Test("none", "none", concurrency=10)
    interpreter = Interpreter(test, lambda *_: NoClient(), NoClient(), journal)
    source = gen.mix([gen.indexed(lambda i: E._replace(value=(1, i))), gen.repeat(D)], random.Random(0))
    await interpreter.run(gen.clients(gen.limit(5000, source)))
    await interpreter.close()
    journal.close()
    contents = read_journal(tmp_path / "journal.bin")
    assert (contents.rows, contents.dropped_bytes) == (10_000, 0)


class Holder(ScriptedClient):
    """Has something to flush, which takes some time."""

    async def flush(self) -> None:
        await asyncio.sleep(0.05)
        self.log.append(f"flushed {self.name}")


async def test_a_client_with_something_to_flush_does_so_before_it_is_closed_and_when_all_is_healed() -> None:
    async def act(op: Op) -> Op:
        return op.info("lost") if op.process == 0 else op.ok()

    bench = Bench(act, client=Holder)
    await bench.run(gen.clients(gen.limit(2, gen.repeat(E))))
    assert bench.log == ["open 0", "open 1"]
    assert await bench.interpreter.flush(10)
    assert sorted(bench.log[2:]) == ["close 0", "flushed 0", "flushed 1"]
    assert not await bench.interpreter.flush(0.001)
    await bench.interpreter.close()
    assert bench.log.count("flushed 1") == 1
    assert bench.log[-1] == "close 1"


async def test_closing_the_interpreter_cuts_off_what_does_not_flush_and_closes_it() -> None:
    async def act(op: Op) -> Op:
        return op.info("lost")

    class Never(ScriptedClient):
        async def flush(self) -> None:
            await asyncio.Event().wait()

    bench = Bench(act, client=Never)
    await bench.run(gen.clients(gen.limit(1, gen.repeat(E))))
    assert not await bench.interpreter.flush(0.01)
    await bench.interpreter.close()
    assert bench.log == ["open 0", "close 0"]


@pytest.mark.requirement("H4", part=True)
async def test_clients_that_do_not_flush_are_closed_in_the_order_in_which_they_were_lost() -> None:
    async def act(op: Op) -> Op:
        return op.info("lost")

    class Never(ScriptedClient):
        async def flush(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                self.log.append(f"gave up {self.name}")

    bench = Bench(act, client=Never)
    await bench.run(gen.clients(gen.limit(20, gen.repeat(E))))
    await bench.interpreter.close()
    told = [line for line in bench.log if not line.startswith("open")]
    assert told == [f"{what} {name}" for what in ("gave up", "close") for name in range(20)]
