"""``stormproof check``: stored runs checked again, one or all, by the same Spark job."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from checkers.job import SummaryRow, VerdictRow, check_runs, summarize
from checkers.spark import SparkWarmup
from checkers.verdict import worst
from harness.errors import EXIT_OF, UsageError
from harness.history.seal import HISTORY
from harness.progress import console
from harness.store import Store, is_alive
from reports.index_page import write_index
from reports.run_page import write_report

_SHOWN = 50


def check_stored(store_dir: Path, names: Sequence[str], *, master: str, as_json: bool) -> int:
    """Check the named runs, or all that are not under way; returns the exit status of the worst verdict.

    Raises:
        UsageError: a run does not exist or is under way, or there is none at all.
    """
    runs = _chosen(Store(store_dir), names)
    warm = SparkWarmup(master)
    to = console(as_json)
    try:
        with to.status(f"checking {len(runs)} runs") as status:
            rows = check_runs(
                warm.session(), runs, lambda done, total: status.update(f"checked {done} of {total} runs")
            )
        summary = [] if names else summarize(warm.session(), store_dir)
    finally:
        warm.abandon()
    if names:
        for run in runs:
            write_report(run)
    for store in dict.fromkeys(run.parent for run in runs):  # a run named by its path may be of another store
        write_index(store)
    verdict = worst(row.verdict for row in rows)
    if as_json:
        found = [_json(row) for row in rows]
        print(json.dumps(found[0] if len(names) == 1 else {"verdict": verdict, "runs": found}))
    else:
        _show(to, rows, summary)
    return EXIT_OF[verdict]


def _chosen(store: Store, names: Sequence[str]) -> list[Path]:
    if names:
        runs = [store.resolve(name) for name in names]
        for run in runs:
            if is_alive(run):
                raise UsageError(f"run {run.name} is still under way; check it when it has ended")
            if not (run / HISTORY).exists():
                raise UsageError(f"run {run.name} has no sealed history; `stormproof recover {run.name}` makes one")
        return runs
    runs = [run for run in store.runs() if (run / HISTORY).exists()]
    if not runs:
        raise UsageError(f"the store {store.path} holds no recorded runs; `stormproof test` makes one")
    return runs


def _json(row: VerdictRow) -> dict[str, Any]:
    return {
        "verdict": row.verdict,
        "run": row.run,
        "anomalies": dict(row.anomalies),
        "sentence": row.sentence,
        "report": str(row.run_dir / "report.html"),
    }


def _show(to: Console, rows: Sequence[VerdictRow], summary: Sequence[SummaryRow]) -> None:
    for row in rows[:_SHOWN]:
        to.print(f"{row.verdict:8} {row.run}  {row.sentence}", soft_wrap=True, markup=False)
    if len(rows) > _SHOWN:
        to.print(f"... and {len(rows) - _SHOWN} more")
    counts = Counter(row.verdict for row in rows)
    if len(rows) > 1:
        to.print(", ".join(f"{counts[verdict]} {verdict}" for verdict in ("valid", "unknown", "invalid")))
    if summary:
        table = Table("design", "nemesis", "check", "runs", "valid", "unknown", "invalid", "anomalies", box=None)
        for line in summary:
            counted = (line.runs, line.valid, line.unknown, line.invalid, line.found)
            table.add_row(line.design, line.nemesis or "none", line.check, *map(str, counted))
        to.print(table)
