"""Carries out a generator's operations with clients and a nemesis, by Jepsen's rules.

One scheduler stamps times and gives the history its order. Completions are taken before new invocations, so
that operations never seem concurrent that were not. An exception in a client is ``info``; after ``info`` the
thread goes on as a new process with a new client. Nothing here reads a wall clock: time is the event loop's.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from harness.client_reaper import ClientReaper
from stormproof.contracts.client import Client, Noting
from stormproof.errors import StormproofError
from stormproof.generator.basic import lift
from stormproof.generator.core import (
    COMPLETION_TYPES,
    LOG,
    SECOND,
    SLEEP,
    Context,
    Generator,
    Pending,
    Source,
    ask,
    tell,
)
from stormproof.operation import FAIL, INFO, INVOKE, NEMESIS, OK, Op
from stormproof.test import Test

POLL_SECONDS, LONGEST_POLL_SECONDS = 0.001, 0.032
"""A pending generator that names no time is asked again after this, then twice as late each time, up to the longest."""
TICK_SECONDS = 0.1
"""Interval of flushing the recorder and looking for operations that hang."""

logger = logging.getLogger("stormproof.interpreter")


class InterpreterError(StormproofError):
    """A client broke its contract in a way that would falsify the history."""


class Recorder(Protocol):
    """Where the history goes, row by row in order."""

    def record(self, op: Op) -> None:
        """Take one row. Raises StormproofError when it can't be stored."""

    def flush(self) -> None:
        """Bring what was taken to disk."""


class RunClock:
    """Nanoseconds since the start of the run, on the event loop's clock."""

    def __init__(self) -> None:
        self._loop_time: Callable[[], float] = asyncio.get_running_loop().time
        self._start = self._loop_time()

    def __call__(self) -> int:
        """Now."""
        return int((self._loop_time() - self._start) * SECOND)


@dataclass(frozen=True)
class Progress:
    """What has happened so far: counts of operations of clients, ``time`` in nanoseconds of the run."""

    time: int
    invoked: int
    ok: int
    fail: int
    info: int
    under_way: int


ClientFactory = Callable[[int, int, str], Client]
"""(thread, process, client host) -> a client for that process, not yet open."""
ProgressReport = Callable[[Progress], None]


class Interpreter:
    """Runs generators one after the other on one clock, one history and one set of processes.

    ``make_client(thread, process, host)`` makes clients; thread t stands at client host t modulo their
    number. ``hang_limit`` (seconds) cuts off an operation that a client does not end itself: it becomes
    ``info``. Use ``run`` for each phase, then ``close``.
    """

    def __init__(
        self,
        test: Test,
        make_client: ClientFactory,
        nemesis: Client,
        recorder: Recorder,
        *,
        clock: Callable[[], int] | None = None,
        on_progress: ProgressReport | None = None,
        hang_limit: float = 60.0,
    ) -> None:
        self.test = test
        self.clock = clock or RunClock()
        self._recorder = recorder
        self._on_progress = on_progress
        self._hang_limit = round(hang_limit * SECOND)
        self._ctx = Context.initial(test.concurrency)
        self._last_time = -1
        self._completions: deque[tuple[_Worker, Op]] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._stopping = False
        self._failure: StormproofError | None = None
        self._counts = dict.fromkeys((INVOKE, OK, FAIL, INFO), 0)
        self._under_way = 0
        self.done: dict[str, int] = {}
        """Function -> operations of clients that ended ``ok``."""
        self._reaper = ClientReaper()
        hosts = test.client_hosts
        self._workers = [_Worker(NEMESIS, lambda process: nemesis, self)]
        for thread in range(test.concurrency):
            factory = _factory(make_client, thread, hosts[thread % len(hosts)])
            self._workers.append(_Worker(thread, factory, self))

    @property
    def processes(self) -> tuple[int, ...]:
        """The process that each client thread plays now."""
        return self._ctx.processes

    def progress(self) -> Progress:
        """What has happened so far."""
        counts = self._counts
        return Progress(self.clock(), counts[INVOKE], counts[OK], counts[FAIL], counts[INFO], self._under_way)

    def stop(self) -> None:
        """End the present ``run`` soon: operations under way complete as ``info``, and it returns False."""
        self._stopping = True
        self._notify()

    async def run(self, generator: Source) -> bool:
        """Carry out a generator until it is exhausted and all its operations are complete.

        Returns False when ``stop`` was called or the task was cancelled; operations under way are then recorded
        as ``info``.

        Raises:
            GeneratorError: the generator failed. InterpreterError: a client broke its contract.
            StormproofError: the recorder failed. Whatever is raised, the history so far is recorded, with
            operations under way completed as ``info``.
        """
        self._stopping = False
        ticker = asyncio.create_task(self._tick())
        finished = False
        try:
            finished = await self._schedule(lift(generator))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
        except BaseException:
            with suppress(StormproofError):  # the error that is being raised matters more
                await self._interrupt()
            raise
        finally:
            ticker.cancel()
        if not finished:
            await self._interrupt()
        self._recorder.flush()
        self._report()
        return finished

    async def flush(self, timeout: float) -> bool:
        """Between two phases: let every client see to it that what was confirmed to it is safe.

        False when some could not within ``timeout`` seconds.
        """
        return await self._reaper.flush([worker.client for worker in self._workers if worker.client], timeout)

    def retire(self, client: Client) -> None:
        """A client that its thread has lost: it is flushed and closed while the run goes on."""
        self._reaper.retire(client)

    async def close(self) -> None:
        """End the workers and close all clients, flushed or not."""
        clients = [worker.end() for worker in self._workers]
        for worker in self._workers:
            self._record_notes(worker)
        await self._reaper.end(client for client in clients if client is not None)

    async def _schedule(self, generator: Generator | None) -> bool:
        test, poll = self.test, POLL_SECONDS
        while not self._stopping:
            if self._failure is not None:
                raise self._failure
            if self._completions:
                worker, completion = self._completions.popleft()
                generator = self._complete(worker, completion, generator)
                continue
            now = self._stamp()
            ctx = self._ctx = self._ctx.at(now)
            if generator is None or not ctx.free:
                if not self._under_way:
                    return True
                await self._wait(None)
                continue
            answer = ask(generator, test, ctx)
            if answer is None:
                generator = None
                continue
            op, following = answer
            if isinstance(op, Pending):
                generator = following
                if op.wake is None:
                    await self._wait(poll)
                    poll = POLL_SECONDS if self._completions else min(2 * poll, LONGEST_POLL_SECONDS)
                else:
                    await self._wait(max(0.0, (op.wake - now) / SECOND))
            else:
                generator = self._invoke(op, following)
                poll = POLL_SECONDS
        return False

    def _stamp(self) -> int:
        """The time of the next row: that of the clock, but always later than the row before."""
        return max(self.clock(), self._last_time + 1)

    def _invoke(self, op: Op, following: Generator | None) -> Generator | None:
        thread = self._ctx.thread_of(op.process)
        now = self._ctx.time
        if op.type not in (SLEEP, LOG):
            op = Op(INFO if thread == NEMESIS else INVOKE, op.f, op.value, op.key, op.process, now, op.node)
            self._record(op)
            if thread != NEMESIS:
                self._counts[INVOKE] += 1
        self._ctx = self._ctx.busy(thread)
        self._under_way += 1
        self._workers[thread + 1].give(op, now)
        return None if following is None else tell(following, self.test, self._ctx, op)

    def _complete(self, worker: _Worker, op: Op, generator: Generator | None) -> Generator | None:
        thread = worker.thread
        now = self._stamp()
        self._under_way -= 1
        ctx = self._ctx.at(now).freed(thread)
        if op.type in COMPLETION_TYPES:
            kind = INFO if thread == NEMESIS else op[0]
            op = Op(kind, op[1], op[2], op[3], op[4], now, op[6], op[7])
            self._record(op)
            if thread != NEMESIS:
                self._counts[kind] += 1
                if kind == OK:
                    self.done[op.f] = self.done.get(op.f, 0) + 1
            if generator is not None:
                self._ctx = ctx
                generator = tell(generator, self.test, ctx, op)
            self._record_notes(worker)
        if thread != NEMESIS and worker.lost:
            ctx = ctx.renewed(thread)
        self._ctx = ctx
        return generator

    def _record_notes(self, worker: _Worker) -> None:
        """Behind a completion: what else its client has carried out. No generator hears of it."""
        for begun, done in worker.take_notes():
            for op in (begun, done):
                self._record(op._replace(time=self._stamp()))

    def _record(self, op: Op) -> None:
        self._last_time = op.time
        self._recorder.record(op)

    def completed(self, worker: _Worker, op: Op) -> None:
        """A worker's operation has ended."""
        self._completions.append((worker, op))
        self._notify()

    def failed(self, error: StormproofError) -> None:
        """The run can't go on."""
        self._failure = self._failure or error
        self._notify()

    def _notify(self) -> None:
        wake = self._wake
        if wake is not None and not wake.done():
            wake.set_result(None)

    async def _wait(self, seconds: float | None) -> None:
        """Sleep until something happened, at most so long."""
        loop = asyncio.get_running_loop()
        self._wake = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, self._notify)
        try:
            await self._wake
        finally:
            self._wake = None
            if timer is not None:
                timer.cancel()

    async def _tick(self) -> None:
        """Beside the scheduler: flush, cut off what hangs, report progress each second."""
        ticks = 0
        while True:
            await asyncio.sleep(TICK_SECONDS)
            ticks += 1
            try:
                self._recorder.flush()
            except StormproofError as error:
                self.failed(error)
                return
            limit = self.clock() - self._hang_limit
            for worker in self._workers:
                if worker.op is not None and worker.since < limit and worker.thread != NEMESIS:
                    worker.abandon(f"no completion within {self._hang_limit / SECOND:g} s; the harness gave up")
            if ticks % 10 == 0:
                self._report()

    def _report(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.progress())

    async def _interrupt(self) -> None:
        """Complete everything that is under way as ``info``."""
        for worker in self._workers:
            worker.abandon("interrupted")
        while self._completions:
            worker, op = self._completions.popleft()
            self._complete(worker, op, None)
        self._recorder.flush()


def _factory(make_client: ClientFactory, thread: int, host: str) -> Callable[[int], Client]:
    return lambda process: make_client(thread, process, host)


class _Worker:
    """One thread of the test: carries out one operation at a time in a task of its own."""

    def __init__(self, thread: int, factory: Callable[[int], Client], interpreter: Interpreter) -> None:
        self.thread = thread
        self.op: Op | None = None
        self.since = 0
        self.lost = False
        """Whether the last operation ended this thread's process."""
        self._factory = factory
        self._interpreter = interpreter
        self.client: Client | None = None
        self._noting: Noting | None = None
        """The client, if it takes notes: to ask what it can takes long."""
        self._notes: list[tuple[Op, Op]] = []
        self._mailbox: asyncio.Future[Op] | None = None
        self._task: asyncio.Task[None] | None = None

    def give(self, op: Op, now: int) -> None:
        """Start an operation; the interpreter hears when it has ended."""
        self.op, self.since = op, now
        if self._task is None:
            self._mailbox = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._work(), name=f"stormproof-thread-{self.thread}")
        assert self._mailbox is not None
        self._mailbox.set_result(op)

    def abandon(self, reason: str) -> None:
        """Cut off the operation under way, if there is one, and complete it as ``info``."""
        op = self.op
        if op is None:
            return
        self._end_task()
        self._forget_client()
        recorded = op.type not in (SLEEP, LOG)
        self._finish(op.info(reason) if recorded else op, lost=recorded)

    def end(self) -> Client | None:
        """Take no more operations; returns the client that was in use, which is to be closed."""
        self.op = None
        self._end_task()
        return self._client_of_its_own()

    def _end_task(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        this = asyncio.current_task()
        while self._task is this:
            assert self._mailbox is not None
            op = await self._mailbox
            self._mailbox = loop.create_future()
            if op.type == SLEEP:
                await asyncio.sleep(op.value)
                self._finish(op, lost=False)
            elif op.type == LOG:
                logger.info("%s", op.value)
                self._finish(op, lost=False)
            else:
                await self._carry_out(op)

    async def _carry_out(self, op: Op) -> None:
        completion: Op | None = None
        try:
            completion = await self._open_and_invoke(op)
        except asyncio.CancelledError:
            if self.op is not op:
                raise
            # Not our doing: a task inside the client was cancelled, or the whole loop is ending. Either way
            # this task ends, and the operation's outcome is unknown.
            self._task = None
            completion = op.info("cancelled inside the client")
        if self.op is not op:  # abandoned meanwhile
            return
        lost = self.thread != NEMESIS and (completion.type == INFO or self.client is None)
        if lost:
            self._forget_client()
        elif self._noting is not None:
            self._notes += self._noting.notes(over=False)
        self._finish(completion, lost=lost)

    async def _open_and_invoke(self, op: Op) -> Op:
        client = self.client
        if client is None:
            try:
                client = self.client = self._factory(op.process)
                self._noting = client if isinstance(client, Noting) else None
            except Exception as error:
                self._interpreter.failed(InterpreterError(f"no client could be made: {_reason(error)}"))
                return op.fail("no client")
            try:
                await client.open()
            except Exception as error:
                if self.op is op:
                    self._forget_client()
                return op.fail(f"no client: {_reason(error)}")
        try:
            completion = await client.invoke(op)
        except Exception as error:
            logger.debug("process %d: %s raised", op.process, op.f, exc_info=True)
            return op.info(_reason(error))
        problem = _problem(op, completion)
        if problem:
            self._interpreter.failed(InterpreterError(problem))
            return op.info(f"harness: {problem}")
        return completion

    def _finish(self, completion: Op, *, lost: bool) -> None:
        self.op, self.lost = None, lost
        self._interpreter.completed(self, completion)

    def _forget_client(self) -> None:
        client = self._client_of_its_own()
        if client is not None:
            self._interpreter.retire(client)

    def _client_of_its_own(self) -> Client | None:
        """Hand its client over, if it has one; the nemesis is not its own."""
        client, self.client = self.client, None
        if self.thread == NEMESIS:
            return None
        noting, self._noting = self._noting, None
        if noting is not None:
            self._notes += noting.notes(over=True)
        return client

    def take_notes(self) -> list[tuple[Op, Op]]:
        """What its clients have noted since this was last asked."""
        notes, self._notes = self._notes, []
        return notes


def _problem(op: Op, completion: object) -> str | None:
    if not isinstance(completion, Op):
        return f"client answered {completion!r} to {op.f}, not an operation"
    if completion.type not in COMPLETION_TYPES:
        return f"client completed {op.f} with type {completion.type!r}, not one of ok, fail, info"
    if completion.process != op.process or completion.f != op.f:
        return f"client completed {op} with another operation's completion {completion}"
    return None


def _reason(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class NoClient:
    """A client (or nemesis) that says ok to everything at once."""

    async def open(self) -> None:
        """Nothing to connect to."""

    async def invoke(self, op: Op) -> Op:
        """Done."""
        return op.ok()

    async def close(self) -> None:
        """Nothing to disconnect from."""
