"""The databases of the storage service: rows by table and key, and the fence that checks every change."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Protocol

from nodes.reference import wire
from nodes.reference.storage.protocol import PAGE_BYTES, FencedError, OutOfOrderError, TableChange

PAGE_ROWS = 1000
HIGHEST_KEY = (1 << 63) - 1


class StoreLostError(Exception):
    """The database is gone, and unfinished changes may or may not be in it; it has to be opened again."""


class StoreTakenError(Exception):
    """Another storage service has opened the database since; this one has to end."""


class RowStore(Protocol):
    """A database behind the service. ``claim`` and ``commit`` change it, between ``begin`` and ``finish``."""

    epoch: int
    holder: str
    applied: int

    async def open(self) -> None:
        """Open the database, or open it again, and load the stored fence. Raises StoreLostError."""

    def begin(self) -> None:
        """Begin a batch of changes that are written together."""

    async def finish(self) -> None:
        """Write all changes since ``begin`` to disk. Raises StoreLostError."""

    def claim(self, epoch: int, holder: str) -> int:
        """See ``Fence.claim``."""
        ...

    def commit(self, epoch: int, sequence: int, changes: Sequence[TableChange]) -> None:
        """See ``Fence.commit``."""

    async def page(self, epoch: int, table: str, after: int | None) -> tuple[list[list[Any]], bool]:
        """Return rows of a table in order of their keys, from the first above ``after``, and whether there are more.

        Raises:
            FencedError: another epoch holds the store.
            StoreLostError: the database is gone.
        """
        ...


class Fence:
    """Fencing of writers: the epoch that may write, its holder, and the number of its applied commits."""

    def __init__(self) -> None:
        self.epoch, self.holder, self.applied = 0, "", 0

    def claim(self, epoch: int, holder: str) -> int:
        """Let this epoch write, and no older one; return the number of its commits that are applied already.

        Raises:
            FencedError: a newer epoch holds the store, or this one belongs to another holder.
        """
        if epoch < self.epoch or (epoch == self.epoch and holder != self.holder):
            raise FencedError(self.epoch)
        if epoch > self.epoch:
            self.epoch, self.holder, self.applied = epoch, holder, 0
        return self.applied

    def commit(self, epoch: int, sequence: int, changes: Sequence[TableChange]) -> None:
        """Write the changes, unless they were written before.

        Raises:
            FencedError: another epoch holds the store.
            OutOfOrderError: commits before this one are missing.
        """
        self.check(epoch)
        if sequence > self.applied + 1:
            raise OutOfOrderError(self.applied)
        if sequence <= self.applied:
            return
        for change in changes:
            self.write(change)
        self.applied = sequence

    def check(self, epoch: int) -> None:
        """Raise FencedError unless this epoch holds the store."""
        if epoch != self.epoch:
            raise FencedError(self.epoch)

    def write(self, change: TableChange) -> None:
        """Record a change that has passed the fence."""
        raise NotImplementedError


class StoredRows(Fence):
    """Rows of any tables; ``claim`` and ``commit`` change them, inside a transaction (``begin`` to ``end``).

    The fence (epoch, holder, commits applied) is written in the same transaction as the rows, so that a service that
    was killed knows exactly which commits it has confirmed.
    """

    def __init__(self, database: sqlite3.Connection, page_rows: int = PAGE_ROWS) -> None:
        super().__init__()
        self._database, self._page_rows = database, page_rows
        run = database.execute
        run("CREATE TABLE IF NOT EXISTS stored (name TEXT NOT NULL, id INTEGER NOT NULL, columns BLOB NOT NULL,"
            " PRIMARY KEY (name, id)) WITHOUT ROWID")
        run("CREATE TABLE IF NOT EXISTS fence (id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, holder TEXT NOT NULL,"
            " applied INTEGER NOT NULL)")
        for epoch, holder, applied in run("SELECT epoch, holder, applied FROM fence"):
            self.epoch, self.holder, self.applied = int(epoch), str(holder), int(applied)
        self._written = (self.epoch, self.holder, self.applied)

    def begin(self) -> None:
        """Begin a batch of changes that are written together."""
        self._database.execute("BEGIN IMMEDIATE")

    def end(self) -> None:
        """Write all changes since ``begin`` to disk."""
        fence = (self.epoch, self.holder, self.applied)
        if fence != self._written:
            self._database.execute("INSERT OR REPLACE INTO fence VALUES (0, ?, ?, ?)", fence)
            self._written = fence
        self._database.execute("COMMIT")

    def write(self, change: TableChange) -> None:
        """Write a change that has passed the fence."""
        name, rows, removed = change
        self._database.executemany("DELETE FROM stored WHERE name = ? AND id = ?", [(name, key) for key in removed])
        self._database.executemany(
            "INSERT OR REPLACE INTO stored VALUES (?, ?, ?)", [(name, row[0], encoded_columns(row)) for row in rows])

    def read(self, epoch: int, table: str, after: int | None) -> tuple[list[list[Any]], bool]:
        """Return rows of a table in order of their keys, from the first above ``after``, and whether there are more.

        Raises:
            FencedError: another epoch holds the store.
        """
        self.check(epoch)
        if after == HIGHEST_KEY:
            return [], False
        lowest = ~HIGHEST_KEY if after is None else after + 1
        found: list[list[Any]] = []
        size = 0
        for key, columns in self._database.execute(
            "SELECT id, columns FROM stored WHERE name = ? AND id >= ? ORDER BY id", (table, lowest)
        ):
            if found and (size + len(columns) > PAGE_BYTES or len(found) >= self._page_rows):
                return found, True
            size += len(columns)
            found.append([key, *wire.decode(columns)])
        return found, False

    def rows(self) -> dict[str, dict[int, list[Any]]]:
        """Return all stored rows: table -> key -> the other columns."""
        found: dict[str, dict[int, list[Any]]] = {}
        for name, key, columns in self._database.execute("SELECT name, id, columns FROM stored"):
            found.setdefault(str(name), {})[int(key)] = list(wire.decode(columns))
        return found

    # The interface of ``RowStore``: nothing has to wait, and a failure of the disk ends the service.

    async def open(self) -> None:
        """Do nothing: it is open already."""

    async def finish(self) -> None:
        """See ``end``."""
        self.end()

    async def page(self, epoch: int, table: str, after: int | None) -> tuple[list[list[Any]], bool]:
        """See ``read``."""
        return self.read(epoch, table, after)


def encoded_columns(row: Sequence[Any]) -> bytes:
    """Encode a row's columns, without its key, as they are stored."""
    return wire.encode(list(row[1:]))
