"""The contents of an engine's store, for comparison with those of another store or of memory.

Bodies are left out: a wrong one is noticed by its recipient.
"""

from __future__ import annotations

import sqlite3
import zlib

from nodes.reference.api import Image

_COLUMNS = {
    "counters": "*", "queues": "*", "contexts": "*", "subscriptions": "*", "transactions": "*", "items": "*",
    "closed": "*", "outcomes": "*", "shared": "id, topic", "messages": "id, queue, shared, sequence",
    # For a message that was delivered and given back uncounted, a row may or may not exist.
    "deliveries": "* FROM deliveries WHERE subscription OR redeliveries OR branch --",
    "servers": "*", "outgoing": "id, server, sequence, destination", "shares": "*", "deployment": "*", "security": "*",
}  # fmt: skip
def stored(database: sqlite3.Connection) -> Image:
    """Return the contents of the store."""
    return {name: frozenset(database.execute(f"SELECT {columns} FROM {name}")) for name, columns in _COLUMNS.items()}


def fingerprints(database: sqlite3.Connection) -> dict[str, str]:
    """Map each table to its number of rows and their hash, which are equal where two stores hold the same."""
    return {name: f"{len(rows)}:{zlib.crc32(repr(sorted(rows)).encode()):08x}"
            for name, rows in stored(database).items()}
