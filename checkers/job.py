"""The Spark job that checks runs: paths go out, verdict rows come back.

Each task reads whole runs and calls ``check_run`` on each, which is the only code that judges. Histories never pass
through the JVM (``docs/spark.md`` has the figures).
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.verdict import Verdict, write_verdict
from stormproof.errors import HistoryError, SparkFailed, StormproofError
from stormproof.history import bounds
from stormproof.run_folder import HISTORY, read_run

VERDICTS_DIR = "verdicts"
VERDICTS_FILE = "verdicts.parquet"

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
        ("system", pa.string()),
        ("workload", pa.string()),
        ("nemesis", pa.string()),
        ("backend", pa.string()),
        ("seed", pa.int64()),
        ("started", pa.string()),
        ("verdict", pa.string()),
        ("sentence", pa.string()),
        ("anomalies", pa.string()),
        ("ops", pa.int64()),
        ("enqueue_ok", pa.int64()),
        ("longest_gap_s", pa.float64()),
        ("check", pa.string()),
        ("decides", pa.bool_()),
        ("check_verdict", pa.string()),
        ("count", pa.int64()),
        ("trouble", pa.string()),
        ("damage", pa.string()),
    ]
)
"""One row per run and check."""

NOT_STORED = ("run_dir", "trouble", "damage")
"""Columns that the store's table lacks; ``trouble`` is why the verdict could not be stored, ``damage`` why the run
could not be judged."""

_FORMERLY = {"design": "system"}
"""Columns that earlier versions named otherwise."""

_SPARK_TYPES = {pa.string(): "string", pa.int64(): "bigint", pa.float64(): "double", pa.bool_(): "boolean"}
VERDICT_DDL = ", ".join(f"`{field.name}` {_SPARK_TYPES[field.type]}" for field in VERDICT_ROWS)


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
    check: str
    runs: int
    valid: int
    unknown: int
    invalid: int
    found: int


def check_runs(
    spark: Any, run_dirs: Iterable[Path], progress: Progress | None = None, *, prepare: Prepare | None = None
) -> list[VerdictRow]:
    """Check runs, store each verdict in its run's folder, and bring the store's verdict table up to date.

    Returns one row per run, in the order given. Each process that checks calls ``prepare`` first.

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
    for store in dict.fromkeys(path.parent for path in wanted):
        store_rows = table.filter(pc.starts_with(table.column("run_dir"), f"{store}{os.sep}"))
        add_verdicts(store, store_rows.drop_columns(list(NOT_STORED)))
    if trouble:
        raise StormproofError(f"{len(trouble)} checks have verdicts that could not be stored: {trouble[0]}")
    return rows


_NOWHERE = Path(os.devnull)


def warm_up(spark: Any) -> None:
    """Run an empty job, so that the first real one finds workers forked and classes loaded."""
    _frame(spark, [_NOWHERE], 1).toArrow()


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
    reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return SparkFailed(f"the Spark job failed: {reason}")


def _frame(spark: Any, run_dirs: Sequence[Path], tasks: int, prepare: Prepare | None = None) -> Any:
    """The data frame of verdict rows; nothing is computed yet."""
    paths = [str(path) for path in run_dirs]
    bound = os.environ.get(bounds.VARIABLE)

    def check_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        bounds.set_max_history(bound)
        if prepare is not None:
            prepare()
        for batch in batches:
            for position in batch.column(0).to_pylist():
                yield check_and_store(Path(paths[position]))

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


def check_and_store(run_dir: Path) -> pa.RecordBatch:
    """Check one run, store its verdict beside it, and return its rows of the verdict table."""
    # Here and not above: the driver, which starts while a person waits, needs neither kernels nor Numba.
    from checkers.run_check import check_run

    verdict = check_run(run_dir)
    trouble = None
    try:
        write_verdict(run_dir, verdict)
    except OSError as error:
        trouble = f"{run_dir}: {error.strerror or error}"
    except Exception as error:
        # A page that can't be drawn is a defect of ours: it must not cost the other runs their verdicts.
        trouble = f"{run_dir}: a page of its verdict can't be made ({type(error).__name__}: {error})"
    return verdict_rows(run_dir, verdict, trouble)


def verdict_rows(run_dir: Path, verdict: Verdict, trouble: str | None) -> pa.RecordBatch:
    """A run's rows of the verdict table; ``trouble`` says why its verdict could not be stored."""
    try:
        info = read_run(run_dir)
    except HistoryError:
        info = {}
    test, figures = info.get("test"), verdict.figures
    test = test if isinstance(test, dict) else {}
    nemesis, seed = test.get("nemesis"), test.get("seed")
    common = {
        "run_dir": str(run_dir),
        "run": verdict.run,
        "system": _text(test.get("system")),
        "workload": _text(test.get("workload")),
        "nemesis": ",".join(map(str, nemesis)) if isinstance(nemesis, list) else None,
        "backend": _text(test.get("backend")),
        "seed": seed if isinstance(seed, int) and -(1 << 63) <= seed < 1 << 63 else None,
        "started": _text(info.get("started")),
        "verdict": verdict.verdict,
        "sentence": verdict.sentence,
        "anomalies": json.dumps(verdict.anomalies),
        "ops": figures.get("ops"),
        "enqueue_ok": figures.get("enqueue_ok"),
        "longest_gap_s": figures.get("longest_gap_s"),
        "trouble": trouble,
        "damage": verdict.damage,
    }
    rows = [
        common
        | {
            "check": result.check,
            "decides": result.decides,
            "check_verdict": result.outcome.verdict,
            "count": result.outcome.count,
        }
        for result in verdict.checks
    ]
    return pa.RecordBatch.from_pylist(rows, schema=VERDICT_ROWS)


def _text(value: Any) -> str | None:
    """A field of a description, which may be damaged."""
    return value if isinstance(value, str) else None


def _gather(table: pa.Table, wanted: Sequence[Path]) -> list[VerdictRow]:
    """One row per run; a run without a verdict must never pass for one that was checked."""
    found: dict[str, VerdictRow] = {}
    columns = ("run_dir", "run", "verdict", "sentence", "anomalies", "damage", "check", "check_verdict")
    for run_dir, run, verdict, sentence, anomalies, damage, check, outcome in zip(
        *(table.column(name).to_pylist() for name in columns), strict=True
    ):
        if run_dir not in found:
            found[run_dir] = VerdictRow(run, Path(run_dir), verdict, sentence, json.loads(anomalies), {}, damage)
        checks = found[run_dir].checks
        if check in checks:
            raise SparkFailed(f"{run_dir}: its verdict came back twice")
        assert isinstance(checks, dict)
        checks[check] = outcome
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


def add_verdicts(store: Path, fresh: pa.Table) -> None:
    """Put rows into a store's verdict table in place of those of the same runs.

    Raises:
        StormproofError: the table can't be stored.
    """
    folder = store / VERDICTS_DIR
    try:
        folder.mkdir(exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            path = folder / VERDICTS_FILE
            kept = _other_rows(path, fresh)
            partial = folder / f".{VERDICTS_FILE}.{os.getpid()}"
            pq.write_table(pa.concat_tables([*kept, fresh]), partial, compression="zstd", compression_level=1)
            partial.replace(path)
    except OSError as error:
        raise StormproofError(f"{folder}: the verdict table can't be stored ({error.strerror or error})") from error


def _other_rows(path: Path, fresh: pa.Table) -> list[pa.Table]:
    if not path.exists():
        return []
    try:
        stored = pq.read_table(path)
    except pa.ArrowException:
        return []  # the table is made of the runs' verdicts: a damaged one is begun anew
    stored = stored.rename_columns([_FORMERLY.get(name, name) for name in stored.schema.names])
    if stored.schema.names != fresh.schema.names:
        return []
    return [stored.filter(pc.invert(pc.is_in(stored.column("run"), fresh.column("run").unique())))]


def summarize(spark: Any, store: Path) -> list[SummaryRow]:
    """How each check came out over the runs of a store, by system and nemesis (Spark SQL over the verdict table).

    Raises:
        StormproofError: the store has no verdict table.
    """
    path = store / VERDICTS_DIR / VERDICTS_FILE
    if not path.exists():
        raise StormproofError(f"{store}: no run of it has been checked; run `stormproof check --all --store {store}`")
    spark.read.parquet(str(path.resolve())).createOrReplaceTempView("verdicts")
    rows = spark.sql(
        """
        SELECT coalesce(system, '?') AS system, coalesce(nemesis, '') AS nemesis, `check`, count(*) AS runs,
               count_if(check_verdict = 'valid') AS valid, count_if(check_verdict = 'unknown') AS unknown,
               count_if(check_verdict = 'invalid') AS invalid, sum(`count`) AS found
        FROM verdicts GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
        """
    ).toArrow()
    return [SummaryRow(**row) for row in rows.to_pylist()]
