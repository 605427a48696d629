"""Histories out and in: nothing is lost on the way, and ends of operations mean what Jepsen means by them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import porcupine
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st
from porcupine.formats import read_history as porcupine_history
from typer.testing import CliRunner

from checkers.run_check import check_run
from harness.cli.app import app
from harness.store.exchange import EDN, JSONL, NO_CHOICES, export, import_run
from harness.store.foreign import Choices, read_foreign, renamed
from stormproof.errors import HistoryError, StormproofError
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
    assert renamed(read_foreign(path, "queue", NO_CHOICES).table, "r").to_pylist() == table.to_pylist()


SIMILAR = st.sampled_from((0, 1, 1, True, False, 1.0, "1", "a", ":a", None))
"""Values of which some are equal for Python, and not for JSON or EDN; texts with a colon are keywords in EDN."""


@st.composite
def histories(draw: st.DrawFn, functions: tuple[str, ...]) -> list[dict[str, Any]]:
    """A history by Jepsen's rules: a process whose operation ended ``info`` is never seen again. Some have times, in
    lines that are not in their order, as when the files of several clients are joined."""
    rows: list[dict[str, Any]] = []
    process, under_way = [0, 1, 2], dict[int, dict[str, Any]]()
    for _ in range(draw(st.integers(2, 14))):
        thread = draw(st.integers(0, 2))
        if thread not in under_way:
            f = draw(st.sampled_from(functions))
            asked = {"read": st.none(), "cas": st.tuples(SIMILAR, SIMILAR).map(list)}.get(f, SIMILAR)
            under_way[thread] = {"process": process[thread], "type": "invoke", "f": f, "value": draw(asked)}
            rows.append(under_way[thread])
            continue
        row = under_way.pop(thread)
        kind = draw(st.sampled_from(("ok", "ok", "ok", "fail", "info")))
        got = draw(SIMILAR) if (row["f"], kind) == ("read", "ok") else row["value"]
        rows.append({**row, "type": kind, "value": got})
        if kind == "info":
            process[thread] += 3
    if draw(st.booleans()):
        coarse = draw(st.integers(1, 3))
        rows = [{**row, "time": place // coarse} for place, row in enumerate(rows)]
        rows.sort(key=lambda row: row["process"])
    return rows


def as_edn(rows: list[dict[str, Any]]) -> str:
    def shown(value: Any) -> str:
        if isinstance(value, list):
            return f"[{' '.join(map(shown, value))}]"
        return "nil" if value is None else value if value == ":a" else json.dumps(value)

    return "".join(
        f"{{:process {row['process']}, :type :{row['type']}, :f :{row['f']}, :value {shown(row['value'])}"
        f"{', :time ' + str(row['time']) if 'time' in row else ''}}}\n"
        for row in rows
    )


def judged_both_ways(folder: Path, rows: list[dict[str, Any]], edn: bool, workload: str, model_name: str, check: str,
                     *, failed_cas: str = "did-not-happen", initial: str | None = None) -> tuple[str, str]:
    """What porcupine finds and what the check of an import finds; *refused* if the file is."""
    path = folder / "history"
    path.write_text(as_edn(rows) if edn else "".join(f"{json.dumps(row)}\n" for row in rows))
    model = porcupine.model_named(model_name, *([] if initial is None else [json.loads(initial)]))
    try:
        wanted = porcupine.check_operations(model, porcupine_history(path, model, failed_cas=failed_cas)).value
    except porcupine.PorcupineError:
        wanted = "refused"
    try:
        run_dir, _ = import_run(path, workload, folder / "runs", system="etcd", choices=Choices(failed_cas, initial))
    except HistoryError:
        return wanted, "refused"
    found = next(result for result in check_run(run_dir).checks if result.check == check)
    return wanted, {"valid": "ok", "invalid": "illegal"}.get(found.outcome.verdict, found.outcome.summary)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(histories(("read", "write", "cas")), st.sampled_from(("did-not-happen", "did-not-match")), st.booleans(),
       st.sampled_from((None, "1", "true")))  # fmt: skip
def test_a_register_of_jepsen_is_judged_as_porcupine_judges_it(
    tmp_path: Path, rows: list[dict[str, Any]], failed_cas: str, edn: bool, initial: str | None
) -> None:
    wanted, found = judged_both_ways(tmp_path, rows, edn, "register", "cas-register", "register",
                                     failed_cas=failed_cas, initial=initial)  # fmt: skip
    assert found == wanted or (found, wanted) == ("no register was written or read", "ok")
    event(found)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(histories(("acquire", "release")), st.booleans())
@example([{"process": process, "type": kind, "f": f, "value": owner} for process, kind, f, owner in
          ((1, "invoke", "acquire", None), (1, "ok", "acquire", None), (1, "invoke", "release", 1),
           (1, "ok", "release", 1), (0, "invoke", "acquire", None), (0, "ok", "acquire", None))], False)
def test_a_lock_of_jepsen_is_judged_as_porcupine_judges_it(
    tmp_path: Path, rows: list[dict[str, Any]], edn: bool
) -> None:
    wanted, found = judged_both_ways(tmp_path, rows, edn, "lock", "lock", "mutex")
    assert found == wanted or (found, wanted) == ("no client ever held the lock", "ok")
    event(found)


def imported(folder: Path, text: str, workload: str, *more: str, **options: str) -> tuple[int, dict[str, Any]]:
    """The exit status and verdict of ``stormproof import``."""
    path = folder / "history"
    path.write_text(text)
    words = ["import", str(path), "--workload", workload, "--store", str(folder / "runs"), "--json", *more]
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


def test_a_dequeue_that_gave_nil_found_the_queue_empty(tmp_path: Path) -> None:
    rows = QUEUE.replace("LAST", "fail").replace(":type :fail, :f :dequeue, :error :empty", ":type :ok, :f :dequeue")
    assert imported(tmp_path, rows, "queue")[1]["verdict"] == "valid"


@pytest.mark.parametrize(("crashed", "verdict"), [("", "invalid"), ("dequeue", "invalid"), ("drain", "unknown")])
def test_a_crashed_drain_may_have_taken_what_is_missing(tmp_path: Path, crashed: str, verdict: str) -> None:
    """Two are missing: a crashed dequeue accounts for one of them, a crashed drain for both."""
    rows = [f"{{:process 0, :type :{kind}, :f :enqueue, :value {n}}}" for n in (1, 2) for kind in ("invoke", "ok")]
    rows += [f"{{:process 2, :type :{kind}, :f :{crashed}, :value nil}}" for kind in ("invoke", "info") if crashed]
    rows += [f"{{:process 1, :type :{kind}, :f :drain, :value {value}}}" for kind, value in
             (("invoke", "nil"), ("ok", "[]"))]  # fmt: skip
    code, told = imported(tmp_path, "\n".join(rows), "queue")
    assert (told["verdict"], code) == (verdict, {"invalid": 1, "unknown": 2}[verdict])


def test_a_lock_s_two_holders(tmp_path: Path) -> None:
    rows = [(0, "invoke", "acquire"), (0, "ok", "acquire"), (1, "invoke", "acquire"), (1, "ok", "acquire"),
            (0, "invoke", "release"), (0, "ok", "release")]  # fmt: skip
    text = "\n".join(json.dumps({"process": p, "type": kind, "f": f, "value": None}) for p, kind, f in rows)
    code, told = imported(tmp_path, text, "lease")
    assert code == 1 and "1 time two held the lock at once" in told["sentence"]
    code, told = imported(tmp_path, text, "lock")
    assert code == 1 and "1 lock had two holders" in told["sentence"]


def as_lines(*rows: tuple[int | str, str, str, Any]) -> str:
    """JSON lines of (process, type, f, value)."""
    return "\n".join(json.dumps({"process": p, "type": kind, "f": f, "value": value}) for p, kind, f, value in rows)


def done(process: int, f: str, sent: Any = None, got: Any = None, kind: str = "ok") -> list[Any]:
    return [(process, "invoke", f, sent), (process, kind, f, got)]


TWICE = as_lines(*done(0, "acquire"), *done(0, "acquire"), *done(0, "release"), *done(0, "release"))
PASSED = as_lines(*done(0, "acquire"), *done(1, "acquire"))
NAMED = as_lines(*done(0, "acquire", 7, 7), *done(1, "release", 7, 7), *done(2, "acquire", 8, 8))
TOKENS = as_lines(*done(0, "acquire", None, 4), *done(0, "release"), *done(1, "acquire", None, 3))


@pytest.mark.parametrize(("text", "workload", "options", "verdict"), [
    pytest.param(TWICE, "lock", [], "invalid", id="acquired twice"),
    pytest.param(TWICE, "lock", ["--reentrant"], "valid", id="acquired twice, by one that may"),
    pytest.param(PASSED, "lock", ["--reentrant"], "invalid", id="two holders"),
    pytest.param(PASSED, "lease", [], "valid", id="the lease of the first may be over"),
    pytest.param(NAMED, "lock", [], "valid", id="another process of the owner releases it; its name is no token"),
    pytest.param(TOKENS, "lock", [], "invalid", id="a token that is less than the one before"),
    *(pytest.param(as_lines(*done(0, "acquire", None, first), *done(0, "release"), *done(1, "acquire", None, second)),
                   "lease", [], verdict, id=f"{first}, then {second}")
      for first, second, verdict in ((-2, -1, "valid"), (-1, -2, "invalid"), (0, 0, "invalid"), (0, 1, "valid"),
                                     (1, 1 << 64, "valid"), (1 << 64, 1, "invalid"))),
])  # fmt: skip
def test_locks_and_leases(tmp_path: Path, text: str, workload: str, options: list[str], verdict: str) -> None:
    found = imported(tmp_path, text, workload, *options)[1]
    assert found["verdict"] == verdict
    assert found["sentence"].count("one holder at a time") == (verdict == "valid")  # both checks of a lock say it


@pytest.mark.parametrize(("initial", "code"), [(None, 1), ("0", 0), ("1", 1), ('"0"', 1), ("false", 1)])
def test_the_first_value_of_a_register(tmp_path: Path, initial: str | None, code: int) -> None:
    """nil is a value like others when it is not the first one."""
    text = as_lines(*done(0, "read", None, 0), *done(0, "write", None, None), *done(0, "read", None, None),
                    *done(0, "cas", [None, 0]), *done(0, "read", None, 0))  # fmt: skip
    options = [] if initial is None else ["--initial", initial]
    assert imported(tmp_path, text, "register", *options)[0] == code


def test_what_is_said_of_another_kind_of_history_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text(TWICE)
    for workload, options, reason in (("lock", ["--initial", "0"], "first value of registers"),
                                      ("lease", ["--reentrant"], "--workload lock"),
                                      ("register", ["--failed-cas", "maybe"], "did-not-happen or did-not-match"),
                                      ("register", ["--initial", "[1"], "--initial:1: '\\['")):  # fmt: skip
        words = ["import", str(path), "--workload", workload, "--store", str(tmp_path / "runs"), *options]
        with pytest.raises(StormproofError, match=reason):
            CliRunner().invoke(app, words, catch_exceptions=False)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("rows", "verdict"), [
    pytest.param([*done(0, "enqueue", 1), (1, "invoke", "drain", None), *done(0, "enqueue", 2),
                  (1, "ok", "drain", [1])], "unknown", id="sent while the drain went on: it may be there still"),
    pytest.param([*done(0, "enqueue", 1), (1, "invoke", "drain", None), *done(0, "enqueue", 2),
                  (1, "ok", "drain", [1]), *done(1, "drain", None, [])], "invalid", id="and nothing was there then"),
    pytest.param([*done(0, "enqueue", 1), (1, "invoke", "drain", None), *done(2, "dequeue", kind="fail"),
                  (1, "ok", "drain", [])], "invalid", id="a dequeue that found nothing meanwhile"),
    pytest.param([*done(0, "enqueue", 1), *done(1, "drain", None, [], "info")], "unknown", id="the drain crashed"),
    pytest.param([*done(0, "enqueue", 1), *done(1, "drain", None, "timeout", "info")], "unknown", id="for a reason"),
    pytest.param([*done(0, "enqueue", 1), *done(1, "drain", None, "exhausted")], "invalid", id="nothing left"),
    pytest.param([*done(0, "enqueue", 1), *done(1, "drain", None, None)], "invalid", id="nil"),
    pytest.param([*done(0, "enqueue", 1), (1, "invoke", "drain", None), (1, "ok", "drain", [1, 1])], "invalid",
                 id="taken twice"),
    pytest.param([*done(0, "enqueue", 1, None), *done(1, "drain", None, [1])], "valid",
                 id="the end of a send does not repeat its message"),
])  # fmt: skip
def test_drains(tmp_path: Path, rows: list[Any], verdict: str) -> None:
    assert imported(tmp_path, as_lines(*rows), "queue")[1]["verdict"] == verdict


@pytest.mark.parametrize(("lines", "verdict"), [
    pytest.param([(0, "invoke", 0), (0, "ok", 4), (1, "invoke", 1), (1, "ok", 2)], "valid", id="by time: at once"),
    pytest.param([(0, "invoke", 0), (0, "ok", 1), (1, "invoke", 2), (1, "ok", 3)], "invalid", id="by line: later"),
    pytest.param([(0, "invoke", 2), (0, "ok", 3), (1, "invoke", 0), (1, "ok", 2)], "valid", id="they touch at a time"),
    pytest.param([(0, "invoke", 2), (0, "ok", 3), (1, "invoke", 0), (1, "ok", 1)], "valid", id="by time: before"),
    pytest.param([(0, "invoke", -9), (0, "ok", -8), (1, "invoke", -7), (1, "ok", -6)], "invalid", id="before zero"),
])  # fmt: skip
def test_the_order_of_rows(tmp_path: Path, lines: list[tuple[int, str, int]], verdict: str) -> None:
    """Process 0 writes, process 1 reads nothing: right only if the read may come before the write."""
    rows = [{"process": p, "type": kind, "f": ("write", "read")[p], "value": (1, None)[p], "time": time}
            for p, kind, time in lines]  # fmt: skip
    assert imported(tmp_path, "\n".join(map(json.dumps, rows)), "register")[1]["verdict"] == verdict
    # The index decides where there is one, whatever the order of the lines.
    placed = [{**row, "index": place, "time": None} for place, row in enumerate(rows)]
    text = "\n".join(map(json.dumps, reversed(placed)))
    assert imported(tmp_path, text, "register")[1]["verdict"] == "invalid", "the write comes first"


def test_times_of_a_calendar_begin_at_zero(tmp_path: Path) -> None:
    year = 1_750_000_000_000_000_000
    rows = [{"process": "a", "type": kind, "f": "write", "value": 1, "time": year + time * 10**9}
            for time, kind in ((0, "invoke"), (2, "ok"))]  # fmt: skip
    path = tmp_path / "history"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert read_foreign(path, "register", NO_CHOICES).table["time"].to_pylist() == [0, 2 * 10**9]


def test_names_of_processes(tmp_path: Path) -> None:
    """A name gets a number that no other process has; keywords and texts are different names."""
    path = tmp_path / "history"
    path.write_text("".join(f"{{:process {name} :type :{kind} :f :write :value 1}}\n"
                            for name in (":c1", '"c1"', "0", "1") for kind in ("invoke", "ok")))  # fmt: skip
    assert len(set(read_foreign(path, "register", NO_CHOICES).table["process"].to_pylist())) == 4


def test_lines_that_are_passed_over_are_told(tmp_path: Path) -> None:
    path = tmp_path / "jepsen.log"
    path.write_text("2025-06-23 13:08:57,000{GMT}\tINFO\t[main] jepsen.core: Running test\n"
                    "2025-06-23 13:08:57,001{GMT}\tINFO\t[w] jepsen.util: 0\t:invoke\t:write\t1\n")  # fmt: skip
    found = read_foreign(path, "register", NO_CHOICES)
    assert found.told() == ("1 operation; 1 line passed over, the first: 2025-06-23 13:08:57,000{GMT}\tINFO\t[main] "
                            "jepsen.core: Running test")  # fmt: skip
    text = as_lines((-1, "info", "x", None), *done(0, "write", 1))
    _, told = imported(tmp_path, text, "register", "--pass-over", "-1")
    assert (told["passed_over"], told["operations"], told["verdict"]) == (1, 1, "valid")


def test_half_a_character_in_a_reason_is_no_obstacle(tmp_path: Path) -> None:
    text = '{"process": 0, "type": "invoke", "f": "write", "value": "\\ud800"}\n' \
           '{"process": 0, "type": "info", "f": "write", "error": "\\udfff", "node": "\\ud800"}'
    assert imported(tmp_path, text, "register")[0] == 0


NEMESIS_ALONE = as_lines(("nemesis", "info", "start-partition", "majority"), ("nemesis", "info", "stop-partition", 0))


@pytest.mark.parametrize("workload", ["queue", "register", "lock", "lease"])
@pytest.mark.parametrize("text", ["", "\n\n", NEMESIS_ALONE])
def test_a_history_without_operations_is_unknown(tmp_path: Path, workload: str, text: str) -> None:
    code, told = imported(tmp_path, text, workload)
    assert (code, told["verdict"], told["operations"]) == (2, "unknown", 0)
    assert told["sentence"] == "Unknown: no client did anything."


def test_a_history_may_be_empty_if_the_user_says_so(tmp_path: Path) -> None:
    assert imported(tmp_path, NEMESIS_ALONE, "queue", "--allow-empty")[0] == 0


def test_what_the_nemesis_says_is_claimed(tmp_path: Path) -> None:
    rows = [*done(0, "write", 1), *done(0, "read", None, 1)]
    assert imported(tmp_path, as_lines(*rows), "register")[1]["sentence"].endswith(", and no fault was recorded.")
    text = as_lines(*rows[:2], ("nemesis", "info", "kill", "one"), ("nemesis", "info", "kill", None), *rows[2:])
    _, told = imported(tmp_path, text, "register")
    assert told["sentence"].endswith(" under 1 claimed fault (1 kill), without proof.")
    page = Path(told["report"]).read_text()
    assert "The history reports these faults." in page and "not confirmed" not in page
    assert "recorded elsewhere: history" in page and "no faults" not in page


@pytest.mark.parametrize(("text", "workload", "reason"), [
    ("{:process 0, :type :invoke}", "register", 'history:1: "f" is missing'),
    ("{:process 0, :type :maybe, :f :read}", "register", "history:1: type: one of invoke, ok, fail, info is expected"),
    ("\n\n{:process x, :type :ok, :f :read}", "register", "history:3: process x is neither"),
    ('{"process": -1, "type": "info", "f": "start"}', "queue", "history:1: process -1 is neither"),
    ('{"process": true, "type": "ok", "f": "read"}', "register", "history:1: process True is neither"),
    ('{"process": 4294967296, "type": "invoke", "f": "read"}', "register", ":1: process: a number below 2**31"),
    ('{"process": 0, "type": "ok", "f": "read"}', "register", ":1: f: read ends, but its process has invoked nothing"),
    (as_lines((0, "invoke", "read", None), (0, "invoke", "read", None)), "register", ":2: process: read begins, but"),
    (as_lines((0, "invoke", "read", None), (0, "ok", "write", 1)), "register", ":2: f: write ends, but line 1 invoked"),
    (as_lines(*done(0, "cas", [])), "register", ":1: value: a cas needs [expected new], not []"),
    (as_lines(*done(0, "cas")), "register", ":1: value: a cas needs [expected new], not None"),
    (as_lines(*done(0, "read", [1, None], 3)), "register", ":2: value: [key value] is expected"),
    (as_lines(*done(0, "read", [1, None], [2, 3])), "register", ":2: value: the key of the invocation"),
    (as_lines(*done(0, "enqueue")), "queue", ":1: value: an enqueue needs a message"),
    (as_lines(*done(0, "drain", None, 3)), "queue", ":2: value: a drain that ended ok needs a list of messages"),
    (as_lines(*done(0, "drain", None, "abc")), "queue", ":2: value: a drain that ended ok needs a list of messages"),
    ("{:process 0 :type :invoke :f :write :value ##NaN}", "register", ":1: value: NaN equals nothing"),
    ('{"process": 0, "type": "invoke", "f": "read", "time": 1e30}', "register", "history:1: time is 1e+30"),
    ('{"process": 0, "type": "invoke", "f": "read", "time": NaN}', "register", "history:1: not JSON: NaN"),
    ("{:process 0 :type :invoke :f :read :time ##NaN}", "register", "history:1: time is nan"),
    ("{:process 0 :type :invoke :f :read :time \"x\"}", "register", "history:1: time is 'x'"),
    ('{"process": 0, "type": "invoke", "f": "read", "index": 1.5}', "register", "history:1: index is 1.5"),
    ('{"process": 0, "type": "invoke", "f": "acquire", "key": 1}', "lock", ":1: key: a history of one lock"),
    ("{:process 0, :type :invoke, :f :read", "register", "never closed"),
    ('{"process": 0, "type": "invoke", "f": "txn", "value": []}', "register", "history:1: f: one of read, write, cas"),
    ('{"process": 0, "type": "invoke", "f": "cas", "value": 3}', "register", ":1: value: a cas needs [expected new]"),
    ('{"process": 0, "type"', "queue", "history:1: not JSON"),
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
    assert read_foreign(again, "register", NO_CHOICES).table.num_rows == 8 and set(TYPE_CODES) >= {"ok"}
