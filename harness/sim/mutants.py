"""``stormproof mutants``: each switchable bug is simulated until a check, or an invariant, catches it."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from harness.output import print_json
from harness.progress import console, duration
from harness.settings import declared_options
from harness.sim.campaign import BROKEN, NONE, Case, Seeded, SeedResult, run_and_judge, run_seed
from harness.sim.draw import DrawnCase, Given
from harness.sim.pool import worker_pool
from nodes.reference.bugs import BUGS, Bug
from stormproof.contracts.invariant import INVARIANTS
from stormproof.errors import EXIT_INVALID, EXIT_VALID, UsageError
from stormproof.text import amount

if TYPE_CHECKING:
    from checkers.verdict import Verdict

BASE = Case(
    "joram", "queue", Bug.nemesis, None, 20.0, 40.0,
    {"fault_duration": "1.5", "fault_gap": "0.3", "detection_timeout": "0.5", "idle_timeout": "2", "min_ok": "20",
     "settle_timeout": "20", "drain_limit": "30", INVARIANTS: "false"},
)  # fmt: skip
"""The campaign that exercises every bug, with the bug's own settings on top. What is measured are the checks of
histories: invariants would end most runs before clients could notice."""

ROUND_SEEDS = 10_000
"""Distance of the first seeds of two rounds."""


@dataclass(frozen=True)
class Catch:
    """One hunt: how many seeds it took, and what the check that caught the bug said; ``anomalies`` is empty when the
    budget of seeds was used up. ``without`` are commands of runs that failed, and fail without the bug as well: they
    say nothing about the bug, but something about the broker or a check."""

    bug: str
    round: int
    seeds: int
    seconds: float
    anomalies: tuple[str, ...]
    sentence: str
    command: str
    without: tuple[str, ...] = ()

    @property
    def caught(self) -> bool:
        """Whether a check caught it."""
        return bool(self.anomalies)


def case_of(bug: str) -> Case:
    """The campaign of one bug."""
    about = BUGS[bug]
    case = replace(BASE, system=about.design, workload=about.workload, nemesis=about.nemesis, nodes=about.nodes)
    families = [name for name in case.nemesis.split(",") if name]
    declared = {option.name for option in declared_options(case.system, case.workload, families)} | {INVARIANTS}
    common = {name: value for name, value in case.settings.items() if name in declared}
    return replace(case, settings={**common, **about.exercise, "bug": bug})


def drawn_case_of(bug: str) -> DrawnCase:
    """The default campaign of the bug's design, with the bug."""
    return DrawnCase(BUGS[bug].design, Given(settings={"bug": bug}))


def hunt(bug: str, number: int, start: int, budget: int, scratch: Path, exercise: bool = True) -> Catch:
    """Simulate seeds from ``start`` on until one is invalid, ``budget`` at most: of the test that exercises the bug, or
    of the default campaign. What a drawn test finds counts only if it finds nothing without the bug."""
    began = time.perf_counter()
    exercise = exercise and not BUGS[bug].edited
    case: Seeded = case_of(bug) if exercise else drawn_case_of(bug)
    first = start + number * ROUND_SEEDS
    without: list[str] = []
    sentence = command = ""
    for seed in range(first, first + budget):
        result, verdict = run_and_judge(case, seed, Path("runs"), scratch, NONE)
        sentence, command = (result.sentence, result.command) if result.verdict == BROKEN else ("", "")
        if result.verdict != "invalid" or verdict is None:
            continue
        if not exercise:
            innocent = _without_bug(result, scratch)
            if innocent.failed:
                without.append(innocent.command)
                continue
        return Catch(bug, number, seed - first + 1, time.perf_counter() - began, _caught_by(verdict), result.sentence,
                     result.command, tuple(without))
    return Catch(bug, number, budget, time.perf_counter() - began, (), sentence, command, tuple(without))


def _without_bug(result: SeedResult, scratch: Path) -> SeedResult:
    """The same run of the unchanged broker: what fails there as well is not the bug's doing."""
    settings = {name: value for name, value in result.case.settings.items() if name != "bug"}
    return run_seed(replace(result.case, settings=settings), result.seed, Path("runs"), scratch, NONE)


def _caught_by(verdict: Verdict) -> tuple[str, ...]:
    """The checks that decided for invalid; invariants by their own names."""
    found: dict[str, None] = {}
    for ran in verdict.checks:
        if ran.decides and ran.outcome.verdict == "invalid":
            broken = [f"invariant {anomaly.detail['name']}" for anomaly in ran.outcome.anomalies
                      if anomaly.kind == "invariant-broken"]
            found |= dict.fromkeys(broken or [ran.check])
    return tuple(found)


def run_mutants(names: Sequence[str], *, start: int, budget: int, rounds: int, jobs: int | None, as_json: bool,
                exercise: bool = True) -> int:
    """Hunt for the named bugs, or for all; returns the exit status: 1 when one escaped in every round.

    ``exercise``: by the test that exercises each; otherwise by the default campaign, which draws its tests.

    Raises:
        UsageError: there is no such bug, or a number makes no sense.
    """
    for name in names:
        if name not in BUGS:
            raise UsageError(f"there is no bug {name!r} (there are: {', '.join(BUGS)})")
    if budget < 1 or rounds < 1 or start < 0:
        raise UsageError("--seeds and --rounds: at least 1; --start: at least 0")
    to = console(as_json)
    bugs = list(names or BUGS)
    catches: dict[str, list[Catch]] = {bug: [] for bug in bugs}
    total, began = rounds * len(bugs), time.monotonic()
    hunts = _hunts(bugs, start, budget, rounds, jobs or os.cpu_count() or 1, exercise)
    try:
        for number, catch in enumerate(hunts, 1):
            catches[catch.bug].append(catch)
            how = f"{', '.join(catch.anomalies)} after {amount(catch.seeds, 'seed')}" if catch.caught else "NOT CAUGHT"
            left = duration((time.monotonic() - began) / number * (total - number))
            place = f"hunt {number} of {total}, about {left} left: " if number < total else ""
            to.print(f"{place}{catch.bug}: {how} ({catch.seconds:.1f} s)", markup=False, soft_wrap=True)
    finally:
        if as_json:
            print_json({bug: [vars(catch) | {"caught": catch.caught} for catch in found]
                        for bug, found in catches.items()})
        elif any(catches.values()):
            to.print(_table(catches))
    for command in dict.fromkeys(line for found in catches.values() for catch in found for line in catch.without):
        to.print(f"fails without any bug, not counted: {command}", markup=False, soft_wrap=True)
    escaped = [bug for bug, found in catches.items() if not any(catch.caught for catch in found)]
    for bug in escaped:
        to.print(f"gap: nothing caught {bug} ({BUGS[bug].summary}) within {amount(budget, 'seed')}", markup=False)
    return EXIT_INVALID if escaped else EXIT_VALID


def _hunts(bugs: Sequence[str], start: int, budget: int, rounds: int, jobs: int, exercise: bool) -> Iterator[Catch]:
    with worker_pool(min(jobs, rounds * len(bugs))) as (workers, scratch):
        tasks = [(bug, number, start, budget, scratch, exercise) for number in range(rounds) for bug in bugs]
        yield from workers.each(hunt, tasks)


def _table(catches: dict[str, list[Catch]]) -> Table:
    table = Table("bug", "caught", "seeds (median)", "seconds (median)", "by", box=None)
    for bug, found in catches.items():
        caught = [catch for catch in found if catch.caught]
        kinds = dict.fromkeys(kind for catch in caught for kind in catch.anomalies)
        seeds = f"{statistics.median(catch.seeds for catch in caught):g}" if caught else "-"
        seconds = f"{statistics.median(catch.seconds for catch in caught):.1f}" if caught else "-"
        table.add_row(bug, f"{len(caught)} of {len(found)}", seeds, seconds, ", ".join(kinds))
    return table
