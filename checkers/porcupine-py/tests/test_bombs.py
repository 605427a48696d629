"""Small files that stand for huge histories are refused before they take more than they may."""

import gzip
import json
import sys
import tracemalloc

import pytest

import porcupine
from porcupine import PorcupineError, model_named, read_history
from porcupine.cli import main
from porcupine.formats.memory import json_size, read_size, weight

MIB = 1 << 20
BOUND = 2 * MIB
JSON = b'{"process": 0, "type": "invoke", "f": "write", "value": '
EDN = b"{:process 0 :type :invoke :f :write :value "
LOG = b"INFO  jepsen.util - 0\t:invoke\t:write\t"

# What unpacks, or is parsed, to more than its size lets one expect: head, a piece that is repeated, tail.
BOMBS = {
    "zeros": (b"", b"\0", b"", 5 * MIB),
    "blank lines": (b"", b"\n", b"", 2 * MIB),
    "lists within a list": (JSON + b"[", b"[],", b"0]}\n", MIB // 4),
    "objects within a list": (JSON + b"[", b'{"":0},', b"0]}\n", MIB // 4),
    "a long text of wide characters": (JSON + '"\U0001f600'.encode(), b"a", b'"}\n', 4 * MIB),
    "many operations with lists": (
        b"", b'{"process":0,"type":"invoke","f":"write","value":[[],[],[],[],[]]}\n'
        b'{"process":0,"type":"ok","f":"write","value":0}\n', b"", 2 * MIB,
    ),
    "sets within a vector": (EDN + b"[", b"#{}", b"]}\n", MIB // 3),
    "one-letter symbols": (EDN + b"[", b"ab ", b"]}\n", MIB // 3),
    "an EDN text": (EDN + b'"', b"a", b'"}\n', 4 * MIB),
    "an EDN text of escapes": (EDN + b'"', b"\\n", b'"}\n', 4 * MIB),
    "one EDN vector of maps": (
        b"[", b"{:process 0 :type :invoke :f :write :value [[] [] []]}{:process 0 :type :ok :f :write}", b"]", 2 * MIB,
    ),
    "a log's vector": (LOG + b"[", b"[]", b"]\n", MIB // 4),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_one_line_before_it_takes_more(tmp_path, capsys, name):
    head, piece, tail, size = BOMBS[name]
    path = tmp_path / "h.gz"
    with gzip.open(path, "wb", 5) as file:
        file.write(head)
        for _ in range(max(1, size // (len(piece) << 14))):
            file.write(piece * (1 << 14))
        file.write(tail)
    assert path.stat().st_size < 100_000
    model = model_named("register")
    tracemalloc.start()
    try:
        with pytest.raises(PorcupineError, match=r"it would take more than 2 MiB; --max-history raises the bound"):
            read_history(path, model, max_history=BOUND)
        assert tracemalloc.get_traced_memory()[1] < 4 * BOUND
    finally:
        tracemalloc.stop()
    assert main(["check", "--model", "register", "--max-history", "2M", str(path)]) == 3
    told = capsys.readouterr().err
    assert str(path) in told and told.count("\n") == 1


def test_an_endless_file_is_refused():
    with pytest.raises(PorcupineError, match="/dev/zero: read, it would take more than 1 MiB"):
        read_history("/dev/zero", model_named("register"), max_history=MIB)


def test_the_bound_can_be_raised_and_a_usual_history_is_far_below_it(tmp_path, capsys):
    path = tmp_path / "h.jsonl"
    lines = ({"process": 0, "type": t, "f": "write", "value": n} for n in range(2000) for t in ("invoke", "ok"))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ["check", "--model", "register", str(path), "--max-history"]
    assert main([*command, "1M"]) == 3
    assert main([*command, "4M"]) == 0
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main([*command, "much"])
    assert stop.value.code == 3
    assert "write a size as 500M or 6G" in capsys.readouterr().err
    assert porcupine.formats.MAX_HISTORY == read_size("4G") == 4 << 30


@pytest.mark.parametrize("depth", [99, 101, 300, 100_000])
@pytest.mark.parametrize("head", [JSON, EDN, LOG])
def test_depth_is_bounded_alike_in_all_formats(tmp_path, head, depth):
    path = tmp_path / "h"
    path.write_bytes(head + b"[" * depth + b"]" * depth + (b"}" if head != LOG else b"") + b"\n")
    model = model_named("register")
    if depth < 100:
        assert len(read_history(path, model)) == 1
    else:
        with pytest.raises(PorcupineError, match=r"h:1: .*nested too deeply"):
            read_history(path, model)


def parquet(path, rows, **columns):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = {
        "run": ["a"] * rows, "index": list(range(rows)), "process": [0] * rows, "type": [k % 2 for k in range(rows)],
        "f": ["write"] * rows, "key": [-1] * rows, "value": [-2] * rows, "text": ["1"] * rows, **columns,
    }  # fmt: skip
    pq.write_table(pa.table(table), path, compression="zstd")
    return path


def test_parquet_is_bounded_by_its_footer_and_by_what_it_holds(tmp_path, monkeypatch):
    model = model_named("register")
    many = parquet(tmp_path / "many.parquet", 20_000)
    large = parquet(tmp_path / "large.parquet", 2_000, text=['"' + "x" * 10_000 + '"'] * 2_000)
    for path in (many, large):
        assert path.stat().st_size < 1_000_000
        with pytest.raises(PorcupineError, match="it would take more than 2 MiB"):
            read_history(path, model, max_history=BOUND)
    assert len(read_history(many, model, max_history=50 * MIB)) == 10_000
    # The footer may lie: nothing of it is believed.
    import pyarrow.parquet as pq

    class Lying(pq.ParquetFile):
        @property
        def metadata(self):
            if sys._getframe(1).f_code.co_name != "_columns":
                return super().metadata
            return type("Metadata", (), {"num_rows": 0, "num_row_groups": 0})

    monkeypatch.setattr(pq, "ParquetFile", Lying)
    with pytest.raises(PorcupineError, match="it would take more than 2 MiB"):
        read_history(many, model, max_history=BOUND)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"value": [[1], [2]]}, 'column "value" holds list<.*, not integers'),
        ({"index": [0.0, 1.0]}, 'column "index" holds double, not integers'),
        ({"index": [0, None]}, ":2: index is missing, but line 1 has one"),
        ({"f": [1, 2]}, 'column "f" holds int64, not texts'),
        ({"text": ["[" * 100_000] * 2}, ":1: text is not JSON"),
        ({"text": ["[" * 200 + "]" * 200] * 2}, ":1: nested too deeply"),
    ],
)
def test_parquet_of_other_kinds_is_refused(tmp_path, columns, reason):
    path = parquet(tmp_path / "h.parquet", 2, **columns)
    with pytest.raises(PorcupineError, match=reason):
        read_history(path, model_named("register"))


def test_parquet_that_points_behind_its_dictionary_is_refused(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    from porcupine.formats.memory import MemoryMeter
    from porcupine.formats.parquet import _texts

    for codes in ([0, 64], [0, -1]):
        column = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(["a"]), safe=False)
        with pytest.raises(ValueError, match="out of bounds"):
            _texts(column, MemoryMeter(BOUND, "h"))


@pytest.mark.parametrize("value", [[], [[]] * 9, {"": 0}, [{"a": [1, "x" * 50]}] * 20, list(range(100)), "é" * 500])
def test_what_a_text_is_thought_to_take_is_never_less_than_it_takes(value):
    text = json.dumps([value] * 2000, separators=(",", ":"))
    assert weight(json.loads(text))[0] <= json_size(text)
