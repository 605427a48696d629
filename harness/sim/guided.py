"""Guided search: runs that reached new states are kept, and varied.

This is coverage-guided fuzzing (AFL; for distributed systems Mallory: Meng, Pîrlea, Roychoudhury and Sergey, *Greybox
Fuzzing of Distributed Systems*, CCS 2023), with the records of ``harness.sim.explorer`` as coverage. A run is either
drawn as in the default campaign, or a variant of a kept run. A variant writes down the kept run's schedule of faults
and changes it: times are moved, families and kinds are swapped, faults are added, removed or taken from another run, or
the seed is replaced. The choice of the next run depends on the results so far, but each run is an independent test,
which its ``run.json`` and its command describe completely.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.run.cases import Case, JudgedRun
from harness.run.settings import SEEDS
from harness.sim.campaign import Seeded
from harness.sim.draw import DrawnCase, senseless
from harness.sim.explorer import FIRST_STEP
from harness.sim.shrink import faults_of, with_faults
from nemesis.catalog import FAULTS
from nemesis.explicit_schedule import ExplicitFault
from nemesis.families import ANY_KIND, setting
from nodes.systems.catalog import SYSTEMS
from stormproof.errors import StormproofError, UsageError
from stormproof.text import amount

FRESH_SHARE = 0.4
"""Share of runs that are drawn afresh."""
FIRST_RUNS = 8
"""The number of runs at the beginning that are all drawn, before anything is varied."""
RARE_RUNS = 3
"""The number of runs up to which a finding counts as rare; a kept run with more rare findings is varied more often."""
CHANGES = (1, 1, 2, 3, 4)
"""The number of changes that turn one run into a variant; one of these is drawn."""
SAME_SEED_SHARE = 0.6
"""Share of variants with the seed of their parent: the same load, links and clocks."""
VARIANT_ATTEMPTS = 30
_SHORTEST, _MARGIN = 0.1, 0.5

Faults = Sequence[ExplicitFault]
Change = Callable[["Guide", Case, Faults, random.Random], Faults]


@dataclass
class CorpusRun:
    """A run that met something new: its test, its findings, and the number of its variants so far."""

    case: Case
    seed: int
    found: frozenset[int]
    varied: int = 0


class Guide:
    """Chooses the next run for one case (the default campaign of a system, say).

    Args:
        seeds: the seeds of the drawn runs, in order.
        rng: the source of all other random choices.
    """

    def __init__(self, drawn: Seeded, seeds: Iterator[int], rng: random.Random) -> None:
        if SYSTEMS.load(drawn.system).abstraction is None:
            raise UsageError(f"{drawn.system} declares no abstraction of its states, which a guided search needs")
        self.kept: list[CorpusRun] = []
        self.met: Counter[int] = Counter()
        """The number of runs that have met each state, step and point."""
        self._drawn, self._seeds, self._rng = drawn, seeds, rng
        self._asked: Mapping[str, Any] = drawn.given.settings if isinstance(drawn, DrawnCase) else {}
        """Settings that constrain all runs; a case with a written schedule lacks those of its fault families."""
        self._given = 0

    @property
    def system(self) -> str:
        """The system under test."""
        return self._drawn.system

    def line(self) -> str:
        """Return a summary of the findings so far, for display."""
        states = sum(each < FIRST_STEP for each in self.met)
        return (f"{self.system}: {states:,} states met, {len(self.met) - states:,} steps and points; "
                f"{amount(len(self.kept), 'run')} kept, and varied {sum(kept.varied for kept in self.kept)} times")

    def next(self) -> tuple[Case, int]:
        """Return the next run."""
        self._given += 1
        if self._given > FIRST_RUNS and self.kept and self._rng.random() >= FRESH_SHARE:
            parent = self._pick()
            parent.varied += 1
            for _ in range(VARIANT_ATTEMPTS):
                variant = self._variant(parent)
                if variant is not None:
                    return variant
        seed = next(self._seeds)
        return self._drawn.of(seed), seed

    def learn(self, result: JudgedRun) -> int:
        """Learn from a finished run; returns the number of findings that it was the first to meet."""
        new = sum(1 for each in result.explored if each not in self.met)
        self.met.update(result.explored)
        if new:
            self.kept.append(CorpusRun(result.case, result.seed, result.explored))
        return new

    def _pick(self) -> CorpusRun:
        rare = {each for each, runs in self.met.items() if runs <= RARE_RUNS}
        weights = [(1 + len(kept.found & rare)) / (1 + kept.varied) for kept in self.kept]
        return self._rng.choices(self.kept, weights)[0]

    def _variant(self, parent: CorpusRun) -> tuple[Case, int] | None:
        rng = self._rng
        seed = parent.seed if rng.random() < SAME_SEED_SHARE else rng.randrange(SEEDS)
        try:
            # Drawn times and kinds depend on the parent's seed.
            before = faults_of(parent.case, parent.seed)
            faults: Faults = before
            for _ in range(rng.choice(CHANGES)):
                faults = rng.choice(_CHANGES)(self, parent.case, faults, rng) if faults else faults
            faults = _apart(parent.case, faults, self._asked)
            if not faults or (seed == parent.seed and tuple(faults) == before):
                return None
            case = with_faults(_with_families(parent.case, faults), faults)
            case.families(seed)
        except StormproofError:
            return None
        return None if senseless(case) else (case, seed)

    def another(self, case: Case) -> Faults:
        """Return the faults of another kept run that end within this case's time limit."""
        kept = self._rng.choice(self.kept)
        return [fault for fault in faults_of(kept.case, kept.seed) if fault.end <= case.time_limit]


def _with_families(case: Case, faults: Faults) -> Case:
    """Return the case with all families of these faults, so that ``with_faults`` knows their settings."""
    names = dict.fromkeys([*(name for name in case.nemesis.split(",") if name in FAULTS.names()),
                           *(fault.family for fault in faults)])  # fmt: skip
    return replace(case, nemesis=",".join(names))


def _apart(case: Case, faults: Faults, asked: Mapping[str, Any]) -> list[ExplicitFault]:
    """Return the faults, in order, without those that cannot be injected.

    Excluded are faults that overlap another one of their conflict group, faults that exceed the time limit, and faults
    of a kind that the case's settings or the ``asked`` settings exclude.
    """
    settings = {**case.settings, **asked}
    busy: dict[str, float] = {}
    found = []
    for fault in sorted(faults, key=lambda fault: fault.start):
        group = FAULTS.load(fault.family).conflict_group
        wanted = str(settings.get(setting(fault.family, "kind"), ANY_KIND)).split(",")
        fits = ANY_KIND in wanted or fault.kind in wanted
        if fits and fault.start >= busy.get(group, 0.0) and fault.end <= case.time_limit:
            busy[group] = fault.end
            found.append(fault)
    return found


def _timed(fault: ExplicitFault, start: float, length: float, limit: float) -> ExplicitFault:
    length = max(_SHORTEST, min(length, limit - _MARGIN))
    start = max(0.0, min(start, limit - _MARGIN - length))
    return replace(fault, start=round(start, 3), end=round(start + length, 3))


def _moved(guide: Guide, case: Case, faults: Faults, rng: random.Random) -> Faults:
    """Start one fault sooner or later."""
    place = rng.randrange(len(faults))
    fault = faults[place]
    start = fault.start + rng.choice((-1, 1)) * 10 ** rng.uniform(-1.5, 0.7)
    return _put(faults, place, _timed(fault, start, fault.end - fault.start, case.time_limit))


def _stretched(guide: Guide, case: Case, faults: Faults, rng: random.Random) -> Faults:
    """Make one fault longer or shorter."""
    place = rng.randrange(len(faults))
    fault = faults[place]
    length = (fault.end - fault.start) * rng.choice((0.3, 0.6, 0.9, 1.1, 1.6, 3.0))
    return _put(faults, place, _timed(fault, fault.start, length, case.time_limit))


def _met(guide: Guide, case: Case, faults: Faults, rng: random.Random) -> Faults:
    """Start one fault when another starts or ends."""
    place = rng.randrange(len(faults))
    fault, other = faults[place], rng.choice(faults)
    start = rng.choice((other.start, other.end)) + rng.uniform(-0.2, 0.2)
    return _put(faults, place, _timed(fault, start, fault.end - fault.start, case.time_limit))


def _left_out(guide: Guide, case: Case, faults: Faults, rng: random.Random) -> Faults:
    """Remove one fault."""
    place = rng.randrange(len(faults))
    return [*faults[:place], *faults[place + 1 :]] if len(faults) > 1 else faults


def _swapped(guide: Guide, case: Case, faults: Faults, rng: random.Random) -> Faults:
    """Change the family or kind of one fault."""
    place = rng.randrange(len(faults))
    return _put(faults, place, _other(faults[place], rng))


def _added(guide: Guide, case: Case, faults: Faults, rng: random.Random) -> Faults:
    """Add one fault, near another."""
    fault = rng.choice(faults)
    start = rng.choice((fault.start, fault.end)) + rng.uniform(-0.5, 1.5)
    return [*faults, _timed(_other(fault, rng), start, fault.end - fault.start, case.time_limit)]


def _repeated(guide: Guide, case: Case, faults: Faults, rng: random.Random) -> Faults:
    """Repeat one fault, soon after its end."""
    fault = rng.choice(faults)
    again = replace(fault, seed=rng.getrandbits(31))
    return [*faults, _timed(again, fault.end + rng.uniform(0.05, 1.0), fault.end - fault.start, case.time_limit)]


def _aimed(guide: Guide, case: Case, faults: Faults, rng: random.Random) -> Faults:
    """Make one fault choose its targets, or its point, again."""
    place = rng.randrange(len(faults))
    return _put(faults, place, replace(faults[place], seed=rng.getrandbits(31)))


def _crossed(guide: Guide, case: Case, faults: Faults, rng: random.Random) -> Faults:
    """Combine the faults up to a random time with those of another run from then on."""
    at = rng.uniform(0, case.time_limit)
    return [fault for fault in faults if fault.start < at] + [
        fault for fault in guide.another(case) if fault.start >= at
    ]  # fmt: skip


_CHANGES: Sequence[Change] = (
    _moved, _stretched, _met, _left_out, _swapped, _added, _added, _repeated, _aimed, _aimed, _crossed,
)  # fmt: skip


def _other(fault: ExplicitFault, rng: random.Random) -> ExplicitFault:
    """Return a fault of another family, or of another kind of this family, with new targets."""
    names, weights = FAULTS.names(), [FAULTS.load(name).drawn for name in FAULTS.names()]
    family = fault.family if rng.random() < 0.3 else rng.choices(names, weights)[0]
    return replace(fault, family=family, kind=rng.choice(FAULTS.load(family).kinds), seed=rng.getrandbits(31))


def _put(faults: Faults, place: int, fault: ExplicitFault) -> list[ExplicitFault]:
    return [*faults[:place], fault, *faults[place + 1 :]]


def guides_of(cases: Collection[Seeded], start: int) -> list[Guide]:
    """Create a guide for each case; the seeds of its drawn runs begin at ``start``.

    Raises:
        UsageError: a system does not declare which of its states are equivalent.
    """
    return [Guide(case, itertools.count(start), random.Random(f"guided/{case.label()}/{start}")) for case in cases]
