"""Read-only probe of the storage service."""

from __future__ import annotations

from typing import NamedTuple

from nodes.reference.api import Pending
from nodes.reference.storage.database import StoredRows
from nodes.reference.storage.protocol import SERVICE
from nodes.reference.storage.service import StorageService
from nodes.systems.reference.probes.images import Rows

STORAGE = "storage"
"""The kind of the storage service's program, for invariants."""


class StorageObserved(NamedTuple):
    """The values that invariants observe: the epoch that holds the store, its holder, and its number of applied
    commits."""

    epoch: int
    holder: str
    applied: int


class StorageProbe:
    """Observes the storage service."""

    kind, name = STORAGE, SERVICE

    def __init__(self, service: StorageService) -> None:
        self._service = service

    def observed(self) -> StorageObserved:
        """Return the current epoch and its holder."""
        rows = self._service.rows
        return StorageObserved(rows.epoch, rows.holder, rows.applied)

    def pending(self) -> Pending:
        """Return the requests that wait to be carried out."""
        return {"request": [self._service.batches]} if self._service.waiting else {}

    def rows(self) -> Rows | None:
        """Return all stored rows; None where another program keeps them."""
        rows = self._service.rows
        return rows.rows() if isinstance(rows, StoredRows) else None
