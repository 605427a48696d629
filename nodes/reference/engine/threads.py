"""Names of the connection contexts of collocated clients, which run inside the broker."""

from __future__ import annotations

PREFIX = "local:"
"""Connection contexts of collocated clients are named ``local:THREAD:...``; the broker names those of others."""


def is_collocated(conn: str) -> bool:
    """Return whether a connection context is that of a collocated client."""
    return conn.startswith(PREFIX)


def thread_of(conn: str) -> str:
    """Return the name of the thread that a collocated client's context belongs to."""
    return conn.removeprefix(PREFIX).partition(":")[0]
