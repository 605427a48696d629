"""Speed of simulation: 3 nodes, 30 simulated seconds, 500 operations under faults, checks included.

Also measures the cost of observing the nodes.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from checkers.spark.session import SparkWarmup
from harness.run.cases import Case, JudgedRun
from harness.sim.campaign import campaign
from harness.sim.tally import CampaignTally
from harness.tools.demo import DEMOS, run_twins
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.invariant import INVARIANTS
from stormproof.errors import StormproofError

PLAN = Case("joram", "queue", "partition,pause,kill", 3, 30.0, 500 / 30)
JOBS = 2
WATCHED = ("standalone", "joram", "icestorm", "qpid", "fiorano")


@dataclass(frozen=True)
class Speed:
    """Runs a minute, and simulated seconds a real second, of all processes together."""

    runs_a_minute: float
    simulated_a_second: float


def speed(runs: int = 200) -> Speed:
    """Measure the speed; the first runs, which load the libraries, do not count.

    Raises:
        StormproofError: a run failed, which makes the figure invalid.
    """
    tally, warm = CampaignTally(), 4 * JOBS
    with tempfile.TemporaryDirectory(prefix="stormproof-bench-") as store:
        seen = 0

        def count(result: JudgedRun) -> None:
            nonlocal tally, seen
            seen += 1
            if seen == warm:
                tally = CampaignTally()
            else:
                tally.add(result)

        campaign([PLAN], range(1, runs + warm + 1), Path(store), jobs=JOBS, collect=True, report=count)
    if tally.failures:
        raise StormproofError(f"a simulated run failed: {tally.failures[0].command}")
    seconds = tally.seconds
    return Speed(tally.runs / seconds * 60, tally.simulated / seconds)


def watching(system: str, seeds: int = 6, times: int = 3) -> tuple[float, float]:
    """Return the CPU time of runs with invariants relative to runs without: without deadlines, and with them.

    For each seed, the best of ``times`` measurements counts. The variants are measured in turns, because machines are
    not quiet.

    Raises:
        StormproofError: a run failed, which makes the comparison invalid.
    """
    plan = replace(PLAN, system=system, workload="events" if system == "icestorm" else PLAN.workload, nodes=None)
    on = replace(plan, settings={INVARIANTS: "true"})
    off = replace(plan, settings={INVARIANTS: "false"})
    _cpu_seconds(on, 1)  # Load the libraries first.
    totals = [0.0, 0.0, 0.0]
    for seed in range(1, seeds + 1):
        best = [float("inf")] * len(totals)
        for _ in range(times):
            found = [_cpu_seconds(off, seed)]
            with _no_deadlines(system):
                found.append(_cpu_seconds(on, seed))
            found.append(_cpu_seconds(on, seed))
            best = list(map(min, best, found))
        totals = [total + seconds for total, seconds in zip(totals, best, strict=True)]
    return totals[1] / totals[0], totals[2] / totals[0]


def _cpu_seconds(plan: Case, seed: int) -> float:
    failures: list[str] = []

    def note(result: JudgedRun) -> None:
        failures.extend([result.sentence] if result.failed else [])

    with tempfile.TemporaryDirectory(prefix="stormproof-bench-") as store:
        begun = time.process_time()
        campaign([plan], [seed], Path(store), jobs=1, collect=True, report=note)
        seconds = time.process_time() - begun
    if failures:
        raise StormproofError(f"a simulated run of {plan.system}, seed {seed}, failed: {failures[0]}")
    return seconds


@contextlib.contextmanager
def _no_deadlines(system: str) -> Iterator[None]:
    tested = SYSTEMS.load(system)
    declared, tested.deadlines = tested.deadlines, ()
    try:
        yield
    finally:
        tested.deadlines = declared


def demo_seconds() -> dict[str, float]:
    """Return the wall-clock seconds of each half of the demo in simulation, from its first run's start to the report.

    Raises:
        StormproofError: a verdict was not the expected one.
    """
    spark = SparkWarmup()
    with tempfile.TemporaryDirectory(prefix="stormproof-bench-") as store, contextlib.redirect_stdout(io.StringIO()):
        try:
            twins = run_twins(DEMOS["split"], 7, "sim", "make bench", Path(store), spark, {}, 1.0)
        finally:
            spark.stop()
    for twin in twins:
        if not twin.as_expected:
            raise StormproofError(f"the demo's half {twin.value} was {twin.result.verdict['verdict']}")
    return {twin.value: twin.seconds for twin in twins}
