"""The log lines of a task in its executor's log: one line per run, in plain words."""

from __future__ import annotations

import contextlib
import sys

from checkers.verdict import Verdict


def tell(verdict: Verdict, trouble: str | None) -> None:
    """Log one line with the verdict of a run; an unwritable log is ignored. Outside of tasks it logs nothing."""
    from pyspark import TaskContext

    if TaskContext.get() is None:
        return
    more = f"; not stored: {trouble}" if trouble else ""
    with contextlib.suppress(OSError, ValueError):
        print(f"stormproof: {verdict.run}: {verdict.sentence}{more}", file=sys.stderr, flush=True)
