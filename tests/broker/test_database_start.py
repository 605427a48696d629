"""The database of a starting broker: all that it reads survives a power loss from then on."""

from __future__ import annotations

import random
import sqlite3

import pytest

from harness.sim.disk import SimDisk
from nodes.reference.server.runtime import prepared
from stormproof.contracts.backend import DiskFault


def test_changes_that_a_failed_sync_has_left_are_durable_once_they_are_read() -> None:
    disk = SimDisk(random.Random(1))
    database = prepared(disk.open_database("broker.db"), "broker.db")
    database.execute("CREATE TABLE told (number INTEGER)")
    disk.set_fault(DiskFault("sync-error"))
    with pytest.raises(sqlite3.Error):
        database.execute("INSERT INTO told VALUES (1)")
    disk.abandon()
    disk.set_fault(None)
    database = prepared(disk.open_database("broker.db"), "broker.db")
    read = database.execute("SELECT number FROM told").fetchone()
    disk.abandon()
    for file in disk._files.values():
        file.lose([])
    database = prepared(disk.open_database("broker.db"), "broker.db")
    assert database.execute("SELECT number FROM told").fetchone() == read == (1,)
    disk.discard()
