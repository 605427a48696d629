"""How fast simulation is: 3 nodes, 30 simulated seconds, 500 operations under faults, checks included."""

from __future__ import annotations

import contextlib
import io
import tempfile
from dataclasses import dataclass
from pathlib import Path

from checkers.spark import SparkWarmup
from harness.demo import DEMOS, run_twins
from harness.sim.campaign import Case, SeedResult, campaign
from harness.sim.tally import Tally
from stormproof.errors import StormproofError

PLAN = Case("joram", "queue", "partition,pause,kill", 3, 30.0, 500 / 30)
JOBS = 2


@dataclass(frozen=True)
class Speed:
    """Runs a minute, and simulated seconds a real second, of all processes together."""

    runs_a_minute: float
    simulated_a_second: float


def speed(runs: int = 200) -> Speed:
    """Measure; the first runs, which load the libraries, don't count.

    Raises:
        StormproofError: a run failed, so there is no speed to tell.
    """
    tally, warm = Tally(), 4 * JOBS
    with tempfile.TemporaryDirectory(prefix="stormproof-bench-") as store:
        seen = 0

        def count(result: SeedResult) -> None:
            nonlocal tally, seen
            seen += 1
            if seen == warm:
                tally = Tally()
            else:
                tally.add(result)

        campaign([PLAN], range(1, runs + warm + 1), Path(store), jobs=JOBS, collect=True, report=count)
    if tally.failures:
        raise StormproofError(f"a simulated run failed: {tally.failures[0].command}")
    seconds = tally.seconds
    return Speed(tally.runs / seconds * 60, tally.simulated / seconds)


def demo_seconds() -> dict[str, float]:
    """Wall seconds of each half of the demo in simulation, from the start of the process' first run to the report.

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
