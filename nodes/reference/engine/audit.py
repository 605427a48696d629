"""Compares the contents of an engine's memory and of its store, which must be equal.

Bodies are left out: a wrong one is noticed by its recipient.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from nodes.reference.api import Image
from nodes.reference.engine.state import EngineState
from nodes.reference.engine.store import TABLES, read_rows
from nodes.reference.engine.tables import NextNumbers

_COLUMNS = {
    "counters": "*", "queues": "*", "contexts": "*", "subscriptions": "*", "transactions": "*", "items": "*",
    "closed": "*", "outcomes": "*", "shared": "id, topic", "messages": "id, queue, shared, sequence",
    # For a message that was delivered and given back uncounted, a row may or may not exist.
    "deliveries": "* FROM deliveries WHERE subscription OR redeliveries OR branch --",
    "servers": "*", "outgoing": "id, server, sequence, destination", "shares": "*", "deployment": "*", "security": "*",
}  # fmt: skip
_MAX_ROWS_TOLD = 3
"""Number of differing rows reported for each side."""


def held(state: EngineState) -> Image:
    """Return the contents of memory."""
    contexts = list(state.contexts.values())
    messages = list(state.messages.values())
    transactions = {id(each): each for context in contexts for each in context.transactions.values()}
    transactions |= {id(each): each for each in state.branches.values()}
    rows = {
        "counters": [state.counters] if state.counters != NextNumbers() else [],
        "queues": state.all_queues(), "contexts": contexts,
        "subscriptions": [each for context in contexts for each in context.subscriptions.values()],
        "transactions": transactions.values(),
        "items": [item for transaction in transactions.values() for item in transaction.items],
        "closed": state.closed, "outcomes": state.outcomes,
        "deliveries": [each for each in messages if each.subscription or each.redeliveries or each.branch],
    }  # fmt: skip
    shared = {each.shared.id: each.shared.topic for each in messages if each.shared is not None}
    return {
        **{table.name: table.rows_of(rows[table.name]) for table in state.tables.without_content},
        "shared": frozenset(shared.items()),
        "messages": frozenset((each.id, each.queue.id, each.shared.id if each.shared is not None else 0, each.sequence)
                              for each in messages),
    }


def stored(database: sqlite3.Connection) -> Image:
    """Return the contents of the store."""
    return {name: frozenset(database.execute(f"SELECT {columns} FROM {name}")) for name, columns in _COLUMNS.items()}


Rows = Mapping[str, Mapping[int, Sequence[Any]]]
"""Table -> key -> the other columns."""


def rows_of(database: sqlite3.Connection) -> Rows:
    """Return all rows of all non-empty tables, bodies included."""
    tables = {name: {row[0]: list(row[1:]) for row in read_rows(database, name)} for name in TABLES}
    return {name: rows for name, rows in tables.items() if rows}


def unlike(one: Rows, other: Rows, names: tuple[str, str]) -> str:
    """Describe the first difference; empty if there is none. ``names`` are the names of the two sides."""
    for table in sorted({*one, *other}):
        mine, theirs = one.get(table, {}), other.get(table, {})
        for key in sorted({*mine, *theirs}):
            if list(mine.get(key, ())) != list(theirs.get(key, ())):
                return f"{table} {key}: {names[0]} has {mine.get(key)}, and {names[1]} {theirs.get(key)}"
    return ""


def fingerprints(database: sqlite3.Connection) -> dict[str, str]:
    """Map each table to its number of rows and their hash, which are equal where two stores hold the same."""
    return {name: f"{len(rows)}:{zlib.crc32(repr(sorted(rows)).encode()):08x}"
            for name, rows in stored(database).items()}


def difference(one: Image, other: Image, names: tuple[str, str]) -> str:
    """Describe the first difference of two images; empty if there is none. ``names`` are the names of the two sides."""
    for table, rows in one.items():
        if rows != other[table]:
            mine, theirs = (sorted(each, key=repr)[:_MAX_ROWS_TOLD]
                            for each in (rows - other[table], other[table] - rows))
            return f"{table}: {names[0]} has {mine}, and {names[1]} {theirs}"
    return ""


def unlike_store(memory: Image, database: sqlite3.Connection) -> str:
    """Describe how memory, without unwritten changes, differs from the store."""
    return difference(memory, stored(database), ("memory", "the store"))
