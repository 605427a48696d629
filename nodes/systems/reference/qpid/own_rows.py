"""The rows of a Qpid broker's and of a manager's own tables: a start must take sound ones, and refuse all others.

The checker has its own sample of a row of each table, and spoils these rows one at a time.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from nodes.reference import wire
from nodes.reference.api import ConfigError
from nodes.reference.designs.qpid.configuration import Configuration
from nodes.reference.designs.qpid.manager.record import RecordStore
from nodes.reference.designs.qpid.positions import Generations
from nodes.reference.designs.qpid.pushed_urls import PushedUrls
from nodes.reference.designs.qpid.store_status import StoreStatus
from nodes.reference.designs.qpid.urls import Urls


class _Table(NamedTuple):
    """``start`` opens the table as a start of the program does; ``sound`` are rows that it may hold, and ``spoilt`` for
    each column values that it can't hold in the first of them."""

    name: str
    start: Callable[[sqlite3.Connection], object]
    sound: Sequence[tuple[Any, ...]]
    spoilt: Sequence[Sequence[Any]]


def _urls(database: sqlite3.Connection) -> PushedUrls:
    return PushedUrls(database, Urls({"n1": ("h", 1)}, {"n1": "h:1"}))


_NO_TEXT, _NO_NUMBER, _NO_VALUE = (b"x", 1), (-1, "x", 1.5), (b"\xff", "text", 1)
_NAMES, _BROKERS, _CLIENTS = wire.encode(["n1"]), wire.encode([["n1", "h", 1]]), wire.encode([["n1", "h:1"]])
_BINDING = wire.encode({"exchange": "e", "queue": "q", "key": "k"})
_TABLES = (
    _Table("qpid_store", StoreStatus,
           [(0, "dirty", "backup", 3, "u"), (0, "clean", "primary", 0, ""), (0, "empty", "backup", 0, "")],
           [(1, -1), ("", "other", b"x"), ("", "other", b"x"), _NO_NUMBER, (b"x",)]),
    _Table("qpid_objects", Configuration,
           [("queue", "q", wire.encode({"created": "1"})), ("exchange", "e", wire.encode({"type": "topic"}))],
           [("", "other", b"x"), (b"x",), (*_NO_VALUE, wire.encode([]), wire.encode({"a": 1}))]),
    _Table("qpid_objects", Configuration, [("exchange", "e", wire.encode({"type": "direct"}))],
           [("other", "binding"), (b"x",), (wire.encode({}), wire.encode({"type": "headers"}))]),
    _Table("qpid_objects", Configuration, [("binding", "e\nq\nk", _BINDING)],
           [("other",), ("e\nq\nx", ""), (wire.encode({"exchange": "e", "queue": "q"}),)]),
    _Table("qpid_generations", Generations, [("q", 1 << 32, 1), ("q", 0, 0)], [(b"x",), _NO_NUMBER, _NO_NUMBER]),
    _Table("qpid_urls", _urls, [(0, wire.encode([]), _BROKERS, _CLIENTS, _NAMES)],
           [(1, -1), ("text",), (*_NO_VALUE, wire.encode([["n1", "h"]]), wire.encode([["n1", "h", "1"]])),
            (*_NO_VALUE, wire.encode([["n1", 1]])), (*_NO_VALUE, wire.encode([1]))]),
    _Table("record", RecordStore,
           [(1, 3, 2, 1, "n1", 1, "p", 0, "[0, 0, []]"), (1, 0, 0, 0, "", 0, "", 0, '[1, 2, ["n2"]]')],
           [(), ("x", None), ("x", None), ("x", 1.5), (b"x", None), ("x",), (b"x", None), ("x",),
            ("", "[]", '[0, 0, ["n1", 1]]', '["0", 0, []]', "[0, 0]", b"x")]),
)  # fmt: skip


def misjudged() -> str:
    """Describe a row of the sample that a start takes or refuses wrongly; empty if there is none."""
    return next(filter(None, map(_of_table, _TABLES)), "")


def _of_table(table: _Table) -> str:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        table.start(database)
        for row in table.sound:
            if wrong := _started(database, table, row):
                return f"{row} in the table {table.name} is refused: {wrong}"
        for row, place in _spoilt(table):
            if not _started(database, table, row):
                return f"{row} in the table {table.name} is taken, which has a wrong column {place}"
    return ""


def _spoilt(table: _Table) -> Iterator[tuple[tuple[Any, ...], int]]:
    row = table.sound[0]
    for place, values in enumerate(table.spoilt):
        for value in values:
            yield (*row[:place], value, *row[place + 1 :]), place


def _started(database: sqlite3.Connection, table: _Table, row: Sequence[Any]) -> str:
    """Start from a database with this row; return why that is refused, empty if it is not."""
    database.execute(f"DELETE FROM {table.name}")
    try:
        database.execute(f"INSERT INTO {table.name} VALUES ({', '.join('?' * len(row))})", row)
        table.start(database)
    except sqlite3.Error:
        return "the table has no such rows"
    except ConfigError as error:
        return str(error)
    except Exception:  # the guard fails, or its caller does since it did not refuse
        return ""
    return ""
