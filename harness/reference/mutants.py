"""``stormproof mutants``: each switchable bug is simulated until a check, or an invariant, catches it."""

from __future__ import annotations

import itertools
import math
import os
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from harness.cli.output import print_json
from harness.run.cases import BROKEN, EVENTFUL, Case, JudgedRun
from harness.run.progress import console, duration
from harness.run.settings import declared_options
from harness.sim.campaign import NONE, Seeded, run_and_judge, run_seed
from harness.sim.draw import DrawnCase, Given
from harness.sim.guided import Guide
from harness.sim.pool import worker_pool
from nodes.reference.bugs import BUGS
from nodes.reference.bugs.bug import Bug
from stormproof.contracts.invariant import INVARIANTS
from stormproof.errors import EXIT_INVALID, EXIT_VALID, UsageError
from stormproof.text import amount

if TYPE_CHECKING:
    from checkers.verdict import Verdict

BASE = Case("joram", "queue", Bug.nemesis, None, 20.0, 40.0, {**EVENTFUL, INVARIANTS: "false"})
"""The campaign that exercises every bug, on which a bug's specific settings are laid.

Invariants are off, because they would end most runs before clients could notice anything; the checks of histories are
to be measured.
"""

ROUND_SEEDS = 10_000
"""Distance between the first seeds of two rounds."""

EXERCISE, DRAWN, GUIDED = "exercise", "drawn", "guided"
"""The ways to hunt: the test that exercises the bug, the default campaign, or a guided search based on the latter."""


@dataclass(frozen=True)
class Catch:
    """One hunt: the number of seeds that it took, and the report of the check that caught the bug.

    ``anomalies`` is empty when the budget of seeds was used up. ``without`` holds the commands of failed runs that fail
    without the bug as well: they say nothing about the bug, but something about the broker or a check.
    """

    bug: str
    round: int
    seeds: int
    seconds: float
    anomalies: tuple[str, ...]
    sentence: str
    command: str
    without: tuple[str, ...] = ()
    way: str = DRAWN

    @property
    def caught(self) -> bool:
        """Whether a check caught the bug."""
        return bool(self.anomalies)


def exercised() -> dict[str, bool]:
    """Return the name of every bug, and whether a test of its own exercises it."""
    return {bug.name: not bug.drawn for bug in BUGS.values()}


def case_of(bug: str) -> Case:
    """Return the campaign of one bug."""
    about = BUGS[bug]
    case = replace(BASE, system=about.design, workload=about.workload, nemesis=about.nemesis, nodes=about.nodes)
    families = [name for name in case.nemesis.split(",") if name]
    declared = {option.name for option in declared_options(case.system, case.workload, families)} | {INVARIANTS}
    common = {name: value for name, value in case.settings.items() if name in declared}
    return replace(case, settings={**common, **about.exercise, "bug": bug})


def drawn_case_of(bug: str) -> DrawnCase:
    """Return the default campaign of the bug's design, with the bug."""
    return DrawnCase(BUGS[bug].design, Given(settings={"bug": bug}))


def hunt(bug: str, number: int, start: int, budget: int, scratch: Path, way: str = EXERCISE) -> Catch:
    """Simulate until a run is invalid, ``budget`` runs at most.

    The runs are the seeds from ``start`` on of the bug's exercise or of the default campaign, or the choice of a guided
    search based on that campaign. A failure of a drawn test counts only if the same test without the bug does not fail.
    """
    began = time.perf_counter()
    exercise = way == EXERCISE and not BUGS[bug].drawn
    case: Seeded = case_of(bug) if exercise else drawn_case_of(bug)
    first = start + number * ROUND_SEEDS
    guide = Guide(case, itertools.count(first), random.Random(f"hunt/{bug}/{first}")) if way == GUIDED else None
    without: list[str] = []
    sentence = command = ""
    for runs in range(1, budget + 1):
        test, seed = guide.next() if guide is not None else (case, first + runs - 1)
        result, verdict = run_and_judge(test, seed, Path("runs"), scratch, NONE, explores=guide is not None)
        if guide is not None:
            guide.learn(result)
        sentence, command = (result.sentence, result.command) if result.verdict == BROKEN else ("", "")
        if result.verdict != "invalid" or verdict is None:
            continue
        if not exercise:
            innocent = _without_bug(result, scratch)
            if innocent.failed:
                without.append(innocent.command)
                continue
        return Catch(bug, number, runs, time.perf_counter() - began, caught_by(verdict), result.sentence,
                     result.command, tuple(without), way)
    return Catch(bug, number, budget, time.perf_counter() - began, (), sentence, command, tuple(without), way)


def _without_bug(result: JudgedRun, scratch: Path) -> JudgedRun:
    """Repeat the run with the unchanged broker: a failure there as well is not due to the bug."""
    settings = {name: value for name, value in result.case.settings.items() if name != "bug"}
    return run_seed(replace(result.case, settings=settings), result.seed, Path("runs"), scratch, NONE)


def caught_by(verdict: Verdict) -> tuple[str, ...]:
    """Return the checks that decided for invalid; invariants appear by name."""
    found: dict[str, None] = {}
    for ran in verdict.checks:
        if ran.decides and ran.outcome.verdict == "invalid":
            broken = [f"invariant {anomaly.detail['name']}" for anomaly in ran.outcome.anomalies
                      if anomaly.kind == "invariant-broken"]
            found |= dict.fromkeys(broken or [ran.check])
    return tuple(found)


def run_mutants(names: Sequence[str], *, start: int, budget: int, rounds: int, jobs: int | None, as_json: bool,
                ways: Sequence[str] = (EXERCISE,)) -> int:
    """Hunt for the named bugs, or for all; returns the exit status: 1 when one escaped in every round.

    ``ways`` lists the ways to hunt; several are compared in a table.

    Raises:
        UsageError: a bug does not exist, or a number makes no sense.
    """
    for name in names:
        if name not in BUGS:
            raise UsageError(f"unknown bug {name!r} (known: {', '.join(BUGS)})")
    if budget < 1 or rounds < 1 or start < 0:
        raise UsageError("--seeds and --rounds: at least 1; --start: at least 0")
    to = console(as_json)
    bugs = list(names or BUGS)
    catches: dict[str, list[Catch]] = {bug: [] for bug in bugs}
    total, began = rounds * len(bugs) * len(ways), time.monotonic()
    hunts = _hunts(bugs, start, budget, rounds, jobs or os.cpu_count() or 1, ways)
    try:
        for number, catch in enumerate(hunts, 1):
            catches[catch.bug].append(catch)
            how = f"{', '.join(catch.anomalies)} after {amount(catch.seeds, 'seed')}" if catch.caught else "NOT CAUGHT"
            left = duration((time.monotonic() - began) / number * (total - number))
            place = f"hunt {number} of {total}, about {left} left: " if number < total else ""
            by = f" ({catch.way})" if len(ways) > 1 else ""
            to.print(f"{place}{catch.bug}{by}: {how} ({catch.seconds:.1f} s)", markup=False, soft_wrap=True)
    finally:
        if as_json:
            print_json({bug: [vars(catch) | {"caught": catch.caught} for catch in found]
                        for bug, found in catches.items()})
        elif any(catches.values()):
            to.print(_table(catches) if len(ways) == 1 else _side_by_side(catches, ways, budget))
    for command in dict.fromkeys(line for found in catches.values() for catch in found for line in catch.without):
        to.print(f"fails without any bug, not counted: {command}", markup=False, soft_wrap=True)
    escaped = [bug for bug, found in catches.items() if not any(catch.caught for catch in found)]
    for bug in escaped:
        to.print(f"gap: nothing caught {bug} ({BUGS[bug].summary}) within {amount(budget, 'seed')}", markup=False)
    return EXIT_INVALID if escaped else EXIT_VALID


def _hunts(bugs: Sequence[str], start: int, budget: int, rounds: int, jobs: int,
           ways: Sequence[str]) -> Iterator[Catch]:
    with worker_pool(min(jobs, rounds * len(bugs) * len(ways))) as (workers, scratch):
        tasks = [(bug, number, start, budget, scratch, way) for number in range(rounds) for bug in bugs for way in ways]
        yield from workers.each(hunt, tasks)


def _side_by_side(catches: dict[str, list[Catch]], ways: Sequence[str], budget: int) -> Table:
    """Return a table of hunts in several ways, each of the same rounds; a failure counts as more than the budget."""
    table = Table("bug", *(f"{what}, {way}" for way in ways for what in ("caught", "runs (median)")), box=None)
    for bug, found in catches.items():
        row = []
        for way in ways:
            runs = sorted(catch.seeds if catch.caught else math.inf for catch in found if catch.way == way)
            median = statistics.median_low(runs) if runs else math.inf
            caught = sum(map(math.isfinite, runs))
            row += [f"{caught} of {len(runs)}", f"{median:g}" if median <= budget else f">{budget}"]
        table.add_row(bug, *row)
    return table


def _table(catches: dict[str, list[Catch]]) -> Table:
    table = Table("bug", "caught", "seeds (median)", "seconds (median)", "by", box=None)
    for bug, found in catches.items():
        caught = [catch for catch in found if catch.caught]
        kinds = dict.fromkeys(kind for catch in caught for kind in catch.anomalies)
        seeds = f"{statistics.median(catch.seeds for catch in caught):g}" if caught else "-"
        seconds = f"{statistics.median(catch.seconds for catch in caught):.1f}" if caught else "-"
        table.add_row(bug, f"{len(caught)} of {len(found)}", seeds, seconds, ", ".join(kinds))
    return table
