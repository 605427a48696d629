"""The Spark job that checks runs: paths go out, verdict rows come back.

Each task reads whole runs and calls ``check_run`` on each, the only code that judges. Histories never pass through the
JVM (``docs/spark.md`` has the figures).
"""

from __future__ import annotations

import json
import os
import pickle
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from checkers import memory
from checkers.lake.files import AnyStore
from checkers.lake.table import append, has_rows, mended, packed, refresh, row_of
from checkers.memory import MemoryBudget, TooLarge, budget_of, rows_of
from checkers.spark.failures import TaskDied, failure_of
from checkers.spark.large_runs import history_size, judge_units, needed_for, units_of
from checkers.spark.task_log import tell
from checkers.spark.tasks import Progress, Work, carry_out, sql_session
from checkers.verdict import Verdict, write_verdict
from checkers.verdict_cache import digest_of_checks, note_for, other_version
from stormproof.errors import SparkFailed, StormproofError
from stormproof.history import read_limits

RUNS_A_JOB = 10_000
"""Runs in one Spark job; more runs are checked in several jobs, which bounds the driver's memory."""
TASKS_A_CORE = 4
MAX_DEADLY_RUNS = 3
"""The number of runs on which a judging process may die repeatedly before the job counts as failed."""

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
"""One row per run, as a task returns it.

``anomalies`` and ``checks`` (name -> verdict) are JSON. ``trouble`` is the reason why the verdict could not be stored,
``damage`` the reason why the run could not be judged, ``lake`` the run's row of the lake.
"""


@dataclass(frozen=True)
class VerdictRow:
    """The verdict on one run, without its evidence (which is in the run's verdict.json).

    ``damage`` is the reason why the run could not be judged; None if it was.
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
    """The results of one check over all runs of one system under one nemesis."""

    system: str
    nemesis: str
    check_name: str
    runs: int
    valid: int
    unknown: int
    invalid: int
    found: int


def check_runs(
    spark: Any, run_dirs: Iterable[Path], progress: Progress | None = None, *, prepare: Prepare | None = None,
    refused: list[str] | None = None, ahead: pa.Table | None = None,
) -> list[VerdictRow]:  # fmt: skip
    """Check runs, store each verdict in its run's folder, and add it to the store's lake. ``spark`` is a context.

    Returns one row per run, in the order given. Each process that checks calls ``prepare`` first: it loads plug-ins,
    and a verdict made with any plug-in carries no note of what it rests on. ``refused`` collects the reasons why
    verdicts could not be stored; without it that is an error. ``ahead`` are rows of runs that were judged already
    (``checkers.judge_pool``).

    Raises:
        SparkFailed: the job failed, or a run's verdict did not come back.
        StormproofError: a verdict or the table can't be stored.
    """
    wanted = [path.resolve() for path in run_dirs]
    tables = [] if ahead is None or not ahead.num_rows else [ahead]
    judged_ahead = set(ahead.column("run_dir").to_pylist()) if ahead is not None else set()
    left = [path for path in dict.fromkeys(wanted) if str(path) not in judged_ahead]
    for start in range(0, len(left), RUNS_A_JOB):
        part = left[start : start + RUNS_A_JOB]
        report = None if progress is None else _shifted(progress, len(judged_ahead) + start,
                                                        len(judged_ahead) + len(left))  # fmt: skip
        tables.append(_run_job(spark, part, report, prepare))
    if not tables:
        return []
    table = pa.concat_tables(tables)
    rows = _gather(table, wanted)
    trouble = [text for text in table.column("trouble").to_pylist() if text]
    try:
        add_to_lakes(table)
    except StormproofError as error:
        if refused is None:
            raise
        refused.append(str(error))
    if trouble and refused is None:
        raise StormproofError(f"{len(trouble)} verdicts could not be stored: {trouble[0]}")
    if refused is not None:
        refused.extend(trouble)
    return rows


SUMMARY = """
SELECT coalesce(system, '?') AS system, coalesce(nemesis, '') AS nemesis, check_name, count(*) AS runs,
       CAST(count_if(v.verdict = 'valid') AS bigint) AS valid,
       CAST(count_if(v.verdict = 'unknown') AS bigint) AS unknown,
       CAST(count_if(v.verdict = 'invalid') AS bigint) AS invalid, CAST(sum(v.count) AS bigint) AS found
FROM verdicts v JOIN runs r ON v.run = r.run GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""
"""The query for the results of each check; both DuckDB and Spark understand it, over ``checkers.lake.views``."""

_ROWS_AT_ONCE = 32
"""Rows that a task hands over together: Spark takes as long for one as for many."""
_NOWHERE = Path(os.devnull)


def warm_up(spark: Any) -> None:
    """Run an empty job, so that the first real one finds workers forked and classes loaded.

    Raises:
        SparkFailed: it failed.
    """
    carry_out(spark, _judging([_NOWHERE]), 1, 1, VERDICT_ROWS)


def _run_job(
    spark: Any, run_dirs: Sequence[Path], progress: Progress | None, prepare: Prepare | None
) -> pa.Table:
    budget = budget_of(secrets.token_hex(8), os.environ.get(memory.VARIABLE))
    cores = cores_of(spark)
    units = units_of(run_dirs, cores, budget)

    def judge_all(work: Work, count: int, schema: pa.Schema) -> pa.Table:
        return carry_out(spark, _begun(_beginning(prepare), work), count, count, schema)

    try:
        found = judge_units(judge_all, units, budget) if units else {}
    except TaskDied:
        found = {}  # each run is judged as a whole; a run that kills its process again is reported below
    left, gathered, alone = list(run_dirs), [], False
    while left:
        tasks = len(left) if alone else min(len(left), cores * TASKS_A_CORE)
        dealt = _dealt(left, tasks)
        try:
            work = _judging(dealt, prepare, budget, found)
            gathered.append(carry_out(spark, work, len(dealt), tasks, VERDICT_ROWS, progress))
            break
        except TaskDied as error:
            if len(gathered) >= MAX_DEADLY_RUNS:
                raise
            if tasks == len(left):  # so that the task identifies the run
                run_dir = dealt[error.task]
                gathered.append(_given_up(run_dir, error))
                left.remove(run_dir)
            alone = True
    return pa.concat_tables(gathered)


def _given_up(run_dir: Path, error: TaskDied) -> pa.Table:
    """Return the row of a run that cannot be judged because every process that tries dies; the job continues without
    it.
    """
    from checkers.run_check import unjudged

    reason = f"{run_dir}: {error.reason}"
    verdict, trouble = unjudged(run_dir.name, reason, reason), None
    try:
        write_verdict(run_dir, verdict)
    except OSError as refused:
        trouble = f"{run_dir}: {refused.strerror or refused}"
    return pa.Table.from_pylist([verdict_row(run_dir, verdict, trouble)], VERDICT_ROWS)


def _judging(run_dirs: Sequence[Path], prepare: Prepare | None = None, budget: MemoryBudget | None = None,
             found: Mapping[str, Sequence[bytes]] | None = None) -> Work:  # fmt: skip
    """Return the work of a task that judges runs by number. ``found`` is the result of ``judge_units``."""
    paths = [str(path) for path in run_dirs]
    begin = _beginning(prepare)
    known = found or {}

    def judge(positions: Iterable[int]) -> Iterator[pa.RecordBatch]:
        begin()
        stores: set[Path] = set()
        rows: list[dict[str, Any]] = []
        for position in positions:
            path = paths[position]
            if Path(path).parent not in stores:
                demand_mounted(Path(path).parent)
                stores.add(Path(path).parent)
            rows.append(check_and_store(Path(path), noted=prepare is None, budget=budget, found=known.get(path, ())))
            if len(rows) == _ROWS_AT_ONCE:
                yield pa.RecordBatch.from_pylist(rows, VERDICT_ROWS)
                rows.clear()
        if rows:
            yield pa.RecordBatch.from_pylist(rows, VERDICT_ROWS)

    return judge


def cores_of(spark: Any) -> int:
    """Return the number of tasks that may run at once; raises SparkFailed when the JVM is gone."""
    try:
        return int(spark.defaultParallelism)
    except Exception as error:
        raise failure_of(spark, error) from error


def _begun(begin: Prepare, work: Work) -> Work:
    def begun(numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
        begin()
        yield from work(numbers)

    return begun


def _beginning(prepare: Prepare | None) -> Prepare:
    """Return the first step of a task: adopt the bound on histories, verify that its code is the driver's, load
    plug-ins.
    """
    bound = os.environ.get(read_limits.VARIABLE)
    ours = digest_of_checks()

    def begin() -> None:
        read_limits.set_max_history(bound)
        if digest_of_checks() != ours:
            raise other_version()
        if prepare is not None:
            prepare()

    return begin


def demand_mounted(store: Path) -> None:
    """Verify that a task finds the store: on a worker without it, all runs would appear to be gone.

    Raises:
        StormproofError: the store does not exist there.
    """
    # If the store is not mounted, its folder is missing or empty.
    if not store.is_dir() or next(store.iterdir(), None) is None:
        raise StormproofError(f"{store} is not there on {socket.gethostname()}: a store has to be mounted at the same "
                              "path on every worker, or lie in an object store")


def _dealt(run_dirs: Sequence[Path], tasks: int) -> list[Path]:
    """Return the runs in an order that gives each task (a contiguous slice) its share of the large ones."""
    by_size = sorted(run_dirs, key=history_size, reverse=True)
    return [path for task in range(tasks) for path in by_size[task::tasks]]


def check_and_store(
    run_dir: Path, *, noted: bool = True, budget: MemoryBudget | None = None, found: Sequence[bytes] = ()
) -> dict[str, Any]:
    """Check one run, store its verdict next to it, and return its row.

    ``noted``: the verdict records what it rests on, so that the run need not be judged again. ``budget`` bounds the
    memory that judging takes. ``found`` are the findings in the run's parts, if it was judged in parts.
    """
    note, verdict = judged(run_dir, budget, found)
    if not noted:
        note = None
    trouble = None
    try:
        write_verdict(run_dir, verdict, note)
    except OSError as error:
        trouble = f"{run_dir}: {error.strerror or error}"
    except Exception as error:
        # A page that cannot be drawn is a defect of this program: it must not cost the other runs their verdicts.
        trouble = f"{run_dir}: a page of its verdict can't be made ({type(error).__name__}: {error})"
    if run_dir != _NOWHERE:
        tell(verdict, trouble)
    return verdict_row(run_dir, verdict, trouble)


def judged(run_dir: Path, budget: MemoryBudget | None, found: Sequence[bytes] = ()
           ) -> tuple[dict[str, Any] | None, Verdict]:  # fmt: skip
    """Return the verdict on a run, and the note of what it rests on; a run that needs too much memory is not judged."""
    # Imported here and not above: the driver, whose start a person waits for, needs neither kernels nor Numba.
    from checkers.partitioned_check import finish, told_by_parts
    from checkers.run_check import check_in_memory, check_run, unjudged

    try:
        if found:
            (note, rest), *parts = map(pickle.loads, found)
            needed = 0 if isinstance(rest, Verdict) or told_by_parts(rest, parts) else needed_for(rows_of(run_dir))
            with budget.reserved(needed, run_dir) if budget and needed else nullcontext():
                return note, finish(run_dir, rest, parts)
        note, rows = note_for(run_dir), rows_of(run_dir) if budget else 0
        if budget is None or not rows:
            return note, check_run(run_dir)
        with budget.reserved(needed_for(rows), run_dir):
            return note, check_in_memory(run_dir)
    except TooLarge as error:
        return None, unjudged(run_dir.name, str(error), str(error))


def verdict_row(run_dir: Path, verdict: Verdict, trouble: str | None) -> dict[str, Any]:
    """Return a run's row of ``VERDICT_ROWS``; ``trouble`` is the reason why its verdict could not be stored."""
    return {
        "run_dir": str(run_dir), "run": verdict.run, "verdict": verdict.verdict, "sentence": verdict.sentence,
        "anomalies": json.dumps(verdict.anomalies),
        "checks": json.dumps([[check.check, check.outcome.verdict] for check in verdict.checks]),
        "trouble": trouble, "damage": verdict.damage, "lake": packed(row_of(run_dir, verdict)),
    }  # fmt: skip


def row_of_verdict(run_dir: Path, verdict: Verdict) -> VerdictRow:
    """Return a verdict without its evidence."""
    return VerdictRow(
        verdict.run, run_dir, verdict.verdict, verdict.sentence, verdict.anomalies,
        {check.check: check.outcome.verdict for check in verdict.checks}, verdict.damage,
    )


def add_to_lakes(table: pa.Table) -> None:
    """Add the rows of judged runs to the lakes of their stores.

    Raises:
        StormproofError: they can't be stored.
    """
    rows: dict[Path, list[Any]] = {}
    for run_dir, row in zip(table.column("run_dir").to_pylist(), table.column("lake").to_pylist(), strict=True):
        rows.setdefault(Path(run_dir).parent, []).append(json.loads(row))
    for store, some in rows.items():
        append(store, some)


def _gather(table: pa.Table, wanted: Sequence[Path]) -> list[VerdictRow]:
    """Return one row per run; a run without a verdict must never pass for a checked one."""
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


def summarize(spark: Any, store: AnyStore) -> list[SummaryRow]:
    """Count the results of each check over the runs of a store, by system and nemesis: the query ``SUMMARY`` over the
    lake.

    Spark runs the query, or DuckDB without Spark (``spark`` is None).

    Raises:
        StormproofError: no run of the store has been checked.
    """
    from checkers.lake.views import SUMMARY_VIEWS, duckdb_views, spark_views

    refresh(store)
    if not has_rows(store):
        raise StormproofError(f"{store}: no run of it has been checked; run `stormproof check --all --store {store}`")

    def ask() -> pa.Table:
        if spark is None:
            return duckdb_views(store, SUMMARY_VIEWS).execute(SUMMARY).to_arrow_table()
        session = sql_session(spark)
        spark_views(session, store, SUMMARY_VIEWS)
        return session.sql(SUMMARY).toArrow()

    table = mended(store, ask)
    return [SummaryRow(**row) for row in table.to_pylist()]
