"""What a store says of itself [Interaction with the store]: clean or dirty, primary's or backup's, generation."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace
from typing import Any

EMPTY, CLEAN, DIRTY = "empty", "clean", "dirty"
PRIMARY_STORE, BACKUP_STORE = "primary", "backup"


@dataclass(frozen=True)
class Status:
    """``uuid`` identifies the shutdown that left a clean store, or the one from which a dirty store was started."""

    state: str = EMPTY
    role: str = BACKUP_STORE
    generation: int = 0
    uuid: str = ""

    def describe(self) -> dict[str, Any]:
        """For an administrator."""
        return {"state": self.state, "role": self.role, "generation": self.generation, "uuid": self.uuid}


class StoreStatus:
    """The status in the broker's database; written in an open transaction."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        database.execute("CREATE TABLE IF NOT EXISTS qpid_store (id INTEGER PRIMARY KEY, state TEXT NOT NULL, "
                         "role TEXT NOT NULL, generation INTEGER NOT NULL, uuid TEXT NOT NULL)")
        row = database.execute("SELECT state, role, generation, uuid FROM qpid_store WHERE id = 0").fetchone()
        self.now = Status(*row) if row else Status()

    def write(self, **changes: Any) -> None:
        """Change some of it."""
        self.now = status = replace(self.now, **changes)
        self._database.execute("INSERT OR REPLACE INTO qpid_store VALUES (0, ?, ?, ?, ?)",
                               (status.state, status.role, status.generation, status.uuid))
