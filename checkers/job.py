"""The Spark job that checks runs: paths go out, verdict rows come back.

Each task reads whole runs and calls ``check_run`` on each, which is the only code that judges. Histories never pass
through the JVM (``docs/spark.md`` has the figures).
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from checkers import lake
from checkers.judged import digest_of_checks, note_for
from checkers.verdict import Verdict, write_verdict
from stormproof.errors import SparkFailed, StormproofError
from stormproof.history import bounds
from stormproof.run_folder import HISTORY

RUNS_A_JOB = 10_000
"""Runs in one Spark job; more are checked in several, which bounds what the driver holds."""
TASKS_A_CORE = 4

Progress = Callable[[int, int], None]
"""Called with the runs checked so far and the runs in all."""
Prepare = Callable[[], None]

VERDICT_ROWS = pa.schema(
    [
        ("run_dir", pa.string()),
        ("run", pa.string()),
        ("verdict", pa.string()),
        ("sentence", pa.string()),
        ("anomalies", pa.string()),
        ("checks", pa.string()),
        ("trouble", pa.string()),
        ("damage", pa.string()),
        ("lake", pa.string()),
    ]
)
"""One row per run, as it comes back from a task: ``anomalies`` and ``checks`` (name -> verdict) are JSON, ``trouble``
is why the verdict could not be stored, ``damage`` why the run could not be judged, ``lake`` its row of the lake."""

VERDICT_DDL = ", ".join(f"`{field.name}` string" for field in VERDICT_ROWS)


@dataclass(frozen=True)
class VerdictRow:
    """The verdict on one run, without its evidence (which is in the run's verdict.json).

    ``damage`` says why it could not be judged; None where it was.
    """

    run: str
    run_dir: Path
    verdict: str
    sentence: str
    anomalies: Mapping[str, int]
    checks: Mapping[str, str]
    damage: str | None = None


@dataclass(frozen=True)
class SummaryRow:
    """How one check came out over all runs of one system under one nemesis."""

    system: str
    nemesis: str
    check_name: str
    runs: int
    valid: int
    unknown: int
    invalid: int
    found: int


def check_runs(
    spark: Any, run_dirs: Iterable[Path], progress: Progress | None = None, *, prepare: Prepare | None = None
) -> list[VerdictRow]:
    """Check runs, store each verdict in its run's folder, and add it to the store's lake.

    Returns one row per run, in the order given. Each process that checks calls ``prepare`` first: it loads plug-ins,
    and a verdict that was made with any does not say what it rests on.

    Raises:
        SparkFailed: the job failed, or a run's verdict did not come back.
        StormproofError: a verdict or the table can't be stored.
    """
    wanted = [path.resolve() for path in run_dirs]
    tables = []
    for start in range(0, len(wanted), RUNS_A_JOB):
        part = wanted[start : start + RUNS_A_JOB]
        report = None if progress is None else _shifted(progress, start, len(wanted))
        tables.append(_run_job(spark, part, report, prepare))
    if not tables:
        return []
    table = pa.concat_tables(tables)
    rows = _gather(table, wanted)
    trouble = [text for text in table.column("trouble").to_pylist() if text]
    add_to_lakes(table)
    if trouble:
        raise StormproofError(f"{len(trouble)} verdicts could not be stored: {trouble[0]}")
    return rows


SUMMARY = """
SELECT coalesce(system, '?') AS system, coalesce(nemesis, '') AS nemesis, check_name, count(*) AS runs,
       count_if(v.verdict = 'valid') AS valid, count_if(v.verdict = 'unknown') AS unknown,
       count_if(v.verdict = 'invalid') AS invalid, sum(v.count) AS found
FROM verdicts v JOIN runs r ON v.run = r.run GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""
"""How each check came out; DuckDB and Spark alike understand it, over ``checkers.views``."""

_OURS = re.compile(r"^stormproof\.errors\.\w+: (.+)$", re.MULTILINE)
"""What a task of ours said, in the traceback that Spark brings home."""
_PY4J = "An error occurred while calling"
_PYTHON_ERROR = re.compile(r"(?!java|org|scala)[\w.]+(Error|Exception): ")
_NOWHERE = Path(os.devnull)


def warm_up(spark: Any) -> None:
    """Run an empty job, so that the first real one finds workers forked and classes loaded.

    Raises:
        SparkFailed: it failed.
    """
    try:
        _frame(spark, [_NOWHERE], 1).toArrow()
    except Exception as error:
        raise _failed(error) from error


def _run_job(
    spark: Any, run_dirs: Sequence[Path], progress: Progress | None, prepare: Prepare | None
) -> pa.Table:
    try:
        tasks = max(1, min(len(run_dirs), spark.sparkContext.defaultParallelism * TASKS_A_CORE))
        frame = _frame(spark, _dealt(run_dirs, tasks), tasks, prepare)
    except Exception as error:  # its JVM is gone
        raise _failed(error) from error
    return collect_frame(spark, frame, len(run_dirs), progress)


def collect_frame(spark: Any, frame: Any, runs: int, progress: Progress | None) -> pa.Table:
    """Carry out the job of a frame that stands for so many runs.

    Raises:
        SparkFailed: the job failed.
    """
    try:
        if progress is None:
            return frame.toArrow()
        return _watched(spark, frame, runs, progress)
    except Exception as error:
        raise _failed(error) from error


def _failed(error: Exception) -> SparkFailed:
    if (ours := _OURS.search(str(error))) is not None:
        return SparkFailed(ours[1])
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    reason = lines[0]
    if reason.startswith(_PY4J):
        # What comes next is Java's; a traceback of Python's, if there is one, ends with what went wrong.
        told = [line for line in lines if _PYTHON_ERROR.match(line)]
        reason = told[-1] if told else (lines[1] if len(lines) > 1 else reason).removeprefix(": ")
    return SparkFailed(f"the Spark job failed: {reason}")


def _frame(spark: Any, run_dirs: Sequence[Path], tasks: int, prepare: Prepare | None = None) -> Any:
    """The data frame of verdict rows; nothing is computed yet."""
    paths = [str(path) for path in run_dirs]
    bound = os.environ.get(bounds.VARIABLE)
    ours = digest_of_checks()

    def check_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        bounds.set_max_history(bound)
        if digest_of_checks() != ours:
            raise SparkFailed(f"the worker on {socket.gethostname()} has another version of Stormproof, or of what "
                              "checks are made with, than this driver: give all of them the same environment")
        if prepare is not None:
            prepare()
        for batch in batches:
            for position in batch.column(0).to_pylist():
                yield check_and_store(Path(paths[position]), noted=prepare is None)

    return spark.range(0, len(paths), 1, tasks).mapInArrow(check_batches, VERDICT_DDL)


def _dealt(run_dirs: Sequence[Path], tasks: int) -> list[Path]:
    """The runs in an order that gives each task (a contiguous slice) its share of the large ones."""
    by_size = sorted(run_dirs, key=_history_size, reverse=True)
    return [path for task in range(tasks) for path in by_size[task::tasks]]


def _history_size(run_dir: Path) -> int:
    try:
        return (run_dir / HISTORY).stat().st_size
    except OSError:
        return 0


def check_and_store(run_dir: Path, *, noted: bool = True) -> pa.RecordBatch:
    """Check one run, store its verdict beside it, and return its row.

    ``noted``: the verdict says what it rests on, so that the run need not be judged again.
    """
    # Here and not above: the driver, which starts while a person waits, needs neither kernels nor Numba.
    from checkers.run_check import check_run

    note = note_for(run_dir) if noted else None
    verdict = check_run(run_dir)
    trouble = None
    try:
        write_verdict(run_dir, verdict, note)
    except OSError as error:
        trouble = f"{run_dir}: {error.strerror or error}"
    except Exception as error:
        # A page that can't be drawn is a defect of ours: it must not cost the other runs their verdicts.
        trouble = f"{run_dir}: a page of its verdict can't be made ({type(error).__name__}: {error})"
    return verdict_row(run_dir, verdict, trouble)


def verdict_row(run_dir: Path, verdict: Verdict, trouble: str | None) -> pa.RecordBatch:
    """A run's row; ``trouble`` says why its verdict could not be stored."""
    row = {
        "run_dir": str(run_dir), "run": verdict.run, "verdict": verdict.verdict, "sentence": verdict.sentence,
        "anomalies": json.dumps(verdict.anomalies),
        "checks": json.dumps([[check.check, check.outcome.verdict] for check in verdict.checks]),
        "trouble": trouble, "damage": verdict.damage, "lake": lake.packed(lake.row_of(run_dir, verdict)),
    }  # fmt: skip
    return pa.RecordBatch.from_pylist([row], schema=VERDICT_ROWS)


def row_of_verdict(run_dir: Path, verdict: Verdict) -> VerdictRow:
    """A verdict without its evidence."""
    return VerdictRow(
        verdict.run, run_dir, verdict.verdict, verdict.sentence, verdict.anomalies,
        {check.check: check.outcome.verdict for check in verdict.checks}, verdict.damage,
    )


def add_to_lakes(table: pa.Table) -> None:
    """Put the rows of runs that were judged into the lakes of their stores.

    Raises:
        StormproofError: they can't be stored.
    """
    rows: dict[Path, list[Any]] = {}
    for run_dir, row in zip(table.column("run_dir").to_pylist(), table.column("lake").to_pylist(), strict=True):
        rows.setdefault(Path(run_dir).parent, []).append(json.loads(row))
    for store, some in rows.items():
        lake.append(store, some)


def _gather(table: pa.Table, wanted: Sequence[Path]) -> list[VerdictRow]:
    """One row per run; a run without a verdict must never pass for one that was checked."""
    found: dict[str, VerdictRow] = {}
    for row in table.to_pylist():
        if row["run_dir"] in found:
            raise SparkFailed(f"{row['run_dir']}: its verdict came back twice")
        found[row["run_dir"]] = VerdictRow(
            row["run"], Path(row["run_dir"]), row["verdict"], row["sentence"], json.loads(row["anomalies"]),
            dict(json.loads(row["checks"])), row["damage"],
        )
    missing = [path for path in wanted if str(path) not in found]
    if missing:
        raise SparkFailed(f"{len(missing)} of {len(wanted)} verdicts did not come back, first {missing[0]}")
    return [found[str(path)] for path in wanted]


def _shifted(progress: Progress, done: int, total: int) -> Progress:
    return lambda part, _: progress(done + part, total)


def _watched(spark: Any, frame: Any, runs: int, progress: Progress) -> pa.Table:
    """Collect a frame while telling how many of its tasks are done."""
    from pyspark import InheritableThread

    context = spark.sparkContext
    group = f"check-{os.getpid()}-{id(frame)}"
    result: list[pa.Table] = []
    failure: list[Exception] = []

    def collect() -> None:
        try:
            context.setJobGroup(group, "check")
            result.append(frame.toArrow())
        except Exception as error:
            failure.append(error)

    worker = InheritableThread(target=collect, name="check-job")
    worker.start()
    tracker = context.statusTracker()
    waiter = threading.Event()
    while worker.is_alive():
        waiter.wait(0.1)
        progress(_runs_done(tracker, group, runs), runs)
    worker.join()
    if failure:
        raise failure[0]
    progress(runs, runs)
    return result[0]


def _runs_done(tracker: Any, group: str, runs: int) -> int:
    done = total = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            stage_info = tracker.getStageInfo(stage)
            if stage_info:
                done += stage_info.numCompletedTasks
                total += stage_info.numTasks
    return runs * done // total if total else 0


def summarize(spark: Any, store: Path) -> list[SummaryRow]:
    """How each check came out over the runs of a store, by system and nemesis: the query ``SUMMARY`` over the lake, by
    Spark, or by DuckDB where there is no session (``spark`` is None).

    Raises:
        StormproofError: no run of the store has been checked.
    """
    from checkers.views import SMALL, duckdb_views, spark_views

    lake.refresh(store)
    if not lake.has_rows(store):
        raise StormproofError(f"{store}: no run of it has been checked; run `stormproof check --all --store {store}`")
    if spark is None:
        table = duckdb_views(store, SMALL).execute(SUMMARY).to_arrow_table()
    else:
        spark_views(spark, store, SMALL)
        table = spark.sql(SUMMARY).toArrow()
    return [SummaryRow(**row) for row in table.to_pylist()]
