"""Execution of a generator in virtual time: the exact operations that it would yield, for tests and previews."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, NamedTuple

from stormproof.generator.basic import lift
from stormproof.generator.core import LOG, SECOND, SLEEP, Context, Generator, GeneratorError, Pending, Source, ask, tell
from stormproof.operation import FAIL, INFO, NEMESIS, OK, Op
from stormproof.test import Test

POLL = 1_000_000
"""Nanoseconds after which a pending generator without a wake time is asked again."""


class SimulatedOutcome(NamedTuple):
    """The outcome of an operation: the completion's type, the nanoseconds from invocation to completion, and the
    completion's value (None: the invocation's value)."""

    type: str
    latency: int
    value: Any = None


Model = Callable[[Op, int], SimulatedOutcome]
"""Determines the outcome of an invocation; the second argument counts invocations from 0."""


def quick(op: Op, number: int) -> SimulatedOutcome:
    """Complete everything as ok at once."""
    return SimulatedOutcome(OK, 0)


def perfect(op: Op, number: int) -> SimulatedOutcome:
    """Complete everything as ok after 10 ns."""
    return SimulatedOutcome(OK, 10)


def crashing(op: Op, number: int) -> SimulatedOutcome:
    """Crash everything after 10 ns."""
    return SimulatedOutcome(INFO, 10)


def imperfect(op: Op, number: int) -> SimulatedOutcome:
    """Complete operations in turn as ok, info and fail after 10, 20 and 30 ns."""
    return (SimulatedOutcome(OK, 10), SimulatedOutcome(INFO, 20), SimulatedOutcome(FAIL, 30))[number % 3]


def simulate(
    source: Source, model: Model = perfect, *, concurrency: int = 2, test: Test | None = None, max_ops: int = 100_000
) -> list[Op]:
    """Return the history of a generator by the interpreter's rules in virtual time, sleeps and logs included.

    Raises:
        GeneratorError: the generator broke its contract, yielded more than ``max_ops`` operations, or waits for an
            event though no operation is under way.
    """
    run = _Simulation(model, Context.initial(concurrency), test or Test("none", "none", concurrency=concurrency))
    generator: Generator | None = lift(source)
    while True:
        if run.due():
            generator = run.complete(generator)
            continue
        answer = None if generator is None else ask(generator, run.test, run.ctx)
        if answer is None:
            generator = None
            if not run.under_way:
                return run.history
            run.advance(None)
        elif isinstance(answer[0], Pending):
            generator = answer[1]
            run.advance(answer[0])
        else:
            generator = run.invoke(*answer)
            if len(run.history) > 2 * max_ops:
                raise GeneratorError(f"the generator gave more than {max_ops} operations; put a limit on it")


def invocations(history: list[Op]) -> list[Op]:
    """Return the invocations of a simulated history."""
    return [op for op in history if op.type not in (OK, FAIL) and op.error is None]


class _Simulation:
    def __init__(self, model: Model, ctx: Context, test: Test) -> None:
        self.model, self.ctx, self.test = model, ctx, test
        self.history: list[Op] = []
        self.under_way: list[tuple[int, int, Op]] = []  # (time, order, completion)
        self._count = 0
        self._idle_polls = 0

    def due(self) -> bool:
        return bool(self.under_way) and self.under_way[0][0] <= self.ctx.time

    def advance(self, pending: Pending | None) -> None:
        times = [self.under_way[0][0]] if self.under_way else []
        if pending is not None and pending.wake is not None:
            times.append(max(pending.wake, self.ctx.time + 1))
        if not times:
            self._idle_polls += 1
            if self._idle_polls > 10_000:
                raise GeneratorError("the generator waits for an event, but no operation is under way")
            times.append(self.ctx.time + POLL)
        self.ctx = self.ctx.at(min(times))

    def invoke(self, op: Op | Pending, following: Generator | None) -> Generator | None:
        assert isinstance(op, Op)
        self._idle_polls = 0
        self.history.append(op)
        if op.type == SLEEP:
            outcome = SimulatedOutcome(OK, round(op.value * SECOND))
        elif op.type == LOG:
            outcome = SimulatedOutcome(OK, 0)
        else:
            outcome = self.model(op, self._count)
            self._count += 1
        kind = INFO if op.process == NEMESIS else outcome.type
        error = None if kind == OK else kind
        value = op.value if outcome.value is None else outcome.value
        completion = op._replace(type=kind, value=value, time=self.ctx.time + outcome.latency, error=error)
        heapq.heappush(self.under_way, (completion.time, len(self.history), completion))
        self.ctx = self.ctx.busy(self.ctx.thread_of(op.process))
        return None if following is None else tell(following, self.test, self.ctx, op)

    def complete(self, generator: Generator | None) -> Generator | None:
        _, _, op = heapq.heappop(self.under_way)
        thread = self.ctx.thread_of(op.process)
        self.ctx = self.ctx.freed(thread)
        if op.f not in (SLEEP, LOG):
            self.history.append(op)
            if generator is not None:
                generator = tell(generator, self.test, self.ctx, op)
        if op.type == INFO and thread != NEMESIS:
            self.ctx = self.ctx.renewed(thread)
        return generator
