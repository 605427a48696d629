"""The whole state, in pieces, for a replica that the log can't bring up to date (4.7.3).

Two forms. ``held-back``: the state as it is at one moment; what the master multicasts meanwhile is sent as well,
and kept undelivered by the receiver until it has the whole state. ``two-step``: all rows first, in slices, while
the source goes on and marks what changes; then the marked rows once more, and what the log brought since. The first
is simple, but the source stands still while it takes the state, and the receiver holds all that arrives. With the
second the source never stands still for longer than a slice takes.
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
"""About what a marked row is taken to have: as many as are one piece are copied at once, in the last step."""
MOST_ROUNDS = 8
"""Rounds of copying marked rows, after which the last step takes them all, however many there are; also pieces of a
table that hold rows which were added while it was copied."""

Row = list[Any]
"""``[table, id, column...]``, or ``[table, id]`` for a row that is gone."""


class Transfer(Protocol):
    """Gives the state piece by piece. ``at`` is the entry that it is complete up to, None before that is known."""

    at: LogId | None
    sends_entries: bool
    """Whether entries of the log may be sent along with the pieces."""

    def next_chunk(self) -> bytes | None:
        """The next piece, encoded; None when all have been given."""
        ...

    def close(self) -> None:
        """It is no longer needed."""


def encode_chunk(rows: list[Row]) -> bytes:
    """One piece."""
    return wire.encode(rows)


def add_chunk(tables: dict[str, dict[int, Row]], chunk: bytes) -> None:
    """Add a piece to what has been received: table -> id -> row; raises WireError or ShapeError for what is none."""
    received = wire.decode(chunk)
    for row in received if isinstance(received, list) else [received]:
        check_row(row)
        rows = tables.setdefault(row[0], {})
        if len(row) > 2:
            rows[row[1]] = row
        else:
            rows.pop(row[1], None)


def rows_of(tables: dict[str, dict[int, Row]]) -> Iterator[Row]:
    """All rows received, table by table, as the engine loads them."""
    for table in TABLES:
        yield from tables.get(table, {}).values()


def cut(rows: Iterator[Row], limit: int) -> list[Row]:
    """Rows of about that many bytes from the front, at least one if there is one."""
    taken: list[Row] = []
    size = 0
    for row in rows:
        taken.append(row)
        size += sum(len(value) if isinstance(value, (bytes, str)) else 8 for value in row)
        if size >= limit:
            break
    return taken


class HeldBack:
    """The state as it is now; the source stands still while it reads all rows, not while it sends them."""

    sends_entries = True

    def __init__(self, dump: Iterable[Row], at: LogId, chunk: int = CHUNK_BYTES) -> None:
        self.at: LogId | None = at
        self._rows, self._chunk = iter(list(dump)), chunk

    def next_chunk(self) -> bytes | None:
        """The next piece; None when all have been given."""
        rows = cut(self._rows, self._chunk)
        return encode_chunk(rows) if rows else None

    def close(self) -> None:
        """Let the rows go."""
        self._rows = iter(())


class Marks:
    """Which rows of the engine's tables have changed, while somebody asks: temporary triggers tell."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._watchers: list[dict[tuple[str, int], None]] = []
        self._remove()

    def watch(self) -> dict[tuple[str, int], None]:
        """A set, kept in order, to which changed rows will be added by ``gather``."""
        if not self._watchers:
            self._create()
        marked: dict[tuple[str, int], None] = {}
        self._watchers.append(marked)
        return marked

    def unwatch(self, marked: dict[tuple[str, int], None]) -> None:
        """The set is no longer needed."""
        self._watchers = [each for each in self._watchers if each is not marked]
        if not self._watchers:
            self._remove()

    @property
    def watched(self) -> int:
        """How many ask."""
        return len(self._watchers)

    def gather(self) -> None:
        """Tell every watcher what has changed since the last call."""
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
    """All rows in slices, as each is when its turn comes; then, until few are left, those that changed meanwhile.

    Args:
        persist: writes all that has been applied to the database; returns the entry up to which that is.
        forgetful: leaves the second step out (a bug that can be switched on).
        chunk: about how many bytes a piece has, at least.
    """

    sends_entries = False

    def __init__(self, database: sqlite3.Connection, marks: Marks, persist: Callable[[], LogId],
                 forgetful: bool = False, chunk: int = CHUNK_BYTES) -> None:
        self._database, self._marks, self._persist, self._forgetful = database, marks, persist, forgetful
        self._chunk, self._few = chunk, chunk // ROW_BYTES
        self._marked = marks.watch()
        self._pieces = self._copy()
        self.at: LogId | None = None

    def next_chunk(self) -> bytes | None:
        """The next piece; None when all have been given."""
        return next(self._pieces, None)

    def close(self) -> None:
        """Mark nothing any more."""
        self._pieces.close()
        self._marks.unwatch(self._marked)

    def _copy(self) -> Generator[bytes, None, None]:
        for table in TABLES:
            after: int | None = None
            highest, fresh = highest_key(self._database, table), 0
            # Rows may be added as fast as they are copied; they are marked, so they need not come now.
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
        yield from [] if self._forgetful else list(self._encode(self._swap()))

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
