"""The final state of a run's queues: the drained ones, and the messages that unnamed takes may account for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from checkers.history import dense_keys
from checkers.kernels.queues import UNTOUCHED, last_words
from stormproof import vocabulary
from stormproof.history.columns import Bools, HistoryColumns, Int64s
from stormproof.history.schema import NO_VALUE
from stormproof.operation import KEPT_BACK, NOT_FOUND
from stormproof.unnamed_takes import CRASHED, OPEN, limit_of

EMPTY = "empty"
"""Error of a take that found nothing, and of a read that found nothing after its position."""
_LONGEST = 160


def said_not_found(h: HistoryColumns) -> Bools:
    """Mark, by row, the completions that report that the requested object does not exist."""
    told = h.error.rows_with(*(name for name in h.error.names if name.startswith(NOT_FOUND)))
    rows: Bools = (h.kind == vocabulary.FAIL) & told
    return rows


def undrained_reason(h: HistoryColumns, here: Bools, found_empty: bool, role: int = vocabulary.DRAIN) -> str:
    """Return why a drain did not finish, with the error of the last failed drain.

    ``here`` selects the rows of the queue (or of another drained object). An error that messages are kept back is
    preferred over others.
    """
    what = "its last drain ended before it had found it empty" if found_empty else "no drain ever found it empty"
    failed = here & (h.role == role) & np.isin(h.kind, (vocabulary.FAIL, vocabulary.INFO)) & (h.error.codes >= 0)
    rows = [int(row) for row in np.flatnonzero(failed) if h.error.at(int(row)) != EMPTY]
    if not rows:
        return what
    row = next((row for row in reversed(rows) if KEPT_BACK in (h.error.at(row) or "")), rows[-1])
    error = (h.error.at(row) or "").removeprefix("not done: ")
    by = f"{h.node.at(row)}: " if h.node.at(row) else ""
    if KEPT_BACK in error:
        return f"no drain found it empty, since messages were kept back ({by}{error[:_LONGEST]})"
    return f"{what} (the last error of a drain: {by}{error[:_LONGEST]})"


def not_drained(
    h: HistoryColumns, here: Bools, touching: Bools, busy: Bools, empty: Bools, role: int = vocabulary.DRAIN
) -> str | None:
    """Return why an object was not drained; None if it was.

    It is drained when a drain (``role``) found it ``empty`` that was invoked after all other operations that can put a
    message there or hold one (``touching``) had completed; ``busy`` marks the completions that matter. ``here`` selects
    the object's rows.
    """
    if (touching & (h.kind == vocabulary.INVOKE) & (h.partner < 0)).any():
        return "an operation was still open when the history ended"
    finds = h.partner[np.flatnonzero((h.role == role) & here & empty)]
    ended = np.flatnonzero(touching & busy)
    if not len(finds) or (len(ended) and finds.max() < ended[-1]):
        return undrained_reason(h, here, bool(len(finds)), role)
    return None


@dataclass(frozen=True)
class QueueEnds:
    """The final state of a run's queues.

    ``empty`` marks the completions that found nothing, ``depths`` are the last confirmed readings (messages, row) by
    queue, ``declared`` is run.json's declaration of takes that name no message (``stormproof.unnamed_takes``).
    """

    history: HistoryColumns
    empty: Bools
    depths: Mapping[int, tuple[int, int]]
    declared: Mapping[str, Any] | None
    patience: int | None = None
    """Nanoseconds for which every answer must report a queue as missing before the queue counts as gone.

    None: the cluster was not healthy, so no such answer proves anything.
    """
    unclosed: int = 0
    """Clients that could not be closed: each may hold as much as an open take, of any queue."""

    @cached_property
    def undrained(self) -> Mapping[int, str]:
        """Queues whose drain did not finish, with the reason.

        A queue is drained when a drain found it empty that was invoked after everything else on it had completed, or
        when it is gone. A take that never completed does not prevent that: ``accounts`` says how many messages it may
        hold.
        """
        reasons = {}
        for queue, (busy, found_empty) in self._last_words.items():
            if found_empty <= busy and queue not in self.gone:
                reasons[queue] = undrained_reason(self.history, self.history.key == queue, found_empty >= 0)
        return reasons

    @cached_property
    def gone(self) -> Mapping[int, tuple[int, int]]:
        """Queues that are gone as a whole, each with the first and the last row that report it.

        Once everything else on the queue had completed, drains were answered that the queue does not exist (or found it
        empty), including the last one, for ``patience`` at least; and no drain of it ended with another error.
        """
        h = self.history
        absent = said_not_found(h)
        found: dict[int, tuple[int, int]] = {}
        if self.patience is None or not absent.any():
            return found
        ended = (h.kind != vocabulary.INVOKE) & (h.role >= vocabulary.ENQUEUE) & (h.role <= vocabulary.DRAIN)
        drains = h.role == vocabulary.DRAIN
        for queue in np.unique(h.key[absent & drains]).tolist():
            here = ended & (h.key == queue)
            answers = here & drains & (absent | self.empty)
            failed = here & drains & ~answers & ((h.kind == vocabulary.FAIL) | (h.value == NO_VALUE))
            others = np.flatnonzero(here & ~answers)
            rows = np.flatnonzero(answers)
            rows = rows[h.partner[rows] > others.max(initial=-1)]
            if failed.any() or not len(rows) or not absent[rows[-1]]:
                continue
            if h.time[rows[-1]] - h.time[rows[0]] >= self.patience:
                found[queue] = int(rows[0]), int(rows[-1])
        return found

    @cached_property
    def open(self) -> Mapping[int, str]:
        """Queues that may still hold messages, with the reason: not drained, and their depth was not read as zero after
        everything else.
        """
        return {queue: reason for queue, reason in self.undrained.items() if not self._read_as_empty(queue)}

    @cached_property
    def accounts(self) -> Mapping[int, float]:
        """Map each queue to the number of its messages that unnamed takes may hold; queues with 0 are left out.

        A take that never completed counts if it was invoked before the queue was first known to be empty.
        """
        h = self.history
        takes = np.flatnonzero(((h.role == vocabulary.DEQUEUE) | (h.role == vocabulary.DRAIN))
                               & (h.kind == vocabulary.INVOKE))  # fmt: skip
        ends = h.partner[takes]
        crashed = takes[(ends >= 0) & (h.kind[ends] == vocabulary.INFO) & (h.value[ends] == NO_VALUE)]
        found: dict[int, float] = {}
        for kind, rows in ((CRASHED, crashed), (OPEN, self._open_in_time(takes[ends < 0]))):
            for name, role in (("dequeue", vocabulary.DEQUEUE), ("drain", vocabulary.DRAIN)):
                limit = limit_of(self.declared, name, kind)
                if limit == 0:
                    continue
                queues, counts = np.unique(h.key[rows[h.role[rows] == role]], return_counts=True)
                for queue, count in zip(queues.tolist(), counts.tolist(), strict=True):
                    found[queue] = found.get(queue, 0) + (inf if limit is None else limit * count)
        return self._with_unclosed(found)

    def _with_unclosed(self, found: dict[int, float]) -> dict[int, float]:
        """Add the messages that clients which could not be closed may hold."""
        limit = limit_of(self.declared, "dequeue", OPEN)
        each = inf if limit is None else limit
        if not self.unclosed:
            return found
        return {queue: found.get(queue, 0) + self.unclosed * each for queue in self._last_words}

    @cached_property
    def still_open(self) -> Mapping[int, float]:
        """Map each queue to the number of messages that operations without completion may hold there, or put there
        late.
        """
        h = self.history
        rows = np.flatnonzero((h.kind == vocabulary.INVOKE) & (h.partner < 0))
        limits = {vocabulary.ENQUEUE: 1, vocabulary.DEQUEUE: limit_of(self.declared, "dequeue", OPEN),
                  vocabulary.DRAIN: limit_of(self.declared, "drain", OPEN)}  # fmt: skip
        found: dict[int, float] = {}
        for row in rows.tolist():
            if (role := int(h.role[row])) in limits:
                limit, queue = limits[role], int(h.key[row])
                found[queue] = found.get(queue, 0) + (inf if limit is None else limit)
        return self._with_unclosed(found)

    @cached_property
    def fenced(self) -> frozenset[int]:
        """Queues whose emptiness was shown by fences: a sweep found them empty after everything else on them had
        completed."""
        h = self.history
        finds = np.flatnonzero((h.role == vocabulary.DRAIN) & h.f.rows_with(vocabulary.SWEEP) & self.empty)
        busy = {queue: last for queue, (last, _) in self._last_words.items()}
        return frozenset(int(h.key[row]) for row in finds.tolist() if h.partner[row] >= busy[int(h.key[row])])

    def _open_in_time(self, takes: Int64s) -> Int64s:
        """Return the takes that were invoked before their queue was first known to be empty."""
        known = {queue: self._empty_since(queue) for queue in np.unique(self.history.key[takes]).tolist()}
        return takes[[row < known[int(self.history.key[row])] for row in takes.tolist()]]

    def _empty_since(self, queue: int) -> int:
        """Return the first row at which the queue was known to be empty for good; the number of rows if it never was.
        """
        h = self.history
        finds = np.flatnonzero((h.role == vocabulary.DRAIN) & (h.key == queue) & self.empty)
        busy = self._last_words[queue][0] if queue in self._last_words else -1
        known = finds[h.partner[finds] > busy].tolist()
        if self._read_as_empty(queue):
            known.append(self.depths[queue][1])
        if queue in self.gone:
            known.append(self.gone[queue][1])
        return min(known, default=h.rows)

    def _read_as_empty(self, queue: int) -> bool:
        """Return whether the queue's depth was read as zero, after all other operations on it that completed."""
        depth, row = self.depths.get(queue, (-1, -1))
        if depth != 0:
            return False
        h = self.history
        here = (h.key == queue) & (h.role >= vocabulary.ENQUEUE) & (h.role <= vocabulary.DRAIN)
        return not (here & ((h.kind != vocabulary.INVOKE) | (h.partner >= 0)))[h.partner[row] :].any()

    @cached_property
    def _last_words(self) -> Mapping[int, tuple[int, int]]:
        """The result of ``queues.last_words`` by queue, for queues that were used."""
        h = self.history
        queue, bound, keys = dense_keys(h)
        busy, found_empty = last_words(h.role, h.kind, queue, h.partner, self.empty.astype(np.int8), bound)
        used = np.flatnonzero(busy > UNTOUCHED)
        return {int(keys[number]): (int(busy[number]), int(found_empty[number])) for number in used}
