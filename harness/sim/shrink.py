"""Shrinking: from a failing seed to the fewest faults and the least load that still fail in the same way.

Delta debugging: leave faults out, half of them at first, then fewer, as long as what is left fails; then shorten the
run and thin out the load. A candidate fails in the same way when one of the checks that was violated is violated again,
with the same seed or one of a few others, since another schedule meets another interleaving.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import UsageError
from harness.settings import make_test
from harness.sim.campaign import Plan, SeedResult, run_seed
from nemesis.api import families_of
from nemesis.given import GivenFault, write_schedule
from nemesis.schedule import INJECT, schedule

SEEDS_TRIED = 3
_MARGINS = (0.5, 2.0, 4.0)
_LEAST_RATE = 5.0
_NO_SCHEDULE = "none"

Attempt = Callable[[Plan, int], SeedResult]


@dataclass(frozen=True)
class Shrunk:
    """What is left: a plan with its schedule written down, the seed that fails, what it fails with, and how many
    runs it took to find."""

    plan: Plan
    seed: int
    result: SeedResult
    faults: tuple[GivenFault, ...]
    runs: int

    def scenario(self) -> str:
        """A configuration file for ``stormproof test --config``, on any backend."""
        plan = self.plan
        lines = [
            f"# {' '.join(self.result.sentence.split())}",
            f"design = {json.dumps(plan.design)}",
            f"workload = {json.dumps(plan.workload)}",
            f"nemesis = {json.dumps(plan.nemesis)}",
            f"nodes = {plan.nodes or 3}",
            f"time-limit = {plan.time_limit:g}",
            f"rate = {plan.rate:g}",
            f"seed = {self.seed}",
            "[set]",
            *(f"{name} = {json.dumps(str(value))}" for name, value in plan.settings.items()),
        ]
        return "\n".join(lines) + "\n"


def shrink(plan: Plan, seed: int, scratch: Path) -> Shrunk:
    """Shrink the failing run of a seed.

    Raises:
        UsageError: it does not fail, or fails no more once its schedule is written down.
    """
    shrinker = _Shrinker(lambda plan, seed: run_seed(plan, seed, Path("runs"), scratch), plan, seed)
    return shrinker.shrink()


class _Shrinker:
    def __init__(self, attempt: Attempt, plan: Plan, seed: int) -> None:
        self._attempt = attempt
        self._plan = plan
        self._seeds = tuple(range(seed, seed + SEEDS_TRIED))
        self._runs = 0
        self._wanted: set[str] = set()

    def shrink(self) -> Shrunk:
        plan, seed = self._plan, self._seeds[0]
        result = self._run(plan, seed)
        self._wanted = set(result.broken)
        if not self._wanted:
            raise UsageError(f"seed {seed} does not fail ({result.verdict}): there is nothing to shrink")
        faults = faults_of(plan, seed)
        best = self._fails(with_faults(plan, faults))
        if best is None:
            raise UsageError(f"seed {seed} fails no more when its schedule is written down")
        while (smaller := self._first(_without_some(faults), plan)) is not None:
            faults, best = smaller
        plan = best[0]
        for change in (self._shorter, self._thinner):
            for candidate in change(plan, faults):
                found = self._fails(candidate)
                if found is not None:
                    best, plan = found, candidate
                    break
        return Shrunk(best[0], best[1].seed, best[1], faults, self._runs)

    def _first(
        self, candidates: Iterable[tuple[GivenFault, ...]], plan: Plan
    ) -> tuple[tuple[GivenFault, ...], tuple[Plan, SeedResult]] | None:
        for faults in candidates:
            found = self._fails(with_faults(plan, faults))
            if found is not None:
                return faults, found
        return None

    def _fails(self, plan: Plan) -> tuple[Plan, SeedResult] | None:
        for seed in self._seeds:
            result = self._run(plan, seed)
            if self._wanted & set(result.broken):
                return plan, result
        return None

    def _run(self, plan: Plan, seed: int) -> SeedResult:
        self._runs += 1
        return self._attempt(plan, seed)

    def _shorter(self, plan: Plan, faults: Sequence[GivenFault]) -> Iterator[Plan]:
        end = max((fault.end for fault in faults), default=0.0)
        for margin in _MARGINS:
            limit = max(1.0, round(end + margin, 1))
            if limit < plan.time_limit:
                yield replace(plan, time_limit=limit)

    def _thinner(self, plan: Plan, faults: Sequence[GivenFault]) -> Iterator[Plan]:
        for divisor in (8, 4, 2):
            if plan.rate / divisor >= _LEAST_RATE:
                yield replace(plan, rate=plan.rate / divisor)


def faults_of(plan: Plan, seed: int) -> tuple[GivenFault, ...]:
    """The faults that the plan has with that seed."""
    test = make_test(
        design=plan.design, workload=plan.workload, nemesis=plan.nemesis, backend="sim", nodes=plan.nodes,
        time_limit=plan.time_limit, rate=plan.rate, seed=seed, settings=plan.settings,
    )
    steps = schedule(test, families_of(test))
    ends = {step.id: step.at for step in steps if step.phase != INJECT}
    return tuple(
        GivenFault(step.fault, step.kind, step.at, ends[step.id], step.seed) for step in steps if step.phase == INJECT
    )


def with_faults(plan: Plan, faults: Sequence[GivenFault]) -> Plan:
    """The plan with exactly these faults, and only the families that they need."""
    families = dict.fromkeys(fault.family for fault in faults)
    settings = {name: value for name, value in plan.settings.items() if name != "schedule"}
    if not faults:
        return replace(plan, nemesis=_NO_SCHEDULE, settings=_fitting(plan, _NO_SCHEDULE, settings))
    nemesis = ",".join(families)
    settings = _fitting(plan, nemesis, settings) | {"schedule": write_schedule(faults)}
    return replace(plan, nemesis=nemesis, settings=settings)


def _fitting(plan: Plan, nemesis: str, settings: dict[str, object]) -> dict[str, object]:
    """The settings without those of families that are not needed any more."""
    from harness.settings import declared_options

    names = [name for name in nemesis.split(",") if name != _NO_SCHEDULE]
    declared = {option.name for option in declared_options(plan.design, plan.workload, names)}
    return {name: value for name, value in settings.items() if name in declared}


def _without_some(faults: Sequence[GivenFault]) -> Iterator[tuple[GivenFault, ...]]:
    """Fewer faults: without half of them, a quarter..., one; the largest cuts first."""
    size = (len(faults) + 1) // 2
    while size >= 1:
        for start in range(0, len(faults), size):
            yield tuple(itertools.chain(faults[:start], faults[start + size :]))
        size = size // 2
