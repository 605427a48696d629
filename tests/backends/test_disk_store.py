"""What a disk keeps of what was written, when its power goes: decisions that need no kernel."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.backends import disk_store
from harness.backends.disk_store import BITS, NOTHING, SECTOR, SOME, TORN, TRUNCATE, WriteStore, matches

pytestmark = pytest.mark.requirement("H5", part=True)


@pytest.fixture
def store(tmp_path: Path) -> WriteStore:
    return make_store(tmp_path, 1)


def make_store(folder: Path, seed: int) -> WriteStore:
    for name in ("files", "deleted"):
        (folder / name).mkdir(exist_ok=True)
    return WriteStore(folder / "files", folder / "deleted", random.Random(seed))


def create(store: WriteStore, name: str, content: bytes = b"") -> int:
    fd = os.open(store.path(name), os.O_RDWR | os.O_CREAT, 0o600)
    store.created(name)
    if content:
        store.write(fd, content, 0)
    return fd


def synced(store: WriteStore, name: str, content: bytes) -> int:
    fd = create(store, name, content)
    store.sync(fd)
    return fd


def content(store: WriteStore, name: str) -> bytes | None:
    path = store.path(name)
    return path.read_bytes() if path.exists() else None


def test_what_a_disk_holds_is_counted_while_programs_use_it(store: WriteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk through many files keeps no program waiting, and a file that goes meanwhile is none."""
    pytest.importorskip("mfusepy")
    from harness.backends.fuse_disk import FaultyDisk

    disk = FaultyDisk(store)
    for name in ("/kept", "/gone"):
        synced(store, name, b"by the system")
    walk = os.walk

    def meanwhile(folder: Path) -> list[tuple[str, list[str], list[str]]]:
        found = list(walk(folder))
        deleting = threading.Thread(target=disk.unlink, args=("/gone",), daemon=True)
        deleting.start()
        deleting.join(10)
        assert not deleting.is_alive(), "the program waits for the walk"
        return found

    monkeypatch.setattr("os.walk", meanwhile)
    assert disk.command({"do": "use"})["files"] == 1


def test_what_the_harness_placed_is_not_damaged(store: WriteStore) -> None:
    """And is not held for the system, until the system writes into it; a number that is used again is another file."""
    placed = os.open(store.path("/placed"), os.O_RDWR | os.O_CREAT, 0o600)
    store.created("/placed")
    store.write(placed, b"by the harness", 0, system=False)
    assert store.held() == [] and store.corrupt() == 0
    fd = synced(store, "/log", b"by the system")
    assert store.held() == [store.path("/log")]
    assert store.corrupt() == 1
    assert content(store, "/placed") == b"by the harness" and content(store, "/log") != b"by the system"
    number = os.fstat(fd).st_ino
    os.close(fd)
    store.unlink("/log")
    store.sync_names()
    for i in range(50):
        again = os.open(store.path(f"/{i}"), os.O_RDWR | os.O_CREAT, 0o600)
        store.created(f"/{i}")
        store.write(again, b"by the harness", 0, system=False)
        if os.fstat(again).st_ino == number:
            break
    assert store.held() == []
    store.write(placed, b"now of the system", 0)
    assert store.held() == [store.path("/placed")]


def test_a_sync_keeps_and_a_write_alone_does_not(store: WriteStore) -> None:
    fd = synced(store, "/log", b"one\n")
    store.write(fd, b"two\n", 4)
    assert content(store, "log") == b"one\ntwo\n" and store.unsynced == 1
    assert store.lose(NOTHING) == 1
    assert content(store, "log") == b"one\n" and store.unsynced == 0
    store.write(fd, b"2\n", 4)
    store.sync(fd)
    store.lose(NOTHING)
    assert content(store, "log") == b"one\n2\n"


def test_the_bytes_of_the_system_that_a_loss_discarded_are_counted(store: WriteStore) -> None:
    fd = synced(store, "/log", b"one\n")
    ours = synced(store, "/ours", b"")
    assert (store.lost_bytes, store.lost_since) == (0, None)
    before = time.monotonic()
    store.write(fd, b"two\n", 4)
    between = time.monotonic()
    store.write(fd, b"three\n", 8)
    store.lose(NOTHING)
    assert store.lost_bytes == 10 and store.lost_since is not None
    assert before <= store.lost_since <= between, "the age is that of the oldest write"
    store.lose(NOTHING)
    assert (store.lost_bytes, store.lost_since) == (0, None), "the second loss found nothing"
    os.close(ours)


def test_what_is_older_than_the_write_back_is_kept(store: WriteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(disk_store.time, "monotonic", lambda: now)
    log, other = synced(store, "/log", b""), create(store, "/other", b"old")
    for now in (101.0, 102.0, 103.0):
        store.write(log, b"%d\n" % now, int(now - 101) * 4)
    create(store, "/new", b"new")
    store.rename("/other", "/renamed")
    store.write_back(102.5)
    store.lose(NOTHING)
    assert content(store, "/log") == b"101\n102\n" and content(store, "/other") == b"old"
    assert content(store, "/new") is None and content(store, "/renamed") is None
    assert store.lost_since == 103.0 and store.unsynced == 0
    store.write(other, b"x", 0)
    store.unlink("/other")
    store.write_back(104.0)
    assert store.unsynced == 0
    store.lose(NOTHING)
    assert content(store, "/other") is None, "what was deleted long ago stays deleted"


def test_a_write_back_frees_what_was_kept_for_undoing(store: WriteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_store, "WRITTEN_BACK_AFTER", 3000)
    now = 0.0
    monkeypatch.setattr(disk_store.time, "monotonic", lambda: now)
    log = synced(store, "/log", b"")
    for now in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0):
        store.write(log, b"x" * 800, int(now - 1) * 800)
        store.write_back(now - 0.5)
    assert store.unsynced == 1, "each time all but the last write has become durable"
    store.lose(NOTHING)
    assert content(store, "/log") == b"x" * 4000


@pytest.mark.parametrize("change", [
    lambda store, fd: store.write(fd, b"XY", 2),
    lambda store, fd: store.write(fd, b"beyond", 20),
    lambda store, fd: store.truncate(fd, 3),
    lambda store, fd: store.truncate(fd, 30),
    lambda store, fd: (store.truncate(fd, 0), store.write(fd, b"anew", 0)),
    lambda store, fd: [store.write(fd, bytes([n]) * 4, n) for n in range(20)],
])
def test_whatever_is_changed_is_taken_back(store: WriteStore, change: Callable[[WriteStore, int], object]) -> None:
    fd = synced(store, "/file", b"0123456789")
    change(store, fd)
    assert content(store, "file") != b"0123456789"
    store.lose(NOTHING)
    assert content(store, "file") == b"0123456789"


def test_names_become_durable_with_the_next_sync_of_anything(store: WriteStore) -> None:
    other = synced(store, "/other", b"x")
    os.close(create(store, "/early", b"lost"))
    store.sync(other)
    os.close(create(store, "/late"))
    store.lose(NOTHING)
    assert content(store, "early") == b"", "its name was journalled, its content not written"
    assert content(store, "late") is None


def test_a_file_that_is_replaced_is_there_old_or_new(store: WriteStore) -> None:
    """Write, sync, rename: without a sync of the folder the old one may come back, whole."""
    os.close(synced(store, "/config", b"old"))
    os.close(synced(store, "/config.new", b"new"))
    store.rename("/config.new", "/config")
    assert content(store, "config") == b"new" and content(store, "config.new") is None
    store.lose(NOTHING)
    assert content(store, "config") == b"old" and content(store, "config.new") == b"new"
    store.rename("/config.new", "/config")
    store.sync_names()
    store.lose(NOTHING)
    assert content(store, "config") == b"new" and content(store, "config.new") is None
    assert not list((store.root.parent / "deleted").iterdir()), "what was replaced for good takes no room"


@pytest.mark.parametrize("seed", range(12))
def test_a_power_cut_never_takes_both_the_old_and_the_new(tmp_path: Path, seed: int) -> None:
    """rename(2) is atomic: one of the two files has the name."""
    store = make_store(tmp_path, seed)
    os.close(synced(store, "/config", b"old"))
    os.close(synced(store, "/config.new", b"new"))
    store.rename("/config.new", "/config")
    store.lose(SOME)
    assert content(store, "config") in (b"old", b"new")


def test_a_write_back_takes_a_rename_as_a_whole(store: WriteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 1.0, 1.0, 1.0, 2.0, 3.0])  # of two creations and writes, and of the rename
    monkeypatch.setattr(disk_store.time, "monotonic", lambda: next(times))
    os.close(synced(store, "/config", b"old"))
    os.close(synced(store, "/config.new", b"new"))
    store.rename("/config.new", "/config")
    store.write_back(2.5)
    store.lose(NOTHING)
    assert content(store, "config") == b"new"


def test_what_was_deleted_comes_back_with_its_last_synced_content(store: WriteStore) -> None:
    fd = synced(store, "/file", b"kept")
    store.write(fd, b"lost", 4)
    store.unlink("/file")
    assert content(store, "file") is None
    store.lose(NOTHING)
    assert content(store, "file") == b"kept"
    store.unlink("/file")
    store.sync_names()
    store.lose(NOTHING)
    assert content(store, "file") is None


def test_folders_that_were_made_and_deleted(store: WriteStore) -> None:
    store.path("/kept").mkdir()
    store.made_folder("/kept")
    store.sync_names()
    store.path("/new").mkdir()
    store.made_folder("/new")
    os.close(create(store, "/new/file", b"x"))
    store.rmdir("/kept")
    store.lose(NOTHING)
    assert [path.name for path in store.root.iterdir()] == ["kept"]


def test_two_names_of_one_file(store: WriteStore) -> None:
    fd = synced(store, "/a", b"x")
    os.link(store.path("/a"), store.path("/b"))
    store.created("/b")
    store.sync_names()
    store.write(fd, b"y", 0)
    store.unlink("/a")
    store.sync_names()
    store.lose(NOTHING)
    assert content(store, "a") is None and content(store, "b") == b"x", "that a name is gone syncs no content"


def test_a_torn_write_ends_at_a_sector_and_what_was_before_is_kept(tmp_path: Path) -> None:
    sizes = set()
    for seed in range(30):
        store = make_store(tmp_path, seed)
        fd = synced(store, "/file", b"." * 100)
        store.write(fd, b"early", 0)
        store.write(fd, b"x" * 4 * SECTOR, 100)
        store.lose(TORN)
        found = content(store, "file") or b""
        assert found.startswith(b"." * 100) and set(found[100:]) <= set(b"x")
        assert (len(found) - 100) % SECTOR == 0 and len(found) < 100 + 4 * SECTOR
        sizes.add(len(found))
        store.empty()
        os.close(fd)
    assert len(sizes) > 2


def test_some_luck_keeps_all_that_was_synced_and_not_always_the_same_of_the_rest(tmp_path: Path) -> None:
    found = set()
    for seed in range(40):
        store = make_store(tmp_path, seed)
        fd = synced(store, "/file", b"synced")
        for n in range(4):
            store.write(fd, b"%d" % n, 6 + n)
        store.lose(SOME)
        text = content(store, "file") or b""
        assert text.startswith(b"synced")
        found.add(text)
        store.empty()
        os.close(fd)
    assert {b"synced", b"synced0123"} <= found and len(found) > 4


def test_much_that_is_not_synced_is_written_back_oldest_first(
    store: WriteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_store, "WRITTEN_BACK_AFTER", 10_000)
    store.sync(first := create(store, "/first"))
    store.sync(second := create(store, "/second"))
    store.write(first, b"a" * 6000, 0)
    store.write(second, b"b" * 6000, 0)
    store.lose(NOTHING)
    assert content(store, "first") == b"a" * 6000 and content(store, "second") == b""


def test_noise_hits_one_page_of_a_database(store: WriteStore) -> None:
    database = b"SQLite format 3\0" + (1024).to_bytes(2, "big") + b"\0" * 8174
    for name, text in (("/broker.sqlite", database), ("/broker.sqlite-wal", b"w" * 5000), ("/note", b"n" * 5000)):
        os.close(synced(store, name, text))
    assert store.corrupt() == 1
    assert content(store, "broker.sqlite-wal") == b"w" * 5000 and content(store, "note") == b"n" * 5000
    found = content(store, "broker.sqlite") or b""
    assert len(found) == len(database)
    assert {at // 1024 for at in range(len(found)) if found[at] != database[at]} in [{page} for page in range(8)]
    store.empty()
    assert store.corrupt() == 0, "there is nothing to damage"


@pytest.mark.parametrize(("name", "pattern", "wanted"), [
    ("1.blk", "**/*.blk", True), ("jetstream/msgs/1.blk", "**/*.blk", True), ("jetstream/msgs/1.blk", "*.blk", True),
    ("jetstream/msgs/1.blk", "jetstream/**/*.blk", True), ("other/1.blk", "jetstream/**/*.blk", False),
    ("1.blk.tmp", "**/*.blk", False), ("1.BLK", "*.blk", False), ("index.db", "**", True), ("a.log", "a.l?g", True),
])  # fmt: skip
def test_a_pattern_names_files_in_all_folders_below(name: str, pattern: str, wanted: bool) -> None:
    assert matches(name, pattern) is wanted


def damaged_bits(before: bytes, after: bytes | None) -> int:
    assert after is not None and len(after) == len(before)
    return sum((old ^ new).bit_count() for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("bits", [1, 7, 100])
def test_as_many_bits_as_asked_for_are_flipped_in_matching_files_alone(tmp_path: Path, bits: int) -> None:
    hit = set()
    for seed in range(20):
        folder = tmp_path / str(seed)
        folder.mkdir()
        store = make_store(folder, seed)
        texts = {"/1.blk": bytes(200), "/2.blk": b"x" * 300, "/index.db": b"i" * 500}
        for name, text in texts.items():
            os.close(synced(store, name, text))
        os.close(synced(store, "/empty.blk", b""))
        found = {name: damaged_bits(text, content(store, name)) for name, text in texts.items()}
        assert not any(found.values())
        count = store.damage(BITS, "**/*.blk", bits)
        found = {name: damaged_bits(text, content(store, name)) for name, text in texts.items()}
        assert found["/1.blk"] + found["/2.blk"] == bits and found["/index.db"] == 0
        assert count == sum(number > 0 for number in found.values()) and len(store.damaged) == bits
        hit |= {name for name, number in found.items() if number}
    assert hit == {"/1.blk", "/2.blk"}


def test_no_bit_is_flipped_twice(store: WriteStore) -> None:
    os.close(synced(store, "/small", b"\0\0"))
    assert store.damage(BITS, "**", 1000) == 1 and content(store, "/small") == b"\xff\xff"


def test_one_matching_file_loses_its_end(tmp_path: Path) -> None:
    left = set()
    for seed in range(30):
        folder = tmp_path / str(seed)
        folder.mkdir()
        store = make_store(folder, seed)
        for name in ("/a.log", "/b.log", "/c.db"):
            os.close(synced(store, name, b"0123456789"))
        assert store.damage(TRUNCATE, "*.log", 1) == 1
        found = {name: content(store, name) or b"" for name in ("/a.log", "/b.log", "/c.db")}
        ((name, text),) = ((name, text) for name, text in found.items() if text != b"0123456789")
        assert name != "/c.db" and b"0123456789".startswith(text)
        assert store.damaged == [f"{name[1:]}: {len(text)} of 10 bytes left"]
        left.add((name, len(text)))
    assert len(left) > 10 and {name for name, _ in left} == {"/a.log", "/b.log"}


@pytest.mark.parametrize("kind", [BITS, TRUNCATE])
def test_a_damage_outlasts_a_loss_of_power(store: WriteStore, kind: str) -> None:
    fd = synced(store, "/1.blk", b"a" * 100)
    store.write(fd, b"b" * 50, 75)
    store.damage(kind, "**", 1)
    damaged = content(store, "/1.blk")
    assert damaged != b"a" * 75 + b"b" * 50
    store.lose(NOTHING)
    assert content(store, "/1.blk") == damaged, "what was not synced is on the damaged disk, too"


@pytest.mark.parametrize("kind", [BITS, TRUNCATE])
def test_what_does_not_match_or_is_empty_is_not_damaged(store: WriteStore, kind: str) -> None:
    os.close(synced(store, "/1.blk", b""))
    os.close(synced(store, "/log", b"text"))
    placed = os.open(store.path("/2.blk"), os.O_RDWR | os.O_CREAT, 0o600)
    store.created("/2.blk")
    store.write(placed, b"by the harness", 0, system=False)
    assert store.damage(kind, "**/*.blk", 5) == 0 and store.damaged == []
    assert content(store, "/log") == b"text" and content(store, "/2.blk") == b"by the harness"


STEPS = st.lists(st.tuples(st.sampled_from(["write", "cut", "sync", "rename", "unlink"]), st.integers(0, 2),
                           st.integers(0, 40), st.binary(max_size=12)), max_size=25)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_after_a_loss_everything_is_as_at_the_last_sync_of_all(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int, bytes]]
) -> None:
    """Where all is synced at once, or nothing, a loss of everything un-synced is a return to that moment."""
    store = make_store(tmp_path_factory.mktemp("disk"), 3)
    kept: dict[str, bytes] = {}
    for what, number, offset, data in steps:
        name = f"/f{number}"
        if what == "sync":
            store.sync_all()
            kept = {path.name: path.read_bytes() for path in store.root.iterdir()}
        elif what == "unlink" and store.path(name).exists():
            store.unlink(name)
        elif what == "rename" and store.path(name).exists():
            store.rename(name, f"/f{(number + 1) % 3}")
        elif what in ("write", "cut"):
            fresh = not store.path(name).exists()
            fd = os.open(store.path(name), os.O_RDWR | os.O_CREAT, 0o600)
            if fresh:
                store.created(name)
            if what == "write":
                store.write(fd, data, offset)
            else:
                store.truncate(fd, offset)
            os.close(fd)
    store.lose(NOTHING)
    assert {path.name: path.read_bytes() for path in store.root.iterdir()} == kept
