"""The corpus: files that no reader may fall for, each made small and described by what is wrong with it."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
DEEP = 100_000

Content = bytes | Callable[[Path], None]
"""What a file holds, or what puts something else in its place."""


def put(content: Content, path: Path) -> Path:
    """Put it there."""
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        content(path)
    return path


def _bomb(head: bytes, piece: bytes, tail: bytes, size: int) -> bytes:
    """A small file of gzip that unpacks to about ``size`` bytes."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=6, mtime=0) as file:
        file.write(head)
        for _ in range(size // (len(piece) << 12)):
            file.write(piece * (1 << 12))
        file.write(tail)
    return packed.getvalue()


JSON = b'{"process": 0, "type": "invoke", "f": "write", "value": '
EDN = b"{:process 0 :type :invoke :f :write :value "
LOG = b"INFO  jepsen.util - 0\t:invoke\t:write\t"

ANYTHING: Mapping[str, Content] = {
    "nothing but NULs": bytes(5000),
    "random bytes": bytes((n * n * 7 + n) % 251 for n in range(5000)),
    "bytes that are no UTF-8": b'{"a": "\xff\xfe"}\n',
    "UTF-16": '{"a": 1}\n'.encode("utf-16"),
    "lists without end": b"[" * DEEP,
    "objects without end": b'{"a":' * DEEP,
    "an integer of 6,000 digits": b"1" * 6000,
    "a bomb of gzip": _bomb(b"", b"\0", b"", 4 * MIB),
    "half a file of gzip": _bomb(b"", b"x", b"", MIB)[:200],
    "an archive": b"PK\x03\x04" + bytes(100),
    "half a table": b"PAR1" + bytes(100) + struct.pack("<I", 90) + b"PAR1",
    "a program": b"\x7fELF" + bytes(300),
    "a lone bracket": b"}",
    "no file": lambda path: None,
    "a folder": lambda path: path.mkdir(),
    "a circle of links": lambda path: path.symlink_to(path),
}
"""What is nothing that any reader knows."""


@dataclass(frozen=True)
class Entry:
    """A file for one reader, and what the reader says of it; ``status`` 3 is a refusal, 2 a verdict of *unknown*."""

    reader: str
    what: str
    content: Content
    told: str
    """What the one line holds: a regular expression."""
    status: int = 3

    @property
    def name(self) -> str:
        return f"{self.reader}: {self.what}"


def _frame(payload: bytes) -> bytes:
    return b"SPJ1" + struct.pack("<II", len(payload), zlib.crc32(payload)) + payload


def _journal(*payloads: bytes, header: bytes = b'{"schema": 1, "run": "r"}') -> bytes:
    return b"".join(map(_frame, (header, *payloads)))


def _rows(count: int = 2, compression: str | None = None, **columns: object) -> bytes:
    """A frame's payload: rows of a journal, some columns of which are others."""
    import pyarrow as pa

    from stormproof.history.journal import JOURNAL_SCHEMA

    numbers = list(range(count))
    plain = {"index": numbers, "time": numbers, "process": [0] * count, "type": [n % 2 for n in numbers],
             "f": ["enqueue"] * count, "key": [0] * count, "value": [5] * count}  # fmt: skip
    found: dict[str, object] = {**dict.fromkeys(JOURNAL_SCHEMA.names, [None] * count), **plain, **columns}
    arrays = [value if isinstance(value := found[field.name], pa.Array) else pa.array(value, field.type)
              for field in JOURNAL_SCHEMA]  # fmt: skip
    batch = pa.RecordBatch.from_arrays(arrays, names=JOURNAL_SCHEMA.names)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def _later(*payloads: Callable[[], bytes]) -> Callable[[Path], None]:
    """A journal of frames that are made when they are needed."""
    return lambda path: path.write_bytes(_journal(*(make() for make in payloads))) and None


def _wild_offsets() -> bytes:
    """Rows whose texts lie far behind the end of the frame: who trusts the offsets reads foreign memory."""
    payload = bytearray(_rows(2, f=["enqueue", "dequeue"]))
    place = payload.find(struct.pack("<iii", 0, 7, 14))
    assert place > 0
    struct.pack_into("<iii", payload, place, 0, 7, 0x7FFFFFF0)
    return bytes(payload)


def _many_batches() -> bytes:
    """As many rows as a schema and a claim can give: a batch's length is changed where it stands."""
    payload = bytearray(_rows(2))
    for place in range(len(payload) - 8):
        if payload[place : place + 8] == struct.pack("<q", 2):
            struct.pack_into("<q", payload, place, 1 << 40)
    return bytes(payload)


def _table(rows: int, text: str = "", **columns: object) -> Callable[[Path], None]:
    """A history.parquet with so many rows, some columns of which are others."""

    def write(path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        numbers = pa.array(range(rows), pa.int64())
        zeros = pa.array([0] * rows, pa.int32())
        plain = {"run": ["r"] * rows, "index": numbers, "time": numbers, "process": zeros, "key": zeros,
                 "type": pa.array([n % 2 for n in range(rows)], pa.int8()), "f": ["depth"] * rows,
                 "value": pa.array([-2 if text else 0] * rows, pa.int64()),
                 "text": pa.array([text or None] * rows, pa.string()), "node": ["n1"] * rows,
                 "error": pa.array([None] * rows, pa.string())}  # fmt: skip
        pq.write_table(pa.table({**plain, **columns}), path, compression="zstd")

    return write


def _footer() -> bytes:
    """A Parquet file of nothing but a footer, in Thrift's compact protocol: version, a schema of one element, no rows,
    and a list of 999,999 groups of rows that are not there."""
    element = b"\x48\x01r\x15\x02\x00"
    footer = b"\x15\x02\x19\x1c" + element + b"\x16\x00\x19\xfc\xbf\x84\x3d"
    return b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1"


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _inject(**changes: object) -> bytes:
    line = {"id": 1, "fault": "kill", "kind": "one", "phase": "inject", "time": 1, "targets": ["n1"], "evidence": {},
            "proven": True, "error": None, "done": 2, "effects": []}  # fmt: skip
    return json.dumps({**line, **changes}).encode() + b"\n"


def _wire(value: object) -> bytes:
    from nodes.reference import wire

    raw = wire.encode(value)
    return struct.pack(">I", len(raw)) + raw


_HISTORIES = (
    Entry("porcupine", "a gzip of lists", _bomb(JSON + b"[", b"[],", b"]}\n", MIB // 4), "would take more than 1 MiB"),
    Entry("porcupine", "a gzip of sets", _bomb(EDN + b"[", b"#{}", b"]}\n", MIB // 4), "would take more than 1 MiB"),
    Entry("porcupine", "a gzip of a log", _bomb(LOG + b"[", b"[]", b"]\n", MIB // 4), "would take more than 1 MiB"),
    Entry("porcupine", "a gzip within a gzip", gzip.compress(gzip.compress(JSON)), "not UTF-8 text"),
    Entry("porcupine", "a gzip with another's checksum", gzip.compress(JSON + b"1}\n")[:-8] + bytes(8), "CRC"),
    Entry("porcupine", "a gzip that goes on with noise", gzip.compress(JSON + b"1}\n") + b"noise", "h: "),
    Entry("porcupine", "no end", _endless, "it would take more than 1 MiB"),
    Entry("porcupine", "a table of many rows", _table(5_000), "it would take more than 1 MiB"),
    Entry("porcupine", "a table with a long text", _table(200, f'"{"x" * 10_000}"', f=["read"] * 200),
          "it would take more than 1 MiB"),
    Entry("porcupine", "a table of floats", _table(2, index=[0.0, 1.0]), 'column "index" holds double'),
    Entry("porcupine", "a table of lists", _table(2, value=[[1], [2]]), 'column "value" holds list'),
    Entry("porcupine", "a table of two runs", _table(2, run=["a", "b"]), "holds 2 runs"),
    Entry("porcupine", "a table whose JSON is nested", _table(2, "[" * 2_000), ":1: text is not JSON"),
    Entry("porcupine", "not a number", JSON + b"NaN}\n", "NaN is not a JSON value"),
    Entry("porcupine", "JSON that is nested", JSON + b"[" * 500 + b"]" * 500 + b"}\n", "nested too deeply"),
    Entry("porcupine", "EDN that is nested", EDN + b"[" * 500 + b"]" * 500 + b"}\n", "nested too deeply"),
    Entry("porcupine", "tags without end", EDN + b"#a " * DEEP + b"1}\n", "nested too deeply"),
    Entry("porcupine", "discards without end", b"#_ " * DEEP, "nested too deeply"),
    Entry("porcupine", "EDN that is cut off", EDN + b'"abc', "not EDN"),
    Entry("porcupine", "a vector that is cut off", b"[" + EDN + b"1}", "never closed"),
    Entry("porcupine", "an escape that is none", EDN + b'"\\q"}', "bad escape"),
    Entry("porcupine", "a process that is a float", JSON.replace(b"0", b"0.0") + b"1}\n", "process 0.0 is neither"),
    Entry("porcupine", "a process that is a list", JSON.replace(b"0", b"[0]") + b"1}\n", r"process \[0\] is neither"),
    Entry("porcupine", "a process below 0", JSON.replace(b"0", b"-1") + b"1}\n", "process -1 is neither"),
    Entry("porcupine", "two invocations", (JSON + b"1}\n") * 2, "while its operation of line 1 is open"),
    Entry("porcupine", "an answer to nothing", JSON.replace(b"invoke", b"ok") + b"1}\n", "has invoked nothing"),
    Entry("porcupine", "a function that is a map", JSON.replace(b'"write"', b"{}") + b"1}\n", 'unknown f "{}"; known'),
    Entry("porcupine-kv", "a value without a key", EDN + b"1}", r"needs a pair|h:1: .*\[key, value\]"),
    Entry("porcupine-log", "a line that is cut", LOG.rstrip() + b"\n", "the value is missing"),
)  # fmt: skip

_FOLDERS = (
    Entry("run.json", "a pipe that nobody writes to", _pipe, "it is not a file"),
    Entry("run.json", "no end", _endless, "it is not a file"),
    Entry("run.json", "a list", b"[]", "it holds no JSON object"),
    Entry("run.json", "a schema to come", b'{"schema": 99, "status": "recorded"}', "its schema is 99"),
    Entry("run.json", "a schema that is true", b'{"schema": true, "status": "recorded"}', "its schema is true"),
    Entry("run.json", "no status", b'{"schema": 3}', "the field status"),
    Entry("run.json", "no digests", b'{"schema": 3, "status": "recorded"}', "the field .* is missing"),
    Entry("run.json", "a run that goes on", b'{"schema": 3, "status": "running"}', "did not complete", 2),
    Entry("run.json of recover", "a list", b"[]", "it holds no JSON object"),
    Entry("run.json of recover", "a pipe that nobody writes to", _pipe, "it is not a file"),
    Entry("ledger", "a pipe that nobody writes to", _pipe, "it is not a file"),
    Entry("ledger", "no end", _endless, "it is not a file"),
    Entry("ledger", "a time that is an object", _inject(time={}), "ledger.jsonl:1: not a ledger line"),
    Entry("ledger", "a time of 5,000 digits", _inject(time=7).replace(b": 7", b": " + b"7" * 5000) * 2,
          "ledger.jsonl:1:"),
    Entry("ledger", "a time of 70 bits", _inject(time=1 << 69), "its time has more than 64 bits"),
    Entry("ledger", "a standstill that is no number",
          b'{"phase": "standstill", "time": 1, "done": 2, "seconds": NaN}\n' * 2, "its seconds has more than 64 bits"),
    Entry("ledger", "a phase that is none", _inject(phase="moonlight"), "phase 'moonlight'"),
    Entry("ledger", "proof that is a text", _inject(proven="yes"), "its proven is"),
    Entry("ledger", "targets that are numbers", _inject(targets=[1]), "its targets is"),
    Entry("history", "a pipe that nobody writes to", _pipe, "it is not a file"),
    Entry("history", "no end", _endless, "it is not a file"),
    Entry("history", "a footer with a list of a million groups", _footer(), "[Ee]xceeded size limit"),
    Entry("porcupine", "a footer with a list of a million groups", _footer(), "[Ee]xceeded size limit"),
    Entry("history", "a table of many rows", _table(40_000), "the bound"),
    Entry("history", "a table with a long text", _table(500, "x" * 10_000), "the bound"),
    Entry("history", "a table of floats", _table(2, time=[0.0, 1.0]), "the column time holds double"),
    Entry("history", "a table of lists", _table(2, value=[[1], [2]]), "the column value holds list"),
    Entry("load", "a table of many rows", _table(40_000), "the bound"),
    Entry("load", "a table with a long text", _table(500, "x" * 10_000), "the bound"),
    Entry("journal", "a pipe that nobody writes to", _pipe, "it is not a file"),
    Entry("journal", "no end", _endless, "it is not a file"),
    Entry("journal", "a header that is nested", _journal(header=b"[" * DEEP), "its first frame is not JSON"),
    Entry("journal", "a header that is a list", _journal(header=b"[]"), "its first frame names no run"),
    Entry("journal", "a schema to come", _journal(header=b'{"schema": 9, "run": "r"}'), "has schema version 9"),
    Entry("journal", "a frame of noise", _journal(b"noise" * 9), "frame 1 holds no rows"),
    Entry("journal", "a frame of nothing", _journal(b""), "frame 1 holds no rows"),
    Entry("journal", "rows that are compressed", _later(lambda: _rows(2, "zstd")),
          "something else than plain rows"),
    Entry("journal", "texts beyond the end", _later(_wild_offsets), "frame 1 holds"),
    Entry("journal", "more rows than bytes", _later(_many_batches), "frame 1 holds"),
    Entry("journal", "numbers that are null", _later(lambda: _rows(2, time=[0, None])),
          "a number is null"),
    Entry("journal", "rows twice", _later(_rows, _rows), "lacks rows"),
    Entry("journal", "another schema", _later(lambda: _rows(2, value=_floats())), "another schema"),
    Entry("journal", "damage before a whole frame", _journal(b"a")[:-1] + b"!" + _journal(), "is damaged at byte"),
    Entry("journal", "what looks like frames without end", _journal()[:-1] + b"SPJ1\xff\xff\x03\0\0\0\0\0" * 30_000,
          "is damaged at byte"),
)  # fmt: skip

_FILES = (
    Entry("config", "a key that is unknown", b"x = 1\n", "unknown key 'x'"),
    Entry("config", "arrays without end", b"system = " + b"[" * DEEP, "nested too deeply"),
    Entry("config", "more than a configuration", b"#" * MIB, "larger than"),
    Entry("config", "a key of many parts", b"a" + b".a" * 50_000 + b" = 1\n", "more than 200 dots"),
    Entry("hosts", "a host without an address", b"n1\n", "the address is missing"),
    Entry("hosts", "a key in nobody's home", b"n1 root@10.0.0.1 key=~nobody-at-all/k\n", "h:1: ~nobody-at-all/k"),
    Entry("hosts", "a quote that is never closed", b'n1 "root@h\n', "hosts:1|h:1"),
    Entry("node-config", "a design that is none", b'{"node": "n", "design": "x", "data": "d"}', "there is no 'x'"),
    Entry("descriptor", "entities that grow", b'<?xml version="1.0"?><!DOCTYPE c [<!ENTITY a "' + b"x" * 1000
          + b'"><!ENTITY b "' + b"&a;" * 1000 + b'">]><config>&b;</config>', "the DOCTYPE has declarations"),
    Entry("descriptor", "an entity that is a file", b'<!DOCTYPE c [<!ENTITY a SYSTEM "/etc/passwd">]>'
          b"<config>&a;</config>", "the DOCTYPE has declarations"),
    Entry("descriptor", "elements without end", b"<config>" * 10_000, "h:1: "),
    Entry("jsonl", "a row that is a list", b"[]\n", "not a JSON object"),
    Entry("jsonl", "a row without a process", b'{"type": "ok", "f": "x"}\n', "a whole number from 0, .*missing"),
    Entry("jsonl", "a process of 100 bits", b'{"type": "ok", "f": "x", "process": ' + b"9" * 30 + b"}\n",
          "a whole number from 0"),
)  # fmt: skip

_FRAMES = (
    Entry("stomp", "another protocol", b"GET / HTTP/1.1\r\n\r\n", "unknown command"),
    Entry("stomp", "headers without end", b"SEND\n" + b"a:b\n" * 10_000, "headers are longer"),
    Entry("stomp", "a header without a name", b"SEND\n:x\n\n\0", "malformed"),
    Entry("stomp", "an escape that is none", b"SEND\na:\\t\n\n\0", "undefined escape"),
    Entry("stomp", "a body without end", b"SEND\n\n" + b"x" * 20_000, "body is longer"),
    Entry("stomp", "a length below 0", b"SEND\ncontent-length:-1\n\n\0", "not a number"),
    Entry("stomp", "a length of 400 digits", b"SEND\ncontent-length:" + b"9" * 400 + b"\n\n\0", "not a number"),
    Entry("stomp", "a length that is too small", b"SEND\ncontent-length:1\n\nabc\0", "no NUL"),
    Entry("stomp", "a message to nobody", b"SEND\n\nx\0", "without destination"),
    Entry("stomp", "a prefetch of 0", b"SUBSCRIBE\nid:s\ndestination:/queue/q\nx-prefetch:0\n\n\0", "x-prefetch"),
    Entry("stomp", "a transaction of a strange id", b"BEGIN\ntransaction:t\nx-xid:a b\n\n\0", "x-xid is not"),
    Entry("links", "a frame of 4 GiB", b"\xff\xff\xff\xff", "longer than"),
    Entry("links", "a frame of noise", b"\0\0\0\x03abc", "can't be decoded"),
    Entry("links", "a value that is no message", _wire([1, 2]), "no message"),
    Entry("links", "a message that there is not", _wire(b"\xff"), "no message"),
    Entry("links", "a message that is cut off", _wire(b"\x00abc"), "malformed"),
    Entry("links", "entries longer than their frame", _wire(b"\x02" + bytes(48) + b"\xff" * 4), "malformed"),
    Entry("links", "lists without end", struct.pack(">I", 5000) + b"\x07\x01" * 2500, "deeper"),
    Entry("links", "more items than bytes", struct.pack(">I", 6) + b"\x07\xff\xff\xff\xff\x0f", "cut short"),
    Entry("storage", "changes that are none", _wire("x"), "changes are malformed"),
    Entry("storage", "a row without a key", _wire([["t", [[]], []]]), "changes are malformed"),
    Entry("storage", "a key that is a text", _wire([["t", [["k"]], []]]), "changes are malformed"),
    Entry("storage", "a table that is a number", _wire([[5, [], []]]), "changes are malformed"),
)  # fmt: skip


def _floats() -> object:
    import pyarrow as pa

    return pa.array([1.0, 2.0])


ENTRIES = (*_HISTORIES, *_FOLDERS, *_FILES, *_FRAMES)
