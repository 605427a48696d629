"""Simulated disks: SQLite databases in memory that outlive the process that opened them.

What was committed is there after a kill, as with a real file in WAL mode with synchronous=FULL; a transaction that was
under way is not.
"""

from __future__ import annotations

import sqlite3


class _Database(sqlite3.Connection):
    """A connection whose ``close`` leaves the database alive: it is the disk that is closed at the end."""

    def close(self) -> None:
        """The process lets go of it; nothing that was not committed stays."""
        if self.in_transaction:
            self.rollback()

    def discard(self) -> None:
        """Free it."""
        super().close()


class Disk:
    """What one node has stored: files by path, databases by name."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self._databases: dict[str, _Database] = {}

    def open_database(self, name: str) -> sqlite3.Connection:
        """The database of that name, as its last transaction left it."""
        database = self._databases.get(name)
        if database is None:
            database = sqlite3.connect(":memory:", isolation_level=None, cached_statements=256, factory=_Database)
            self._databases[name] = database
        database.close()
        return database

    def discard(self) -> None:
        """Free everything."""
        for database in self._databases.values():
            database.discard()
        self._databases.clear()
        self.files.clear()
