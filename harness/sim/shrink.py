"""Shrinking: from a failing seed to the fewest faults and the least load that still fail in the same way.

Delta debugging (Zeller and Hildebrandt 2002): leave faults out, half of them at first, then fewer, as long as what is
left fails; then shorten faults and the time between them, end the run sooner, and thin out the load. A candidate fails
in the same way when one of the checks that was violated is violated again, with the same seed or one of a few others,
since another schedule meets another interleaving. Candidates are tried on all cores ahead of their turn, but the first
in order that fails is taken, so the result does not depend on the number of processes.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import UsageError
from harness.registry import WORKLOADS
from harness.sim.campaign import NONE, Plan, SeedResult, run_seed
from harness.sim.pool import Workers, workshop
from nemesis.given import GivenFault, write_schedule
from nemesis.schedule import INJECT, schedule

SEEDS_TRIED = 3
_MARGINS = (0.5, 2.0, 4.0)
_QUIET = (0.2, 1.0)
"""Seconds without any fault that are left where there were more."""
_GAIN = 0.1
"""Seconds by which a schedule must end sooner to be worth a try."""
_LEAST_RATE = 5.0
_NO_SCHEDULE = "none"

Run = Callable[[Plan, int, Path, Path, str], SeedResult]
Progress = Callable[[SeedResult, int], None]
"""Called with each smaller run that fails, and the number of runs so far."""


def _silent(result: SeedResult, runs: int) -> None:
    """For those who don't want to know how it goes."""


@dataclass(frozen=True)
class Shrunk:
    """What is left: the smallest run that fails, its schedule written down, and how many runs it took to find."""

    result: SeedResult
    runs: int

    @property
    def plan(self) -> Plan:
        return self.result.plan

    @property
    def faults(self) -> tuple[GivenFault, ...]:
        return faults_of(self.result.plan, self.result.seed)

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
            f"seed = {self.result.seed}",
            "[set]",
            *(f"{name} = {json.dumps(str(value))}" for name, value in plan.settings.items()),
        ]
        return "\n".join(lines) + "\n"


def shrink(
    plan: Plan, seed: int, *, jobs: int = 1, progress: Progress = _silent, run: Run = run_seed
) -> Shrunk:
    """Shrink the failing run of a seed, with so many processes; ``run`` carries out one candidate.

    Raises:
        UsageError: it does not fail, or fails no more once its schedule is written down.
    """
    with workshop(jobs) as (workers, scratch):
        return _Shrinker(workers, scratch, plan, seed, progress, run).shrink()


class _Shrinker:
    def __init__(
        self, workers: Workers, scratch: Path, plan: Plan, seed: int, progress: Progress, run: Run
    ) -> None:
        self._workers = workers
        self._scratch = scratch
        self._plan = plan
        self._seeds = tuple(range(seed, seed + SEEDS_TRIED))
        self._progress = progress
        self._run = run
        self._runs = 0
        self._wanted: set[str] = set()

    def shrink(self) -> Shrunk:
        plan, seed = self._plan, self._seeds[0]
        _, result = self._workers.first(self._run, [self._task(plan, seed)], lambda result: True)
        self._runs += 1
        self._wanted = set(result.broken)
        if not self._wanted:
            raise UsageError(f"seed {seed} does not fail ({result.verdict}): there is nothing to shrink")
        found = self._first([with_faults(plan, faults_of(plan, seed))])
        if found is None:
            raise UsageError(f"seed {seed} fails no more when its schedule is written down")
        smallest = None
        while found is not smallest:
            smallest = found
            for change in (_fewer_faults, _tighter, _shorter, _thinner, _fewer_clients):
                while (smaller := self._first(change(found.plan, faults_of(found.plan, found.seed)))) is not None:
                    found = smaller
        return Shrunk(found, self._runs)

    def _first(self, plans: Iterable[Plan]) -> SeedResult | None:
        """The first plan that fails in the same way, and its first seed that does."""
        tasks = (self._task(plan, seed) for plan in plans for seed in self._seeds)
        number, found = self._workers.first(self._run, tasks, lambda result: bool(self._wanted & set(result.broken)))
        self._runs += number + (found is not None)
        if found is not None:
            self._progress(found, self._runs)
        result: SeedResult | None = found
        return result

    def _task(self, plan: Plan, seed: int) -> tuple[Plan, int, Path, Path, str]:
        return plan, seed, Path("runs"), self._scratch, NONE


def _fewer_faults(plan: Plan, faults: Sequence[GivenFault]) -> Iterator[Plan]:
    """Without half of them, a quarter..., one; the largest cuts first."""
    size = (len(faults) + 1) // 2
    while size >= 1:
        for start in range(0, len(faults), size):
            yield with_faults(plan, (*faults[:start], *faults[start + size :]))
        size = size // 2


def _tighter(plan: Plan, faults: Sequence[GivenFault]) -> Iterator[Plan]:
    end = max((fault.end for fault in faults), default=0.0)
    for quiet, scale in itertools.product(_QUIET, (0.5, 1.0)):
        closer = compressed(faults, quiet, scale)
        if faults and max(fault.end for fault in closer) <= end - _GAIN:
            yield with_faults(plan, closer)


def compressed(faults: Sequence[GivenFault], quiet: float, scale: float) -> tuple[GivenFault, ...]:
    """The faults in the same order, none changed in what it overlaps with: time in which there is one is ``scale`` as
    long, time without at most ``quiet`` seconds, both to hundredths."""
    moments = sorted({moment for fault in faults for moment in (fault.start, fault.end)})
    moved: dict[float, float] = {}
    before = after = 0.0
    for moment in moments:
        if any(fault.start <= before and moment <= fault.end for fault in faults):
            length = max((moment - before) * scale, 0.01)
        else:
            length = min(moment - before, quiet)
        after = moved[moment] = round(after + length, 2)
        before = moment
    return tuple(replace(fault, start=moved[fault.start], end=moved[fault.end]) for fault in faults)


def _shorter(plan: Plan, faults: Sequence[GivenFault]) -> Iterator[Plan]:
    end = max((fault.end for fault in faults), default=0.0)
    soon = [end + margin for margin in _MARGINS]
    for limit in (*soon, *(part * plan.time_limit for part in (0.5, 0.75) if part * plan.time_limit > soon[-1])):
        limit = max(1.0, round(limit, 1))
        if limit < plan.time_limit:
            yield replace(plan, time_limit=limit)


def _thinner(plan: Plan, faults: Sequence[GivenFault]) -> Iterator[Plan]:
    for divisor in (8, 4, 2):
        if plan.rate / divisor >= _LEAST_RATE:
            yield replace(plan, rate=plan.rate / divisor)


def _fewer_clients(plan: Plan, faults: Sequence[GivenFault]) -> Iterator[Plan]:
    declared = {option.name for option in WORKLOADS.load(plan.workload).options}
    fewer = {name: "1" for name in ("producers", "consumers") if name in declared}
    choices = [fewer, *({name: "1"} for name in fewer)]
    for choice in choices:
        candidate = replace(plan, settings={**plan.settings, **choice})
        if candidate != plan and _sensible(candidate):
            yield candidate


def _sensible(plan: Plan) -> bool:
    """Whether the workload takes it."""
    try:
        plan.test(0)
    except UsageError:
        return False
    return True


def faults_of(plan: Plan, seed: int) -> tuple[GivenFault, ...]:
    """The faults that the plan has with that seed."""
    steps = schedule(plan.test(seed), plan.families(seed))
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
