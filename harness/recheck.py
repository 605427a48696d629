"""``stormproof check``: stored runs checked again, one or all, by the same Spark job."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from checkers.job import check_runs, cross_run_summary
from checkers.spark import SparkWarmup
from harness.errors import EXIT_INVALID, EXIT_UNKNOWN, EXIT_VALID, UsageError
from harness.store import Store, is_alive
from reports.run_page import write_report

_SHOWN = 50


def check_stored(store_dir: Path, names: Sequence[str], *, master: str, as_json: bool) -> int:
    """Check the named runs, or all that are not under way; returns the exit status of the worst verdict.

    Raises:
        UsageError: a run does not exist, or there is none at all.
    """
    warm = SparkWarmup(master)
    store = Store(store_dir)
    try:
        runs = [store.resolve(name) for name in names] if names else store.runs()
        busy = [run for run in runs if is_alive(run)] if names else []
        if busy:
            raise UsageError(f"run {busy[0].name} is still under way; check it when it has ended")
        if not runs:
            raise UsageError(f"the store {store_dir} holds no runs; `stormproof test` makes one")
        verdicts = check_runs(warm.session(), runs)
        summary = cross_run_summary(warm.session(), store_dir) if not names else []
    finally:
        warm.stop()
    if names:
        for run in runs:
            write_report(run)
    if as_json:
        print(json.dumps(verdicts[0].to_json() if len(verdicts) == 1 else [v.to_json() for v in verdicts]))
    else:
        _show(verdicts, summary)
    found = {verdict.verdict for verdict in verdicts}
    return EXIT_INVALID if "invalid" in found else EXIT_UNKNOWN if "unknown" in found else EXIT_VALID
