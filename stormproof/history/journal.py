"""The journal: a history on disk while the run writes it, readable after a crash at any byte.

The file is a sequence of frames: magic (4 bytes), length of the payload, CRC-32 of the payload (both 32 bits, little
endian), payload. The first frame's payload is a JSON object with the schema's version and the run's id; each further
one is an Arrow IPC stream with some rows. Readers drop a frame that was cut off by a crash.

A journal may come from strangers: it is read only if it fits the limit of ``stormproof.history.read_limits``, its
batches must have the one schema and must not be compressed (a small frame could hold any amount of rows), and are
validated in full, since code that reads Arrow's arrays trusts their offsets.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from stormproof.errors import HistoryError, StormproofError
from stormproof.history.read_limits import ROW_BYTES, demand_bytes, read_small
from stormproof.history.schema import SCHEMA_VERSION, TYPE_CODES, encode_value
from stormproof.operation import Op

MAGIC = b"SPJ1"
HEADER = struct.Struct("<4sII")

FLUSH_ROWS = 4096
FLUSH_SECONDS = 0.1
SYNC_SECONDS = 1.0

JOURNAL_SCHEMA = pa.schema(
    [
        ("index", pa.int64()),
        ("time", pa.int64()),
        ("process", pa.int32()),
        ("type", pa.int8()),
        ("f", pa.string()),
        ("key", pa.int32()),
        ("value", pa.int64()),
        ("text", pa.string()),
        ("node", pa.string()),
        ("error", pa.string()),
    ]
)
"""As HISTORY_SCHEMA, without the run (it is in the first frame) and without dictionaries."""


class EmptyJournalError(HistoryError):
    """A file without one complete frame: the harness died at its first write, or the file is not a journal."""


class JournalWriter:
    """Appends operations to a journal; the interpreter's recorder.

    Rows are buffered for at most 4,096 rows or 0.1 s (the interpreter's ticker calls ``flush``, too) and then written
    by one ``write``; ``fsync`` follows about every second, in a thread, and at ``close``.

    ``lasting=False`` is for simulated runs, which are repeated rather than rescued: rows are written once there are
    4,096 and at ``close``, no clock is read, and nothing is fsynced.
    """

    def __init__(self, path: Path, run: str, *, lasting: bool = True) -> None:
        """Create the file. Raise StormproofError if it exists or can't be written."""
        self.path = path
        self.rows = 0
        """Rows recorded so far."""
        self._pending: list[Op] = []
        self._oldest = 0.0
        self._size = 0
        self._lasting = lasting
        self._synced = time.monotonic() if lasting else 0.0
        self._sync: Future[None] | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="stormproof-fsync")
        self._failed: StormproofError | None = None
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError as error:
            raise StormproofError(f"can't create the journal {path}: {error.strerror}") from error
        self._write(json.dumps({"schema": SCHEMA_VERSION, "run": run}).encode())

    def record(self, op: Op) -> None:
        """Take one row; its index is the number of rows before it."""
        pending = self._pending
        if not pending and self._lasting:
            self._oldest = time.monotonic()
        pending.append(op)
        self.rows += 1
        if len(pending) >= FLUSH_ROWS:
            self._write_pending()
        elif self._lasting and len(pending) & 63 == 0 and time.monotonic() - self._oldest >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the pending rows.

        Raises:
            StormproofError: the disk is full or fails. Earlier rows stay readable, and nothing further is written.
        """
        if self._lasting:
            self._write_pending()
            self._sync_sometimes()

    def close(self) -> None:
        """Write and fsync the pending rows, and close the file; harmless if it is closed or has failed before."""
        if self._fd < 0:
            return
        try:
            if self._failed is None:
                self._write_pending()
            self._pool.shutdown(wait=True)
            if self._failed is None and self._lasting:
                self._fsync()
        finally:
            os.close(self._fd)
            self._fd = -1

    def _write_pending(self) -> None:
        if self._failed is not None:
            raise self._failed
        if self._pending:
            rows = self._pending
            payload = encode_rows(rows, self.rows - len(rows))
            self._pending = []  # not before: if memory or files run short, these rows are written with the next ones
            self._write(payload)

    def _write(self, payload: bytes) -> None:
        frame = HEADER.pack(MAGIC, len(payload), zlib.crc32(payload)) + payload
        view = memoryview(frame)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            os.ftruncate(self._fd, self._size)  # leave complete frames only
            self._fail(error)
        self._size += len(frame)

    def _sync_sometimes(self) -> None:
        now = time.monotonic()
        if now - self._synced < SYNC_SECONDS or (self._sync is not None and not self._sync.done()):
            return
        if self._sync is not None:
            self._sync.result()
        self._synced = now
        self._sync = self._pool.submit(self._fsync)

    def _fsync(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        reason = "the disk is full; make room or choose another --store" if full else error.strerror
        self._failed = StormproofError(
            f"can't go on writing the journal {self.path}: {reason} (the {self._size} bytes written are readable)"
        )
        raise self._failed from error


def encode_rows(rows: Sequence[Op], first: int) -> bytes:
    """Return rows as an Arrow IPC stream of JOURNAL_SCHEMA; ``first`` is the index of the first."""
    kinds, names, values, keys, processes, times, nodes, errors = zip(*rows, strict=True)
    encoded = [encode_value(value) for value in values]
    columns = [
        pa.array(np.arange(first, first + len(rows), dtype=np.int64)),
        pa.array(times, pa.int64()),
        pa.array(processes, pa.int32()),
        pa.array([TYPE_CODES[kind] for kind in kinds], pa.int8()),
        pa.array(names, pa.string()),
        pa.array([-1 if key is None else key for key in keys], pa.int32()),
        pa.array([number for number, _ in encoded], pa.int64()),
        pa.array([text for _, text in encoded], pa.string()),
        pa.array(nodes, pa.string()),
        pa.array(errors, pa.string()),
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, JOURNAL_SCHEMA) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=JOURNAL_SCHEMA))
    return bytes(sink.getvalue())


@dataclass(frozen=True)
class JournalContents:
    """The content of a journal: the run's id, its rows, and the number of bytes of a torn tail that were dropped."""

    run: str
    batches: tuple[pa.RecordBatch, ...]
    dropped_bytes: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(batch.num_rows for batch in self.batches)


def read_journal(path: Path) -> JournalContents:
    """Return all complete frames of a journal; a torn tail is skipped and counted.

    Raises:
        EmptyJournalError: not even the first frame is complete.
        HistoryError: the file is missing, or is damaged before its end.
    """
    try:
        data = read_small(path, 1)
    except OSError as error:
        raise HistoryError(f"can't read the journal {path}: {error.strerror}") from error
    frames = list(_frames(data))
    payloads = [payload for _, payload in frames]
    end = frames[-1][0] if frames else 0
    later = _whole_frame_after(path, data, end)
    if later is not None:
        raise HistoryError(
            f"{path} is damaged at byte {end}: no whole frame there, but one follows at byte {later}; "
            "restore the file from a copy"
        )
    if not payloads:
        raise EmptyJournalError(f"{path} holds no whole frame: it is not a journal, or its first write was cut off")
    run = _read_header(path, payloads[0])
    batches = [batch for number, payload in enumerate(payloads[1:], 1) for batch in _batches(path, number, payload)]
    demand_bytes(len(data) + ROW_BYTES * sum(batch.num_rows for batch in batches), path)
    _check_indexes(path, batches)
    return JournalContents(run, tuple(batches), len(data) - end)


def _read_header(path: Path, payload: memoryview) -> str:
    try:
        header = json.loads(bytes(payload))
    except (ValueError, RecursionError) as error:
        raise HistoryError(f"{path} is not a journal: its first frame is not JSON ({error})") from error
    if not isinstance(header, dict) or not isinstance(header.get("run"), str):
        raise HistoryError(f"{path} is not a journal: its first frame names no run")
    schema = header.get("schema")
    if schema != SCHEMA_VERSION or isinstance(schema, bool):
        raise HistoryError(f"{path} has schema version {json.dumps(schema)[:40]}, this Stormproof reads "
                           f"{SCHEMA_VERSION}")  # fmt: skip
    return str(header["run"])


def _batches(path: Path, number: int, payload: memoryview) -> list[pa.RecordBatch]:
    """Return the rows of one frame."""
    try:
        messages = list(pa.ipc.MessageReader.open_stream(pa.py_buffer(payload)))
        if not messages or messages[0].type != "schema" or not pa.ipc.read_schema(messages[0]).equals(JOURNAL_SCHEMA):
            raise ValueError("it has another schema")
        found = []
        for message in messages[1:]:
            if message.type != "record batch" or _is_compressed(message.metadata.to_pybytes()):
                raise ValueError("it holds something else than plain rows")
            batch = pa.ipc.read_record_batch(message, JOURNAL_SCHEMA)
            batch.validate(full=True)
            if any(pa.types.is_integer(column.type) and column.null_count for column in batch.columns):
                raise ValueError("a number is null")
            found.append(batch)
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise HistoryError(f"{path}: frame {number} holds no rows of a history: {reason}") from error
    return found


def _is_compressed(metadata: bytes) -> bool:
    """Return whether a record batch's buffers are compressed according to its metadata: FlatBuffers' Message, whose
    third field is a RecordBatch, whose fourth field is the compression
    (https://arrow.apache.org/docs/format/Columnar.html, Message.fbs)."""
    message = _U32.unpack_from(metadata)[0]
    header = _field(metadata, message, 2)
    if not header:
        raise ValueError("a message has no header")
    return _field(metadata, header + _U32.unpack_from(metadata, header)[0], 3) != 0


_U16, _I32, _U32 = struct.Struct("<H"), struct.Struct("<i"), struct.Struct("<I")


def _field(data: bytes, table: int, number: int) -> int:
    """Return the position of a table's field, 0 if it has no such field."""
    shape = table - _I32.unpack_from(data, table)[0]
    place = 4 + 2 * number
    if shape < 0 or place >= _U16.unpack_from(data, shape)[0]:
        return 0
    offset = _U16.unpack_from(data, shape + place)[0]
    return table + int(offset) if offset else 0


def _check_indexes(path: Path, batches: Sequence[pa.RecordBatch]) -> None:
    expected = 0
    for batch in batches:
        found = batch.column(0).to_numpy()
        wrong = np.flatnonzero(found != np.arange(expected, expected + len(found)))
        if len(wrong):
            before = expected + int(wrong[0]) - 1
            raise HistoryError(f"{path} lacks rows: row {found[wrong[0]]} follows row {before}")
        expected += batch.num_rows


def _frames(data: bytes) -> Iterator[tuple[int, memoryview]]:
    """Yield (end, payload) of each complete frame up to the first incomplete one."""
    view = memoryview(data)
    offset = 0
    while (end := _frame_end(data, offset)) is not None:
        yield end, view[offset + HEADER.size : end]
        offset = end


def _frame_end(data: bytes, offset: int) -> int | None:
    if offset + HEADER.size > len(data):
        return None
    magic, length, crc = _header(data, offset)
    start, end = offset + HEADER.size, offset + HEADER.size + length
    if magic != MAGIC or end > len(data) or zlib.crc32(memoryview(data)[start:end]) != crc:
        return None
    return end


def _header(data: bytes, offset: int) -> tuple[bytes, int, int]:
    magic, length, crc = HEADER.unpack_from(data, offset)
    return magic, length, crc


def _whole_frame_after(path: Path, data: bytes, offset: int) -> int | None:
    """Return the position of a complete frame behind a broken one: the file is then damaged, not merely torn at the
    end.

    Raises HistoryError if the rest resembles frames so often that distinguishing it from frames takes too long.
    """
    patience = 4 * len(data) + (64 << 20)
    found = data.find(MAGIC, offset + 1)
    while found >= 0:
        if _frame_end(data, found) is not None:
            return found
        if found + HEADER.size <= len(data):
            size = _header(data, found)[1]
            patience -= size if found + HEADER.size + size <= len(data) else 0
        if patience < 0:
            raise HistoryError(f"{path} is damaged at byte {offset}: the bytes there are not a torn write")
        found = data.find(MAGIC, found + 1)
    return None
