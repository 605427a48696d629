"""Sealed histories: Parquet, the digest of rows, JSON lines."""

from __future__ import annotations

import io
import json
import struct
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormproof.errors import HistoryError, StormproofError
from stormproof.history.journal import JournalWriter
from stormproof.history.jsonl import export_jsonl, import_jsonl
from stormproof.history.schema import HISTORY_SCHEMA
from stormproof.history.seal import history_frame, read_history, rows_sha256, seal
from stormproof.operation import FAIL, INFO, INVOKE, OK, Op

OPS = [
    Op(INVOKE, "enqueue", (0, 1), 0, 0, 10),
    Op(OK, "enqueue", (0, 1), 0, 0, 20, "n1"),
    Op(INVOKE, "dequeue", None, 0, 1, 30),
    Op(FAIL, "dequeue", None, 0, 1, 40, "n2", "empty"),
    Op(INFO, "partition.inject", {"id": 0, "targets": ["n1"]}, None, -1, 50),
    Op(OK, "depth", 17, 0, 0, 60),
    Op(INVOKE, "enqueue", (3, 4), 2, 0, 70),
]


def record(run_dir: Path, ops: list[Op], flush_every: int = 3, run: str = "run-1") -> None:
    run_dir.mkdir(exist_ok=True)
    writer = JournalWriter(run_dir / "journal.bin", run)
    for i, op in enumerate(ops, 1):
        writer.record(op)
        if i % flush_every == 0:
            writer.flush()
    writer.close()


def test_sealing_gives_the_schema_the_rows_and_the_metadata(tmp_path: Path) -> None:
    record(tmp_path, OPS)
    sealed = seal(tmp_path)
    assert (sealed.rows, sealed.dropped_bytes) == (7, 0)
    table = pq.read_table(tmp_path / "history.parquet")
    assert table.schema.equals(HISTORY_SCHEMA, check_metadata=False)
    assert table.schema.metadata[b"stormproof.run"] == b"run-1"
    assert table.schema.metadata[b"stormproof.schema"] == b"1"
    rows = table.to_pylist()
    assert [row["index"] for row in rows] == list(range(7))
    assert [row["type"] for row in rows] == [0, 1, 0, 2, 3, 1, 0]
    assert rows[3] == {
        "run": "run-1", "index": 3, "time": 40, "process": 1, "type": 2, "f": "dequeue", "key": 0, "value": -1,
        "text": None, "node": "n2", "error": "empty",
    }  # fmt: skip
    assert [p.name for p in tmp_path.iterdir() if "partial" in p.name] == []


def test_the_file_is_stored_as_measured(tmp_path: Path) -> None:
    record(tmp_path, OPS)
    seal(tmp_path)
    group = pq.ParquetFile(tmp_path / "history.parquet").metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert "DELTA_BINARY_PACKED" in columns["time"].encodings
    assert "RLE_DICTIONARY" in columns["f"].encodings


def test_a_big_history_has_row_groups_of_bounded_size(tmp_path: Path) -> None:
    record(tmp_path, [Op(INVOKE, "enqueue", (0, i), 0, 0, i) for i in range(260_000)], flush_every=10**9)
    seal(tmp_path)
    metadata = pq.ParquetFile(tmp_path / "history.parquet").metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [250_000, 10_000]


def test_an_empty_history_can_be_sealed(tmp_path: Path) -> None:
    record(tmp_path, [])
    assert seal(tmp_path).rows == 0
    assert read_history(tmp_path).num_rows == 0


def test_sealing_twice_changes_nothing(tmp_path: Path) -> None:
    record(tmp_path, OPS)
    first = seal(tmp_path)
    data = (tmp_path / "history.parquet").read_bytes()
    assert seal(tmp_path) == first
    assert (tmp_path / "history.parquet").read_bytes() == data


def test_a_torn_tail_is_dropped_and_counted(tmp_path: Path) -> None:
    record(tmp_path, OPS)
    path = tmp_path / "journal.bin"
    path.write_bytes(path.read_bytes()[:-10])
    sealed = seal(tmp_path)
    assert sealed.rows == 6
    assert sealed.dropped_bytes > 0


def test_history_is_read_from_the_journal_until_it_is_sealed(tmp_path: Path) -> None:
    record(tmp_path, OPS)
    before = read_history(tmp_path)
    seal(tmp_path)
    after = read_history(tmp_path)
    assert before.to_pylist() == after.to_pylist()
    assert rows_sha256(before) == rows_sha256(after) == seal(tmp_path).sha256


def test_a_failing_write_leaves_no_history_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, OPS)

    def full(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stormproof.history.seal.pq.write_table", full)
    with pytest.raises(StormproofError, match=r"can't write .*history\.parquet: No space left"):
        seal(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["journal.bin"]


def test_a_run_without_history_and_a_damaged_one_are_told(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="holds no history"):
        read_history(tmp_path)
    (tmp_path / "history.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(HistoryError, match="can't read the history"):
        read_history(tmp_path)


def test_a_history_of_another_version_is_told(tmp_path: Path) -> None:
    record(tmp_path, OPS)
    table = read_history(tmp_path).replace_schema_metadata({"stormproof.schema": "9"})
    pq.write_table(table, tmp_path / "history.parquet")
    with pytest.raises(HistoryError, match="schema version 9"):
        read_history(tmp_path)


def test_a_history_loads_as_a_data_frame(tmp_path: Path) -> None:
    record(tmp_path, OPS)
    frame = history_frame(tmp_path)
    assert list(frame["type"]) == ["invoke", "ok", "invoke", "fail", "info", "ok", "invoke"]
    assert list(frame[frame.f == "enqueue"]["time"]) == [10, 20, 70]
    assert frame["run"].unique().tolist() == ["run-1"]


def test_the_digest_depends_on_rows_alone(tmp_path: Path) -> None:
    record(tmp_path / "a", OPS, flush_every=1)
    record(tmp_path / "b", OPS, flush_every=100, run="another")
    assert seal(tmp_path / "a").sha256 == seal(tmp_path / "b").sha256


def test_the_digest_sees_every_column(tmp_path: Path) -> None:
    changed = [
        {"type": INFO}, {"f": "drain"}, {"value": (0, 2)}, {"value": None}, {"value": [1]}, {"key": 1}, {"process": 5},
        {"time": 21}, {"node": "n2"}, {"node": None}, {"node": ""}, {"error": "late"},
    ]  # fmt: skip
    digests = set()
    for i, change in enumerate([{}, *changed]):
        record(tmp_path / str(i), [OPS[0], OPS[1]._replace(**change), *OPS[2:]])
        digests.add(seal(tmp_path / str(i)).sha256)
    record(tmp_path / "shorter", OPS[:-1])
    digests.add(seal(tmp_path / "shorter").sha256)
    assert len(digests) == len(changed) + 2


def test_the_digest_is_what_its_description_says(tmp_path: Path) -> None:
    record(tmp_path, OPS)
    rows = read_history(tmp_path).to_pylist()
    formats = {"index": "<q", "time": "<q", "process": "<i", "type": "<b", "key": "<i", "value": "<q"}
    whole = b""
    for name in HISTORY_SCHEMA.names[1:]:
        column = [row[name] for row in rows]
        if name in formats:
            whole += sha256(b"".join(struct.pack(formats[name], value) for value in column)).digest()
        else:
            texts = [None if value is None else value.encode() for value in column]
            lengths = b"".join(struct.pack("<i", -1 if text is None else len(text)) for text in texts)
            whole += sha256(lengths).digest() + sha256(b"".join(text or b"" for text in texts)).digest()
    assert seal(tmp_path).sha256 == sha256(whole).hexdigest()


def test_json_lines_are_for_people(tmp_path: Path) -> None:
    record(tmp_path, OPS)
    out = io.StringIO()
    export_jsonl(read_history(tmp_path), out)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert lines[0] == {"schema": 1, "run": "run-1"}
    assert lines[4] == {
        "index": 3, "time": 40, "process": 1, "type": "fail", "f": "dequeue", "key": 0, "node": "n2", "error": "empty",
    }  # fmt: skip
    assert lines[5]["text"] == '{"id": 0, "targets": ["n1"]}'
    assert lines[7]["value"] == [3, 4]


VALUES = st.one_of(
    st.none(),
    st.integers(-5, 2**40),
    st.tuples(st.integers(0, 2**33), st.integers(0, 2**33)),
    st.text(max_size=5),
    st.lists(st.integers(0, 9), max_size=3),
)
OPERATIONS = st.builds(
    Op,
    st.sampled_from([INVOKE, OK, FAIL, INFO]),
    st.sampled_from(["enqueue", "dequeue", "kill.inject"]),
    VALUES,
    st.one_of(st.none(), st.integers(0, 9)),
    st.integers(-1, 9),
    st.integers(0, 2**60),
    st.one_of(st.none(), st.sampled_from(["n1", "n2"])),
    st.one_of(st.none(), st.text(st.characters(codec="utf-8"), max_size=9)),
)


@settings(max_examples=60, deadline=None)
@given(ops=st.lists(OPERATIONS, max_size=20))
def test_json_lines_lose_nothing(tmp_path_factory: pytest.TempPathFactory, ops: list[Op]) -> None:
    folder = tmp_path_factory.mktemp("export")
    record(folder, ops)
    table = read_history(folder)
    path = folder / "history.jsonl"
    with path.open("w", encoding="utf-8") as file:
        export_jsonl(table, file)
    back = import_jsonl(path)
    assert back.schema.equals(HISTORY_SCHEMA)
    assert rows_sha256(back) == rows_sha256(table)


def test_json_lines_by_hand_need_little(tmp_path: Path) -> None:
    path = tmp_path / "tiny.jsonl"
    path.write_text(
        '{"type": "invoke", "f": "enqueue", "process": 0, "value": [0, 1]}\n\n'
        '{"type": "ok", "f": "enqueue", "process": 0, "value": [0, 1]}\n'
    )
    table = import_jsonl(path)
    assert table.column("run").to_pylist() == ["tiny", "tiny"]
    assert table.column("time").to_pylist() == [0, 1]
    assert table.column("value").to_pylist() == [1, 1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", ":1: not JSON"),
        ("[1]", ":1: not a JSON object"),
        ('{"f": "x", "process": 0}', ":1: type: one of invoke, ok, fail, info is expected, and it is missing"),
        ('{"type": "maybe", "f": "x", "process": 0}', ':1: type: one of invoke, .* is expected, not "maybe"'),
        ('{"type": ["ok"], "f": "x", "process": 0}', ":1: type: one of"),
        ('{"type": "ok", "f": "x", "process": 0, "index": 4}', ":1: index: 0 is expected, .* not 4"),
        ('{"type": "ok", "f": "x", "process": "zero"}', ':1: process: a whole number from 0, .* not "zero"'),
        ('{"type": "ok", "f": "x", "process": -2}', ":1: process: a whole number from 0"),
        ('{"type": "ok", "f": "x", "process": true}', ":1: process: a whole number from 0"),
        ('{"type": "ok", "f": "x", "process": 0, "time": NaN}', ":1: time: a whole number of nanoseconds.* not NaN"),
        ('{"type": "ok", "f": "x", "process": 0, "time": 1e30}', ":1: time: a whole number of nanoseconds"),
        ('{"type": "ok", "f": "x", "process": 0, "key": [1]}', ":1: key: a whole number from 0"),
        ('{"type": "ok", "f": "x", "process": 0, "node": 3}', ":1: node: a text"),
        ('{"type": "ok", "f": "\\ud800", "process": 0}', ":1: f: a text"),
        ('{"schema": 1, "run": 3}', ":1: run: a text"),
        ('{"schema": 7}', "schema version 7"),
    ],
)
def test_bad_json_lines_are_told(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(HistoryError, match=message):
        import_jsonl(path)


def test_a_number_that_is_no_column_s_is_kept_as_text(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    path.write_text('{"type": "ok", "f": "x", "process": 0, "value": 9223372036854775808}\n')
    assert import_jsonl(path).column("text").to_pylist() == ["9223372036854775808"]


def test_two_runs_cannot_be_exported_as_one() -> None:
    row = {"index": 0, "time": 0, "process": 0, "type": 0, "f": "x", "key": 0, "value": 0}
    rows = [{"run": run, **row} for run in "ab"]
    with pytest.raises(HistoryError, match="holds 2 runs"):
        export_jsonl(pa.Table.from_pylist(rows, schema=HISTORY_SCHEMA), io.StringIO())
