"""What a task writes into its executor's log, for whoever looks there: a line a run, in plain words."""

from __future__ import annotations

import contextlib
import sys

from checkers.verdict import Verdict


def tell(verdict: Verdict, trouble: str | None) -> None:
    """One line on what became of a run; a log that can't be written costs nothing. Outside of tasks it says nothing."""
    from pyspark import TaskContext

    if TaskContext.get() is None:
        return
    more = f"; not stored: {trouble}" if trouble else ""
    with contextlib.suppress(OSError, ValueError):
        print(f"stormproof: {verdict.run}: {verdict.sentence}{more}", file=sys.stderr, flush=True)
