"""Generators that choose threads: subsets of threads, independent threads, mixtures, and synchronization."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import is_

from stormproof.generator.basic import NOTHING, lift, sequence
from stormproof.generator.core import (
    CLIENTS_MASK,
    NEMESIS_MASK,
    PENDING,
    Answer,
    Context,
    Generator,
    GeneratorError,
    Pending,
    Seed,
    Source,
    earliest,
    threads_mask,
)
from stormproof.operation import Op
from stormproof.test import Test


@dataclass(frozen=True, slots=True)
class OnThreads(Generator):
    """Lets ``source`` see only the threads in ``mask``, and only their events."""

    mask: int
    source: Generator

    def op(self, test: Test, ctx: Context) -> Answer:
        answer = self.source.op(test, ctx.restrict(self.mask))
        if answer is None or answer[1] is None:
            return answer
        return answer[0], self if answer[1] is self.source else OnThreads(self.mask, answer[1])

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        if not self.mask & ctx.bit_of(event.process):
            return self
        source = self.source.update(test, ctx.restrict(self.mask), event)
        return self if source is self.source else OnThreads(self.mask, source)


def on_threads(threads: Iterable[int], source: Source) -> Generator:
    """Return ``source`` restricted to these threads (clients count from 0, the nemesis is -1)."""
    return OnThreads(threads_mask(threads), lift(source))


def clients(source: Source) -> Generator:
    """Return ``source`` restricted to all threads except the nemesis."""
    return OnThreads(CLIENTS_MASK, lift(source))


def nemesis(source: Source) -> Generator:
    """Return ``source`` restricted to the nemesis."""
    return OnThreads(NEMESIS_MASK, lift(source))


@dataclass(frozen=True, slots=True)
class Reserve(Generator):
    """Groups of threads with a generator each; None marks an exhausted one."""

    masks: tuple[int, ...]
    parts: tuple[Generator | None, ...]

    def op(self, test: Test, ctx: Context) -> Answer:
        parts, wake, waiting = list(self.parts), None, False
        for i in self._order(ctx):
            part = parts[i]
            if part is None:
                continue
            answer = part.op(test, ctx.restrict(self.masks[i]))
            if answer is None:
                parts[i] = None
                continue
            op, parts[i] = answer
            if not isinstance(op, Pending):
                return op, Reserve(self.masks, tuple(parts))
            wake, waiting = earliest(wake, op), True
        if not waiting:
            return None
        return wake or PENDING, self if all(map(is_, parts, self.parts)) else Reserve(self.masks, tuple(parts))

    def _order(self, ctx: Context) -> list[int]:
        # The group of the thread whose turn it is goes first: under a common rate, each group then gets operations in
        # proportion to its threads.
        bit = 1 << ctx.next_bit() if ctx.free else 0
        return sorted(range(len(self.masks)), key=lambda i: not self.masks[i] & bit)

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        bit = ctx.bit_of(event.process)
        for i, mask in enumerate(self.masks):
            part = self.parts[i]
            if mask & bit and part is not None:
                changed = part.update(test, ctx.restrict(mask), event)
                if changed is part:
                    return self
                return Reserve(self.masks, (*self.parts[:i], changed, *self.parts[i + 1 :]))
        return self


def reserve(*counts_and_sources: int | Source, default: Source = None) -> Generator:
    """Divide the client threads: ``reserve(5, writes, 2, reads, default=rest)``.

    The first 5 threads do ``writes``, the next 2 ``reads``, all others ``default`` (None: nothing).
    """
    counts, sources = counts_and_sources[::2], counts_and_sources[1::2]
    if len(counts) != len(sources) or not all(type(count) is int and count > 0 for count in counts):
        raise GeneratorError("reserve takes pairs of a positive number of threads and a generator")
    masks, parts, first = [], [], 0
    for count, source in zip(counts, sources, strict=True):
        assert isinstance(count, int) and not isinstance(source, int)
        masks.append(threads_mask(range(first, first + count)))
        parts.append(lift(source))
        first += count
    if default is not None:
        masks.append(CLIENTS_MASK << first)
        parts.append(lift(default))
    return Reserve(tuple(masks), tuple(parts))


@dataclass(frozen=True, slots=True)
class EachThread(Generator):
    """A separate generator for each thread; ``parts[bit]``, None once exhausted."""

    make: Callable[[int], Generator]
    parts: tuple[Generator | None, ...] = ()

    def op(self, test: Test, ctx: Context) -> Answer:
        parts = list(self._started(ctx))
        wake: Pending | None = None
        for bit in ctx.free_bits():
            part = parts[bit]
            if part is None:
                continue
            answer = part.op(test, ctx.restrict(1 << bit))
            if answer is None:
                parts[bit] = None
                continue
            op, parts[bit] = answer
            if not isinstance(op, Pending):
                return op, EachThread(self.make, tuple(parts))
            wake = earliest(wake, op)
        left = any(part is not None and ctx.threads >> bit & 1 for bit, part in enumerate(parts))
        return (wake or PENDING, EachThread(self.make, tuple(parts))) if left else None

    def _started(self, ctx: Context) -> tuple[Generator | None, ...]:
        if self.parts:
            return self.parts
        bits = range(len(ctx.processes) + 1)
        return tuple(self.make(bit - 1) if ctx.threads >> bit & 1 else None for bit in bits)

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        bit = ctx.thread_of(event.process) + 1
        part = self.parts[bit] if self.parts else None
        if part is None:
            return self
        changed = part.update(test, ctx.restrict(1 << bit), event)
        if changed is part:
            return self
        return EachThread(self.make, (*self.parts[:bit], changed, *self.parts[bit + 1 :]))


def each_thread(source: Source) -> Generator:
    """Return a generator that runs ``source`` from its start on each thread, independently."""
    lifted = lift(source)
    return EachThread(lambda thread: lifted)


def per_thread(make: Callable[[int], Source]) -> Generator:
    """Return a generator of ``make(thread)`` on each thread: as ``each_thread``, for generators that must know their
    thread.
    """
    return EachThread(lambda thread: lift(make(thread)))


@dataclass(frozen=True, slots=True)
class AnyOf(Generator):
    """The generators that have an operation, in turn."""

    parts: tuple[Generator, ...]
    turn: int = 0

    def op(self, test: Test, ctx: Context) -> Answer:
        parts: list[Generator | None] = list(self.parts)
        wake: Pending | None = None
        count = len(parts)
        for step in range(count):
            i = (self.turn + step) % count
            part = self.parts[i]
            answer = part.op(test, ctx)
            if answer is None:
                parts[i] = None
                continue
            op, parts[i] = answer
            if not isinstance(op, Pending):
                return op, self._following(parts, i + 1)
            wake = earliest(wake, op)
        if wake is None:
            return None
        return wake, self if all(map(is_, parts, self.parts)) else self._following(parts, self.turn)

    @staticmethod
    def _following(parts: list[Generator | None], turn: int) -> Generator | None:
        left = tuple([part for part in parts if part is not None])
        if len(left) < len(parts):
            turn -= sum(part is None for part in parts[:turn])
        return AnyOf(left, turn % len(left)) if left else None

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        parts = tuple([part.update(test, ctx, event) for part in self.parts])
        same = all(new is old for new, old in zip(parts, self.parts, strict=True))
        return self if same else AnyOf(parts, self.turn)


def any_of(*sources: Source) -> Generator:
    """Return operations of any generator that has one now, in turn. Every generator receives every event."""
    return AnyOf(tuple(lift(source) for source in sources))


@dataclass(frozen=True, slots=True)
class Mix(Generator):
    """A random one of ``parts`` for each operation; ``choice`` is already drawn."""

    parts: tuple[Generator, ...]
    choice: int
    seed: Seed

    def op(self, test: Test, ctx: Context) -> Answer:
        parts: list[Generator | None] = list(self.parts)
        wake: Pending | None = None
        for step in range(len(parts)):
            i = (self.choice + step) % len(parts)
            answer = self.parts[i].op(test, ctx)
            if answer is None:
                parts[i] = None
                continue
            op, parts[i] = answer
            if not isinstance(op, Pending):
                return op, _mixed(tuple(part for part in parts if part is not None), self.seed)
            wake = earliest(wake, op)
        if wake is None:
            return None
        return wake, Mix(tuple(NOTHING if part is None else part for part in parts), self.choice, self.seed)

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        parts = tuple([part.update(test, ctx, event) for part in self.parts])
        same = all(new is old for new, old in zip(parts, self.parts, strict=True))
        return self if same else Mix(parts, self.choice, self.seed)


def _mixed(parts: tuple[Generator, ...], seed: Seed) -> Generator | None:
    if not parts:
        return None
    choice, rest = seed.below(len(parts))
    return Mix(parts, choice, rest)


def mix(sources: Iterable[Source], rng: random.Random) -> Generator:
    """Return operations of randomly chosen generators, until all are exhausted; pending ones are skipped."""
    return _mixed(tuple(lift(source) for source in sources), Seed.of(rng)) or NOTHING


@dataclass(frozen=True, slots=True)
class Synchronize(Generator):
    """Waits until all its threads are idle, then behaves as ``source``."""

    source: Generator

    def op(self, test: Test, ctx: Context) -> Answer:
        return self.source.op(test, ctx) if ctx.free == ctx.threads else (PENDING, self)

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        return self


def synchronize(source: Source) -> Generator:
    """Return ``source``, begun only when every thread that it may use is idle."""
    return Synchronize(lift(source))


def phases(*sources: Source) -> Generator:
    """Return generators in sequence, each begun when all threads have completed the one before."""
    return sequence(*(synchronize(source) for source in sources))


def then(first: Source, second: Source) -> Generator:
    """Return ``first``, and when all threads have completed it, ``second``."""
    return sequence(first, synchronize(second))
