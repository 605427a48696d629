"""The account of a run of transactions: the outcome of each, and the delivery of its parts.

A transaction of ``commit`` or ``abort`` sends its value to every queue that is a bit of its key. One of ``move`` or
``finish`` takes a message from the queue that is its key and sends its own value to the next queue; its completion
names the message that it took.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from checkers.account import TAKES, name_of
from checkers.queue_ends import not_drained
from stormproof import vocabulary
from stormproof.errors import HistoryError
from stormproof.history.columns import Bools, HistoryColumns, Int8s, Int64s

MAX_QUEUES = 30
"""Queues are bits of a key."""

COMMITTED, ABORTED, UNSURE = 0, 1, 2
OUTCOMES = ("committed", "aborted", "unknown")

_SENDS = (vocabulary.COMMIT, vocabulary.ABORT)
MOVES = (vocabulary.MOVE, vocabulary.FINISH)
_RECOVERIES = (vocabulary.RECOVER, vocabulary.ROLLBACK)


@dataclass(frozen=True)
class TransactionTable:
    """Transactions by number, in order of their values.

    ``row`` is the row of the invocation, ``wanted`` the queues that its parts go to (bits), ``outcome`` COMMITTED,
    ABORTED or UNSURE, ``came`` the queues on which its part was delivered, ``taken`` the value of the message that a
    move took (-1: unknown or none). ``deliveries`` are the rows that delivered something, ``of_delivery`` the
    transaction of each (-1: none).
    """

    history: HistoryColumns
    value: Int64s
    row: Int64s
    role: Int8s
    wanted: Int64s
    outcome: Int8s
    came: Int64s
    taken: Int64s
    deliveries: Int64s
    of_delivery: Int64s
    empty: Bools

    @classmethod
    def of(cls, h: HistoryColumns, empty: Bools) -> TransactionTable:
        """Return the account of a history; ``empty`` are the rows that found a queue empty.

        Raises:
            HistoryError: a transaction has no value, or two have the same, or a queue's number is too large.
        """
        begun = np.isin(h.role, (*_SENDS, *MOVES)) & (h.kind == vocabulary.INVOKE)
        rows = np.flatnonzero(begun)
        rows = rows[np.argsort(h.value[rows], kind="stable")]
        value, role, key = h.value[rows], h.role[rows], h.key[rows].astype(np.int64)
        again = np.flatnonzero(np.diff(value) == 0)
        if len(value) and (value[0] < 0 or len(again)):
            row = int(rows[0] if value[0] < 0 else rows[again[0] + 1])
            raise HistoryError(f"row {row} begins a transaction without a unique value")
        moves = np.isin(role, MOVES)
        takes = np.isin(h.role, TAKES)
        if (h.key[takes] >= MAX_QUEUES).any() or (key[moves] >= MAX_QUEUES - 1).any() or (key < 0).any():
            raise HistoryError(f"a queue's number is not below {MAX_QUEUES}")
        wanted = np.where(moves, np.int64(1) << np.where(moves, key + 1, 0), key)
        deliveries = np.flatnonzero(takes & ((h.kind == vocabulary.OK) | (h.kind == vocabulary.INFO)) & (h.value >= 0))
        of_delivery = find(value, h.value[deliveries])
        here = of_delivery >= 0
        here[here] &= (wanted[of_delivery[here]] >> h.key[deliveries[here]].astype(np.int64)) & 1 == 1
        of_delivery = np.where(here, of_delivery, -1)
        came = np.zeros(len(value), dtype=np.int64)
        np.bitwise_or.at(came, of_delivery[here], np.int64(1) << h.key[deliveries[here]].astype(np.int64))
        outcome, taken = _outcomes(h, value, rows, role)
        return cls(h, value, rows, role, wanted, outcome, came, taken, deliveries, of_delivery, empty)

    def name(self, number: int) -> str:
        """Return a transaction's name for users: ``process/number``."""
        return name_of(int(self.value[number]))

    def first_delivery(self, number: int) -> int:
        """Return the row of the first delivery of any part of a transaction."""
        return int(self.deliveries[self.of_delivery == number][0])

    @cached_property
    def is_move(self) -> Bools:
        """Mark the transactions that take a message."""
        moves: Bools = np.isin(self.role, MOVES)
        return moves

    @cached_property
    def sources(self) -> tuple[int, ...]:
        """The queues from which messages are moved."""
        h = self.history
        return tuple(np.unique(h.key[self.row[self.is_move]]).tolist())

    @cached_property
    def queues(self) -> tuple[int, ...]:
        """All queues to which a transaction was to send, and those from which messages are moved."""
        bits = int(np.bitwise_or.reduce(self.wanted)) if len(self.wanted) else 0
        return tuple(sorted({*(q for q in range(MAX_QUEUES) if bits >> q & 1), *self.sources}))

    @cached_property
    def undrained(self) -> Mapping[int, str]:
        """Queues whose drain did not finish, with the reason (``not_drained``).

        Operations that failed do not matter. For a queue from which messages are moved, the drain is a ``finish``.
        """
        h, reasons = self.history, {}
        busy = (h.kind == vocabulary.OK) | (h.kind == vocabulary.INFO)
        for queue in self.queues:
            role = vocabulary.FINISH if queue in self.sources else vocabulary.DRAIN
            reason = not_drained(h, h.key == queue, self._touching(queue), busy, self.empty, role)
            if reason is not None:
                reasons[queue] = reason
        return reasons

    @cached_property
    def drained(self) -> int:
        """The queues that are drained, as bits."""
        return sum(1 << queue for queue in self.queues if queue not in self.undrained)

    def _touching(self, queue: int) -> Bools:
        """Mark, by row, the operations that may put a message into the queue, or that may hold one."""
        h = self.history
        at = h.key == queue
        sends = np.isin(h.role, _SENDS) & (np.where(h.key > 0, h.key, 0).astype(np.int64) >> queue & 1 == 1)
        moves = np.isin(h.role, MOVES) & (at | (h.key == queue - 1))
        plain = at & np.isin(h.role, (vocabulary.ENQUEUE, *TAKES))
        touching: Bools = sends | moves | plain | np.isin(h.role, _RECOVERIES)
        return touching

    def messages_of(self, source: int) -> SentMessages:
        """Return the messages sent to a queue from which messages are moved.

        Raises:
            HistoryError: one value was sent twice.
        """
        h = self.history
        rows = np.flatnonzero((h.role == vocabulary.ENQUEUE) & (h.key == source) & (h.kind == vocabulary.INVOKE))
        done = h.partner[rows]
        kind = np.where(done >= 0, h.kind[done], vocabulary.INFO)
        failed = kind == vocabulary.FAIL
        # The attempt that counts is the first that did not fail, else the first.
        order = np.lexsort((rows, failed, h.value[rows]))
        rows, kind, failed = rows[order], kind[order], failed[order]
        value = h.value[rows]
        same = np.flatnonzero((np.diff(value) == 0) & ~failed[1:])
        if len(same):
            row = int(rows[same[0] + 1])
            raise HistoryError(f"row {row} sends message {name_of(int(h.value[row]))} a second time")
        first = np.flatnonzero(np.diff(value, prepend=-2) != 0)
        return SentMessages(value[first], rows[first], kind[first] == vocabulary.OK, failed[first])


@dataclass(frozen=True)
class SentMessages:
    """Messages in order of their values: the row of the send that counts, and whether that was confirmed or is certain
    to have failed.
    """

    value: Int64s
    row: Int64s
    confirmed: Bools
    failed: Bools


def find(known: Int64s, values: Int64s) -> Int64s:
    """Return the place of each value among the sorted ones, -1 if it is not among them."""
    if not len(known):
        return np.full(len(values), -1, dtype=np.int64)
    place = np.minimum(np.searchsorted(known, values), len(known) - 1)
    found: Int64s = np.where(known[place] == values, place, -1)
    return found


def _outcomes(h: HistoryColumns, value: Int64s, rows: Int64s, role: Int8s) -> tuple[Int8s, Int64s]:
    """Return, by transaction, its outcome by its completion or a recovery; and the message that a move took."""
    done = h.partner[rows]
    kind = np.where(done >= 0, h.kind[done], vocabulary.INFO)
    outcome = np.full(len(rows), UNSURE, dtype=np.int8)
    outcome[kind == vocabulary.OK] = COMMITTED
    outcome[(kind == vocabulary.FAIL) | (role == vocabulary.ABORT)] = ABORTED
    for recovery, meaning in ((vocabulary.RECOVER, COMMITTED), (vocabulary.ROLLBACK, ABORTED)):
        told = np.flatnonzero((h.role == recovery) & (h.kind == vocabulary.OK) & (h.value >= 0))
        which = find(value, h.value[told])
        which = which[which >= 0]
        outcome[which[outcome[which] == UNSURE]] = meaning
    named = np.isin(role, MOVES) & (done >= 0) & ((kind == vocabulary.OK) | (kind == vocabulary.INFO))
    taken = np.where(named, h.value[done], -1)
    # A completion that only repeats the invocation's value, as when an operation is cut off, names no message.
    return outcome, np.where(taken == value, -1, taken)
