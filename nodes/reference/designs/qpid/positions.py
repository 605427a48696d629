"""Positions of messages in queues, and the generations that assigned them.

A queue numbers its messages from 1. Two primaries, one after the other, may assign the same number to different
messages if the second never learned of the first one's. Each broker therefore remembers the first number that each
generation of primaries assigned in a queue, as Kafka's leader epochs do (KIP-101). Two brokers' copies of a queue agree
up to the point at which these lists diverge.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from nodes.reference.designs.qpid.records import KeyedRows, rows_of

Generation = tuple[int, int]
"""(generation, as ``marked``; position of the first message that it numbered)."""


def marked(generation: int, broker: str) -> int:
    """Combine a generation of primaries with its primary's name. Two brokers that cannot reach each other may both
    become primary of the same next generation, one after the other, and assign the same numbers to different messages.
    """
    return generation << 32 | zlib.crc32(broker.encode())


class Generations:
    """The generations of each queue, oldest first, in the broker's database; changed in an open transaction, at whose
    end ``records`` are written."""

    def __init__(self, database: sqlite3.Connection) -> None:
        """Load the generations; raises ConfigError when the database holds anything else."""
        self.database = database
        database.execute("CREATE TABLE IF NOT EXISTS qpid_generations (queue TEXT NOT NULL, generation INTEGER NOT "
                         "NULL, first INTEGER NOT NULL, PRIMARY KEY (queue, generation)) WITHOUT ROWID")
        self._of: dict[str, list[Generation]] = {}
        columns = ("queue", "generation", "first")
        for queue, generation, first in rows_of(database, "qpid_generations", columns, _is_row):
            self._of.setdefault(queue, []).append((generation, first))
        self.records: KeyedRows[tuple[str]] = KeyedRows(
            database, "DELETE FROM qpid_generations WHERE queue = ?",
            "INSERT OR REPLACE INTO qpid_generations VALUES (?, ?, ?)",
            lambda key: [(*key, *each) for each in self._of.get(key[0], ())],
        )

    def of(self, queue: str) -> Sequence[Generation]:
        """Return the generations that numbered messages of a queue."""
        return self._of.get(queue, ())

    def items(self) -> Iterable[tuple[str, Sequence[Generation]]]:
        """Return every queue with its generations."""
        return list(self._of.items())

    def note(self, queue: str, generation: int, position: int) -> None:
        """Note that this generation numbered a message; only its first message is remembered."""
        known = self._of.setdefault(queue, [])
        if not known or known[-1][0] != generation:
            known.append((generation, position))
            self.records.changed((queue,))

    def replace(self, queue: str, generations: Iterable[Generation]) -> None:
        """Replace the generations of a queue."""
        self.forget(queue)
        for generation, first in generations:
            self.note(queue, generation, first)

    def forget(self, queue: str) -> None:
        """Forget a deleted queue."""
        self._of.pop(queue, None)
        self.records.changed((queue,))

    def clear(self) -> None:
        """Forget all queues."""
        for queue in self._of:
            self.records.changed((queue,))
        self._of.clear()


def _is_row(queue: Any, generation: Any, first: Any) -> bool:
    return isinstance(queue, str) and all(type(each) is int and each >= 0 for each in (generation, first))


def until(generations: Sequence[Generation], position: int) -> list[Generation]:
    """Return the generations that numbered messages up to a position."""
    return [each for each in generations if each[1] <= position]


def agreement(ours: Sequence[Generation], our_last: int, theirs: Sequence[Generation], their_last: int) -> int:
    """Return the last position up to which both copies of a queue have the same numbering."""
    for place in range(max(len(ours), len(theirs))):
        mine = ours[place] if place < len(ours) else None
        other = theirs[place] if place < len(theirs) else None
        if mine != other:
            first = min(mine[1] if mine else our_last + 1, other[1] if other else their_last + 1)
            return min(first - 1, our_last, their_last)
    return min(our_last, their_last)


def to_wire(position: int, bits: int, epochs: bool) -> list[int]:
    """Encode a position as epoch and sequence; without ``epochs`` the epoch is 0 (LM2 as documented)."""
    return [position >> bits if epochs else 0, position & ((1 << bits) - 1)]


def from_wire(told: Sequence[int], bits: int, epochs: bool, near: int) -> int:
    """Decode a position; without epochs it is the one nearest to ``near`` (serial number arithmetic, RFC 1982)."""
    epoch, sequence = told
    if epochs:
        return (epoch << bits) | sequence
    size = 1 << bits
    ahead = (sequence - near) % size
    return near + ahead if ahead < size // 2 else near + ahead - size


def ranges(positions: Iterable[int]) -> list[tuple[int, int]]:
    """Return ascending positions as (first, count) of each contiguous range."""
    found: list[tuple[int, int]] = []
    for position in positions:
        if found and sum(found[-1]) == position:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((position, 1))
    return found
