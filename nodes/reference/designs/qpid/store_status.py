"""The status in a store [Interaction with the store]: clean or dirty, primary's or backup's, generation."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nodes.reference.designs.qpid.records import KeyedRows, rows_of

EMPTY, CLEAN, DIRTY = "empty", "clean", "dirty"
PRIMARY_STORE, BACKUP_STORE = "primary", "backup"
MAX_UUID = 64
"""Maximum length of an identifier."""


@dataclass(frozen=True)
class Status:
    """``uuid`` identifies the shutdown that left a clean store, or the one from which a dirty store was started."""

    state: str = EMPTY
    role: str = BACKUP_STORE
    generation: int = 0
    uuid: str = ""

    def describe(self) -> dict[str, Any]:
        """Return the status for an administrator."""
        return {"state": self.state, "role": self.role, "generation": self.generation, "uuid": self.uuid}


def first_start(stores: Iterable[Mapping[str, Any] | None]) -> bool:
    """Tell whether all brokers report stores that are empty, or clean with one identifier, so that any of them may
    become primary. None: a broker reports nothing."""
    found = {("", "") if store is None else (store["state"], store["uuid"]) for store in stores}
    return len(found) == 1 and next(iter(found))[0] in (EMPTY, CLEAN)


def _is_row(number: Any, state: Any, role: Any, generation: Any, uuid: Any) -> bool:
    known = number == 0 and state in (EMPTY, CLEAN, DIRTY) and role in (PRIMARY_STORE, BACKUP_STORE)
    return known and type(generation) is int and generation >= 0 and isinstance(uuid, str)


class StoreStatus:
    """The status in the broker's database; changed in an open transaction, at whose end ``records`` are written."""

    def __init__(self, database: sqlite3.Connection) -> None:
        """Load the status; raises ConfigError when the database holds anything else."""
        database.execute("CREATE TABLE IF NOT EXISTS qpid_store (id INTEGER PRIMARY KEY, state TEXT NOT NULL, "
                         "role TEXT NOT NULL, generation INTEGER NOT NULL, uuid TEXT NOT NULL)")
        found = [Status(*row) for _, *row in
                 rows_of(database, "qpid_store", ("id", "state", "role", "generation", "uuid"), _is_row)]
        self.now = found[0] if found else Status()
        self.records: KeyedRows[tuple[int]] = KeyedRows(
            database, "DELETE FROM qpid_store WHERE id = ?", "INSERT INTO qpid_store VALUES (?, ?, ?, ?, ?)",
            lambda key: [(*key, self.now.state, self.now.role, self.now.generation, self.now.uuid)],
        )

    def write(self, **changes: Any) -> None:
        """Change the named fields of the status."""
        self.now = replace(self.now, **changes)
        self.records.changed((0,))
