"""Shrinking: from a failing seed to the fewest faults and the least load that still fail in the same way.

Delta debugging (Zeller and Hildebrandt 2002): faults are removed, half of them at first, then fewer, as long as the
rest still fails. Then faults and the times between them are shortened, the run ends sooner, and the load is thinned
out. A candidate fails in the same way when it violates one of the checks that the original run violated. It may use the
original seed or one of a few others, because another schedule leads to another interleaving. Candidates are tried on
all cores ahead of their turn, but the first in order that fails is taken, so the result does not depend on the number
of processes.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.run.cases import Case, JudgedRun
from harness.run.settings import SEEDS, declared_options, parse_nemesis, repeated
from harness.sim.campaign import NONE, run_seed
from harness.sim.pool import Workers, worker_pool
from nemesis.explicit_schedule import ExplicitFault, write_schedule
from nemesis.schedule import schedule
from stormproof.errors import UsageError
from stormproof.history.ledger import INJECT
from workloads.catalog import WORKLOADS

SEEDS_TRIED = 3
_MARGINS = (0.5, 2.0, 4.0)
_QUIET = (0.2, 1.0)
"""Lengths, in seconds, to which longer fault-free stretches are cut."""
_GAIN = 0.1
"""Seconds by which a schedule must end sooner to be worth a try."""
_LEAST_RATE = 5.0
_NO_SCHEDULE = "none"

Run = Callable[[Case, int, Path, Path, str], JudgedRun]
Progress = Callable[[JudgedRun, int], None]
"""Called with each smaller run that fails, and the number of runs so far."""


def _silent(result: JudgedRun, runs: int) -> None:
    """Ignore progress, for callers that do not follow it."""


@dataclass(frozen=True)
class Shrunk:
    """The result of shrinking: the smallest run that fails, its written schedule, and the number of runs it took."""

    result: JudgedRun
    runs: int

    @property
    def faults(self) -> tuple[ExplicitFault, ...]:
        """The remaining faults."""
        return faults_of(self.result.case, self.result.seed)

    def scenario(self) -> str:
        """Return a configuration file for ``stormproof test --config``, on any backend that has these faults."""
        case, seed = self.result.case, self.result.seed
        settings = repeated(case.system, case.workload, parse_nemesis(case.nemesis), case.settings)
        lines = [
            f"# {' '.join(self.result.sentence.split())}",
            f"system = {json.dumps(case.system)}",
            f"workload = {json.dumps(case.workload)}",
            f"nemesis = {json.dumps(case.nemesis)}",
            f"nodes = {case.test(seed).nodes}",
            f"time-limit = {case.time_limit!r}",
            f"rate = {case.rate!r}",
            f"seed = {seed}",
            "[set]",
            *(f"{name} = {json.dumps(str(value))}" for name, value in settings.items()),
        ]
        return "\n".join(lines) + "\n"


def shrink(
    case: Case, seed: int, *, jobs: int = 1, progress: Progress = _silent, run: Run = run_seed
) -> Shrunk:
    """Shrink the failing run of a seed, with ``jobs`` processes; ``run`` carries out one candidate.

    Raises:
        UsageError: the run does not fail, or stops failing once its schedule is written down.
    """
    with worker_pool(jobs) as (workers, scratch):
        return _Shrinker(workers, scratch, case, seed, progress, run).shrink()


class _Shrinker:
    def __init__(
        self, workers: Workers, scratch: Path, case: Case, seed: int, progress: Progress, run: Run
    ) -> None:
        self._workers = workers
        self._scratch = scratch
        self._plan = case
        self._seeds = tuple(range(seed, min(seed + SEEDS_TRIED, SEEDS)))
        self._progress = progress
        self._run = run
        self._runs = 0
        self._wanted: set[str] = set()

    def shrink(self) -> Shrunk:
        case, seed = self._plan, self._seeds[0]
        _, result = self._workers.first(self._run, [self._task(case, seed)], lambda result: True)
        self._runs += 1
        self._wanted = set(result.broken)
        if not self._wanted:
            raise UsageError(f"seed {seed} does not fail ({result.verdict}): there is nothing to shrink")
        found = self._first([with_faults(case, faults_of(case, seed))])
        if found is None:
            raise UsageError(f"seed {seed} no longer fails with its schedule as explicit faults")
        smallest = None
        while found is not smallest:
            smallest = found
            for change in (_fewer_faults, _tighter, _shorter, _thinner, _less_load):
                while (smaller := self._first(change(found.case, faults_of(found.case, found.seed)))) is not None:
                    found = smaller
        return Shrunk(found, self._runs)

    def _first(self, cases: Iterable[Case]) -> JudgedRun | None:
        """Return the result of the first case, with its first seed, that fails in the same way; None if none does."""
        tasks = (self._task(case, seed) for case in cases for seed in self._seeds)
        number, found = self._workers.first(self._run, tasks, lambda result: bool(self._wanted & set(result.broken)))
        self._runs += number + (found is not None)
        if found is not None:
            self._progress(found, self._runs)
        result: JudgedRun | None = found
        return result

    def _task(self, case: Case, seed: int) -> tuple[Case, int, Path, Path, str]:
        return case, seed, Path("runs"), self._scratch, NONE


def _fewer_faults(case: Case, faults: Sequence[ExplicitFault]) -> Iterator[Case]:
    """Yield cases without half of the faults, a quarter..., one; the largest cuts first."""
    size = (len(faults) + 1) // 2
    while size >= 1:
        for start in range(0, len(faults), size):
            yield with_faults(case, (*faults[:start], *faults[start + size :]))
        size = size // 2


def _tighter(case: Case, faults: Sequence[ExplicitFault]) -> Iterator[Case]:
    """Yield cases with all faults and the gaps between them shorter, then with one of them shorter at a time."""
    now = stretches(faults)
    shorter = [
        [seconds * scale if busy else min(seconds, quiet) for seconds, busy in now]
        for quiet, scale in itertools.product(_QUIET, (0.5, 1.0))
    ]
    for number, (seconds, busy) in enumerate(now):
        one = [seconds for seconds, _ in now]
        one[number] = seconds / 2 if busy else min(seconds, _QUIET[0])
        shorter.append(one)
    for lengths in shorter:
        closer = stretched(faults, lengths)
        if _end(closer) <= _end(faults) - _GAIN:
            yield with_faults(case, closer)


def stretches(faults: Sequence[ExplicitFault]) -> list[tuple[float, bool]]:
    """Return the stretches between moments at which a fault starts or ends, from the start to the last heal.

    Each has a length in seconds, and tells whether there is a fault.
    """
    moments = _moments(faults)
    return [
        (until - since, any(fault.start <= since and until <= fault.end for fault in faults))
        for since, until in itertools.pairwise(moments)
    ]


def stretched(faults: Sequence[ExplicitFault], lengths: Sequence[float]) -> tuple[ExplicitFault, ...]:
    """Return the faults with new lengths of their stretches, in seconds to hundredths; all overlaps are preserved."""
    moved = {0.0: 0.0}
    for (since, until), seconds in zip(itertools.pairwise(_moments(faults)), lengths, strict=True):
        moved[until] = round(moved[since] + max(seconds, 0.01), 2)
    return tuple(replace(fault, start=moved[fault.start], end=moved[fault.end]) for fault in faults)


def _end(faults: Sequence[ExplicitFault]) -> float:
    return max((fault.end for fault in faults), default=0.0)


def _moments(faults: Sequence[ExplicitFault]) -> list[float]:
    return sorted({0.0, *(moment for fault in faults for moment in (fault.start, fault.end))})


def _shorter(case: Case, faults: Sequence[ExplicitFault]) -> Iterator[Case]:
    soon = [_end(faults) + margin for margin in _MARGINS]
    for limit in (*soon, *(part * case.time_limit for part in (0.5, 0.75) if part * case.time_limit > soon[-1])):
        limit = max(1.0, round(limit, 1))
        if limit < case.time_limit:
            yield replace(case, time_limit=limit)


def _thinner(case: Case, faults: Sequence[ExplicitFault]) -> Iterator[Case]:
    for divisor in (8, 4, 2):
        if case.rate / divisor >= _LEAST_RATE:
            yield replace(case, rate=round(case.rate / divisor, 2))


def _less_load(case: Case, faults: Sequence[ExplicitFault]) -> Iterator[Case]:
    """Yield cases with one of everything that the workload counts, or with half as many of one thing, or one less."""
    counts = {
        option.name: int(case.settings.get(option.name, option.default))
        for option in WORKLOADS.load(case.workload).options if option.load
    }  # fmt: skip
    choices = [{name: 1 for name, count in counts.items() if count > 1}]
    for name, count in counts.items():
        choices += [{name: fewer} for fewer in dict.fromkeys((1, count // 2, count - 1)) if 0 < fewer < count]
    for choice in choices:
        settings = {**case.settings, **{name: str(count) for name, count in choice.items()}}
        if choice and _sensible(candidate := replace(case, settings=settings)):
            yield candidate


def _sensible(case: Case) -> bool:
    """Return whether the workload accepts the case."""
    try:
        case.test(0)
    except UsageError:
        return False
    return True


def faults_of(case: Case, seed: int) -> tuple[ExplicitFault, ...]:
    """Return the faults of the case with that seed."""
    steps = schedule(case.test(seed), case.families(seed))
    ends = {step.id: step.at for step in steps if step.phase != INJECT}
    return tuple(
        ExplicitFault(step.fault, step.kind, step.at, ends[step.id], step.seed, step.node)
        for step in steps if step.phase == INJECT
    )


def with_faults(case: Case, faults: Sequence[ExplicitFault]) -> Case:
    """Return the case with exactly these faults, and only the families that they need."""
    families = dict.fromkeys(fault.family for fault in faults)
    settings = {name: value for name, value in case.settings.items() if name != "schedule"}
    if not faults:
        return replace(case, nemesis=_NO_SCHEDULE, settings=_fitting(case, _NO_SCHEDULE, settings))
    nemesis = ",".join(families)
    settings = _fitting(case, nemesis, settings) | {"schedule": write_schedule(faults)}
    return replace(case, nemesis=nemesis, settings=settings)


def _fitting(case: Case, nemesis: str, settings: dict[str, object]) -> dict[str, object]:
    """Return the settings without those of families that are no longer needed."""
    names = [name for name in nemesis.split(",") if name != _NO_SCHEDULE]
    declared = {option.name for option in declared_options(case.system, case.workload, names)}
    return {name: value for name, value in settings.items() if name in declared}
