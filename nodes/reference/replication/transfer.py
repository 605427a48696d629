"""The transfer of the whole state, in pieces, to a replica that the log can't bring up to date (4.7.3).

There are two forms. ``held-back`` sends the state of one moment; the entries that the master multicasts in the meantime
are sent as well, and the receiver keeps them undelivered until it has the whole state. ``two-step`` first sends all
rows, in slices, while the source continues and marks changed rows; then it sends the marked rows again, and the entries
that were logged since. The first form is simple, but the source is blocked while it reads the state, and the receiver
holds everything that arrives. With the second form the source is never blocked for longer than a slice takes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Protocol

from nodes.reference import wire
from nodes.reference.engine.row_schema import check_row
from nodes.reference.engine.store import TABLES, highest_key, read_slice
from nodes.reference.replication.positions import LogId

TWO_STEP, HELD_BACK = TRANSFERS = ("two-step", "held-back")
CHUNK_BYTES = 128 << 10
ROW_BYTES = 128
"""Assumed size of a marked row: in the last step, as many rows as fit into one piece are copied at once."""
MOST_ROUNDS = 8
"""Rounds of copying marked rows, after which the last step takes all that remain, however many there are. Also the
limit of a table's pieces with rows that were added while it was copied."""

Row = list[Any]
"""``[table, id, column...]``, or ``[table, id]`` for a deleted row."""


class Transfer(Protocol):
    """Yields the state in pieces. ``at`` is the entry that it is complete up to, None before that is known."""

    at: LogId | None
    sends_entries: bool
    """Whether entries of the log may be sent along with the pieces."""

    def next_chunk(self) -> bytes | None:
        """Return the next piece, encoded; None after the last one."""
        ...

    def close(self) -> None:
        """Release its resources."""


def encode_chunk(rows: list[Row]) -> bytes:
    """Encode one piece."""
    return wire.encode(rows)


def add_chunk(tables: dict[str, dict[int, Row]], chunk: bytes) -> None:
    """Add a piece to the received tables: table -> id -> row; raises WireError or ShapeError for an invalid one."""
    received = wire.decode(chunk)
    for row in received if isinstance(received, list) else [received]:
        check_row(row)
        rows = tables.setdefault(row[0], {})
        if len(row) > 2:
            rows[row[1]] = row
        else:
            rows.pop(row[1], None)


def rows_of(tables: dict[str, dict[int, Row]]) -> Iterator[Row]:
    """Iterate over all received rows, table by table, in the order in which the engine loads them."""
    for table in TABLES:
        yield from tables.get(table, {}).values()


def cut(rows: Iterator[Row], limit: int) -> list[Row]:
    """Take rows of about that many bytes from the front, at least one if there is one."""
    taken: list[Row] = []
    size = 0
    for row in rows:
        taken.append(row)
        size += sum(len(value) if isinstance(value, (bytes, str)) else 8 for value in row)
        if size >= limit:
            break
    return taken


class HeldBack:
    """The state of the present moment; the source is blocked while it reads all rows, not while it sends them."""

    sends_entries = True

    def __init__(self, dump: Iterable[Row], at: LogId, chunk: int = CHUNK_BYTES) -> None:
        self.at: LogId | None = at
        self._rows, self._chunk = iter(list(dump)), chunk

    def next_chunk(self) -> bytes | None:
        """Return the next piece; None after the last one."""
        rows = cut(self._rows, self._chunk)
        return encode_chunk(rows) if rows else None

    def close(self) -> None:
        """Release the rows."""
        self._rows = iter(())


class Marks:
    """Tracks changed rows of the engine's tables while there are watchers, by temporary triggers."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._watchers: list[dict[tuple[str, int], None]] = []
        self._remove()

    def watch(self) -> dict[tuple[str, int], None]:
        """Return a new ordered set, to which ``gather`` will add changed rows."""
        if not self._watchers:
            self._create()
        marked: dict[tuple[str, int], None] = {}
        self._watchers.append(marked)
        return marked

    def unwatch(self, marked: dict[tuple[str, int], None]) -> None:
        """Stop adding to the set."""
        self._watchers = [each for each in self._watchers if each is not marked]
        if not self._watchers:
            self._remove()

    @property
    def watched(self) -> int:
        """The number of watchers."""
        return len(self._watchers)

    def gather(self) -> None:
        """Add the rows that have changed since the last call to every watcher's set."""
        changed = list(self._database.execute("SELECT tbl, id FROM temp.changed_rows ORDER BY tbl, id"))
        self._database.execute("DELETE FROM temp.changed_rows")
        for marked in self._watchers:
            marked.update(dict.fromkeys(changed))

    def _create(self) -> None:
        run = self._database.execute
        run("CREATE TEMP TABLE changed_rows (tbl TEXT, id INTEGER, PRIMARY KEY (tbl, id)) WITHOUT ROWID")
        for table in TABLES:
            for event, row in (("INSERT", "NEW"), ("UPDATE", "NEW"), ("DELETE", "OLD")):
                run(f"CREATE TEMP TRIGGER changed_{event}_{table} AFTER {event} ON main.{table} BEGIN"
                    f" INSERT OR REPLACE INTO changed_rows VALUES ('{table}', {row}.id); END")

    def _remove(self) -> None:
        for table in TABLES:
            for event in ("INSERT", "UPDATE", "DELETE"):
                self._database.execute(f"DROP TRIGGER IF EXISTS temp.changed_{event}_{table}")
        self._database.execute("DROP TABLE IF EXISTS temp.changed_rows")


class TwoStep:
    """All rows in slices, each row as it is when it is read; then, until few are left, the rows changed since.

    Args:
        persist: writes all applied changes to the database; returns the last entry that they include.
        chunk: approximate minimum number of bytes of a piece.
    """

    sends_entries = False

    def __init__(self, database: sqlite3.Connection, marks: Marks, persist: Callable[[], LogId],
                 chunk: int = CHUNK_BYTES) -> None:
        self._database, self._marks, self._persist = database, marks, persist
        self._chunk, self._few = chunk, chunk // ROW_BYTES
        self._marked = marks.watch()
        self._pieces = self._copy()
        self.at: LogId | None = None

    def next_chunk(self) -> bytes | None:
        """Return the next piece; None after the last one."""
        return next(self._pieces, None)

    def close(self) -> None:
        """Stop marking rows."""
        self._pieces.close()
        self._marks.unwatch(self._marked)

    def _copy(self) -> Generator[bytes, None, None]:
        for table in TABLES:
            after: int | None = None
            highest, fresh = highest_key(self._database, table), 0
            # Rows may be added as fast as they are copied; they are marked, so they may be sent later.
            while fresh < MOST_ROUNDS and (
                rows := cut(read_slice(self._database, table, after), self._chunk)
            ):
                after = rows[-1][1]
                fresh += after > highest
                yield encode_chunk(rows)
        for _ in range(MOST_ROUNDS):
            if len(self._take_marked()) <= self._few:
                break
            yield from self._encode(self._swap())
        self.at = self._persist()
        self._take_marked()
        yield from list(self._encode(self._swap()))

    def _take_marked(self) -> dict[tuple[str, int], None]:
        self._marks.gather()
        return self._marked

    def _swap(self) -> list[tuple[str, int]]:
        marked = sorted(self._marked)
        self._marked.clear()
        return marked

    def _encode(self, marked: list[tuple[str, int]]) -> Iterator[bytes]:
        rows = (next(read_slice(self._database, table, key - 1, 1, key), [table, key]) for table, key in marked)
        while piece := cut(rows, self._chunk):
            yield encode_chunk(piece)
