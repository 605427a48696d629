"""What a repository says of itself, and which of two is the newer one [Repository Timestamps]."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace
from typing import Any

COUNTER, WALL_CLOCK = STAMPS = ("counter", "wall-clock")
"""What a stamp is: the lock's epoch and a count of changes, or the time of day of the last change."""


@dataclass(frozen=True)
class Stamp:
    """How far a repository is, and what its server has asked of the lock.

    ``whole`` is false from the beginning of a synchronisation to its end. ``epoch`` is the lock's epoch in which the
    last change was made (or in which this repository was synchronised), ``counter`` the number of changes ever made,
    ``changed`` the time of day of the last one. ``asked`` is the highest epoch that this server may have been granted:
    it is on disk before the gateway is asked.
    """

    whole: bool = True
    epoch: int = 0
    counter: int = 0
    changed: float = 0.0
    asked: int = 0


def is_newer(mine: Stamp, other: Stamp, primary: bool, stamps: str = COUNTER) -> bool:
    """Whether the repository of ``mine`` is the one to go on with; ``primary``: it is the primary server's.

    A repository that is not whole is never newer, and one that is empty is none against one that was being
    synchronised in a later epoch: nobody knows what that would have become.
    """
    if not mine.whole:
        return False
    if not other.whole:
        return mine.epoch >= other.epoch
    if stamps == WALL_CLOCK:
        ours, others = (mine.changed, 0), (other.changed, 0)
    else:
        ours, others = (mine.epoch, mine.counter), (other.epoch, other.counter)
    return primary if ours == others else ours > others


class Repository:
    """The stamp in the server's database; written in an open transaction."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        database.execute(
            "CREATE TABLE IF NOT EXISTS fiorano_repository (id INTEGER PRIMARY KEY, whole INTEGER NOT NULL, "
            "epoch INTEGER NOT NULL, counter INTEGER NOT NULL, changed REAL NOT NULL, asked INTEGER NOT NULL)")
        row = database.execute(
            "SELECT whole, epoch, counter, changed, asked FROM fiorano_repository WHERE id = 0").fetchone()
        self.stamp = Stamp(bool(row[0]), *row[1:]) if row else Stamp()

    def write(self, **changes: Any) -> None:
        """Change some of it."""
        self.stamp = stamp = replace(self.stamp, **changes)
        self._database.execute(
            "INSERT OR REPLACE INTO fiorano_repository VALUES (0, ?, ?, ?, ?, ?)",
            (int(stamp.whole), stamp.epoch, stamp.counter, stamp.changed, stamp.asked))
