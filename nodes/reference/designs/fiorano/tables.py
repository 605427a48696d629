"""The tables that are replicated: read page by page, written as the active server says, replaced as a whole.

A synchronisation is staged in tables of its own, so that a repository that was left in the middle of one can still be
opened; it takes the place of the old one in one transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from nodes.reference.engine.row_schema import ShapeError, check_row
from nodes.reference.engine.store import COLUMNS, highest_key, read_slice
from nodes.reference.replication.links import LinkError
from nodes.reference.replication.transfer import CHUNK_BYTES, cut

STAGED = "staged_"
"""What the names of staging tables begin with."""


class Tables:
    """All replicated tables of a server's database: the engine's; a ``page`` has about so many bytes, at least."""

    def __init__(self, database: sqlite3.Connection, page: int = CHUNK_BYTES) -> None:
        self._database, self._page = database, page
        self.drop_staged()

    def pages(self) -> Iterator[tuple[str, list[list[Any]]]]:
        """(table, rows) until every row that is there now, and still is when its turn comes, was given.

        Rows may change meanwhile: each page is as the table is when it is asked for.
        """
        for name in COLUMNS:
            highest, after = highest_key(self._database, name), None
            while rows := cut(read_slice(self._database, name, after, upto=highest), self._page):
                after = rows[-1][1]
                yield name, [row[1:] for row in rows]

    def stage(self) -> None:
        """Begin a new repository, which is empty; in an open transaction, as all that follows."""
        self.drop_staged()
        for name, columns in COLUMNS.items():
            self._database.execute(f"CREATE TABLE {STAGED}{name} ({', '.join(columns)})")

    def write(self, name: str, rows: Sequence[Any], removed: Sequence[int], staged: bool) -> None:
        """Rows, each in place of the one with its key, and keys of rows that go; they have been checked."""
        table = STAGED + name if staged else name
        self._database.executemany(f"DELETE FROM {table} WHERE id = ?", [(key,) for key in removed])
        marks = ", ".join("?" * len(COLUMNS[name]))
        self._database.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", rows)

    def replace(self) -> None:
        """Let what was staged be the repository."""
        for name in COLUMNS:
            self._database.execute(f"DROP TABLE {name}")
            self._database.execute(f"ALTER TABLE {STAGED}{name} RENAME TO {name}")

    def check(self, name: str, rows: Sequence[Any]) -> None:
        """Raises LinkError unless there is such a table, and the rows fit it."""
        if name not in COLUMNS:
            raise LinkError(f"there is no table {name[:40]!r}")
        for row in rows:
            if not isinstance(row, list) or len(row) != len(COLUMNS[name]):  # fewer would be a row that is gone
                raise LinkError(f"a row of {name} has other columns")
            try:
                check_row([name, *row])
            except ShapeError as error:
                raise LinkError(str(error)) from error

    def drop_staged(self) -> None:
        """Forget what was staged."""
        for name in COLUMNS:
            self._database.execute(f"DROP TABLE IF EXISTS {STAGED}{name}")
