"""The journal: whole after any crash, loud about damage and full disks."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormproof.errors import HistoryError, StormproofError
from stormproof.history import journal as journal_module
from stormproof.history.journal import HEADER, JournalWriter, read_journal
from stormproof.operation import INFO, INVOKE, OK, Op


def some_ops(count: int, first: int = 0) -> list[Op]:
    return [Op(INVOKE, "enqueue", (3, i), 0, 3, i * 1000, "n1") for i in range(first, first + count)]


def write(path: Path, *frames: list[Op]) -> list[int]:
    """A journal with these frames; the file's size after each."""
    writer = JournalWriter(path, "run-1")
    sizes = []
    for ops in frames:
        for op in ops:
            writer.record(op)
        writer.flush()
        sizes.append(path.stat().st_size)
    writer.close()
    return sizes


def times(path: Path) -> list[int]:
    return [time for batch in read_journal(path).batches for time in batch.column("time").to_pylist()]


def test_what_was_recorded_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.bin"
    ops = [
        Op(INVOKE, "enqueue", (1, 2), 7, 0, 5),
        Op(OK, "dequeue", None, None, 4, 6, "n2"),
        Op(INFO, "kill.inject", {"id": 1}, None, -1, 7, None, "it's gone"),
        Op(OK, "depth", 12, 0, 0, 8),
    ]
    write(path, ops[:3], ops[3:])
    contents = read_journal(path)
    rows = [row for batch in contents.batches for row in batch.to_pylist()]
    assert contents.run == "run-1"
    assert contents.rows == 4
    assert contents.dropped_bytes == 0
    assert rows[0] == {
        "index": 0, "time": 5, "process": 0, "type": 0, "f": "enqueue", "key": 7, "value": (1 << 32) + 2,
        "text": None, "node": None, "error": None,
    }  # fmt: skip
    assert rows[2]["text"] == '{"id": 1}'
    assert rows[2]["error"] == "it's gone"
    assert [(row["index"], row["value"], row["key"]) for row in rows[1:]] == [(1, -1, -1), (2, -2, -1), (3, 12, 0)]


def test_a_last_frame_torn_at_any_byte_loses_only_that_frame(tmp_path: Path) -> None:
    path = tmp_path / "journal.bin"
    first, whole = write(path, some_ops(20), some_ops(3, 20))
    data = path.read_bytes()
    for size in range(first, whole):
        path.write_bytes(data[:size])
        contents = read_journal(path)
        assert (contents.rows, contents.dropped_bytes) == (20, size - first)
    path.write_bytes(data)
    assert read_journal(path).rows == 23


def test_a_tail_of_zeros_is_torn(tmp_path: Path) -> None:
    # What a file system leaves that had grown the file and not yet written the data.
    path = tmp_path / "journal.bin"
    write(path, some_ops(20))
    with path.open("ab") as file:
        file.write(bytes(5000))
    assert (read_journal(path).rows, read_journal(path).dropped_bytes) == (20, 5000)


def test_damage_before_the_end_is_told_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "journal.bin"
    first, second, _ = write(path, some_ops(20), some_ops(20, 20), some_ops(20, 40))
    data = bytearray(path.read_bytes())
    places = [first, first + 5, first + 8, first + HEADER.size, second - 1]  # magic, length, checksum, payload
    for place in places:
        damaged = bytearray(data)
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        with pytest.raises(HistoryError, match=f"damaged at byte {first}.*follows at byte {second}"):
            read_journal(path)


def test_a_frame_that_was_cut_out_is_told(tmp_path: Path) -> None:
    path = tmp_path / "journal.bin"
    first, second, _ = write(path, some_ops(20), some_ops(20, 20), some_ops(20, 40))
    data = path.read_bytes()
    path.write_bytes(data[:first] + data[second:])
    with pytest.raises(HistoryError, match="lacks rows: row 40 follows row 19"):
        read_journal(path)


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=200))
def test_a_file_that_is_no_journal_is_told(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("junk") / "journal.bin"
    path.write_bytes(data)
    with pytest.raises(HistoryError, match="not a journal"):
        read_journal(path)


def test_a_missing_journal_is_told(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="can't read the journal"):
        read_journal(tmp_path / "journal.bin")


def test_another_schema_version_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.bin"
    monkeypatch.setattr(journal_module, "SCHEMA_VERSION", 99)
    write(path, some_ops(1))
    monkeypatch.undo()
    with pytest.raises(HistoryError, match="schema version 99"):
        read_journal(path)


def test_a_journal_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "journal.bin"
    write(path, some_ops(1))
    with pytest.raises(StormproofError, match="can't create the journal"):
        JournalWriter(path, "run-2")


def test_4096_rows_are_flushed_at_once(tmp_path: Path) -> None:
    path = tmp_path / "journal.bin"
    writer = JournalWriter(path, "run-1")
    for op in some_ops(4097):
        writer.record(op)
    assert read_journal(path).rows == 4096
    writer.close()
    assert read_journal(path).rows == 4097
    writer.close()


FULL_DISK = """
import resource, sys
from pathlib import Path
from stormproof.errors import StormproofError
from stormproof.history.journal import JournalWriter
from stormproof.operation import Op
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
writer = JournalWriter(Path(sys.argv[1]), "run-1")
for i in range(100_000):
    try:
        writer.record(Op("invoke", "enqueue", (1, i), 0, 0, i))
    except StormproofError as error:
        print(error)
        break
for call in (writer.flush, writer.close):
    try:
        call()
    except StormproofError:
        print("again")
"""


def test_a_full_disk_is_one_clear_line_and_the_rest_is_readable(tmp_path: Path) -> None:
    path = tmp_path / "journal.bin"
    monkey = "import stormproof.history.journal as j; j.FLUSH_ROWS = 100\n"  # the limit is met within a frame
    done = subprocess.run(
        [sys.executable, "-c", monkey + FULL_DISK, str(path)], capture_output=True, text=True, timeout=60, check=True
    )
    message, again = done.stdout.splitlines()
    assert "the disk is full; make room or choose another --store" in message
    assert str(path) in message
    assert again == "again"
    contents = read_journal(path)
    assert contents.dropped_bytes == 0
    assert contents.rows % 100 == 0
    assert contents.rows > 0


def test_rows_that_could_not_be_encoded_come_with_the_next_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where memory or files are short for a moment, the journal lacks nothing in its middle."""
    def short(*_: object) -> bytes:
        raise OSError(24, "Too many open files")

    writer = JournalWriter(tmp_path / "journal.bin", "run")
    for number in range(3):
        writer.record(some_ops(1, number)[0])
        with monkeypatch.context() as patch:
            patch.setattr(journal_module, "encode_rows", short)
            with pytest.raises(OSError, match="Too many"):
                writer.flush()
    writer.close()
    assert read_journal(tmp_path / "journal.bin").rows == 3


def test_a_full_disk_at_creation_is_told(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(StormproofError, match="the disk is full"):
            JournalWriter(tmp_path / "journal.bin", "run-1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)


RECORD_FOR_EVER = """
import sys, time
from pathlib import Path
from stormproof.history.journal import JournalWriter
from stormproof.operation import Op
writer = JournalWriter(Path(sys.argv[1]), "run-1")
i = 0
while True:
    for _ in range(1000):
        writer.record(Op("invoke", "enqueue", (1, i), 0, 0, i))
        i += 1
    if i == 50_000:
        writer.flush()
        print("ready", flush=True)
"""


def test_kill_9_while_recording_leaves_a_readable_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.bin"
    child = subprocess.Popen([sys.executable, "-c", RECORD_FOR_EVER, str(path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == b"ready\n"
        child.kill()
        child.wait(30)
    found = times(path)
    assert len(found) >= 50_000
    assert found == list(range(len(found)))
