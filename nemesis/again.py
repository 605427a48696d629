"""Retries of fault families, and of kinds that the test names, without a proven fault.

The retries begin after the planned faults, one at a time, and the load continues until the last one. They give a family
its effect in a run in which the planned faults of that family came too late, found no target, or did not find the state
that they expect.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from stormproof.contracts.option import Option
from stormproof.generator import Answer, Context, Generator, Pending
from stormproof.generator.core import SECOND
from stormproof.history.ledger import HEAL, INJECT, UNMET
from stormproof.operation import INFO, NEMESIS, Op
from stormproof.test import Test

RETRIES = Option(
    "fault_retries", 0,
    "most retries of a fault family without a proven fault; the load continues, for another time limit at most",
)
PAUSES = (1.0, 2.0, 4.0)
"""Seconds before a family's first, second, and each further retry, in which the system recovers from earlier faults."""


class Attempt(NamedTuple):
    """A retry: the kind of the fault, and the seed of its targets."""

    kind: str
    seed: int


class Goal(NamedTuple):
    """A goal of the retries: a family without proof, or one kind of it that the test names."""

    family: str
    kind: str = ""

    def fits(self, family: str, kind: str) -> bool:
        """Return whether a fault of that kind could prove it."""
        return self.family == family and self.kind in ("", kind)


class Proofs(NamedTuple):
    """The goals of a run that lack proof, and the number of retries of each. ``planned`` is the number of planned
    faults, which have the lowest ids. ``named`` are the kinds that the test names and that were not proven. Such a kind
    lacks proof from the first fault that did not find the state that it expects, in agreement with the gate
    ``faults_confirmed``."""

    missing: tuple[Goal, ...]
    tried: tuple[int, ...]
    retries: int
    planned: int
    named: frozenset[Goal] = frozenset()

    @classmethod
    def none(cls, families: Sequence[str], retries: int, planned: int, named: Iterable[Goal] = ()) -> Proofs:
        """Return the state before the first fault."""
        return cls(tuple(map(Goal, families)), (0,) * len(families), retries, planned, frozenset(named))

    def after(self, event: Op) -> Proofs:
        """Return the state after a step of the nemesis."""
        family, _, phase = event.f.partition(".")
        if phase not in (INJECT, HEAL) or not isinstance(event.value, Mapping):
            return self
        value = event.value
        kind = str(value.get("kind"))
        goal = Goal(family, kind)
        if value.get("proven"):
            left = [each for each in zip(self.missing, self.tried, strict=True) if not each[0].fits(family, kind)]
            if len(left) == len(self.missing) and goal not in self.named:
                return self
            return self._replace(missing=tuple(each for each, _ in left), tried=tuple(tried for _, tried in left),
                                 named=self.named - {goal})  # fmt: skip
        found = self
        if value.get(UNMET) and goal in self.named and goal not in self.missing:
            found = self._replace(missing=(*self.missing, goal), tried=(*self.tried, 0))
        if phase == HEAL and int(value.get("id", 0)) >= self.planned:
            tried = tuple(tried + each.fits(family, kind)
                          for each, tried in zip(found.missing, found.tried, strict=True))  # fmt: skip
            found = found if tried == found.tried else found._replace(tried=tried)
        return found

    def next(self) -> tuple[Goal, int] | None:
        """Return the goal with the fewest retries, and their number; None if all retries are used up."""
        left = [(tried, goal) for goal, tried in zip(self.missing, self.tried, strict=True) if tried < self.retries]
        if not left:
            return None
        tried, goal = min(left, key=lambda each: each[0])
        return goal, tried


def attempts(kinds: Sequence[str], retries: int, rng: random.Random) -> tuple[Attempt, ...]:
    """Draw the retries of a family, in order; each kind appears once before any kind repeats."""
    found: list[str] = []
    while len(found) < retries:
        found += rng.sample(kinds, len(kinds))
    return tuple(Attempt(kind, rng.getrandbits(31)) for kind in found[:retries])


@dataclass(frozen=True, slots=True)
class Again(Generator):
    """The planned faults, then the retries.

    ``attempts`` and ``lengths`` (nanoseconds) belong to families. No retry begins later than ``longest`` after
    ``start``. ``healing`` is the next heal, due at ``due``.
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
        goal, tried = chosen
        if self.due is None:
            due = ctx.time + round(PAUSES[min(tried, len(PAUSES) - 1)] * SECOND)
            return Pending(due), replace(self, due=due)
        if ctx.time < self.due:
            return Pending(self.due), self
        attempt = self.attempts[goal.family][tried]
        value = {"id": self.ident, "kind": goal.kind or attempt.kind, "seed": attempt.seed}
        inject, heal = (Op(INFO, f"{goal.family}.{phase}", value) for phase in (INJECT, HEAL))
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
    """The load of a test, which continues beyond the time limit while retries are left."""

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
