"""The replicated tables: read page by page, written as the active server says, replaced as a whole.

A synchronisation is staged in separate tables. A repository left in the middle of one can therefore still be opened.
The staged tables replace the old ones in one transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from nodes.reference.engine.row_schema import ShapeError, check_row
from nodes.reference.engine.store import COLUMNS, highest_key, read_slice
from nodes.reference.replication.handshake import LinkError
from nodes.reference.replication.transfer import CHUNK_BYTES, cut

STAGED = "staged_"
"""The prefix of staging tables' names."""


class Tables:
    """All replicated tables of a server's database, which are the engine's; ``page`` is the minimum size of a page in
    bytes.
    """

    def __init__(self, database: sqlite3.Connection, page: int = CHUNK_BYTES) -> None:
        self._database, self._page = database, page
        self.drop_staged()

    def pages(self) -> Iterator[tuple[str, list[list[Any]]]]:
        """Yield (table, rows) until every row was yielded that exists now and still exists when its turn comes.

        Rows may change in the meantime: each page reflects the table when the page is requested.
        """
        for name in COLUMNS:
            highest, after = highest_key(self._database, name), None
            while rows := cut(read_slice(self._database, name, after, upto=highest), self._page):
                after = rows[-1][1]
                yield name, [row[1:] for row in rows]

    def stage(self) -> None:
        """Begin a new, empty repository; needs an open transaction, as all methods below."""
        self.drop_staged()
        for name, columns in COLUMNS.items():
            self._database.execute(f"CREATE TABLE {STAGED}{name} ({', '.join(columns)})")

    def write(self, name: str, rows: Sequence[Any], removed: Sequence[int], staged: bool) -> None:
        """Write rows, each replacing the one with its key, and delete the rows in ``removed``; all were checked before.
        """
        table = STAGED + name if staged else name
        self._database.executemany(f"DELETE FROM {table} WHERE id = ?", [(key,) for key in removed])
        marks = ", ".join("?" * len(COLUMNS[name]))
        self._database.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", rows)

    def replace(self) -> None:
        """Replace the repository by the staged one."""
        for name in COLUMNS:
            self._database.execute(f"DROP TABLE {name}")
            self._database.execute(f"ALTER TABLE {STAGED}{name} RENAME TO {name}")

    def check(self, name: str, rows: Sequence[Any]) -> None:
        """Check that there is such a table and that the rows fit it; raises LinkError otherwise."""
        if name not in COLUMNS:
            raise LinkError(f"there is no table {name[:40]!r}")
        for row in rows:
            if not isinstance(row, list) or len(row) != len(COLUMNS[name]):  # fewer columns would mean a deleted row
                raise LinkError(f"a row of {name} has other columns")
            try:
                check_row([name, *row])
            except ShapeError as error:
                raise LinkError(str(error)) from error

    def drop_staged(self) -> None:
        """Drop the staged tables."""
        for name in COLUMNS:
            self._database.execute(f"DROP TABLE IF EXISTS {STAGED}{name}")
