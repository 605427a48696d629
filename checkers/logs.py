"""The rows of a run about logs: the appends, the reads, and the final contents of the logs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from checkers.queue_ends import said_not_found
from checkers.run import Run
from stormproof import vocabulary
from stormproof.contracts.check import MAX_EXAMPLES, Anomaly
from stormproof.history.columns import Bools, Int64s
from stormproof.history.schema import PAIR_SHIFT

EMPTY = "empty"
"""Error of a read that found nothing after its position."""
NO_COPIES = "the system shows no copies"
"""Error of a read of a node's copy when the system does not show copies."""
LOW = (1 << PAIR_SHIFT) - 1


@dataclass(frozen=True)
class Words:
    """The names of clients' operations on logs in their histories: append, read on, read all at the end."""

    append: str = "append"
    poll: str = "poll"
    scan: str = "scan"


@dataclass(frozen=True)
class Logs:
    """The rows of logs in one run; all arrays are of rows, in order."""

    run: Run
    words: Words = Words()

    def rows(self, kind: int, *functions: str) -> Int64s:
        """Return the rows of clients of one type, with these functions."""
        h = self.run.history
        found: Int64s = np.flatnonzero((h.kind == kind) & (h.process >= 0) & h.f.rows_with(*functions))
        return found

    def key(self, rows: Int64s) -> Int64s:
        """Return the log of each row."""
        found: Int64s = self.run.history.key[rows].astype(np.int64)
        return found

    def offset(self, rows: Int64s) -> Int64s:
        """Return the offset of each entry."""
        found: Int64s = self.run.history.value[rows] >> PAIR_SHIFT
        return found

    def value(self, rows: Int64s) -> Int64s:
        """Return the value of each row: of an entry's pair, or of an append that was not confirmed."""
        found: Int64s = self.run.history.value[rows] & LOW
        return found

    @cached_property
    def appended(self) -> Int64s:
        """Completions of confirmed appends."""
        return self.rows(vocabulary.OK, self.words.append)

    @cached_property
    def polled(self) -> Int64s:
        """Completions of polls that returned an entry."""
        return self.rows(vocabulary.OK, self.words.poll)

    @cached_property
    def scanned(self) -> Int64s:
        """The entries of the final reads."""
        return self.rows(vocabulary.OK, self.words.scan)

    def ends(self, function: str, error: str = EMPTY) -> Int64s:
        """Return the completions of reads that found the log's end, or that ended with another ``error``."""
        rows = self.rows(vocabulary.FAIL, function)
        found: Int64s = rows[self.run.history.error.rows_with(error)[rows]]
        return found


    def gone(self, logs: int) -> list[int]:
        """Return the logs that are gone as a whole.

        For such a log, every read from the beginning was answered that the log does not exist, for as long as such a
        read is retried if there are ``logs`` logs.
        """
        h, patience = self.run.history, self.run.absence_proves
        absent = said_not_found(h)
        if patience is None or not absent.any():
            return []
        reads = np.concatenate([self.rows(kind, "scan") for kind in (vocabulary.OK, vocabulary.FAIL, vocabulary.INFO)])
        found = []
        for key in np.unique(self.key(reads)).tolist():
            mine = np.sort(reads[self.key(reads) == key])
            lasted = int(h.time[mine[-1]] - h.time[mine[0]])
            if absent[mine].all() and lasted >= patience // max(logs, 1):
                found.append(int(key))
        return found


def same(pairs: tuple[Int64s, Int64s]) -> Int64s:
    """Return a number for each (log, offset or value); logs are few."""
    return pairs[0] << PAIR_SHIFT | pairs[1]


def isin(rows: Int64s, others: Int64s) -> Bools:
    """Return whether each row is among the others."""
    found: Bools = np.isin(rows, others)
    return found


def examples(run: Run, kind: str, found: list[tuple[int, ...]], logs: Logs) -> tuple[Anomaly, ...]:
    """Return anomalies for the first findings; each finding is given by its rows, and the last row has offset and
    value.
    """
    def one(rows: tuple[int, ...]) -> Anomaly:
        last = np.asarray(rows[-1:], dtype=np.int64)
        detail = {"offset": int(logs.offset(last)[0]), "value": int(logs.value(last)[0])}
        return Anomaly(kind, run.rows_of(*rows), int(logs.key(last)[0]), None, detail)

    return tuple(one(rows) for rows in found[:MAX_EXAMPLES])
