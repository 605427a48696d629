"""What breaks invariants of a FioranoMQ pair: one each, for test_invariants.py."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.run.cases import Case
from nodes.reference.designs.fiorano.active import ActiveSide
from nodes.reference.designs.fiorano.gateway.grants import Grants
from nodes.reference.designs.fiorano.pair import Pair
from nodes.reference.designs.fiorano.repository import StoredStamp, is_newer
from nodes.reference.designs.fiorano.states import PASSIVE
from nodes.reference.designs.fiorano.transitions import next_step, wants_lock
from nodes.reference.storage.client import StorageClient
from nodes.reference.storage.database import StoredRows
from nodes.reference.storage.protocol import StorageError


def never_above(patch: pytest.MonkeyPatch) -> None:
    """Whoever goes on alone does so in the epoch that it has."""
    patch.setattr(ActiveSide, "may_go_alone", lambda self: (
        self._lock.holds() and self.repository.stamp.epoch == self._lock.epoch))


def one_more_stored(patch: pytest.MonkeyPatch) -> None:
    """A standby is taken to have one change-set more than it says."""
    stored = ActiveSide.stored
    patch.setattr(ActiveSide, "stored", lambda self, message: stored(
        self, message._replace(counter=message.counter + 1)))


def epoch_untold(patch: pytest.MonkeyPatch) -> None:
    """A standby hears of a new epoch with the next change."""
    tell = ActiveSide._tell
    patch.setattr(ActiveSide, "_tell", lambda self, tables: tell(self, tables) if tables else None)


def complete_at_once(patch: pytest.MonkeyPatch) -> None:
    """A standby that has anything has everything."""
    stored = ActiveSide.stored
    patch.setattr(ActiveSide, "stored", lambda self, message: stored(self, message) or True)


def more_disowned(patch: pytest.MonkeyPatch) -> None:
    """A server hears one epoch more than the other one has said."""
    take = Pair.take_hello
    patch.setattr(Pair, "take_hello", lambda self, hello: take(self, hello._replace(asked=hello.asked + 1)))


def nobody_seeks(patch: pytest.MonkeyPatch) -> None:
    """A standby whose active server is gone does not ask for the lock."""
    patch.setattr("nodes.reference.designs.fiorano.server.wants_lock", lambda table, view: (
        view.state != PASSIVE and wants_lock(table, view)))


def lock_not_needed(patch: pytest.MonkeyPatch) -> None:
    """A standby whose active server is gone takes its place at once."""
    patch.setattr("nodes.reference.designs.fiorano.server.next_step", lambda table, view: next_step(
        table, replace(view, lock=view.lock or view.state == PASSIVE)))


def changes_left_out(patch: pytest.MonkeyPatch) -> None:
    """A commit to the shared database leaves out the last table that it is about."""
    commit = StorageClient.commit
    patch.setattr(StorageClient, "commit", lambda self, epoch, sequence, changes: commit(
        self, epoch, sequence, changes[:-1] or changes))


def unsynced_repository(patch: pytest.MonkeyPatch) -> None:
    """A server does not wait for its disk."""
    read = StoredStamp.__init__

    def init(self: StoredStamp, database: sqlite3.Connection) -> None:
        read(self, database)
        database.execute("PRAGMA synchronous=OFF")

    patch.setattr(StoredStamp, "__init__", init)


def unsynced_database(patch: pytest.MonkeyPatch) -> None:
    """The storage service does not wait for its disk."""
    read = StoredRows.__init__

    def init(self: StoredRows, database: sqlite3.Connection, *about: Any) -> None:
        read(self, database, *about)
        database.execute("PRAGMA synchronous=OFF")

    patch.setattr(StoredRows, "__init__", init)


def secondary_leads(patch: pytest.MonkeyPatch) -> None:
    """Of two equal repositories the secondary's is used."""
    patch.setattr("nodes.reference.designs.fiorano.pair.is_newer", lambda mine, other, primary, stamps: is_newer(
        mine, other, not primary, stamps))


def lock_always_sought(patch: pytest.MonkeyPatch) -> None:
    """A standby asks for the lock, whoever serves."""
    patch.setattr("nodes.reference.designs.fiorano.server.wants_lock", lambda table, view: (
        view.state == PASSIVE or wants_lock(table, view)))


FIORANO = Case("fiorano", "queue", "kill", None, 20.0, 30.0, {"min_ok": "5"})
_SHARED = replace(FIORANO, settings={"min_ok": "5", "mode": "shared"})
FIORANO_BREAKS: dict[str, tuple[Case, Callable[[pytest.MonkeyPatch], None]]] = {
    "stored-before-told": (FIORANO, unsynced_repository),
    "stored-before-confirmed": (FIORANO, unsynced_repository),
    "better-repository-leads": (FIORANO, secondary_leads),
    "seeks-the-shared-lock": (_SHARED, lock_always_sought),
    "database-has-stored": (_SHARED, unsynced_database),
}


def fence_unknown(patch: pytest.MonkeyPatch) -> None:
    """A server takes the answer that another epoch holds the database for any other failure."""
    patch.setattr("nodes.reference.storage.client.FencedError", lambda epoch: StorageError(str(epoch)))


def both_in_view(patch: pytest.MonkeyPatch) -> None:
    """A server shows the other one as if it were there."""
    status = Pair.status
    patch.setattr(Pair, "status", lambda self: {**status(self), "channel": True})


def forgotten_fence(patch: pytest.MonkeyPatch) -> None:
    """A storage service that is started anew knows one commit less."""
    read = StoredRows.__init__

    def init(self: StoredRows, *about: Any) -> None:
        read(self, *about)
        self.applied = max(0, self.applied - 1)

    patch.setattr(StoredRows, "__init__", init)


def forgotten_holder(patch: pytest.MonkeyPatch) -> None:
    """A gateway whose lock file is gone does not know who had the lock."""
    lose = Grants.lose

    def without(self: Grants, now: float) -> None:
        lose(self, now)
        self._former = ""

    patch.setattr(Grants, "lose", without)


def no_margin(patch: pytest.MonkeyPatch) -> None:
    """The gateway keeps the lock just as long as its holder believes."""
    patch.setattr("nodes.reference.designs.fiorano.gateway.grants.MARGIN", 1.0)


def own_lock_awaited(patch: pytest.MonkeyPatch) -> None:
    """Whoever holds the lock has to wait for its end to get a later epoch."""
    patch.setattr(Grants, "is_taken", lambda self, name, now: now < self.holder_until)
