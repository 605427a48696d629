"""Generators that determine operations: single operations, sequences, functions, limits, renaming."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stormproof.generator.core import PENDING, Answer, Context, Generator, GeneratorError, Pending, Source, describe
from stormproof.operation import OK, Op
from stormproof.test import Test


@dataclass(frozen=True, slots=True)
class Nothing(Generator):
    """Exhausted from the start."""

    def op(self, test: Test, ctx: Context) -> Answer:
        return None


NOTHING = Nothing()


def lift(source: Source) -> Generator:
    """Return the generator that a source stands for.

    A generator stands for itself; ``None`` is nothing; an operation happens once; a function is called for each
    operation (see ``from_function``); any other iterable is run through in order (see ``from_iterable``).
    """
    if isinstance(source, Generator):
        return source
    if source is None:
        return NOTHING
    if isinstance(source, Op):
        return Once(source)
    if callable(source):
        return from_function(source)
    if isinstance(source, Iterable) and not isinstance(source, str | bytes | Mapping):
        return from_iterable(source)
    raise GeneratorError(
        f"{describe(source)} is not a generator; give an Op, a function, a sequence of generators, or a Generator"
    )


@dataclass(frozen=True, slots=True)
class Once(Generator):
    """One operation, for any free thread; its process and time are filled in."""

    template: Op

    def op(self, test: Test, ctx: Context) -> Answer:
        return (ctx.fill(self.template), None) if ctx.free else (PENDING, self)


def once(source: Source) -> Generator:
    """Return only the first operation of ``source``."""
    return limit(1, source)


class _Items:
    """A list built from an iterator as it is read: each cell is computed once and then never changes."""

    __slots__ = ("_cell", "_iterator")

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator: Iterator[Any] | None = iterator
        self._cell: tuple[Generator, _Items] | None = None

    def read(self) -> tuple[Generator, _Items] | None:
        """Return the first item and the rest, or None at the end."""
        if self._iterator is not None:
            iterator, self._iterator = self._iterator, None
            for item in iterator:
                self._cell = lift(item), _Items(iterator)
                break
        return self._cell


@dataclass(frozen=True, slots=True)
class Sequence(Generator):
    """Generators in sequence: ``head`` until it is exhausted, then those in ``rest``."""

    head: Generator
    rest: _Items

    def op(self, test: Test, ctx: Context) -> Answer:
        head, rest = self.head, self.rest
        while True:
            answer = head.op(test, ctx)
            if answer is not None:
                op, following = answer
                return op, Sequence(NOTHING if following is None else following, rest)
            cell = rest.read()
            if cell is None:
                return None
            head, rest = cell

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        head = self.head.update(test, ctx, event)
        return self if head is self.head else Sequence(head, self.rest)


def from_iterable(items: Iterable[Any]) -> Generator:
    """Return a generator that runs through items (anything ``lift`` accepts) in order; an iterator may be endless, and
    is read as needed.

    Items that were read are kept as long as any generator that started before them: don't keep such a generator if the
    iterator yields millions.
    """
    return Sequence(NOTHING, _Items(iter(items)))


def sequence(*sources: Source) -> Generator:
    """Return generators in sequence, without waiting for operations of the previous one to complete."""
    return from_iterable(sources)


@dataclass(frozen=True, slots=True)
class Function(Generator):
    """Calls ``make`` for the next generator each time that the previous one is exhausted."""

    make: Callable[..., Any]
    takes_context: bool
    current: Generator = NOTHING

    def op(self, test: Test, ctx: Context) -> Answer:
        answer = self.current.op(test, ctx)
        if answer is None:
            made = self.make(test, ctx) if self.takes_context else self.make()
            if made is None:
                return None
            answer = lift(made).op(test, ctx)
            if answer is None:
                raise GeneratorError(f"function {describe(self.make)} made a generator without any operation")
        op, following = answer
        return op, Function(self.make, self.takes_context, NOTHING if following is None else following)

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        current = self.current.update(test, ctx, event)
        return self if current is self.current else replace(self, current=current)


def from_function(make: Callable[..., Any]) -> Generator:
    """Return operations from a function of no arguments, or of (test, context); it ends by returning None.

    The function must have no side effects: an answer may be discarded and requested again. For values that must each be
    used exactly once, use ``indexed`` or ``from_iterable``.
    """
    try:
        parameters = len(inspect.signature(make).parameters)
    except (TypeError, ValueError):
        parameters = 0
    if parameters not in (0, 2):
        raise GeneratorError(f"{describe(make)} must take no arguments or (test, context), not {parameters}")
    return Function(make, takes_context=parameters == 2)


@dataclass(frozen=True, slots=True)
class Indexed(Generator):
    """Operation number ``index`` is ``make(index)``."""

    make: Callable[[int], Op]
    index: int = 0

    def op(self, test: Test, ctx: Context) -> Answer:
        if not ctx.free:
            return PENDING, self
        return ctx.fill(self.make(self.index)), Indexed(self.make, self.index + 1)


def indexed(make: Callable[[int], Op], start: int = 0) -> Generator:
    """Return endless operations ``make(start)``, ``make(start + 1)``, ...: each number is used exactly once."""
    return Indexed(make, start)


@dataclass(frozen=True, slots=True)
class Repeat(Generator):
    """Asks the same generator repeatedly, without letting it advance; ``left`` None means forever."""

    source: Generator
    left: int | None

    def op(self, test: Test, ctx: Context) -> Answer:
        if self.left == 0:
            return None
        answer = self.source.op(test, ctx)
        if answer is None:
            return None
        op, following = answer
        if isinstance(op, Pending):
            return op, Repeat(NOTHING if following is None else following, self.left)
        return op, self if self.left is None else Repeat(self.source, self.left - 1) if self.left > 1 else None

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        source = self.source.update(test, ctx, event)
        return self if source is self.source else Repeat(source, self.left)


def repeat(source: Source, times: int | None = None) -> Generator:
    """Return the first operation of ``source`` repeatedly, ``times`` times or forever."""
    return Repeat(lift(source), times)


@dataclass(frozen=True, slots=True)
class Cycle(Generator):
    """Restarts ``source`` each time that it is exhausted; ``left`` is the number of rounds still to start."""

    source: Generator
    current: Generator
    left: int | None

    def op(self, test: Test, ctx: Context) -> Answer:
        answer = self.current.op(test, ctx)
        left = self.left
        if answer is None:
            if left == 0:
                return None
            left = None if left is None else left - 1
            answer = self.source.op(test, ctx)
            if answer is None:  # a source without operations would be started forever
                return None
        op, following = answer
        return op, Cycle(self.source, NOTHING if following is None else following, left)

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        current = self.current.update(test, ctx, event)
        return self if current is self.current else Cycle(self.source, current, self.left)


def cycle(source: Source, rounds: int | None = None) -> Generator:
    """Return all operations of ``source``, then all of them again, ``rounds`` times or forever."""
    return Cycle(lift(source), NOTHING, rounds)


@dataclass(frozen=True, slots=True)
class Limit(Generator):
    """At most ``left`` more operations."""

    left: int
    source: Generator

    def op(self, test: Test, ctx: Context) -> Answer:
        if self.left <= 0:
            return None
        answer = self.source.op(test, ctx)
        if answer is None:
            return None
        op, following = answer
        if following is None:
            return answer
        if isinstance(op, Pending):
            return op, Limit(self.left, following)
        return op, Limit(self.left - 1, following) if self.left > 1 else None

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        source = self.source.update(test, ctx, event)
        return self if source is self.source else Limit(self.left, source)


def limit(count: int, source: Source) -> Generator:
    """Return at most ``count`` operations of ``source``."""
    return Limit(count, lift(source))


@dataclass(frozen=True, slots=True)
class ProcessLimit(Generator):
    """Ends when more than ``count`` different client processes could have taken part."""

    count: int
    seen: frozenset[int]
    source: Generator

    def op(self, test: Test, ctx: Context) -> Answer:
        here = (ctx.processes[bit - 1] for bit in range(1, len(ctx.processes) + 1) if ctx.threads >> bit & 1)
        seen = self.seen.union(here)
        if len(seen) > self.count:
            return None
        answer = self.source.op(test, ctx)
        if answer is None or answer[1] is None:
            return answer
        return answer[0], ProcessLimit(self.count, seen, answer[1])

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        source = self.source.update(test, ctx, event)
        return self if source is self.source else replace(self, source=source)


def process_limit(count: int, source: Source) -> Generator:
    """Return operations of ``source`` until crashes have led to more than ``count`` different processes."""
    return ProcessLimit(count, frozenset(), lift(source))


@dataclass(frozen=True, slots=True)
class UntilOk(Generator):
    """Operations of ``source`` until one of these operations is ``ok``."""

    source: Generator
    own: frozenset[int] = frozenset()
    done: bool = False

    def op(self, test: Test, ctx: Context) -> Answer:
        if self.done:
            return None
        answer = self.source.op(test, ctx)
        if answer is None:
            return answer if not self.own else (PENDING, UntilOk(NOTHING, self.own))
        op, following = answer
        own = self.own if isinstance(op, Pending) else self.own | {op.process}
        return op, UntilOk(NOTHING if following is None else following, own)

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        source = self.source.update(test, ctx, event)
        ours = event.type != "invoke" and event.process in self.own
        own = self.own - {event.process} if ours else self.own
        return UntilOk(source, own, self.done or (ours and event.type == OK))


def until_ok(source: Source) -> Generator:
    """Return operations of ``source`` until one of them is ``ok``; others that were under way may still complete."""
    return UntilOk(lift(source))


@dataclass(frozen=True, slots=True)
class MapOps(Generator):
    """Changes each operation by a function."""

    change: Callable[[Op], Op]
    source: Generator

    def op(self, test: Test, ctx: Context) -> Answer:
        answer = self.source.op(test, ctx)
        if answer is None:
            return None
        op, following = answer
        changed = op if isinstance(op, Pending) else self.change(op)
        return changed, None if following is None else MapOps(self.change, following)

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        source = self.source.update(test, ctx, event)
        return self if source is self.source else MapOps(self.change, source)


def map_ops(change: Callable[[Op], Op], source: Source) -> Generator:
    """Return the operations of ``source``, each changed by a pure function (which must leave ``process`` unchanged)."""
    return MapOps(change, lift(source))


def f_map(names: Mapping[str, str], source: Source) -> Generator:
    """Return the operations of ``source`` with ``f`` renamed if ``names`` has an entry for it."""
    return map_ops(lambda op: op._replace(f=names.get(op.f, op.f)), source)
