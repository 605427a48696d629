"""``stormproof check``: check stored runs again, one or all, by the same Spark job, or by the code that it runs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from checkers.judge_pool import FewRuns, JudgePool
from checkers.lake.table import refresh
from checkers.spark.job import SummaryRow, VerdictRow, check_runs, row_of_verdict, summarize
from checkers.spark.masters import LOCAL_MASTER
from checkers.spark.object_job import ObjectVerdict
from checkers.spark.session import SparkWarmup
from checkers.verdict_cache import judged_already
from harness.analysis.coverage import note_log_events
from harness.cli.outcomes import Outcome, Outcomes, outcome_of_run
from harness.cli.output import print_json
from harness.run import plugins
from harness.run.cases import BROKEN
from harness.run.progress import console
from harness.run.recovery import EMPTY, why_unsealed
from reports.index_page import write_index
from reports.run_page import write_report
from stormproof.contracts.check import INVALID, worst
from stormproof.errors import EXIT_ERROR, EXIT_OF, HistoryError, StormproofError, UsageError
from stormproof.limits import demand_files
from stormproof.run_folder import HISTORY, REPORT, is_alive, read_run
from stormproof.store import Store
from stormproof.text import escaped

_SHOWN, _REFUSED = 50, 10
Row = TypeVar("Row", VerdictRow, ObjectVerdict)


def check_stored(store_dir: Path, names: Sequence[str], *, master: str | None, as_json: bool,
                 outcomes: Outcomes | None = None, again: bool = False) -> int:
    """Check the named runs, or all that are not under way. Return the exit status of the worst verdict.

    A run that was judged by the same checks over the same records is not judged again, unless ``again`` is set. Spark
    is started only if it is worth its start-up time. It is not started if no run remains. Without a ``master``, it is
    not started either if the remaining runs are so few that this machine judges them in the meantime.

    A run that can't be judged (it is damaged, or of plug-ins that are not in use here) is reported on standard error,
    and the other runs are judged. The status is then 3, unless one of them is invalid.

    A run that ended before its first operation holds nothing to judge. It is reported, and does not change the status.

    Raises:
        UsageError: a run does not exist or is under way, or the store holds no runs.
    """
    runs, unsealed, empty = _chosen(Store(store_dir), names)
    runs, others = _of_our_plugins(runs, strict=bool(names))
    for line in [*unsealed, *empty, *others]:
        print(f"not checked: {escaped(line)}", file=sys.stderr)
    to = console(as_json)
    refused: list[str] = []
    rows, summary, fresh = _judge(store_dir, runs, master=master, again=again, to=to, whole=not names, refused=refused)
    try:
        _write_pages(runs, reports=bool(names))
    except StormproofError as error:
        if not refused:
            raise
        refused.append(str(error))  # verdicts are reported all the same
    return report_verdicts(
        rows, summary, to, single=len(names) == 1, as_json=as_json, taken=len(rows) - fresh, refused=refused,
        troubled=bool(unsealed or others), outcomes=outcomes,
        outcome=lambda row: outcome_of_run(row.run_dir, outcome_word(row), row.sentence),
    )  # fmt: skip


def report_verdicts(rows: Sequence[Row], summary: Sequence[SummaryRow], to: Console, *, single: bool, as_json: bool,
                    taken: int, refused: Sequence[str], troubled: bool, outcomes: Outcomes | None,
                    outcome: Callable[[Row], Outcome]) -> int:
    """Report the verdicts on runs, and return the exit status of ``check_stored``.

    ``taken`` is the number of verdicts that were stored before. ``refused`` are the results that could not be stored,
    with the reasons: the verdicts themselves are reported all the same. ``troubled`` tells that runs were left out.
    """
    for row in rows:
        if outcomes is not None:
            outcomes.add(outcome(row))
    damaged = [row.damage for row in rows if row.damage is not None]
    for line in damaged:
        print(f"not judged: {escaped(line)}", file=sys.stderr)
    for line in refused[:_REFUSED]:
        print(f"not stored: {escaped(line)}", file=sys.stderr)
    if len(refused) > _REFUSED:
        print(f"not stored: {len(refused) - _REFUSED} more", file=sys.stderr)
    verdict = worst(row.verdict for row in rows)
    if as_json:
        found = [_json(row) for row in rows]
        print_json(found[0] if single else {"verdict": verdict, "runs": found})
    else:
        show(to, rows, summary)
        if taken:
            to.print(f"{taken} of {len(rows)} were judged before, by the same checks over the same records (--again "
                     "judges them again)", soft_wrap=True)
    return EXIT_ERROR if (troubled or damaged or refused) and verdict != INVALID else EXIT_OF[verdict]


def outcome_word(row: VerdictRow | ObjectVerdict) -> str:
    """Return a run's verdict, or ``broken`` if it can't be judged."""
    return BROKEN if row.damage is not None else row.verdict


def _judge(store_dir: Path, runs: Sequence[Path], *, master: str | None, again: bool, to: Console, whole: bool,
           refused: list[str] | None = None) -> tuple[list[VerdictRow], list[SummaryRow], int]:
    """Return the verdicts in the order of the runs, the summary of a ``whole`` store, and the number of runs judged
    now. ``refused`` receives the results that could not be stored, with the reasons; without it, this is an error.

    Raises:
        StormproofError: Spark or the store fails.
    """
    known: dict[Path, VerdictRow] = {}
    left: list[Path] = []
    takes_over = not again and plugins.preparation() is None
    with to.status(f"looking at {len(runs)} runs") as status, ExitStack() as engines:
        few = FewRuns() if master is None and plugins.preparation() is None else None
        engine: JudgePool | SparkWarmup | None = None
        for run in runs:
            verdict = judged_already(run) if takes_over else None
            if verdict is not None:
                known[run] = row_of_verdict(run, verdict)
                continue
            left.append(run)
            few = few if few is not None and few.take(run) else None
            # The pool or Spark starts while the other runs are examined.
            if few is not None:
                engine = engine or _pool(engines)
            elif engine is None or isinstance(engine, JudgePool):
                engines.close()
                engine = _spark(master, engines)
        if engine is not None:
            status.update(f"checking {len(left)} runs")
            known |= dict(zip(left, _judged_now(engine, left, engines, status, refused), strict=True))
        try:
            for store in {run.resolve().parent for run in runs}:
                refresh(store)
            # DuckDB answers a query over a small table on this machine before Spark has planned it.
            summary = summarize(None, store_dir) if whole else []
        except StormproofError as error:
            if not refused:
                raise
            refused.append(str(error))  # results that could not be stored are not in the lake, either
            summary = []
    return [known[run] for run in runs], summary, len(left)


def _spark(master: str | None, engines: ExitStack) -> SparkWarmup:
    warm = SparkWarmup(master or LOCAL_MASTER)
    engines.callback(warm.abandon)
    return warm


def _pool(engines: ExitStack) -> JudgePool:
    demand_files("Spark")  # it judges the runs that the pool leaves
    pool = JudgePool()
    engines.callback(pool.end)
    return pool


def _judged_now(engine: JudgePool | SparkWarmup, runs: Sequence[Path], engines: ExitStack, status: Status,
                refused: list[str] | None) -> list[VerdictRow]:  # fmt: skip
    """Return the verdicts on runs. Spark judges those that the pool leaves."""

    def told(done: int, total: int) -> None:
        status.update(f"checked {done} of {total} runs")

    ahead = spark = None
    if isinstance(engine, JudgePool):
        ahead = engine.judge(runs, told)
        if ahead.num_rows < len({run.resolve() for run in runs}):
            spark = _spark(None, engines).context()
    else:
        spark = engine.context()
    return check_runs(spark, runs, told, prepare=plugins.preparation(), refused=refused, ahead=ahead)


def check_again(store_dir: Path, name: str) -> VerdictRow:
    """Check one stored run again and write its report.

    Raises:
        UsageError: the run does not exist, or it is under way.
        HistoryError: the run is damaged, or was made with a plug-in that is not in use here.
    """
    runs, _ = _of_our_plugins(_chosen(Store(store_dir), [name])[0], strict=True)
    rows, _, _ = _judge(store_dir, runs, master=None, again=True, to=console(True), whole=False)
    _write_pages(runs, reports=True)
    if rows[0].damage is not None:
        raise HistoryError(rows[0].damage)
    return rows[0]


def _write_pages(runs: Sequence[Path], *, reports: bool) -> None:
    if reports:
        for run in runs:
            note_log_events(run)
            write_report(run)
    for store in dict.fromkeys(run.parent for run in runs):  # a run named by its path may belong to another store
        write_index(store)


def _of_our_plugins(runs: Sequence[Path], *, strict: bool) -> tuple[list[Path], list[str]]:
    """Return the runs that can be checked with the plug-ins in use here, and the reasons why the others can't be
    checked.

    A run with an unreadable description counts as checkable: the check itself reports the damage.

    Raises:
        HistoryError: a run can't be checked, and ``strict`` requires all to be checked.
    """
    ours, others = [], []
    for run in runs:
        try:
            info = read_run(run)
        except HistoryError:
            ours.append(run)
            continue
        try:
            plugins.demand_same(info, run.name, run)
        except HistoryError as error:
            if strict:
                raise
            others.append(str(error))
        else:
            ours.append(run)
    return ours, others


def _chosen(store: Store, names: Sequence[str]) -> tuple[list[Path], list[str], list[str]]:
    """Return the runs that have a history, the messages about runs that should have one, and the messages about runs
    that ended before any data was written."""
    if names:
        runs = [store.resolve(name) for name in names]
        for run in runs:
            if is_alive(run):
                raise UsageError(f"run {run.name} is still under way; check it when it has ended")
            if (reason := why_unsealed(run)) is not None:
                raise UsageError(f"run {run.name} can't be checked: {reason}")
        return runs, [], []
    runs, lost, empty = [], list[str](), list[str]()
    for run in store.runs():
        if (run / HISTORY).exists():
            runs.append(run)
        elif (reason := _without_history(run)) is not None:
            (empty if reason.endswith(EMPTY) else lost).append(reason)
    if not runs:
        for line in [*lost, *empty]:
            print(f"not checked: {escaped(line)}", file=sys.stderr)
        raise UsageError(f"the store {store.path} holds no recorded runs; `stormproof test` makes one")
    return runs, lost, empty


def _without_history(run: Path) -> str | None:
    """Return the reason why a run has no history; None if it is under way."""
    try:
        reason = why_unsealed(run)
    except HistoryError as error:
        return None if is_alive(run) else str(error)
    return None if reason is None else f"{run}: {reason}"


def _json(row: VerdictRow | ObjectVerdict) -> dict[str, Any]:
    report = row.run_dir / REPORT if isinstance(row, VerdictRow) else None
    return {
        "verdict": row.verdict,
        "run": row.run,
        "anomalies": dict(row.anomalies),
        "sentence": row.sentence,
        "report": str(report) if report is not None and report.exists() else None,
        **({"damage": row.damage} if row.damage is not None else {}),
    }


def show(to: Console, rows: Sequence[VerdictRow | ObjectVerdict], summary: Sequence[SummaryRow]) -> None:
    """Print verdicts, and the summary of each check."""
    for row in rows[:_SHOWN]:
        to.print(f"{row.verdict:8} {escaped(row.run)}  {escaped(row.sentence)}", soft_wrap=True, markup=False)
    if len(rows) > _SHOWN:
        to.print(f"... and {len(rows) - _SHOWN} more")
    counts = Counter(row.verdict for row in rows)
    if len(rows) > 1:
        to.print(", ".join(f"{counts[verdict]} {verdict}" for verdict in ("valid", "unknown", "invalid")))
    if summary:
        table = Table("system", "nemesis", "check", "runs", "valid", "unknown", "invalid", "anomalies", box=None)
        for line in summary:
            counted = (line.runs, line.valid, line.unknown, line.invalid, line.found)
            table.add_row(*(escape(escaped(each)) for each in (line.system, line.nemesis or "none", line.check_name)),
                          *map(str, counted))
        to.print(table)
