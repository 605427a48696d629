"""Carries out a generator's operations with clients and a nemesis, by Jepsen's rules.

One scheduler stamps times and gives the history its order. It takes completions before new invocations, so that
operations never look concurrent that were not. An exception in a client counts as ``info``. After ``info``, the thread
continues as a new process with a new client. A thread that the system does not serve pauses before its next operation,
longer each time. An operation whose client does not return is abandoned: it has no completion, since it may still take
effect. Nothing here reads a wall clock: time is the event loop's.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from harness.run.client_reaper import ClientReaper
from harness.run.worker import ClientWorker
from stormproof.backoff import Backoff
from stormproof.contracts.client import Client
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
from stormproof.text import LONGEST_REASON, printable

POLL_SECONDS, LONGEST_POLL_SECONDS = 0.001, 0.032
"""A pending generator without a wake-up time is polled after the first interval. Each further interval is twice as
long, up to the second."""
TICK_SECONDS = 0.1
"""Interval of flushing the recorder and searching for hanging operations."""

logger = logging.getLogger("stormproof.interpreter")


class Recorder(Protocol):
    """Stores the history, row by row in order."""

    def record(self, op: Op) -> None:
        """Take one row. Raises StormproofError when it can't be stored."""

    def flush(self) -> None:
        """Write the taken rows to disk."""


class RunClock:
    """Nanoseconds since the start of the run, on the event loop's clock."""

    def __init__(self) -> None:
        self._loop_time: Callable[[], float] = asyncio.get_running_loop().time
        self._start = self._loop_time()

    def __call__(self) -> int:
        """Return the current time."""
        return int((self._loop_time() - self._start) * SECOND)


@dataclass(frozen=True)
class LoadProgress:
    """The progress of a run: counts of client operations, and ``time`` in nanoseconds of the run."""

    time: int
    invoked: int
    ok: int
    fail: int
    info: int
    under_way: int


ClientFactory = Callable[[int, int, str], Client]
"""(thread, process, client host) -> a client for that process, not yet open."""
ProgressReport = Callable[[LoadProgress], None]


@dataclass(frozen=True)
class Abandonment:
    """An operation that never ended, or (with an empty ``f``) a client that could not be closed. ``time`` is the time
    of discovery."""

    time: int
    process: int
    f: str
    key: int | None
    reason: str


class Interpreter:
    """Runs generators one after the other on one clock, one history and one set of processes.

    ``make_client(thread, process, host)`` creates clients. Thread t runs at client host t modulo the number of hosts.
    After ``hang_limit`` seconds, an operation that its client does not end is cut off: it becomes ``info``, or is
    abandoned if its client does not return even then. ``on_abandoned`` receives each abandonment, ``on_completion``
    every other end of an operation. Call ``run`` for each phase, then ``close``.
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
        on_abandoned: Callable[[Abandonment], None] | None = None,
        on_completion: Callable[[Op], None] | None = None,
        hang_limit: float = 60.0,
    ) -> None:
        self.test = test
        self.clock = clock or RunClock()
        self._recorder = recorder
        self._on_progress, self._on_abandoned, self._on_completion = on_progress, on_abandoned, on_completion
        self._hang_limit = round(hang_limit * SECOND)
        self._ctx = Context.initial(test.concurrency)
        self._last_time = -1
        self._completions: deque[tuple[ClientWorker, Op]] = deque()
        self._rested: deque[int] = deque()
        """Threads whose pause is over."""
        self._pausing = 0
        self._wake: asyncio.Future[None] | None = None
        self._stopping = False
        self._failure: StormproofError | None = None
        self._counts = dict.fromkeys((INVOKE, OK, FAIL, INFO), 0)
        self._under_way = 0
        self.done: dict[str, int] = {}
        """Function -> operations of clients that ended ``ok``."""
        self._reaper = ClientReaper(self._not_closed)
        hosts = test.client_hosts
        self._workers = [ClientWorker(NEMESIS, lambda process: nemesis, self, Backoff(test.rng("pause/nemesis")))]
        for thread in range(test.concurrency):
            factory = _factory(make_client, thread, hosts[thread % len(hosts)])
            self._workers.append(ClientWorker(thread, factory, self, Backoff(test.rng(f"pause/{thread}"))))

    @property
    def processes(self) -> tuple[int, ...]:
        """The current process of each client thread."""
        return self._ctx.processes

    def progress(self) -> LoadProgress:
        """Return the progress so far."""
        counts = self._counts
        return LoadProgress(self.clock(), counts[INVOKE], counts[OK], counts[FAIL], counts[INFO], self._under_way)

    def stop(self) -> None:
        """End the current ``run`` soon: operations under way complete as ``info``, and it returns False."""
        self._stopping = True
        self._notify()

    async def run(self, generator: Source) -> bool:
        """Carry out a generator until it is exhausted and all its operations are complete.

        Returns False when ``stop`` was called or the task was cancelled. Operations under way are then recorded as
        ``info``.

        Raises:
            GeneratorError: the generator failed. InterpreterError: a client broke its contract.
            StormproofError: the recorder failed. In each of these cases the history so far is recorded, with operations
                under way completed as ``info``.
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
        """Between two phases: let every client make its confirmed operations safe.

        Return False when some clients could not within ``timeout`` seconds.
        """
        return await self._reaper.flush([worker.client for worker in self._workers if worker.client], timeout)

    def retire(self, client: Client) -> None:
        """Flush and close a client that its thread has lost, while the run continues."""
        self._reaper.retire(client)

    async def close(self) -> None:
        """End the workers and close all clients, whether flushed or not."""
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
            while self._rested:
                self._pausing -= 1
                self._ctx = self._ctx.freed(self._rested.popleft())
            ctx = self._ctx = self._ctx.at(now)
            if generator is None or not ctx.free:
                if not self._under_way and (generator is None or not self._pausing):
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
        """Return the time of the next row: the clock's time, but always later than the row before."""
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

    def _complete(self, worker: ClientWorker, op: Op, generator: Generator | None) -> Generator | None:
        thread = worker.thread
        now = self._stamp()
        self._under_way -= 1
        ctx = self._ctx.at(now)
        if worker.pause:
            self._pausing += 1
            asyncio.get_running_loop().call_later(worker.pause, self._rest_is_over, thread)
        else:
            ctx = ctx.freed(thread)
        if op.type in COMPLETION_TYPES:
            kind = INFO if thread == NEMESIS else op[0]
            error = op[7]
            if error is not None and (len(error) > LONGEST_REASON or not error.isprintable()):
                error = printable(error)
            op = Op(kind, op[1], op[2], op[3], op[4], now, op[6], error)
            if not worker.abandoned:
                self._record(op)
            if thread != NEMESIS:
                self._counts[kind] += 1
                if kind == OK:
                    self.done[op.f] = self.done.get(op.f, 0) + 1
                if worker.abandoned:
                    self._tell_abandoned(Abandonment(now, op.process, op.f, op.key, error or ""))
                elif self._on_completion is not None:
                    self._on_completion(op)
            if generator is not None:
                self._ctx = ctx
                generator = tell(generator, self.test, ctx, op)
            self._record_notes(worker)
        if thread != NEMESIS and worker.lost:
            ctx = ctx.renewed(thread)
        self._ctx = ctx
        return generator

    def _rest_is_over(self, thread: int) -> None:
        self._rested.append(thread)
        self._notify()

    def _not_closed(self, why: str) -> None:
        self._tell_abandoned(Abandonment(self.clock(), NEMESIS, "", None, why))

    def _tell_abandoned(self, found: Abandonment) -> None:
        logger.warning("abandoned: process %d, %s: %s", found.process, found.f or "a client", found.reason)
        if self._on_abandoned is not None:
            self._on_abandoned(found)

    def _record_notes(self, worker: ClientWorker) -> None:
        """Record, after a completion, the further operations that its client carried out. Generators do not see
        them."""
        for begun, done in worker.take_notes():
            for op in (begun, done):
                self._record(op._replace(time=self._stamp()))

    def _record(self, op: Op) -> None:
        self._last_time = op.time
        self._recorder.record(op)

    def completed(self, worker: ClientWorker, op: Op) -> None:
        """Take note that a worker's operation has ended."""
        self._completions.append((worker, op))
        self._notify()

    def failed(self, error: StormproofError) -> None:
        """Take note of an error that ends the run."""
        self._failure = self._failure or error
        self._notify()

    def _notify(self) -> None:
        wake = self._wake
        if wake is not None and not wake.done():
            wake.set_result(None)

    async def _wait(self, seconds: float | None) -> None:
        """Sleep until an event occurs, for at most ``seconds``."""
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
        """Run next to the scheduler: flush, cut off hanging operations, report progress each second."""
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
                    worker.cut_off(f"no completion within {self._hang_limit / SECOND:g} s; the harness gave up")
            if ticks % 10 == 0:
                self._report()

    def _report(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.progress())

    async def _interrupt(self) -> None:
        """Complete all operations under way as ``info``."""
        for worker in self._workers:
            worker.interrupt("interrupted")
        while self._completions:
            worker, op = self._completions.popleft()
            self._complete(worker, op, None)
        self._recorder.flush()


def _factory(make_client: ClientFactory, thread: int, host: str) -> Callable[[int], Client]:
    return lambda process: make_client(thread, process, host)


class NoClient:
    """A client (or nemesis) that immediately answers ``ok`` to every operation."""

    async def open(self) -> None:
        """Do nothing: there is no connection to open."""

    async def invoke(self, op: Op) -> Op:
        """Return the operation as completed ``ok``."""
        return op.ok()

    async def close(self) -> None:
        """Do nothing: there is no connection to close."""
