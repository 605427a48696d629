"""Registers under transactions, and registers with a first value, against exhaustive search."""

import pytest
from histories import linearizable
from hypothesis import given, settings
from hypothesis import strategies as st

from porcupine import CheckResult, Operation, PorcupineError, check_operations, check_operations_verbose, model_named
from porcupine.check import _check_plain, positions
from porcupine.cli import main
from porcupine.compiled import SearchLimits
from porcupine.replay import first_fault

OK, ILLEGAL = CheckResult.OK, CheckResult.ILLEGAL


@st.composite
def transactions(draw, most=6):
    """Transactions over a few keys: those of a run in some order, with some answers spoilt."""
    initial = draw(st.sampled_from([None, 0, {"x": 0}, {"x": 1, "y": 2}]))
    model = model_named("multi-register", initial)
    keys = draw(st.sampled_from(["x", "xy", "xyz", "xyzuv"]))
    alone = draw(st.booleans())
    held, operations = {}, []
    for client in range(draw(st.integers(1, most))):
        sent, got = [], []
        key = draw(st.sampled_from(keys))
        for _ in range(draw(st.integers(0, 3))):
            key = key if alone else draw(st.sampled_from(keys))
            if draw(st.booleans()):
                held[key] = draw(st.integers(0, 2))
                sent.append(("w", key, held[key]))
                got.append(sent[-1])
            else:
                sent.append(("r", key, None))
                seen = held.get(key, model.first(key))
                got.append(("r", key, seen if draw(st.integers(0, 5)) else draw(st.sampled_from([None, 0, 1, 2]))))
        call = client - draw(st.sampled_from([0, 0, 1, 3]))
        ret = draw(st.sampled_from([None, 0, 0, 1, 2, 4]))
        ret = None if ret is None else max(call, client) + ret
        operations.append(Operation(client, ("txn", sent), None if ret is None else got, call, ret))
    return model, draw(st.permutations(operations))


def compare(model, operations):
    expected = OK if linearizable(model, operations) else ILLEGAL
    assert check_operations(model, operations) is expected
    result = check_operations_verbose(model, operations, monitors=False)
    assert result.verdict is expected
    call, ret = positions(operations)
    plain = _check_plain(model, operations, call, ret, SearchLimits(None, 1 << 60, 1 << 40))
    assert any(p.verdict is ILLEGAL for p in plain) is (expected is ILLEGAL)
    if expected is OK:
        for part in result.partitions:
            assert not first_fault(model, operations, call, ret, part.operations, part.linearization)
    return expected


@given(transactions())
@settings(max_examples=200, deadline=None)
def test_transactions_agree_with_the_definition(history):
    compare(*history)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@given(transactions(9))
@settings(max_examples=20_000, deadline=None)
def test_transactions_agree_with_the_definition_at_length(history):
    compare(*history)


@st.composite
def first_values(draw):
    operations = []
    for client in range(draw(st.integers(1, 6))):
        call = draw(st.integers(0, 10))
        ret = draw(st.one_of(st.none(), st.integers(call, 12)))
        value, new = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        sent = draw(st.sampled_from([("read",), ("read",), ("write", value), ("cas", value, new)]))
        output = {"read": value, "write": None, "cas": draw(st.booleans())}[sent[0]]
        operations.append(Operation(client, sent, None if ret is None else output, call, ret))
    return draw(st.sampled_from([None, 0, 1])), operations


@given(first_values())
@settings(max_examples=200, deadline=None)
def test_registers_with_a_first_value_agree_with_the_definition(history):
    initial, operations = history
    model = model_named("cas-register", initial)
    expected = OK if linearizable(model, operations) else ILLEGAL
    assert check_operations(model, operations) is expected
    assert check_operations_verbose(model, operations, monitors=False).verdict is expected


def txn(client, call, ret, *parts):
    return Operation(client, ("txn", [(f, k, None if f == "r" else v) for f, k, v in parts]), list(parts), call, ret)


def test_keys_are_parted_only_where_no_transaction_joins_them():
    model = model_named("multi-register")
    # Each key by itself is fine; together they are not: one write of both is seen half.
    both = txn(0, 0, 1, ("w", "x", 1), ("w", "y", 1))
    half = txn(1, 2, 3, ("r", "x", 1), ("r", "y", None))
    assert check_operations(model, [both, half]) is ILLEGAL
    assert check_operations(model, [both, txn(1, 0.5, 3, ("r", "x", 1), ("r", "y", None))]) is ILLEGAL
    # Two reads of two keys each, which together say that x came before y and y before x.
    writes = [txn(0, 0, 9, ("w", "x", 1)), txn(1, 0, 9, ("w", "y", 1))]
    crossed = [txn(2, 1, 8, ("r", "x", 1), ("r", "y", None)), txn(3, 1, 8, ("r", "x", None), ("r", "y", 1))]
    assert check_operations(model, [*writes, *crossed]) is ILLEGAL
    assert check_operations(model, [*writes, crossed[0]]) is OK
    found = check_operations_verbose(model, [*writes, txn(2, 1, 8, ("r", "x", 1)), txn(3, 1, 8, ("r", "y", 1))])
    assert [p.key for p in found.partitions] == ["x", "y"] and found.verdict is OK
    found = check_operations_verbose(model, [*writes, crossed[0], txn(4, 0, 1, ("w", "z", 1))])
    assert [p.key for p in found.partitions] == [("x", "y"), "z"] and found.verdict is OK
    assert "txn(r 'x' 1, r 'y' None) by" in check_operations_verbose(model, [both, half]).illegal.reason


def test_a_transaction_of_many_keys():
    model = model_named("multi-register", initial=7)
    n = 300
    everything = [txn(0, 2 * i, 2 * i + 1, *(("w", k, i * k % 11) for k in range(n))) for i in range(20)]
    last = [19 * k % 11 for k in range(n)]
    assert check_operations(model, [*everything, txn(1, 50, 51, *(("r", k, last[k]) for k in range(n)))]) is OK
    last[200] += 1
    assert check_operations(model, [*everything, txn(1, 50, 51, *(("r", k, last[k]) for k in range(n)))]) is ILLEGAL


def test_files_of_transactions(tmp_path, capsys):
    file = tmp_path / "h.edn"
    file.write_text(
        "; x = 0 and y = 0 at first\n"
        "[{:process 0 :type :invoke :f :txn :value [[:write :x 1] [:read :y nil]]}\n"
        " {:process 1 :type :invoke :f :txn :value [[:r :x nil] [:r :y nil]]}\n"
        " {:process 0 :type :ok :f :txn :value [[:write :x 1] [:read :y 0]]}\n"
        " {:process 1 :type :ok :f :txn :value [[:r :x 1] [:r :y 0]]}\n"
        " {:process 1 :type :invoke :f :txn :value [[:w :y 5]]}\n"
        " {:process 1 :type :fail :f :txn :value [[:w :y 5]]}\n"
        " {:process 1 :type :invoke :f :txn :value [[:w :y 6]]}]\n"
    )
    command = ["check", "--model", "multi-register", str(file)]
    assert main([*command, "--initial", "{:x 0 :y 0}"]) == 0
    assert main([*command, "--initial", "0"]) == 0
    assert main([*command, "--initial", "{:y 0}"]) == 0
    # A text is not a keyword, and JSON's object no map of EDN.
    assert main([*command, "--initial", '{"y" 0}']) == 1
    assert main([*command, "--initial", '{"y": 0}']) == 3
    assert main([*command, "--initial", "{:y 1}"]) == 1
    assert main(command) == 1
    file.write_text("{:process 0 :type :invoke :f :txn :value [[:r :x]]}\n")
    capsys.readouterr()
    assert main(command) == 3
    assert ":1: a part of a transaction is [r or w, key, value], not [:r, :x]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("got", "message"),
    [
        (None, "a transaction is a list of parts"),
        ([("r", "y", 1)], "does not answer"),
        ([("r", "x", 1), ("w", "y", 3)], "does not answer"),
        ([("r", "x", 1), ("w", "y", 2), ("r", "x", 1)], "does not answer"),
    ],
)
def test_answers_that_are_none_are_refused(got, message):
    model = model_named("multi-register")
    with pytest.raises(PorcupineError, match=message):
        check_operations(model, [Operation(0, ("txn", [("r", "x", None), ("w", "y", 2)]), got, 0, 1)])


def test_a_long_answer_is_told_by_its_ends():
    sent, got = [("w", "y", int("1" * 3000))], [("w", "y", 2)]
    with pytest.raises(PorcupineError) as told:
        check_operations(model_named("multi-register"), [Operation(0, ("txn", sent), got, 0, 1)])
    assert "does not answer" in str(told.value) and len(str(told.value)) < 200
