"""Seeds as Spark tasks, on this machine's cores or on a cluster.

A task simulates and checks whole runs (with ``run_and_judge``, as without Spark) in a folder of the store. The driver
moves each run whose result was returned to its final place in the store. A task that Spark executes twice therefore
leaves no duplicate run.
"""

from __future__ import annotations

import json
import pickle
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from pathlib import Path

import pyarrow as pa

from checkers.lake.table import append
from checkers.spark.job import (
    TASKS_A_CORE,
    VERDICT_ROWS,
    cores_of,
    demand_mounted,
    verdict_row,
)
from checkers.spark.session import SparkWarmup
from checkers.spark.tasks import Progress, Work, carry_out
from checkers.verdict_cache import digest_of_all, other_version
from harness.run import plugins
from harness.run.cases import JudgedRun
from harness.sim.campaign import ALL, Seeded, run_and_judge
from stormproof.errors import StormproofError

RUNS_A_CORE = 16
"""Runs of one Spark job, for each core; between jobs, results are reported, and a campaign may stop."""

_RESULT = pa.field("result", pa.binary())
_ROWS = pa.schema([*VERDICT_ROWS, _RESULT])


def spark_campaign(
    cases: Sequence[Seeded], seeds: Sequence[int], store: Path, *, master: str, collect: bool,
    report: Callable[[JudgedRun], None], progress: Progress,
) -> None:
    """Run every case with every seed; all runs are stored, with their verdicts.

    After each Spark job, ``report`` is called for each result, in the order of seeds; ``progress`` is called with a
    job's finished runs. Stops after the first job with a failure unless ``collect`` is set.

    Raises:
        SparkFailed: Spark did not start or a job failed. StormproofError: the store cannot be written.
    """
    warm = SparkWarmup(master)
    try:
        with SparkSimulation(warm, store, ALL) as simulation:
            tasks = ((case, seed) for seed, case in product(seeds, cases))
            while part := list(islice(tasks, simulation.runs_a_job)):
                results = simulation.results(part, progress)
                for result in results:
                    report(result)
                if not collect and any(result.failed for result in results):
                    return
    finally:
        warm.abandon()


class SparkSimulation:
    """Simulates runs as tasks of a context that is starting or started, and moves kept runs into a store.

    ``keep`` is as for ``run_and_judge``. Until its result arrives, a run stays in a hidden folder of the store, which
    is removed when the simulation ends.
    """

    def __init__(self, warm: SparkWarmup, store: Path, keep: str) -> None:
        self._warm, self._keep = warm, keep
        self._store = store.resolve()
        self._staging = self._store / f".simulating-{secrets.token_hex(4)}"

    def __enter__(self) -> SparkSimulation:
        """Create the hidden folder; raises StormproofError when the store cannot be written."""
        try:
            self._staging.mkdir(parents=True)
        except OSError as error:
            raise StormproofError(f"{self._store}: can't be written ({error.strerror}); choose another --store"
                                  ) from error
        return self

    def __exit__(self, *exc: object) -> None:
        shutil.rmtree(self._staging, ignore_errors=True)

    @property
    def runs_a_job(self) -> int:
        """The number of runs to give to ``results`` at a time; raises SparkFailed when Spark did not start."""
        return cores_of(self._warm.context()) * RUNS_A_CORE

    def results(self, tasks: Sequence[tuple[Seeded, int]], progress: Progress | None = None) -> list[JudgedRun]:
        """Run cases with their seeds in one Spark job, and return the results in this order.

        Raises:
            SparkFailed: the job failed. StormproofError: the store cannot be written.
        """
        spark = self._warm.context()
        parts = min(cores_of(spark) * TASKS_A_CORE, len(tasks))
        work = _simulating(tasks, self._store, self._staging, self._keep)
        table = carry_out(spark, work, len(tasks), parts, _ROWS, progress)
        results = [_settled(result, self._store) for result in _results(table, len(tasks))]
        append(self._store, [json.loads(row) for row in table.column("lake").drop_null().to_pylist()])
        return results


def _simulating(tasks: Sequence[tuple[Seeded, int]], store: Path, staging: Path, keep: str) -> Work:
    """Return the function with which a task processes the positions of cases and their seeds."""
    prepare = plugins.preparation()
    ours = digest_of_all()

    def simulate(positions: Iterable[int]) -> Iterator[pa.RecordBatch]:
        if digest_of_all() != ours:
            raise other_version()
        if prepare is not None:
            prepare()
        for position in positions:
            case, seed = tasks[position]
            yield _simulated(case, seed, store, staging, keep)

    return simulate


def _simulated(case: Seeded, seed: int, store: Path, staging: Path, keep: str) -> pa.RecordBatch:
    """Simulate one run, and return its row with its result."""
    demand_mounted(store)
    if not staging.is_dir():
        raise StormproofError(f"{staging} is gone: the campaign has ended")
    result, verdict = run_and_judge(case, seed, store, staging, keep)
    packed = pickle.dumps(result)
    if verdict is None or result.run_dir is None:
        return pa.RecordBatch.from_pylist([{"result": packed}], schema=_ROWS)
    row = verdict_row(result.run_dir, verdict, None)
    return pa.RecordBatch.from_pylist([{**row, _RESULT.name: packed}], schema=_ROWS)


def _results(table: pa.Table, wanted: int) -> list[JudgedRun]:
    results = [pickle.loads(packed) for packed in table.column(_RESULT.name).drop_null().to_pylist()]
    if len(results) != wanted:
        raise StormproofError(f"{wanted} runs were simulated, but {len(results)} results came back from Spark")
    return results


def _settled(result: JudgedRun, store: Path) -> JudgedRun:
    """Move a run into the store, among the others, and return its result."""
    if result.run_dir is None:
        return result
    return replace(result, run_dir=result.run_dir.rename(store / result.run_dir.name))
