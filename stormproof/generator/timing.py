"""Generators that determine times: time limits, rates, delays, fixed times, sleep and log."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from stormproof.generator.basic import NOTHING, lift
from stormproof.generator.core import (
    LOG,
    SECOND,
    SLEEP,
    Answer,
    Context,
    Generator,
    GeneratorError,
    Pending,
    Seed,
    Source,
)
from stormproof.generator.core import earliest as _earliest
from stormproof.operation import Op
from stormproof.test import Test

CATCH_UP = 10_000_000
"""The maximum lateness in nanoseconds that a rate makes up for. It covers the event loop's timers (1 ms steps); longer
stalls are not made up for, so a healed system does not get a burst."""


@dataclass(frozen=True, slots=True)
class TimeLimit(Generator):
    """Runs ``source`` until ``length`` nanoseconds after it was first asked; the test's own limit is void in
    overtime."""

    length: int
    source: Generator
    deadline: int | None = None

    def op(self, test: Test, ctx: Context) -> Answer:
        deadline = ctx.time + self.length if self.deadline is None else self.deadline
        over = ctx.time >= deadline
        if over and not (ctx.overtime and self.length == _nanoseconds(test.time_limit)):
            return None
        answer = self.source.op(test, ctx)
        if answer is None:
            return None
        op, following = answer
        if following is None:
            return answer
        if isinstance(op, Pending) and not over:
            op = _earliest(op, Pending(deadline))
        same = following is self.source and deadline == self.deadline
        return op, self if same else TimeLimit(self.length, following, deadline)

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        source = self.source.update(test, ctx, event)
        return self if source is self.source else TimeLimit(self.length, source, self.deadline)


def time_limit(seconds: float, source: Source) -> Generator:
    """Return operations of ``source`` for ``seconds`` after it is first asked; those under way complete."""
    return TimeLimit(_nanoseconds(seconds), lift(source))


@dataclass(frozen=True, slots=True)
class Spaced(Generator):
    """Leaves gaps between operations: ``gap`` nanoseconds each, or, with a seed, random ones with that mean."""

    gap: int
    source: Generator
    seed: Seed | None
    due: int | None = None

    def op(self, test: Test, ctx: Context) -> Answer:
        due = self.due
        if due is not None and ctx.time < due:
            return Pending(due), self
        answer = self.source.op(test, ctx)
        if answer is None:
            return None
        op, following = answer
        if following is None:
            return answer
        if isinstance(op, Pending):
            return op, self if following is self.source else Spaced(self.gap, following, self.seed, due)
        gap, seed = self.gap, self.seed
        if seed is not None:
            gap, seed = seed.below(2 * gap + 1)
        start = ctx.time if due is None else max(due, ctx.time - CATCH_UP)
        return op, Spaced(self.gap, following, seed, start + gap)

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        source = self.source.update(test, ctx, event)
        return self if source is self.source else Spaced(self.gap, source, self.seed, self.due)


def stagger(seconds: float, source: Source, rng: random.Random) -> Generator:
    """Return operations of ``source`` at random times, ``seconds`` apart on average (gaps uniform in 0 to twice that).

    The gaps are between operations of all threads together. Lateness up to 10 ms is made up for.
    """
    return Spaced(_nanoseconds(seconds), lift(source), Seed.of(rng))


def rate(per_second: float, source: Source, rng: random.Random) -> Generator:
    """Return ``per_second`` operations of ``source`` a second on average, over all threads: see ``stagger``."""
    if per_second <= 0:
        raise GeneratorError(f"a rate must be above 0 operations a second, not {per_second}")
    return stagger(1 / per_second, source, rng)


def delay(seconds: float, source: Source) -> Generator:
    """Return operations of ``source`` exactly ``seconds`` apart, as far as threads are free."""
    return Spaced(_nanoseconds(seconds), lift(source), None)


@dataclass(frozen=True, slots=True)
class Timeline(Generator):
    """Operations at fixed times after it was first asked; a late one happens as soon as a thread is free."""

    steps: tuple[tuple[int, Op], ...]
    start: int | None = None
    position: int = 0

    def op(self, test: Test, ctx: Context) -> Answer:
        start = ctx.time if self.start is None else self.start
        if self.position >= len(self.steps):
            return None
        offset, template = self.steps[self.position]
        if ctx.time < start + offset:
            return Pending(start + offset), Timeline(self.steps, start, self.position)
        if not ctx.free:
            return Pending(), Timeline(self.steps, start, self.position)
        following = Timeline(self.steps, start, self.position + 1)
        return ctx.fill(template), following if following.position < len(self.steps) else None


def timeline(steps: Iterable[tuple[float, Op]]) -> Generator:
    """Return operations at given seconds (ascending) after the generator is first asked."""
    return Timeline(tuple((_nanoseconds(seconds), op) for seconds, op in steps))


def sleep(seconds: float) -> Generator:
    """Keep one thread busy for a time; not recorded."""
    return lift(Op(SLEEP, SLEEP, seconds))


def log(message: str) -> Generator:
    """Write a line to the harness's log; not recorded."""
    return lift(Op(LOG, LOG, message))


@dataclass(frozen=True, slots=True)
class Wait(Generator):
    """Nothing for ``length`` nanoseconds, then it ends; keeps no thread busy."""

    length: int
    until: int | None = None

    def op(self, test: Test, ctx: Context) -> Answer:
        until = ctx.time + self.length if self.until is None else self.until
        return None if ctx.time >= until else (Pending(until), Wait(self.length, until))


def wait(seconds: float) -> Generator:
    """Return a pause in a sequence that keeps no thread busy."""
    return Wait(_nanoseconds(seconds)) if seconds > 0 else NOTHING


def _nanoseconds(seconds: float) -> int:
    if not seconds >= 0:
        raise GeneratorError(f"a time must be 0 seconds or more, not {seconds}")
    return round(seconds * SECOND)
