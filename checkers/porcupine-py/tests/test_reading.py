"""What the rows of a file mean: processes, failures, first values, no operations at all."""

import json

import pytest

import porcupine
from porcupine import CheckResult, PorcupineError, check_operations, model_named, read_history
from porcupine.cli import main
from porcupine.formats import load_history

OK, ILLEGAL = CheckResult.OK, CheckResult.ILLEGAL


def edn(value):
    if isinstance(value, dict):
        return "{" + " ".join(f":{k} {edn(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + " ".join(map(edn, value)) + "]"
    return "nil" if value is None else json.dumps(value)


def rows(*events):
    """Rows of (process, type, f, value)."""
    return [dict(zip(("process", "type", "f", "value"), event, strict=True)) for event in events]


def write(path, form, *events):
    made = rows(*events)
    if form == "jsonl":
        text = "".join(json.dumps(row) + "\n" for row in made)
    elif form == "edn":
        lines = (
            f"{{:process {edn(r['process'])} :type :{r['type']} :f :{r['f']} :value {edn(r['value'])}}}" for r in made
        )
        text = "[" + "\n".join(lines) + "]"
    else:
        text = "".join(
            f"INFO  jepsen.util - {row['process']}\t:{row['type']}\t:{row['f']}\t{edn(row['value'])}\n" for row in made
        )
    path.write_text(text)
    return path


# Register 1, then a compare-and-set from 1 that fails though nothing else runs: it can't be "compared, no match".
LOST = [
    (0, "invoke", "write", 1), (0, "ok", "write", 1), (1, "invoke", "cas", [1, 2]), (1, "fail", "cas", [1, 2]),
    (0, "invoke", "read", None), (0, "ok", "read", 1),
]  # fmt: skip
# The same with a failure that is none: illegal however it is read.
TAKEN = [*LOST[:-1], (0, "ok", "read", 2)]


@pytest.mark.parametrize(
    ("form", "failed_cas", "verdict"),
    [
        ("edn", None, OK),
        ("jsonl", None, OK),
        ("jepsen-log", None, ILLEGAL),
        ("edn", "did-not-match", ILLEGAL),
        ("jsonl", "did-not-match", ILLEGAL),
        ("jepsen-log", "did-not-happen", OK),
    ],
)
def test_a_failed_cas_means_what_it_means_in_the_format(tmp_path, capsys, form, failed_cas, verdict):
    model = model_named("cas-register")
    file = write(tmp_path / "h", form, *LOST)
    assert check_operations(model, read_history(file, model, failed_cas=failed_cas)) is verdict
    option = ["--failed-cas", failed_cas] if failed_cas else []
    assert main(["check", "--model", "cas-register", *option, str(file)]) == (verdict is ILLEGAL)
    bad = write(tmp_path / "bad", form, *TAKEN)
    assert check_operations(model, read_history(bad, model, failed_cas=failed_cas)) is ILLEGAL
    # One that compared with another value is fine either way.
    other = [*LOST[:2], (1, "invoke", "cas", [3, 2]), (1, "fail", "cas", [3, 2]), *LOST[4:]]
    fine = write(tmp_path / "fine", form, *other)
    assert check_operations(model, read_history(fine, model, failed_cas=failed_cas)) is OK


def test_failures_in_parquet_and_of_kv(tmp_path):
    kv = model_named("kv")
    lost = [(p, t, {"write": "put", "read": "get"}.get(f, f), ["k", v]) for p, t, f, v in LOST]
    file = write(tmp_path / "h", "jsonl", *lost)
    assert check_operations(kv, read_history(file, kv)) is OK
    assert check_operations(kv, read_history(file, kv, failed_cas="did-not-match")) is ILLEGAL
    with pytest.raises(PorcupineError, match='a failed cas means did-not-happen or did-not-match, not "no"'):
        read_history(file, kv, failed_cas="no")


def test_what_failed_must_be_an_operation_of_the_model_all_the_same(tmp_path, capsys):
    file = write(tmp_path / "h", "jsonl", (0, "invoke", "cas", 3), (0, "fail", "cas", 3))
    assert main(["check", "--model", "cas-register", str(file)]) == 3
    assert ":2: cas needs a pair, not 3" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["jsonl", "edn", "jepsen-log"])
def test_the_nemesis_is_passed_over_and_counted(tmp_path, capsys, form):
    events = [("nemesis", "info", "start", None), *LOST[:2], (":nemesis", "info", "stop", None)]
    file = write(tmp_path / "h", form, *events)
    history = load_history(file, model_named("register"))
    assert len(history.operations) == 1 and history.passed_over == 2
    assert main(["check", "--model", "register", str(file)]) == 0
    assert "1 operations, 1 partition, 2 lines passed over" in capsys.readouterr().out


def test_a_keyword_is_the_nemesis_too(tmp_path):
    file = tmp_path / "h.edn"
    file.write_text("{:process :nemesis :type :info :f :start}\n{:process 0 :type :invoke :f :write :value 1}\n")
    history = load_history(file, model_named("register"))
    assert len(history.operations) == 1 and history.passed_over == 1


@pytest.mark.parametrize("process", ["", -1, -7, 0.0, 1.5, None, True, [0], {"id": 0}])
@pytest.mark.parametrize("form", ["jsonl", "edn"])
def test_what_is_no_process_is_refused_with_line_and_value(tmp_path, capsys, form, process):
    file = write(tmp_path / "h", form, *LOST[:2], (process, "invoke", "read", None))
    assert main(["check", "--model", "register", str(file)]) == 3
    error = capsys.readouterr().err
    assert ":3: process " in error and "is neither a whole number from 0 nor a name" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("process", ["0", "client 1", "nemesis2", "Nemesis", " 1"])
@pytest.mark.parametrize("form", ["jsonl", "edn"])
def test_a_process_may_have_a_name(tmp_path, capsys, form, process):
    fine = write(tmp_path / "h", form, *LOST[:2], (process, "invoke", "read", None), (process, "ok", "read", 1))
    assert main(["check", "--model", "register", str(fine)]) == 0
    stale = write(tmp_path / "h", form, *LOST[:2], (process, "invoke", "read", None), (process, "ok", "read", None))
    assert main(["check", "--model", "register", str(stale)]) == 1
    # A name is not the number that it looks like: both may have an operation open.
    both = [(0, "invoke", "write", 2), (process, "invoke", "read", None), (process, "ok", "read", 2)]
    assert main(["check", "--model", "register", str(write(tmp_path / "h", form, *both))]) == 0
    # A process that does what the model has no word for is no client of it.
    fault = write(tmp_path / "h", form, *LOST[:2], (process, "info", "start", None))
    assert main(["check", "--model", "register", str(fault)]) == 3
    assert ":3: process" in capsys.readouterr().err


def test_a_keyword_may_be_a_process(tmp_path, capsys):
    file = tmp_path / "h.edn"
    file.write_text("{:process :c1 :type :invoke :f :write :value 1}\n{:process :c1 :type :ok :f :write :value 1}\n")
    command = ["check", "--model", "register", str(file)]
    assert main(command) == 0
    assert ": ok  1 operations" in capsys.readouterr().out
    assert main([*command, "--pass-over", "c1"]) == 2
    assert "2 lines passed over" in capsys.readouterr().out


def test_minus_one_is_passed_over_if_it_is_named(tmp_path, capsys):
    for form in ("jsonl", "edn", "jepsen-log"):
        file = write(tmp_path / "h", form, *LOST[:2], (-1, "info", "start", None))
        command = ["check", "--model", "register", str(file)]
        if form != "jepsen-log":
            assert main(command) == 3
            assert ":3: process -1 is neither" in capsys.readouterr().err
        assert main([*command, "--pass-over", "-1"]) == 0
        assert "1 lines passed over" in capsys.readouterr().out.replace("1 line ", "1 lines ")


def test_names_given_by_the_option_are_passed_over(tmp_path, capsys):
    file = write(tmp_path / "h", "jsonl", *LOST[:2], ("monkey", "info", "x", 1), ("clock", "info", "y", 2))
    command = ["check", "--model", "register", str(file)]
    assert main([*command, "--pass-over", "monkey"]) == 3
    assert ":4: process clock completes y, but has invoked nothing" in capsys.readouterr().err
    assert main([*command, "--pass-over", "monkey,clock"]) == 0
    assert "2 lines passed over" in capsys.readouterr().out
    assert len(read_history(file, model_named("register"), pass_over=["monkey", "clock"])) == 1


def test_a_parquet_history_has_its_nemesis_as_minus_one(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    def file(*processes):
        n = len(processes)
        table = pa.table({
            "run": ["a"] * n, "index": list(range(n)), "process": pa.array(processes, pa.int64()), "type": [3] * n,
            "f": ["start"] * n, "key": [-1] * n, "value": [-1] * n, "text": pa.array([None] * n, pa.string()),
        })  # fmt: skip
        pq.write_table(table, tmp_path / "h.parquet")
        return tmp_path / "h.parquet"

    model = model_named("register")
    assert load_history(file(-1, -1), model).passed_over == 2
    assert load_history(file(), model).operations == []
    for process in (-2, None):
        with pytest.raises(PorcupineError, match=f":2: process {process} is neither"):
            load_history(file(-1, process), model)


def parquet_of(path, lines, **columns):
    """Writes of 1 and 2 and a read of 1, in the order of these numbers, with columns that tell another one."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    rows = [(0, 0, "write", 1), (0, 1, "write", 1), (1, 0, "write", 2), (1, 1, "write", 2), (2, 0, "read", -1),
            (2, 1, "read", 1)]  # fmt: skip
    processes, types, names, values = zip(*(rows[line] for line in lines), strict=True)
    pq.write_table(pa.table({
        "run": ["a"] * 6, "process": processes, "type": types, "f": names, "key": [-1] * 6, "value": values,
        "text": pa.array([None] * 6, pa.string()), **columns,
    }), path)  # fmt: skip
    return path


SHUFFLED = [4, 5, 0, 1, 2, 3]
"""The read of 1 before anything was written."""


@pytest.mark.parametrize(
    ("columns", "verdict"),
    [
        ({}, CheckResult.ILLEGAL),
        ({"index": [0, 1, 2, 3, 4, 5]}, CheckResult.ILLEGAL),
        ({"index": [2, 3, 0, 1, 4, 5]}, CheckResult.OK),
        ({"time": [10, 20, 30, 40, 50, 60]}, CheckResult.ILLEGAL),
        ({"time": [30, 40, 10, 20, 50, 60]}, CheckResult.OK),
        ({"index": [2, 3, 0, 1, 4, 5], "time": [30, 40, 10, 20, 50, 60]}, CheckResult.OK),
        ({"index": [0, 1, 2, 3, 4, 5], "time": [30, 40, 10, 20, 50, 60]}, ":3: index 2 comes after index 1 of line 2"),
        ({"index": [0, 1, 1, 3, 4, 5]}, ":3: index 1 is that of line 2, too"),
        ({"index": [0, 1, 2, None, 4, 5]}, ":4: index is missing, but line 1 has one"),
        ({"time": [30, 40, 10, None, 50, 60]}, ":3: time 10 is before that of line 2, and line 4 has no time"),
    ],
)
def test_a_parquet_history_is_in_the_order_of_all_formats(tmp_path, columns, verdict):
    model = model_named("register")
    path = parquet_of(tmp_path / "h.parquet", SHUFFLED, **columns)
    if isinstance(verdict, str):
        with pytest.raises(PorcupineError, match=verdict):
            load_history(path, model)
    else:
        assert check_operations(model, load_history(path, model).operations) is verdict


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ""), ("\n\n", ""), ("; nothing\n", ""), ("[]", ""), ("()", ""), ("#_ 5", ""), ("\ufeff", ""),
        ('\n{"process":"nemesis","type":"","f":""}', ', 1 line passed over, the first: line 2: {"process":"nemesis"'),
        (
            "{:process :nemesis :type :info :f :start}\n" * 2,
            ", 2 lines passed over, the first: line 1: {:process :nemesis :type :info :f :start};",
        ),
        ("2025-06-23 13:08:57,001{GMT}\tINFO\t[main] jepsen.core: hello\n", "1 line passed over, the first: line 1: 2"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["register", "fifo-queue", "set", "kv", "multi-register", "log"])
def test_of_no_operations_nothing_is_known(tmp_path, capsys, text, told, name):
    file = tmp_path / "h"
    file.write_text(text)
    command = ["check", "--model", name, "--html", str(tmp_path / "page.html"), str(file)]
    assert main(command) == 2
    said = capsys.readouterr().out
    assert said.startswith(f"{file}: unknown  no operation to judge") and told in said
    assert main([*command, "--allow-empty"]) == 0
    assert ": ok  0 operations" in capsys.readouterr().out


def test_operations_that_did_not_happen_are_none(tmp_path, capsys):
    file = write(tmp_path / "h", "jsonl", (0, "invoke", "write", 1), (0, "fail", "write", 1))
    assert main(["check", "--model", "register", str(file)]) == 2
    assert ": unknown  no operation to judge, 1 operation that did not happen" in capsys.readouterr().out


@pytest.mark.parametrize("name", porcupine.MODELS)
def test_every_model_takes_an_empty_history_if_asked(tmp_path, name):
    file = tmp_path / "h"
    file.write_text("")
    assert main(["check", "--model", name, str(file)]) == 2
    assert main(["check", "--model", name, "--allow-empty", str(file)]) == 0


@pytest.mark.parametrize("name", ["register", "cas-register"])
def test_the_first_value_is_an_option(tmp_path, capsys, name):
    events = [(0, t, f, v) for f, v in [("read", 5), ("write", 6), ("read", 6)] for t in ("invoke", "ok")]
    file = write(tmp_path / "h", "jsonl", *events)
    command = ["check", "--model", name, str(file)]
    assert main(command) == 1
    assert main([*command, "--initial", "5"]) == 0
    assert main([*command, "--initial", "6"]) == 1
    assert main([*command, "--initial", "nil"]) == 1
    assert main([*command, "--initial", '"5"']) == 1
    capsys.readouterr()
    assert main([*command, "--initial", "[" * 100_000]) == 3
    assert main([*command, "--initial", "NaN 3"]) == 3
    assert main(["check", "--model", "stack", str(file), "--initial", "5"]) == 3
    told = capsys.readouterr().err
    assert "model stack takes no initial value; those that do: register, cas-register, multi-register" in told
    assert told.count("\n") == 3
    model = model_named(name, initial=[1, 2])
    read = porcupine.Operation(0, ("read",), [1, 2], 0, 1)
    assert check_operations(model, [read]) is OK and check_operations(model_named(name), [read]) is ILLEGAL
