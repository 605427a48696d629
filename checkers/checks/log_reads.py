"""Readers of logs: they advance and skip no entry."""

from __future__ import annotations

import numpy as np

from checkers.api import RunCheck
from checkers.checks.log_offsets import AFTER_LOSS, told_by_kinds
from checkers.logs import Logs, examples, isin, same
from checkers.run import Run
from stormproof import vocabulary
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, CheckOutcome
from stormproof.history.columns import Bools, Int64s
from stormproof.text import amount
from stormproof.vocabulary import LOGS


def check(run: Run) -> CheckOutcome:
    """Find polls that returned an offset not after the reader's position (``went-back``), or skipped an entry between
    the two that is in the log in the end (``skipped``).

    A position is the offset that the same reader (process) got last, or to which it went back itself; 0 at first. An
    entry that is missing in the end is a matter for `log-lost`.
    """
    logs = Logs(run)
    h = run.history
    rows = np.sort(np.concatenate([logs.polled, logs.rows(vocabulary.OK, "seek")]))
    reader = same((logs.key(rows), h.process[rows].astype(np.int64)))
    order = np.lexsort((rows, reader))
    rows, reader = rows[order], reader[order]
    seek = h.f.rows_with("seek")[rows]
    offset = np.where(seek, h.value[rows], logs.offset(rows))
    position, previous = np.zeros_like(offset), np.full_like(rows, -1)
    goes_on = np.flatnonzero(reader[1:] == reader[:-1]) + 1
    position[goes_on], previous[goes_on] = offset[goes_on - 1], rows[goes_on - 1]
    # The sorted list of all entries that exist in the end holds one log after the other.
    there = np.unique(same((logs.key(logs.scanned), logs.offset(logs.scanned))))
    key = logs.key(rows)
    between = np.searchsorted(there, same((key, offset))) - np.searchsorted(there, same((key, position)), "right")
    found = {"went-back": _pairs(rows, previous, ~seek & (offset <= position)),
             "skipped": _pairs(rows, previous, ~seek & (between > 0))}  # fmt: skip
    counts = {kind: len(those) for kind, those in found.items()}
    figures = {**counts, AFTER_LOSS: {"went-back": _after_loss(logs, found["went-back"])}}
    count, polls = sum(counts.values()), amount(len(logs.polled), "poll")
    if not count:
        return CheckOutcome(VALID, 0, f"{polls}, each of the entry after the one before", (), figures)
    some = [one for kind, those in found.items() for one in examples(run, kind, those, logs)]
    told = ", ".join(f"{number:,} {kind}" for kind, number in counts.items() if number)
    return CheckOutcome(INVALID, count, f"of {polls}: {told}", tuple(some[:MAX_EXAMPLES]), figures)


def _after_loss(logs: Logs, found: list[tuple[int, ...]]) -> int:
    """Count the readers that went back because the log did: the entry that they got last is missing in the end."""
    before = np.asarray([pair[0] for pair in found if len(pair) > 1], dtype=np.int64)
    polled = before[logs.run.history.f.rows_with("poll")[before]]
    read = isin(logs.key(polled), logs.key(logs.ends("scan")))
    there = same((logs.key(logs.scanned), logs.value(logs.scanned)))
    return int(np.count_nonzero(read & ~isin(same((logs.key(polled), logs.value(polled))), there)))


def _pairs(rows: Int64s, previous: Int64s, wrong: Bools) -> list[tuple[int, ...]]:
    pairs = zip(previous[wrong].tolist(), rows[wrong].tolist(), strict=True)
    return sorted(((before, row) if before >= 0 else (row,) for before, row in pairs), key=lambda pair: pair[-1])


CHECK = RunCheck(
    name="log-reads",
    guarantee="a reader of a log goes on, and skips nothing that is there",
    anomaly="log-reads",
    decides=True,
    subjects=(LOGS,),
    function=check,
    tell=told_by_kinds({"went-back": ("read of a log went back", "reads of logs went back"),
                        "skipped": ("read of a log skipped entries", "reads of logs skipped entries")}, "log-lost"),
    happens=True,
)
