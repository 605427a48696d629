"""Counts of a server's disk writes and their causes, logged now and then.

[Determining which HA to use: "for each database Store operation it needs just one disk-write", "for each operation on
the database, it needs two disk-writes".]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nodes.reference.api import Runtime

EVENT = "disk writes"
"""The name of the log event. Its fields count since the program's start: ``writes``, transactions written to a disk of
this machine; ``changes``, change-sets that this server has created as the active one; ``messages``, the messages in
them."""
_LOG_SECONDS = 2.0
"""Minimum time between two of these lines: enough for a rate, and few lines in a log."""


class DiskWriteCounter:
    """Counts change-sets and their messages; ``tell`` logs them with the disk writes that the caller has counted."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._told = (0, 0, 0)
        self._at = runtime.now()
        self.changes = self.messages = 0

    def add(self, tables: Iterable[Sequence[Any]]) -> None:
        """Count one change-set: (table, rows, keys of deleted rows)."""
        self.changes += 1
        self.messages += sum(len(rows) for name, rows, _ in tables if name == "messages")

    def tell(self, writes: int) -> None:
        """Log the counts if they changed since the last time, but at most once in ``_LOG_SECONDS``."""
        now, counted = self._runtime.now(), (writes, self.changes, self.messages)
        if counted != self._told and now >= self._at + _LOG_SECONDS:
            self._told, self._at = counted, now
            self._runtime.log(EVENT, writes=writes, changes=self.changes, messages=self.messages)
