"""The rows of a run about logs: the appends, the reads, and the final contents of the logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from checkers.api import listed
from checkers.queue_ends import EMPTY, said_not_found
from checkers.run import Run
from stormproof import vocabulary
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, Anomaly, CheckOutcome
from stormproof.history.columns import Bools, Int64s
from stormproof.history.schema import PAIR_SHIFT

NO_COPIES = "the system shows no copies"
"""Error of a read of a node's copy when the system does not show copies."""
NO_COPY = "this node has no copy"
"""Error of a read of a node's copy when the node is none of the log's replicas."""
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


RowTuples = list[tuple[int, ...]]
"""Findings, each given by its rows; the last row has offset and value."""


def pairs(rows: Int64s, previous: Int64s, wrong: Bools) -> RowTuples:
    """Return the ``wrong`` rows as findings, each with the row before it if it has one, in order."""
    both = zip(previous[wrong].tolist(), rows[wrong].tolist(), strict=True)
    return sorted(((before, row) if before >= 0 else (row,) for before, row in both), key=lambda pair: pair[-1])


def before_each(rows: Int64s, reader: Int64s, reached: Int64s) -> tuple[Int64s, Int64s]:
    """Return each row's position and previous row: what its reader had ``reached`` before, 0 and -1 at first.

    ``rows`` are sorted by their readers.
    """
    position, previous = np.zeros_like(reached), np.full_like(rows, -1)
    later = np.flatnonzero(reader[1:] == reader[:-1]) + 1
    position[later], previous[later] = reached[later - 1], rows[later - 1]
    return position, previous


def examples(run: Run, kind: str, found: RowTuples, logs: Logs) -> tuple[Anomaly, ...]:
    """Return anomalies for the first findings."""
    def one(rows: tuple[int, ...]) -> Anomaly:
        last = np.asarray(rows[-1:], dtype=np.int64)
        detail = {"offset": int(logs.offset(last)[0]), "value": int(logs.value(last)[0])}
        return Anomaly(kind, run.rows_of(*rows), int(logs.key(last)[0]), None, detail)

    return tuple(one(rows) for rows in found[:MAX_EXAMPLES])


def outcome_of(logs: Logs, found: Mapping[str, RowTuples], judged: str, good: str, **more: Any) -> CheckOutcome:
    """Return the outcome of a check with these findings by kind; it counts them all.

    ``judged`` says how many of what were judged, ``good`` what holds for them; ``more`` are further figures.
    """
    counts = {kind: len(those) for kind, those in found.items()}
    count, figures = sum(counts.values()), {**counts, **more}
    if not count:
        return CheckOutcome(VALID, 0, f"{judged}{good}", (), figures)
    some = [one for kind, those in found.items() for one in examples(logs.run, kind, those, logs)]
    return CheckOutcome(INVALID, count, f"of {judged}: {listed(counts)}", tuple(some[:MAX_EXAMPLES]), figures)
