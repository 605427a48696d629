"""The account of a history's messages, shared by the checks on queues, topics and events.

Each message is sent once, is delivered any number of times, and every question about it has one answer here: its send
and the outcome of that, repeated deliveries, first deliveries out of order, deliveries of foreign bodies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from checkers.kernels.deliveries import judge_deliveries
from checkers.kernels.queues import account_deliveries, account_sends, number_messages
from stormproof import vocabulary
from stormproof.errors import HistoryError
from stormproof.history.columns import Bools, HistoryColumns, Int8s, Int32s, Int64s
from stormproof.history.schema import PAIR_SHIFT, decode_pair


class SentTwice(HistoryError):
    """One value was sent twice, so no account of the run's messages can be given; ``row`` is the row of the second
    send.
    """

    def __init__(self, row: int, name: str, sends: str = "sends") -> None:
        super().__init__(f"row {row} {sends} message {name} a second time: values must be unique")
        self.row, self.name, self.sends = row, name, sends

    def __reduce__(self) -> tuple[type[SentTwice], tuple[int, str, str]]:
        return SentTwice, (self.row, self.name, self.sends)


def name_of(value: int) -> str:
    """Return the user's name of a message with this value: ``producer/sequence``."""
    producer, sequence = decode_pair(value)
    return f"{producer}/{sequence}"


@dataclass(frozen=True)
class Sends:
    """The sends of each message, by its number.

    ``key`` is its queue (0 for topics). ``sent`` is the row of the send's invocation (-1: never sent), ``state`` a code
    of ``checkers.kernels.queues`` (ACKED...). ``of_row`` is the message's number by row, -1 for a row without a
    message.
    """

    of_row: Int32s
    key: Int32s
    value: Int64s
    sent: Int64s
    state: Int8s

    @classmethod
    def read(cls, h: HistoryColumns, role: Int8s, key: Int32s, sends: str = "sends") -> Sends:
        """Return the sends of a history, by roles of queues; ``sends`` is the verb of the error.

        Raises:
            SentTwice: one value was sent twice, so that no account can be given.
        """
        of_row, keys, value = number_messages(role, h.kind, key, h.value)
        sent, state, twice = account_sends(role, h.kind, h.partner, of_row, len(keys))
        if twice >= 0:
            raise SentTwice(int(h.index[twice]), name_of(int(h.value[twice])), sends)
        return Sends(of_row, keys, value, sent, state)

    def name(self, message: int) -> str:
        """Return a message's name for users: ``producer/sequence``."""
        return name_of(int(self.value[message]))

    @property
    def sequence(self) -> Int64s:
        """The place of each message among those of its producer."""
        return self.value & ((1 << PAIR_SHIFT) - 1)


@dataclass(frozen=True)
class Messages(Sends):
    """The sends and deliveries of each message (queue, value), by its number.

    Message m was delivered by the completions ``delivered[start[m]:start[m + 1]]`` in order.
    """

    start: Int64s
    delivered: Int64s

    @classmethod
    def of(cls, h: HistoryColumns) -> Messages:
        """Return the account of a history of queues; raises SentTwice."""
        sends = Sends.read(h, h.role, h.key)
        start, delivered = account_deliveries(h.role, h.kind, sends.of_row, len(sends.key))
        return cls(sends.of_row, sends.key, sends.value, sends.sent, sends.state, start, delivered)

    @property
    def deliveries(self) -> Int64s:
        """The number of deliveries of each message."""
        return np.diff(self.start)

    @cached_property
    def first(self) -> Int64s:
        """The row of each message's first delivery (-1: none)."""
        first, came = np.full(len(self.key), -1, dtype=np.int64), self.deliveries > 0
        first[came] = self.delivered[self.start[:-1][came]]
        return first


TAKES = (vocabulary.DEQUEUE, vocabulary.DRAIN)
"""Operations that take a message from a queue."""


def foreign(h: HistoryColumns, roles: Sequence[int], *, whatever_ended: bool = False) -> Int64s:
    """Return the rows of deliveries without a message of this test: a confirmed one without a value, or one with a
    text.

    A text counts if the operation ended ``ok`` or ``info``; with ``whatever_ended`` it counts in every row.
    """
    rows = np.flatnonzero((h.value < 0) & ((h.kind == vocabulary.OK) | (h.value < -1)))
    found = np.isin(h.role[rows], roles)
    if not whatever_ended:
        found &= (h.kind[rows] == vocabulary.OK) | (h.kind[rows] == vocabulary.INFO)
    return rows[found]


def repeats(
    h: HistoryColumns, rows: Int64s, groups: Sequence[Int32s | Int64s], buffered: Bools
) -> tuple[Int8s, Int64s]:
    """Classify deliveries as ``judge_deliveries`` does, in each group: of one message, or of one copy of it.

    ``rows`` are sorted by their ``groups`` (columns of numbers from 0), and in each by time.
    """
    changes = [np.diff(column, prepend=-1) != 0 for column in groups]
    start = np.append(np.flatnonzero(np.logical_or.reduce(changes)), len(rows))
    return judge_deliveries(h.kind, h.partner, start.astype(np.int64), rows, buffered.astype(np.int8))
