"""Images of what engines and stores hold, and their comparison: memory with its store, replica with replica.

Bodies are left out where memory is compared: a wrong one is noticed by its recipient.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from nodes.reference.api import Image
from nodes.reference.engine.audit import stored
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.engine.model import PLAIN
from nodes.reference.engine.server_queues import ServicesDeployment
from nodes.reference.engine.state import EngineState
from nodes.reference.engine.store import TABLES, read_rows
from nodes.reference.engine.tables import NextNumbers

_MAX_ROWS_TOLD = 3
"""Number of differing rows reported for each side: a description is one line."""


def image(engine: StoreEngine) -> Image:
    """Return the contents of an engine's memory."""
    state = engine.state
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
    servers, clustered, security = engine.server_queues, engine.clustered, engine.security
    peers = servers.peers.values()
    done = [] if servers.deployment == ServicesDeployment() else [servers.deployment]
    return {
        **{table.name: table.rows_of(rows[table.name]) for table in state.tables.without_content},
        "shared": frozenset(shared.items()),
        "messages": frozenset((each.id, each.queue.id, each.shared.id if each.shared is not None else 0, each.sequence)
                              for each in messages),
        "servers": servers.peer_table.rows_of(peers), "deployment": servers.deployment_table.rows_of(done),
        "outgoing": frozenset((each.id, each.server, each.sequence, each.destination)
                              for peer in peers for each in peer.outgoing.values()),
        "shares": clustered.table.rows_of(clustered.shares.values()),
        "security": security.table.rows_of(security.rows.values()),
    }  # fmt: skip


def contents(state: EngineState) -> dict[str, dict[int, tuple[Mapping[str, str], bytes]]]:
    """Map the name of each queue to its messages, by number, as (headers, body); does not change what memory holds."""
    found: dict[str, dict[int, tuple[Mapping[str, str], bytes]]] = {name: {} for name in state.queues}
    for message in state.messages.values():
        if message.queue.kind == PLAIN:
            found[message.queue.name][message.sequence] = state.peek(message)
    return found


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
