"""Histories out and in: nothing is lost on the way, and ends of operations mean what Jepsen means by them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import porcupine
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from porcupine.formats import read_history as porcupine_history
from typer.testing import CliRunner

from checkers.run_check import check_run
from harness.cli import app
from harness.exchange import DID_NOT_HAPPEN, EDN, JSONL, export, import_run, read_foreign
from stormproof.errors import StormproofError
from stormproof.history.schema import HISTORY_SCHEMA, TYPE_CODES, encode_value

pytestmark = pytest.mark.requirement("H7", part=True)

VALUES = st.one_of(st.none(), st.integers(0, 1 << 40), st.integers(-5, -1), st.text(max_size=6),
                   st.tuples(st.integers(0, 9), st.integers(0, 9)), st.lists(st.integers(0, 9), max_size=3),
                   st.booleans(), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2))  # fmt: skip
NAMES = st.one_of(st.none(), st.text(min_size=1, max_size=6))


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Whatever rows a history can hold."""
    columns: dict[str, list[Any]] = {name: [] for name in HISTORY_SCHEMA.names}
    time = 0
    for index in range(draw(st.integers(1, 8))):
        time += draw(st.integers(0, 5))
        value, text = encode_value(draw(VALUES))
        f = draw(st.one_of(st.sampled_from(("read", "partition.inject")), st.text(min_size=1, max_size=6)))
        entries = ("r", index, time, draw(st.integers(-1, 9)), draw(st.integers(0, 3)), f.removeprefix(":") or "f",
                   draw(st.integers(-1, 4)), value, text, draw(NAMES), draw(NAMES))  # fmt: skip
        for name, entry in zip(HISTORY_SCHEMA.names, entries, strict=True):
            columns[name].append(entry)
    return pa.table(columns, schema=HISTORY_SCHEMA)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tables(), st.sampled_from((EDN, JSONL)))
def test_what_is_written_can_be_read_again(tmp_path: Path, table: pa.Table, form: str) -> None:
    out = io.StringIO()
    export(table, form, out)
    path = tmp_path / f"history.{form}"
    path.write_text(out.getvalue(), encoding="utf-8")
    assert read_foreign(path, "queue", DID_NOT_HAPPEN, "r").to_pylist() == table.to_pylist()


@st.composite
def register_histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A register's history by Jepsen's rules: a process whose operation ended ``info`` is never seen again."""
    rows: list[dict[str, Any]] = []
    process, under_way = [0, 1, 2], dict[int, dict[str, Any]]()
    for _ in range(draw(st.integers(2, 14))):
        thread = draw(st.integers(0, 2))
        if thread not in under_way:
            f = draw(st.sampled_from(("read", "write", "cas")))
            few = st.integers(0, 3)
            value = {"read": st.none(), "write": few, "cas": st.tuples(few, few).map(list)}[f]
            under_way[thread] = {"process": process[thread], "type": "invoke", "f": f, "value": draw(value)}
            rows.append(under_way[thread])
            continue
        row = under_way.pop(thread)
        kind = draw(st.sampled_from(("ok", "ok", "ok", "fail", "info")))
        got = draw(st.one_of(st.none(), st.integers(0, 3))) if (row["f"], kind) == ("read", "ok") else row["value"]
        rows.append({**row, "type": kind, "value": got})
        if kind == "info":
            process[thread] += 3
    return rows


def as_edn(rows: list[dict[str, Any]]) -> str:
    def shown(value: Any) -> str:
        return "nil" if value is None else f"[{value[0]} {value[1]}]" if isinstance(value, list) else str(value)

    return "".join(
        f"{{:process {row['process']}, :type :{row['type']}, :f :{row['f']}, :value {shown(row['value'])}}}\n"
        for row in rows
    )


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(register_histories(), st.sampled_from(("did-not-happen", "did-not-match")), st.booleans())
def test_a_register_of_jepsen_is_judged_as_porcupine_judges_it(
    tmp_path: Path, rows: list[dict[str, Any]], failed_cas: str, edn: bool
) -> None:
    path = tmp_path / "history"
    path.write_text(as_edn(rows) if edn else "".join(f"{json.dumps(row)}\n" for row in rows))
    model = porcupine.model_named("cas-register")
    wanted = porcupine.check_operations(model, porcupine_history(path, model, failed_cas=failed_cas)).value
    run_dir = import_run(path, "register", tmp_path / "runs", system="etcd", failed_cas=failed_cas)
    found = next(result for result in check_run(run_dir).checks if result.check == "register")
    if found.outcome.figures.get("objects"):
        assert found.outcome.verdict == {"ok": "valid", "illegal": "invalid"}[wanted]
    event(found.outcome.verdict)


def imported(folder: Path, text: str, workload: str, **options: str) -> tuple[int, dict[str, Any]]:
    """The exit status and verdict of ``stormproof import``."""
    path = folder / "history"
    path.write_text(text)
    words = ["import", str(path), "--workload", workload, "--store", str(folder / "runs"), "--json"]
    words += [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    result = CliRunner().invoke(app, words)
    assert not isinstance(result.exception, StormproofError), result.exception
    return result.exit_code, json.loads(result.stdout)


LIN_KV = """
{"process": 0, "type": "invoke", "f": "write", "value": [7, 1]}
{"process": 0, "type": "ok", "f": "write", "value": [7, 1]}
{"process": 1, "type": "invoke", "f": "read", "value": [8, null]}
{"process": 1, "type": "ok", "f": "read", "value": [8, null]}
{"process": 1, "type": "invoke", "f": "cas", "value": [7, [2, 3]]}
{"process": 1, "type": "fail", "f": "cas", "value": [7, [2, 3]], "error": [22, "expected 2, had 1"]}
{"process": 1, "type": "invoke", "f": "read", "value": [7, null]}
{"process": 1, "type": "ok", "f": "read", "value": [7, READ]}
"""


@pytest.mark.parametrize(("seen", "status", "verdict"), [("1", 0, "valid"), ("null", 1, "invalid")])
def test_maelstrom_s_keys(tmp_path: Path, seen: str, status: int, verdict: str) -> None:
    code, told = imported(tmp_path, LIN_KV.replace("READ", seen), "register", system="maelstrom")
    assert (code, told["verdict"]) == (status, verdict)
    assert Path(told["report"]).is_file() and "maelstrom" in told["run"]


QUEUE = """[
{:process 0, :type :invoke, :f :enqueue, :value 10} {:process 0, :type :ok, :f :enqueue, :value 10}
{:process 0, :type :invoke, :f :enqueue, :value 11} {:process 0, :type :LAST, :f :enqueue, :value 11}
{:process :nemesis, :type :info, :f :start, :value "cut off n1"}
{:process 1, :type :invoke, :f :dequeue, :value nil} {:process 1, :type :fail, :f :dequeue, :error :empty}
{:process 2, :type :invoke, :f :drain, :value nil} {:process 2, :type :ok, :f :drain, :value [10]}]
"""


@pytest.mark.parametrize(("last", "verdict"), [("ok", "invalid"), ("info", "valid"), ("fail", "valid")])
def test_a_queue_that_is_drained_at_once(tmp_path: Path, last: str, verdict: str) -> None:
    _, told = imported(tmp_path, QUEUE.replace("LAST", last), "queue")
    assert told["verdict"] == verdict and (verdict == "valid" or "1 confirmed message was never delivered" in
                                           told["sentence"])  # fmt: skip


def test_a_lock_s_two_holders(tmp_path: Path) -> None:
    rows = [(0, "invoke", "acquire"), (0, "ok", "acquire"), (1, "invoke", "acquire"), (1, "ok", "acquire"),
            (0, "invoke", "release"), (0, "ok", "release")]  # fmt: skip
    text = "\n".join(json.dumps({"process": p, "type": kind, "f": f, "value": None}) for p, kind, f in rows)
    code, told = imported(tmp_path, text, "lock")
    assert code == 1 and "1 time two held the lock at once" in told["sentence"]


@pytest.mark.parametrize(("text", "workload", "reason"), [
    ("{:process 0, :type :invoke}", "register", "operation 1: f is missing"),
    ("{:process 0, :type :maybe, :f :read}", "register", "the type is 'maybe'"),
    ("{:process x, :type :ok, :f :read}", "register", "no whole number from 0"),
    ("{:process 0, :type :invoke, :f :read", "register", "never closed"),
    ('{"process": 0, "type": "invoke", "f": "txn", "value": []}', "register", "operation 1: txn is no operation"),
    ('{"process": 0, "type": "invoke", "f": "cas", "value": 3}', "register", "cas needs the pair"),
    ('{"process": 0, "type"', "queue", "neither EDN nor JSON lines"),
    ("[1 2]", "queue", "a map is expected, not 1"),
    ("", "topic", "histories can be imported as register, queue, consume-last, lock, lease"),
])  # fmt: skip
def test_what_is_no_history_is_told_in_one_line(tmp_path: Path, text: str, workload: str, reason: str) -> None:
    path = tmp_path / "history"
    path.write_text(text)
    result = CliRunner().invoke(app, ["import", str(path), "--workload", workload, "--store", str(tmp_path / "runs")])
    assert isinstance(result.exception, StormproofError) and reason in str(result.exception)
    assert "\n" not in str(result.exception) and not (tmp_path / "runs").exists()


def test_a_run_goes_out_as_csv_too(tmp_path: Path) -> None:
    _, told = imported(tmp_path, LIN_KV.replace("READ", "1"), "register")
    words = ["export", told["run"], "--store", str(tmp_path / "runs"), "--format"]
    lines = CliRunner().invoke(app, [*words, "csv"]).stdout.splitlines()
    assert lines[0].startswith("index,time,process,type,f,key,value") and len(lines) == 9
    assert lines[1].split(",")[2:7] == ["0", "invoke", "write", "1", "1"]
    refused = CliRunner().invoke(app, [*words, "xml"])
    assert "choose one of edn, jsonl, csv" in str(refused.exception)
    assert CliRunner().invoke(app, [*words, "edn", "-o", str(tmp_path / "out.edn")]).exit_code == 0
    again = tmp_path / "out.edn"
    assert len(read_foreign(again, "register", DID_NOT_HAPPEN, "r")) == 8 and set(TYPE_CODES) >= {"ok"}
