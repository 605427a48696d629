"""The broker's state on disk: SQLite tables that receive what changed since the last flush.

Every table has an integer key. Changes are gathered in memory while commands are applied and written with
one statement per table when the transaction is about to be committed, so a message that is sent and
acknowledged within one transaction never reaches the disk. The rows of all tables, in order of their keys,
are the whole state: a snapshot sends them, a restart reads them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
Row = tuple[Any, ...]

_SCHEMA: dict[str, tuple[str, ...]] = {
    "counters": ("id INTEGER PRIMARY KEY", "next_id INTEGER NOT NULL", "next_message INTEGER NOT NULL"),
    "queues": ("id INTEGER PRIMARY KEY", "name TEXT NOT NULL", "kind TEXT NOT NULL", "pattern TEXT NOT NULL",
               "served INTEGER NOT NULL", "enqueued INTEGER NOT NULL"),
    "contexts": (
        "id INTEGER PRIMARY KEY", "conn TEXT NOT NULL", "reliable INTEGER NOT NULL", "login TEXT NOT NULL",
        "in_seq INTEGER NOT NULL", "out_seq INTEGER NOT NULL", "received INTEGER NOT NULL",
    ),
    "subscriptions": (
        "id INTEGER PRIMARY KEY", "context INTEGER NOT NULL", "name TEXT NOT NULL", "queue INTEGER NOT NULL",
        "ack TEXT NOT NULL", "prefetch INTEGER NOT NULL",
    ),
    "shared": ("id INTEGER PRIMARY KEY", "topic TEXT NOT NULL", "headers BLOB NOT NULL", "body BLOB NOT NULL"),
    "messages": ("id INTEGER PRIMARY KEY", "queue INTEGER NOT NULL", "shared INTEGER NOT NULL",
                 "headers BLOB NOT NULL", "body BLOB NOT NULL", "sequence INTEGER NOT NULL"),
    "deliveries": ("id INTEGER PRIMARY KEY", "subscription INTEGER NOT NULL", "out_seq INTEGER NOT NULL",
                   "redeliveries INTEGER NOT NULL", "branch INTEGER NOT NULL"),
    "transactions": ("id INTEGER PRIMARY KEY", "context INTEGER NOT NULL", "name TEXT NOT NULL",
                     "login TEXT NOT NULL", "xid TEXT NOT NULL", "prepared INTEGER NOT NULL"),
    "items": ("id INTEGER PRIMARY KEY", "transaction_id INTEGER NOT NULL", "kind TEXT NOT NULL",
              "args BLOB NOT NULL"),
    "servers": ("id INTEGER PRIMARY KEY", "sent INTEGER NOT NULL", "acked INTEGER NOT NULL",
                "received INTEGER NOT NULL"),
    "outgoing": ("id INTEGER PRIMARY KEY", "server INTEGER NOT NULL", "sequence INTEGER NOT NULL",
                 "destination TEXT NOT NULL", "headers BLOB NOT NULL", "body BLOB NOT NULL"),
    "shares": ("id INTEGER PRIMARY KEY", "queue TEXT NOT NULL", "server INTEGER NOT NULL", "wanted INTEGER NOT NULL",
               "asked INTEGER NOT NULL"),
    "deployment": ("id INTEGER PRIMARY KEY", "phase INTEGER NOT NULL", "note TEXT NOT NULL"),
    "outcomes": ("id INTEGER PRIMARY KEY", "login TEXT NOT NULL", "xid TEXT NOT NULL", "outcome TEXT NOT NULL"),
    "closed": (
        "id INTEGER PRIMARY KEY", "conn TEXT NOT NULL", "reason TEXT NOT NULL", "in_seq INTEGER NOT NULL",
    ),
    "security": ("id INTEGER PRIMARY KEY", "kind TEXT NOT NULL", "name TEXT NOT NULL", "content BLOB NOT NULL"),
}
COLUMNS: Mapping[str, Sequence[str]] = _SCHEMA
"""Table name -> declarations of its columns."""
TABLES = tuple(_SCHEMA)
"""Names of the tables; the first column of each is its key, a whole number ``id``."""
_LOAD_ROWS = 1000
"""Rows that one statement inserts."""
_SLICE_ROWS = 1000
"""Rows that are read at a time."""
_PROGRESS_ROWS = 1000
"""Rows between two calls of ``on_progress``."""
_MAX_SINGLE_DELETES = 16
"""Maximum number of rows that are deleted one by one; beyond it, rows with consecutive keys are deleted together."""


def no_progress() -> None:
    """Report nothing; for work that is short or that no other task waits for."""


def with_progress(items: Iterable[T], on_progress: Callable[[], None]) -> Iterator[T]:
    """Yield the items, calling ``on_progress`` between batches so that long work can signal its progress to others."""
    for number, item in enumerate(items):
        if not number % _PROGRESS_ROWS:
            on_progress()
        yield item


class Changes:
    """The rows that flushes have written to the tables, for a component that keeps a copy of them elsewhere."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[int, Row | None]] = {}

    def add(self, table: str, rows: Iterable[Row], removed: Iterable[int]) -> None:
        """Record rows that were written, and the keys of rows that were deleted."""
        known = self._rows.setdefault(table, {})
        known.update(dict.fromkeys(removed))
        known.update((row[0], row) for row in rows)

    def drain(self) -> list[tuple[str, list[Row], list[int]]]:
        """Return (table, rows, removed keys) since the last call; a row that changed repeatedly is given in its latest
        state."""
        taken, self._rows = self._rows, {}
        return [(name, [row for row in rows.values() if row is not None],
                 [key for key, row in rows.items() if row is None]) for name, rows in taken.items()]

    def clear(self) -> None:
        """Forget the recorded changes."""
        self._rows = {}


class Records(Protocol):
    """Records of another component in its own tables of the same database: changed in memory, written in a
    transaction."""

    def write(self) -> None:
        """Write the changes, and keep them until they are known to be saved."""

    def saved(self) -> None:
        """Note that the written changes are in the store."""


class Table(Generic[T]):
    """The unsaved changes of one table; ``row`` converts an object to its row when it is written.

    ``changed`` holds the objects to be written, ``removed`` the keys of the rows to be deleted.
    """

    def __init__(self, name: str, row: Callable[[T], Row]) -> None:
        marks = ", ".join("?" * len(_SCHEMA[name]))
        self.name = name
        self._upsert = f"INSERT OR REPLACE INTO {name} VALUES ({marks})"
        self._delete = f"DELETE FROM {name} WHERE id = ?"
        self._delete_run = f"DELETE FROM {name} WHERE id BETWEEN ? AND ?"
        self._row = row
        self.changed: dict[int, T] = {}
        self._unsaved: set[int] = set()
        self.removed: list[tuple[int]] = []

    def rows_of(self, items: Iterable[T]) -> frozenset[Row]:
        """Return the rows of some objects."""
        return frozenset(map(self._row, items))

    @property
    def unsaved(self) -> bool:
        """Whether changes have not been written yet."""
        return bool(self.changed or self.removed)

    def insert(self, key: int, item: T) -> None:
        """Record a row that is not in the table yet."""
        self._unsaved.add(key)
        self.changed[key] = item

    def update(self, key: int, item: T) -> None:
        """Record a row that may be in the table already."""
        self.changed[key] = item

    def remove(self, key: int) -> None:
        """Record the removal of a row."""
        self.changed.pop(key, None)
        if key in self._unsaved:
            self._unsaved.remove(key)
        else:
            self.removed.append((key,))

    def is_unsaved(self, key: int) -> bool:
        """Return whether the row was inserted since the last flush."""
        return key in self._unsaved

    def flush(self, database: sqlite3.Connection, changes: Changes | None = None) -> list[T]:
        """Write the changes, and note them in ``changes`` if that is given; return the objects that were written."""
        if not (self.changed or self.removed):
            return []
        self.write(database, changes)
        return self.saved()

    def write(self, database: sqlite3.Connection, changes: Changes | None = None) -> None:
        """Write the changes, which stay unsaved until ``saved`` is called."""
        if self.removed:
            if len(self.removed) <= _MAX_SINGLE_DELETES:
                database.executemany(self._delete, self.removed)
            else:
                database.executemany(self._delete_run, runs(key for key, in self.removed))
            if changes is not None:
                changes.add(self.name, (), (key for key, in self.removed))
        if not self.changed:
            return
        if changes is None:
            database.executemany(self._upsert, map(self._row, self.changed.values()))
        else:
            rows = list(map(self._row, self.changed.values()))
            database.executemany(self._upsert, rows)
            changes.add(self.name, rows, ())

    def saved(self) -> list[T]:
        """Note that the written changes are in the store; return their objects."""
        self.removed = []
        if not self.changed:
            return []
        written = list(self.changed.values())
        self.changed = {}
        self._unsaved = set()
        return written

    def forget(self) -> None:
        """Drop the unsaved changes."""
        self.changed, self._unsaved, self.removed = {}, set(), []


def runs(keys: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the keys in ascending order as (first, last) of ranges without gaps."""
    ordered = sorted(keys)
    first = last = ordered[0]
    for key in ordered:
        if key > last + 1:
            yield first, last
            first = key
        last = key
    yield first, last


def create_tables(database: sqlite3.Connection) -> None:
    """Create the missing tables, and migrate those of an older version."""
    for name, columns in _SCHEMA.items():
        database.execute(f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(columns)})")
    columns_of = {name: [row[1] for row in database.execute(f"PRAGMA table_info({name})")]
                  for name in ("outgoing", "messages")}  # fmt: skip
    if "stamp" in columns_of["outgoing"]:
        database.execute("ALTER TABLE outgoing RENAME COLUMN stamp TO sequence")
    if "sequence" not in columns_of["messages"]:
        # Ids grow in the order of sending, so they can replace the sequence numbers that these messages never got.
        database.execute("ALTER TABLE messages ADD COLUMN sequence INTEGER NOT NULL DEFAULT 0")
        database.execute("UPDATE messages SET sequence = id")
        database.execute("ALTER TABLE queues ADD COLUMN enqueued INTEGER NOT NULL DEFAULT 0")
        database.execute("UPDATE queues SET enqueued = (SELECT coalesce(max(id), 0) FROM messages)")


def read_rows(database: sqlite3.Connection, table: str, columns: str = "*") -> Iterator[Row]:
    """Iterate over the rows of a table in order of their keys; they are read lazily."""
    yield from database.execute(f"SELECT {columns} FROM {table} ORDER BY id")


def read_slice(
    database: sqlite3.Connection, table: str, after: int | None = None, most: int = _SLICE_ROWS, upto: int | None = None
) -> Iterator[list[Any]]:
    """Yield at most ``most`` rows of a table as ``[table, column...]``, with keys above ``after`` and up to
    ``upto``."""
    query = f"SELECT * FROM {table} WHERE id > ? AND id <= ? ORDER BY id LIMIT ?"
    lowest, highest = -(1 << 63), (1 << 63) - 1
    for row in database.execute(query, (lowest if after is None else after, highest if upto is None else upto, most)):
        yield [table, *row]


def highest_key(database: sqlite3.Connection, table: str) -> int:
    """Return the highest key in a table; a value below every key when the table is empty."""
    (key,) = database.execute(f"SELECT max(id) FROM {table}").fetchone()
    return -(1 << 63) if key is None else int(key)


def read_all(database: sqlite3.Connection) -> Iterator[list[Any]]:
    """Yield every row of every table as ``[table, column...]``."""
    for name in _SCHEMA:
        for row in read_rows(database, name):
            yield [name, *row]


def replace_all(database: sqlite3.Connection, rows: Iterable[Sequence[Any]]) -> None:
    """Replace the tables' content by rows in the form of ``read_all``.

    Raises:
        ValueError: a row names no table or has the wrong number of columns.
    """
    for name in _SCHEMA:
        database.execute(f"DELETE FROM {name}")
    batch: list[Sequence[Any]] = []
    current = ""
    for name, *columns in rows:
        if name not in _SCHEMA or len(columns) != len(_SCHEMA[name]):
            raise ValueError(f"the snapshot holds a row that fits no table: {name!r}")
        if name != current or len(batch) >= _LOAD_ROWS:
            _insert(database, current, batch)
            current, batch = name, []
        batch.append(columns)
    _insert(database, current, batch)


def _insert(database: sqlite3.Connection, name: str, rows: list[Sequence[Any]]) -> None:
    if rows:
        marks = ", ".join("?" * len(_SCHEMA[name]))
        database.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
