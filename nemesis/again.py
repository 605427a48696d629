"""Faults that are injected again because no fault of their family was proven.

They come one at a time, when all planned faults are over, and the load goes on meanwhile. So a run in which one family
had no time, or met nobody whom it could strike, still shows what that family does.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from stormproof.contracts.option import Option
from stormproof.generator import Answer, Context, Generator, Pending
from stormproof.generator.core import SECOND
from stormproof.history.ledger import HEAL, INJECT
from stormproof.operation import INFO, NEMESIS, Op
from stormproof.test import Test

_T = TypeVar("_T")

RETRIES = Option(
    "fault_retries", 0,
    "times, at most, that a fault of a family is injected again while none of that family was proven; the load goes on "
    "for at most another time limit",
)
PAUSES = (1.0, 2.0, 4.0)
"""Seconds before a family's first, second, and each further attempt: the system comes back from what was before."""


class Attempt(NamedTuple):
    """A fault that may be injected again: its kind, and the seed of its targets."""

    kind: str
    seed: int


class Proofs(NamedTuple):
    """Which families of a run lack proof, and how often each was tried again. ``planned``: the ids below are those of
    planned faults."""

    missing: tuple[str, ...]
    tried: tuple[int, ...]
    retries: int
    planned: int

    @classmethod
    def none(cls, families: Sequence[str], retries: int, planned: int) -> Proofs:
        """How it is at the beginning."""
        return cls(tuple(families), (0,) * len(families), retries, planned)

    def after(self, event: Op) -> Proofs:
        """How it is after the nemesis has done something."""
        name, _, phase = event.f.partition(".")
        if name not in self.missing or phase not in (INJECT, HEAL):
            return self
        place, value = self.missing.index(name), event.value if isinstance(event.value, Mapping) else {}
        if value.get("proven"):
            return self._replace(missing=_without(self.missing, place), tried=_without(self.tried, place))
        if phase == HEAL and int(value.get("id", 0)) >= self.planned:
            tried = list(self.tried)
            tried[place] += 1
            return self._replace(tried=tuple(tried))
        return self

    def next(self) -> tuple[str, int] | None:
        """The family that is to be tried again, and how often it was; the one that was tried least often."""
        left = [(tried, name) for name, tried in zip(self.missing, self.tried, strict=True) if tried < self.retries]
        if not left:
            return None
        tried, name = min(left, key=lambda each: each[0])
        return name, tried


def _without(values: tuple[_T, ...], place: int) -> tuple[_T, ...]:
    return values[:place] + values[place + 1 :]


def attempts(kinds: Sequence[str], retries: int, rng: random.Random) -> tuple[Attempt, ...]:
    """What is tried, one after the other: each kind before any comes again."""
    found: list[str] = []
    while len(found) < retries:
        found += rng.sample(kinds, len(kinds))
    return tuple(Attempt(kind, rng.getrandbits(31)) for kind in found[:retries])


@dataclass(frozen=True, slots=True)
class Again(Generator):
    """The planned faults, and then those that are tried again.

    ``attempts`` and ``lengths`` (nanoseconds) are given by family; ``longest`` is when it ends at the latest, after
    ``start``. ``healing`` is the heal that is due at ``due``.
    """

    planned: Generator | None
    proofs: Proofs
    attempts: Mapping[str, tuple[Attempt, ...]]
    lengths: Mapping[str, int]
    longest: int
    start: int | None = None
    ident: int = 0
    due: int | None = None
    healing: Op | None = None

    def op(self, test: Test, ctx: Context) -> Answer:
        now = self if self.start is not None else replace(self, start=ctx.time, ident=self.proofs.planned)
        if now.planned is not None:
            answer = now.planned.op(test, ctx)
            if answer is not None:
                same = now is self and answer[1] is now.planned
                return answer[0], self if same else replace(now, planned=answer[1])
            now = replace(now, planned=None)
        return now._again(ctx)

    def _again(self, ctx: Context) -> Answer:
        if not ctx.free:
            return Pending(), self
        if self.healing is not None:
            if self.due is None or ctx.time < self.due:
                return Pending(self.due), self
            return ctx.fill(self.healing), replace(self, healing=None, due=None)
        chosen = self.proofs.next()
        if chosen is None or self.start is None or ctx.time >= self.start + self.longest:
            return None
        name, tried = chosen
        if self.due is None:
            due = ctx.time + round(PAUSES[min(tried, len(PAUSES) - 1)] * SECOND)
            return Pending(due), replace(self, due=due)
        if ctx.time < self.due:
            return Pending(self.due), self
        attempt = self.attempts[name][tried]
        value = {"id": self.ident, "kind": attempt.kind, "seed": attempt.seed}
        inject, heal = (Op(INFO, f"{name}.{phase}", value) for phase in (INJECT, HEAL))
        return ctx.fill(inject), replace(self, healing=heal, due=None, ident=self.ident + 1)

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        planned = self.planned.update(test, ctx, event) if self.planned is not None else None
        proofs, due = self.proofs.after(event) if ctx.free else self.proofs, self.due
        if self.healing is not None and ctx.free:
            due = ctx.time + self.lengths[self.healing.f.partition(".")[0]]
        if planned is self.planned and proofs is self.proofs and due == self.due:
            return self
        return replace(self, planned=planned, proofs=proofs, due=due)


@dataclass(frozen=True, slots=True)
class Lasting(Generator):
    """The load of a test: it goes on after the time limit while a family that lacks proof may be tried again."""

    load: Generator
    proofs: Proofs
    longest: int
    start: int | None = None

    def op(self, test: Test, ctx: Context) -> Answer:
        start = ctx.time if self.start is None else self.start
        overtime = self.proofs.next() is not None and ctx.time < start + self.longest
        answer = self.load.op(test, ctx.in_overtime() if overtime else ctx)
        if answer is None or answer[1] is None:
            return answer
        same = answer[1] is self.load and start == self.start
        return answer[0], self if same else Lasting(answer[1], self.proofs, self.longest, start)

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        load = self.load.update(test, ctx, event)
        done = event.process == NEMESIS and ctx.free & ctx.bit_of(NEMESIS)
        proofs = self.proofs.after(event) if done else self.proofs
        if load is self.load and proofs is self.proofs:
            return self
        return Lasting(load, proofs, self.longest, self.start)
