"""Readers of logs: they advance and skip no entry."""

from __future__ import annotations

import numpy as np

from checkers.api import RunCheck
from checkers.checks.log_offsets import AFTER_LOSS, told_by_kinds
from checkers.logs import Logs, before_each, isin, outcome_of, pairs, same
from checkers.run import Run
from stormproof import vocabulary
from stormproof.contracts.check import CheckOutcome
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
    position, previous = before_each(rows, reader, offset)
    # The sorted list of all entries that exist in the end holds one log after the other.
    there = np.unique(same((logs.key(logs.scanned), logs.offset(logs.scanned))))
    key = logs.key(rows)
    between = np.searchsorted(there, same((key, offset))) - np.searchsorted(there, same((key, position)), "right")
    found = {"went-back": pairs(rows, previous, ~seek & (offset <= position)),
             "skipped": pairs(rows, previous, ~seek & (between > 0))}  # fmt: skip
    after_loss = {AFTER_LOSS: {"went-back": _after_loss(logs, found["went-back"])}}
    return outcome_of(logs, found, amount(len(logs.polled), "poll"), ", each of the entry after the one before",
                      **after_loss)  # fmt: skip


def _after_loss(logs: Logs, found: list[tuple[int, ...]]) -> int:
    """Count the readers that went back because the log did: the entry that they got last is missing in the end."""
    before = np.asarray([pair[0] for pair in found if len(pair) > 1], dtype=np.int64)
    polled = before[logs.run.history.f.rows_with("poll")[before]]
    read = isin(logs.key(polled), logs.key(logs.ends("scan")))
    there = same((logs.key(logs.scanned), logs.value(logs.scanned)))
    return int(np.count_nonzero(read & ~isin(same((logs.key(polled), logs.value(polled))), there)))


CHECK = RunCheck(
    name="log-reads",
    guarantee="a reader of a log advances and skips no entry that is there",
    anomaly="log-reads",
    decides=True,
    subjects=(LOGS,),
    function=check,
    tell=told_by_kinds({"went-back": ("read of a log went back", "reads of logs went back"),
                        "skipped": ("read of a log skipped entries", "reads of logs skipped entries")}, "log-lost"),
    happens=True,
)
