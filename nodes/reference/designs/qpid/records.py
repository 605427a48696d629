"""Rows of a database table that are mirrored in memory, and written when a transaction ends."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from nodes.reference.api import ConfigError

K = TypeVar("K", bound=tuple[Any, ...])


def rows_of(database: sqlite3.Connection, table: str, columns: Sequence[str],
            fits: Callable[..., bool]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table, in the order of their columns; raises ConfigError when one does not fit."""
    names = ", ".join(columns)
    for row in database.execute(f"SELECT {names} FROM {table} ORDER BY {names}"):
        if not fits(*row):
            raise ConfigError(f"data: the table {table} of the broker's database holds a row that no broker wrote; "
                              "move the database away: the broker gets its data from the primary")
        yield row


class KeyedRows(Generic[K]):
    """Tracks the rows that have changed in memory, by the key of their object, and writes them (``Records``).

    ``delete`` and ``insert`` are the statements; ``rows`` returns the rows of an object, none if it is deleted.
    """

    def __init__(self, database: sqlite3.Connection, delete: str, insert: str,
                 rows: Callable[[K], Iterable[tuple[Any, ...]]]) -> None:
        self._database, self._delete, self._insert, self._rows = database, delete, insert, rows
        self._changed: dict[K, None] = {}

    @property
    def unsaved(self) -> bool:
        """Tell whether changes are still to be written."""
        return bool(self._changed)

    def changed(self, key: K) -> None:
        """Note that the object has changed, or was deleted."""
        self._changed[key] = None

    def write(self) -> None:
        """Write the changes; they stay noted until they are known to be saved."""
        if self._changed:
            self._database.executemany(self._delete, list(self._changed))
            self._database.executemany(self._insert, [row for key in self._changed for row in self._rows(key)])

    def saved(self) -> None:
        """Note that the written changes are in the store."""
        self._changed.clear()
