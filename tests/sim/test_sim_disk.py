"""Simulated disks: what a kill, a power loss and each fault leave of a SQLite database."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.sim.disk import SimDisk, SimFile
from nodes.reference.api import Config, ConfigError
from nodes.reference.server.runtime import RealRuntime, prepared
from stormproof.contracts.backend import DISK_DAMAGES, DISK_FAULTS, DiskFault

SEEDS = range(30)


def opened(disk: SimDisk, synchronous: str = "FULL") -> sqlite3.Connection:
    database = prepared(disk.open_database("broker"), "broker")
    database.execute(f"PRAGMA synchronous={synchronous}")
    database.execute("CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")
    return database


def fill(database: sqlite3.Connection, start: int, stop: int) -> None:
    """One transaction for each row."""
    for number in range(start, stop):
        database.execute("BEGIN IMMEDIATE")
        database.executemany("INSERT INTO t VALUES (?, ?)", [(number, bytes([number % 256]) * 700)])
        database.execute("COMMIT")


def stored(database: sqlite3.Connection) -> list[int]:
    rows = list(database.execute("SELECT id, body FROM t ORDER BY id"))
    assert all(body == bytes([number % 256]) * 700 for number, body in rows)
    return [number for number, _ in rows]


@pytest.mark.requirement("H5", part=True)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_committed_survives_a_power_loss_and_what_was_under_way_does_not(seed: int) -> None:
    disk = SimDisk(random.Random(seed))
    database = opened(disk)
    fill(database, 0, 40)
    database.execute("BEGIN IMMEDIATE")
    database.executemany("INSERT INTO t VALUES (?, ?)", [(99, bytes([99]) * 700)])
    disk.power_lost()
    assert stored(opened(disk)) == list(range(40))


def test_a_database_that_does_not_sync_keeps_its_commits_at_a_kill_and_loses_some_with_the_power() -> None:
    kept = []
    for seed in SEEDS:
        disk = SimDisk(random.Random(seed))
        fill(opened(disk), 0, 20)
        fill(opened(disk, "OFF"), 20, 40)
        disk.process_died()
        assert stored(opened(disk)) == list(range(40))
        fill(opened(disk, "OFF"), 40, 60)
        disk.power_lost()
        try:
            kept.append(len(stored(opened(disk))))
        except (ConfigError, sqlite3.Error):
            kept.append(-1)  # without syncs writes are out of order, and the file may be broken
    assert min(kept) < 60 and len(set(kept)) > 3


@pytest.mark.parametrize("seed", SEEDS)
def test_a_torn_last_write_costs_the_transaction_that_was_being_written_and_no_other(seed: int) -> None:
    disk = SimDisk(random.Random(seed))
    fill(opened(disk), 0, 20)
    database = opened(disk, "NORMAL")  # commits without a sync, so that there is something to tear
    fill(database, 20, 25)
    disk.set_fault(DiskFault("torn"))
    disk.process_died()
    assert disk.shown == 1
    found = stored(opened(disk))
    assert found == list(range(len(found))) and 20 <= len(found) < 25


@pytest.mark.parametrize("kind", ["full", "write-error", "sync-error"])
def test_a_failing_disk_refuses_commits_and_keeps_what_it_had(kind: str) -> None:
    disk = SimDisk(random.Random(1))
    database = opened(disk)
    fill(database, 0, 20)
    assert disk.probe() == "ok"
    disk.set_fault(DiskFault(kind))
    assert disk.probe() == "failed" and disk.shown == 0
    with pytest.raises(sqlite3.OperationalError):
        fill(database, 20, 60)
    assert disk.shown > 0
    disk.process_died()
    shown = disk.shown
    disk.set_fault(None)
    assert disk.shown == shown, "what shows while it is set right counts, too"
    found = stored(opened(disk))
    assert found == list(range(len(found))) and 20 <= len(found) < 60
    fill(opened(disk), len(found), 60)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # SQLite tries again as it closes
@pytest.mark.parametrize("kind", ["full", "write-error", "sync-error"])
def test_a_broker_cannot_start_on_a_failing_disk(kind: str) -> None:
    disk = SimDisk(random.Random(1))
    disk.set_fault(DiskFault(kind))
    with pytest.raises((ConfigError, sqlite3.OperationalError)):
        fill(opened(disk), 0, 40)


def test_a_page_of_noise_is_refused_wherever_it_is() -> None:
    for seed in range(60):
        disk = SimDisk(random.Random(seed))
        database = opened(disk)
        fill(database, 0, 60)
        database.close()
        disk.set_fault(DiskFault("corrupt"))
        assert disk.shown == 1
        with pytest.raises(ConfigError, match=r"data: broker (is damaged|can't be used).*move it away"):
            prepared(disk.open_database("broker"), "broker")


def test_bits_of_matching_files_are_flipped() -> None:
    for seed in range(20):
        disk = SimDisk(random.Random(seed))
        files = [file for name in ("broker", "broker-wal", "other") if (file := disk.file(name, create=True))]
        for file in files:
            file.write(0, bytes(100))
        disk.set_fault(DiskFault("bits", files="broker*", bits=12))
        images = [bytes(file.data) for file in files]
        assert int.from_bytes(b"".join(images)).bit_count() == 12 and images[2] == bytes(100)
        assert disk.shown == sum(any(image) for image in images)
        disk.power_lost()
        assert all(file.data == image for file, image in zip(files, images, strict=True) if any(image))


def test_a_truncated_file_is_shorter() -> None:
    disk = SimDisk(random.Random(1))
    fill(database := opened(disk), 0, 60)
    database.close()
    disk.set_fault(DiskFault("truncate", files="broker"))
    assert disk.shown == 1
    with pytest.raises((ConfigError, sqlite3.DatabaseError)):
        list(stored(opened(disk)))


@pytest.mark.parametrize("kind", DISK_DAMAGES)
def test_a_damage_that_finds_no_file_does_not_show(kind: str) -> None:
    disk = SimDisk(random.Random(1))
    fill(opened(disk), 0, 20)
    disk.set_fault(DiskFault(kind, files="**/*.blk", bits=1))
    assert disk.shown == 0 and stored(opened(disk)) == list(range(20))


def test_an_empty_disk_holds_nothing() -> None:
    disk = SimDisk(random.Random(1))
    fill(opened(disk), 0, 20)
    disk.process_died()
    disk.set_fault(DiskFault("empty"))
    assert stored(opened(disk)) == []


@pytest.mark.requirement("H5", part=True)
@pytest.mark.parametrize("kind", DISK_FAULTS)
def test_no_fault_shows_on_a_disk_that_no_program_uses(kind: str) -> None:
    """What the probe does is not a program's; the same fault shows where a database is."""
    for used in (False, True):
        disk = SimDisk(random.Random(1))
        if used:
            fill(database := opened(disk), 0, 20)
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert (disk.held > 0) is used
        disk.set_fault(DiskFault(kind, 0.1))
        assert disk.probe() == {"slow": "slow", "full": "failed", "write-error": "failed", "sync-error": "failed"}.get(
            kind, "ok")  # fmt: skip
        if used:
            with contextlib.suppress(sqlite3.Error):
                fill(database, 20, 60)
        disk.process_died()
        assert (disk.shown > 0) is used


def test_a_slow_disk_makes_its_process_wait_for_every_sync() -> None:
    disk = SimDisk(random.Random(1))
    database, waits = opened(disk), []
    disk.stall = lambda program, seconds: waits.append(seconds)
    fill(database, 0, 5)
    assert waits == []
    disk.set_fault(DiskFault("slow", 0.25))
    fill(database, 5, 10)
    assert waits == [0.25] * 5 and disk.shown == 5


def test_what_a_dead_process_still_does_changes_nothing() -> None:
    disk = SimDisk(random.Random(1))
    database = opened(disk)
    fill(database, 0, 10)
    disk.process_died()
    with pytest.raises(Exception):  # noqa: B017  (apsw says so with an error that sqlite3 does not have)
        fill(database, 10, 20)
    assert stored(opened(disk)) == list(range(10))


def test_the_real_store_waits_for_the_disk_and_refuses_a_damaged_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    config = Config("n1", "standalone", str(tmp_path), options={"seed": 1})
    database = RealRuntime(config).open_database("broker")
    assert next(iter(database.execute("PRAGMA synchronous")))[0] == 2  # FULL
    assert next(iter(database.execute("PRAGMA journal_mode")))[0] == "wal"
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")
    fill(database, 0, 60)
    database.close()
    path = tmp_path / "broker.sqlite"
    content = bytearray(path.read_bytes())
    content[8192:12288] = random.Random(1).randbytes(4096)
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"broker.sqlite is damaged \(.*\); move it away"):
        RealRuntime(config).open_database("broker")


class TwoImages:
    """What a file should be: the image that is read, and beside it the one on the disk."""

    def __init__(self) -> None:
        self.read, self.disk = bytearray(), bytearray()
        self.pending: list[tuple[int, bytes | None]] = []

    def write(self, offset: int, data: bytes) -> None:
        self._change(self.read, (offset, data))
        self.pending.append((offset, data))

    def truncate(self, size: int) -> None:
        self._change(self.read, (size, None))
        self.pending.append((size, None))

    def sync(self) -> None:
        self.disk = bytearray(self.read)
        self.pending.clear()

    def lose(self, surviving: list[tuple[int, bytes | None]]) -> None:
        for change in surviving:
            self._change(self.disk, change)
        self.pending.clear()
        self.read = bytearray(self.disk)

    def damage(self, offset: int, noise: bytes) -> None:
        for image in (self.read, self.disk):
            for place in range(offset, min(offset + len(noise), len(image))):
                image[place] = noise[place - offset]

    @staticmethod
    def _change(image: bytearray, change: tuple[int, bytes | None]) -> None:
        offset, data = change
        if data is None:
            del image[offset:]
        else:
            image.extend(bytes(max(0, offset - len(image))))
            image[offset : offset + len(data)] = data


OFFSETS = st.integers(0, 40)
CHANGES = st.one_of(
    st.tuples(st.just("write"), OFFSETS, st.binary(max_size=12)),
    st.tuples(st.just("truncate"), OFFSETS),
    st.tuples(st.just("sync")),
    st.tuples(st.just("lose"), st.lists(st.booleans(), min_size=30, max_size=30)),
    st.tuples(st.just("damage"), OFFSETS, st.binary(min_size=1, max_size=8)),
)


@pytest.mark.requirement("H4", part=True)
@given(st.lists(CHANGES, max_size=30))
def test_a_file_is_what_was_written_and_after_a_loss_what_was_synced(changes: list[tuple[Any, ...]]) -> None:
    file, model = SimFile(), TwoImages()
    for what, *arguments in changes:
        if what == "lose":
            arguments = [[change for change, kept in zip(model.pending, arguments[0], strict=False) if kept]]
        elif what == "damage":
            arguments[1] = arguments[1][: max(0, len(model.read) - arguments[0])]
        getattr(file, what)(*arguments)
        getattr(model, what)(*arguments)
        assert (file.data, file.durable(), file.pending) == (model.read, model.disk, model.pending)


def test_programs_of_one_machine_have_databases_of_their_own() -> None:
    """Each has one open; the end of one leaves the other's alone, what was not synced too."""
    disk = SimDisk(random.Random(1))
    broker = opened(disk)
    manager = prepared(disk.open_database("manager", "manager"), "manager")
    manager.execute("CREATE TABLE seen (id INTEGER)")
    fill(broker, 0, 3)
    broker.execute("PRAGMA synchronous=OFF")
    fill(broker, 3, 5)
    disk.set_fault(DiskFault("lose-unsynced"))
    disk.process_died("manager")
    fill(broker, 5, 6)
    assert stored(broker) == list(range(6))
    manager = prepared(disk.open_database("manager", "manager"), "manager")
    assert list(manager.execute("SELECT name FROM sqlite_master")) == [("seen",)]
    disk.process_died()
    assert stored(opened(disk)) == list(range(3)), "the broker's own end loses what it had not synced"


def test_only_the_program_that_syncs_waits_for_a_slow_disk() -> None:
    disk = SimDisk(random.Random(1))
    waited: list[tuple[str, float]] = []
    disk.stall = lambda program, seconds: waited.append((program, seconds))
    disk.set_fault(DiskFault("slow", 0.5))
    prepared(disk.open_database("manager", "manager"), "manager")
    assert waited and set(waited) == {("manager", 0.5)}
