"""Equality of values, and the order of rows."""

import itertools
import json

import pytest
from histories import linearizable
from hypothesis import given, settings
from hypothesis import strategies as st

from porcupine import CheckResult, Operation, PorcupineError, check_operations, check_queue_columns, model_named
from porcupine.cli import main
from porcupine.formats import Row, freeze, in_order, items_of, parse_edn, parse_json

OK, ILLEGAL = CheckResult.OK, CheckResult.ILLEGAL
EDN = [
    "nil", "true", "false", "1", "1.0", "1M", "0", "0.0", '"1"', ":1", ":a", "a", '"a"', "\\a", '":a"', "1/2",
    '"1/2"', "0.5", "[1]", "[1.0]", "[true]", "#{1}", "#{true}", "{:a 1}", '{"a" 1}', "{:a true}", '["{}" ["a" 1]]',
    '#inst "2020"', '"2020"', '#uuid "2020"', '#"a"', "##Inf", "##-Inf", "[]", "{}", "#{}", "[nil]",
]  # fmt: skip
JSON = [
    "null", "true", "false", "1", "0", '"1"', '"true"', "[1]", "[true]", '{"a": 1}', '{"a": true}', '["{}", ["a", 1]]',
]  # fmt: skip
SAME = [("2/4", "1/2"), ("4/2", "2"), ("1.0", "1e0"), ("1.0M", "1M"), ("(1 2)", "[1 2]"),
        ("{:a 1 :b 2}", "{:b 2 :a 1}"),
        ("#:x{:a 1}", "{:x/a 1}"), ("1N", "1"), ("0.0", "-0.0"), ("#{1 2}", "#{2 1}")]  # fmt: skip


def judged(one, other):
    """The verdicts on a value read, and a value taken, after another was written."""
    write, read = Operation(0, ("write", one), None, 0, 1), Operation(0, ("read",), other, 2, 3)
    cas = Operation(0, ("cas", other, other), True, 2, 3)
    verdicts = [check_operations(model_named("register"), [write, read])]
    verdicts += [check_operations(model_named("cas-register"), [write, each, each]) for each in (read, cas)]
    if one is not None and other is not None:
        put, take = Operation(0, ("enqueue", one), None, 0, 1), Operation(0, ("dequeue",), other, 2, 3)
        verdicts += [check_operations(model_named(name), [put, take]) for name in ("fifo-queue", "unordered-queue")]
        held = [[one, other], [2, 4], [3, 5]]
        verdicts.append(check_queue_columns([0, 1], held[0], [0, 2], [1, 3]).verdict)
    return set(verdicts)


@pytest.mark.parametrize(("parse", "values"), [(parse_edn, EDN), (parse_json, JSON)])
def test_values_that_are_written_differently_differ(parse, values):
    for one, other in itertools.product(values, repeat=2):
        assert judged(parse(one), parse(other)) == {OK if one == other else ILLEGAL}, (one, other)


def test_values_of_one_meaning_are_equal():
    for one, other in SAME:
        assert judged(parse_edn(one), parse_edn(other)) == {OK}, (one, other)
    for one, other in [("1", "1.0"), ("0", "-0.0"), ("1e2", "100"), ('{"a": 1, "b": 2}', '{"b": 2, "a": 1.0}')]:
        assert judged(parse_json(one), parse_json(other)) == {OK}, (one, other)


def test_what_equals_nothing_is_refused(tmp_path, capsys):
    with pytest.raises(PorcupineError, match="NaN equals nothing"):
        freeze([float("nan")])
    file = tmp_path / "h.edn"
    file.write_text("{:process 0 :type :invoke :f :write :value ##NaN}")
    assert main(["check", "--model", "register", str(file)]) == 3
    assert capsys.readouterr().err.count("\n") == 1
    for wrong in ("1e400", "08", "1a", "1/0", "{:a 1 :a 2}", "#{1 1}", ":"):
        with pytest.raises(PorcupineError):
            parse_edn(wrong)
    with pytest.raises(ValueError, match="too large"):
        parse_json("1e400")


MIXED = st.sampled_from([True, False, 1, 0, 1.0, "1", None, (1,), (True,)])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["read", "write", "cas"]), MIXED, MIXED, st.integers(0, 3)), max_size=6))
def test_mixed_types_agree_with_the_definition(drawn):
    model = model_named("cas-register")
    operations = []
    for i, (f, one, other, length) in enumerate(drawn):
        made = {"read": (("read",), one), "write": (("write", one), None), "cas": (("cas", one, other), length > 1)}[f]
        operations.append(Operation(i, *made, 2 * i, None if length == 3 else 2 * i + 1 + 4 * length))
    wanted = OK if linearizable(model, operations) else ILLEGAL
    assert check_operations(model, operations) is wanted


def row(line, process, kind, time=None, index=None):
    return Row(line, process, kind, "read", None, index, time)


def test_order_by_index_lines_and_times():
    rows = [row(1, 0, "invoke", 5, 3), row(2, 0, "ok", 6, 4), row(3, 1, "invoke", 1, 0)]
    assert in_order(rows, "h") == [2, 0, 1]
    assert in_order([row(1, 0, "invoke", 1), row(2, 1, "invoke", 1), row(3, 0, "ok", 1)], "h") == [0, 1, 2]
    # Lines out of order: at time 2 process 1 ends an operation and begins the next; that of process 0 overlaps both.
    rows = [row(1, 0, "invoke", 1), row(2, 0, "ok", 2), row(3, 1, "invoke", 1), row(4, 1, "ok", 2),
            row(5, 1, "invoke", 2), row(6, 1, "ok", 3)]  # fmt: skip
    assert in_order(rows, "h") == [0, 2, 3, 4, 1, 5]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row(1, 0, "invoke", 5, 0), row(2, 0, "ok", 4, 1)], "h:2: index 1 comes after index 0 of line 1, but time 4"),
        ([row(1, 0, "invoke", 5, 0), row(2, 0, "ok", 6)], "h:2: index is missing, but line 1 has one"),
        ([row(1, 0, "invoke", 5, 0), row(2, 0, "ok", 6, 0)], "h:2: index 0 is that of line 1, too"),
        ([row(1, 0, "invoke", 5), row(2, 0, "ok"), row(3, 1, "invoke", 4)], "h:3: time 4 is before that of line 1"),
        ([row(1, 0, "invoke", float("nan"))], "h:1: time is nan, not a number"),
        ([row(1, 0, "invoke", 1e30)], "h:1: time is 1e[+]30, not a number"),
        ([row(1, 0, "invoke", "noon")], "h:1: time is 'noon', not a number"),
        ([row(1, 0, "invoke", True)], "h:1: time is True, not a number"),
        ([row(1, 0, "invoke", 1, 0.5)], "h:1: index is 0.5, not a whole number"),
        (
            [row(1, 0, "invoke", 1), row(2, 0, "ok", 2), row(3, 0, "invoke", 2), row(4, 1, "invoke", 1),
             row(5, 1, "ok", 2), row(6, 1, "invoke", 2)],
            "h:5: at time 2, process 0 .line 2. and process 1 each end",
        ),
    ],
)  # fmt: skip
def test_an_order_that_is_not_told_is_refused_with_the_line(rows, message):
    with pytest.raises(PorcupineError, match=message):
        in_order(rows, "h")


def test_both_styles_of_logs_are_read():
    old = "INFO  jepsen.util - 3\t:ok\t:read\tnil\nINFO  jepsen.core - hello\n"
    new = "2025-06-23 13:08:57,001{GMT}\tINFO\t[jepsen worker 0] jepsen.util: 3\t:info\t:write\t[1 2]\t:timeout\n"
    assert list(items_of(old, "h")) == [(1, {"process": 3, "type": "ok", "f": "read", "value": None}), (2, None)]
    assert list(items_of(new, "h")) == [(1, {"process": 3, "type": "info", "f": "write", "value": [1, 2]})]
    with pytest.raises(PorcupineError, match=":1: the value is missing"):
        list(items_of(new[:80], "h"))
    with pytest.raises(PorcupineError, match=":2: not a line of a Jepsen log"):
        list(items_of(old.replace("jepsen.core - hello", "jepsen.ut"[:3] + " 3\t:ok\t:read\tnil"), "h"))


def test_json_floats_are_numbers_in_a_file(tmp_path):
    file = tmp_path / "h"
    for value, status in [(1.0, 0), (True, 1), ("1", 1)]:
        lines = [(0, "invoke", "write", 1), (0, "ok", "write", 1)]
        lines += [(0, "invoke", "read", None), (0, "ok", "read", value)]
        names = ("process", "type", "f", "value")
        file.write_text("".join(json.dumps(dict(zip(names, line, strict=True))) + "\n" for line in lines))
        assert main(["check", "--model", "register", str(file)]) == status


@pytest.mark.parametrize(
    ("model", "f", "sent", "got", "told"),
    [
        ("set", "read", "nil", "5", ":2: value: model set: a read gives all elements, not 5"),
        ("register", "read", "nil", "[##NaN]", ":2: value: NaN equals nothing"),
        ("log", "read", "nil", '"abc"', ":2: value: model log: a read of all gives a list"),
        ("cas-register", "cas", "[]", "[]", ":2: cas needs a pair, not []"),
        ("multi-register", "txn", "5", "5", ":2: a transaction is a list of parts"),
    ],
)
def test_a_value_of_the_wrong_form_is_refused_with_its_line(tmp_path, capsys, model, f, sent, got, told):
    file = tmp_path / "h.edn"
    file.write_text("".join(
        f"{{:process 0 :type :{kind} :f :{f} :value {value}}}\n" for kind, value in (("invoke", sent), ("ok", got))
    ))  # fmt: skip
    assert main(["check", "--model", model, str(file)]) == 3
    error = capsys.readouterr().err
    assert f"{file}{told}" in error and error.count("\n") == 1
