"""The stamp of a repository, and the comparison that decides which of two is newer [Repository Timestamps]."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace
from typing import Any

COUNTER, WALL_CLOCK = STAMPS = ("counter", "wall-clock")
"""The kinds of stamp: the lock's epoch with a count of changes, or the time of day of the last change."""


@dataclass(frozen=True)
class RepositoryStamp:
    """The position of a repository, and the highest epoch that its server has requested.

    ``whole`` is false from the beginning of a synchronisation to its end. ``epoch`` is the lock's epoch in which the
    last change was made (or in which this repository was synchronised), ``counter`` the number of changes ever made,
    ``changed`` the time of day of the last one. ``asked`` is the highest epoch that this server may have been granted:
    it is on disk before the server sends the request to the gateway.
    """

    whole: bool = True
    epoch: int = 0
    counter: int = 0
    changed: float = 0.0
    asked: int = 0


def is_newer(mine: RepositoryStamp, other: RepositoryStamp, primary: bool, stamps: str = COUNTER) -> bool:
    """Tell whether the repository of ``mine`` is the one to use; ``primary``: it is the primary server's.

    A repository that is not whole is never newer. A whole one (an empty one, for example) does not win against one that
    was being synchronised in a later epoch, because the content that the synchronisation would have produced is
    unknown.
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


class StoredStamp:
    """The stamp in the server's database; written in an open transaction."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        database.execute(
            "CREATE TABLE IF NOT EXISTS fiorano_repository (id INTEGER PRIMARY KEY, whole INTEGER NOT NULL, "
            "epoch INTEGER NOT NULL, counter INTEGER NOT NULL, changed REAL NOT NULL, asked INTEGER NOT NULL)")
        row = database.execute(
            "SELECT whole, epoch, counter, changed, asked FROM fiorano_repository WHERE id = 0").fetchone()
        self.stamp = RepositoryStamp(bool(row[0]), *row[1:]) if row else RepositoryStamp()

    def write(self, **changes: Any) -> None:
        """Change the named fields of the stamp."""
        self.stamp = stamp = replace(self.stamp, **changes)
        self._database.execute(
            "INSERT OR REPLACE INTO fiorano_repository VALUES (0, ?, ?, ?, ?, ?)",
            (int(stamp.whole), stamp.epoch, stamp.counter, stamp.changed, stamp.asked))
