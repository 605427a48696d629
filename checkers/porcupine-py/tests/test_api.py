import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from histories import linearizable
from hypothesis import given, settings
from hypothesis import strategies as st

import porcupine
from porcupine import CheckResult, Event, Model, Operation, PorcupineError, Result, check_operations_verbose, generate
from porcupine.columns import DEQUEUE, DEQUEUE_EMPTY, ENQUEUE, check_queue_columns, check_register_columns

OK, ILLEGAL, UNKNOWN = CheckResult.OK, CheckResult.ILLEGAL, CheckResult.UNKNOWN


def at(client, input, output, call, ret):
    return Operation(client, input, output, call, ret)


def check(name, operations, **rest) -> Result:
    return check_operations_verbose(porcupine.model_named(name), operations, **rest)


@st.composite
def register_histories(draw):
    """Any operations at all, not only those of a plausible run."""
    operations = []
    for client in range(draw(st.integers(1, 7))):
        call = draw(st.integers(0, 12))
        ret = draw(st.one_of(st.none(), st.integers(call, 14)))
        value = draw(st.integers(1, 3))
        given_ = draw(st.sampled_from([("read",), ("write", value), ("cas", value, draw(st.integers(1, 3)))]))
        output = {"read": draw(st.one_of(st.none(), st.integers(1, 3))), "write": None, "cas": draw(st.booleans())}
        operations.append(at(client, given_, None if ret is None else output[given_[0]], call, ret))
    return operations


@given(register_histories())
@settings(max_examples=700, deadline=None)
def test_registers_agree_with_the_definition(operations):
    model = porcupine.model_named("cas-register")
    expected = OK if linearizable(model, operations) else ILLEGAL
    assert porcupine.check_operations(model, operations) is expected
    assert check_operations_verbose(model, operations, monitors=False).verdict is expected


@st.composite
def queue_histories(draw):
    operations = []
    for client in range(draw(st.integers(1, 7))):
        call = draw(st.integers(0, 12))
        ret = draw(st.one_of(st.none(), st.integers(call, 14)))
        value = draw(st.one_of(st.integers(1, 3), st.just(client + 10)))
        given_ = draw(st.sampled_from([("enqueue", value), ("dequeue",)]))
        output = (
            None
            if given_ != ("dequeue",) or ret is None
            else draw(st.one_of(st.none(), st.integers(1, 3), st.just(10)))
        )
        operations.append(at(client, given_, output, call, ret))
    return operations


@pytest.mark.parametrize("name", ["fifo-queue", "unordered-queue"])
@given(operations=queue_histories())
@settings(max_examples=700, deadline=None)
def test_queues_agree_with_the_definition(name, operations):
    model = porcupine.model_named(name)
    expected = OK if linearizable(model, operations) else ILLEGAL
    assert porcupine.check_operations(model, operations) is expected
    assert check_operations_verbose(model, operations, monitors=False).verdict is expected


def test_positions_left_by_crashed_reads_are_within_bounds():
    reads = [at(i, ("read",), None, i, None) for i in range(5000)]
    operations = [*reads, at(-1, ("write", 1), None, 6000, 6001), at(-2, ("read",), 1, 6002, 6003)]
    assert check("register", operations).verdict is OK
    assert check("register", [*operations, at(-3, ("read",), None, 6004, 6005)]).verdict is ILLEGAL


def test_equal_times_overlap():
    operations = [at(0, ("write", 1), None, 0, 5), at(1, ("read",), None, 5, 6)]
    assert check("register", operations).verdict is OK
    assert check("register", [operations[0], at(1, ("read",), None, 5.5, 6)]).verdict is ILLEGAL


def test_no_operations_are_linearizable():
    for name in porcupine.MODELS:
        assert check(name, []).verdict is OK


def test_more_than_64_operations_open_at_once():
    n = 200
    writes = [at(i, ("write", i + 1), None, i, 1000 + i) for i in range(n)]
    model = porcupine.model_named("register")
    seen = [at(n, ("read",), 7, 2000, 2001), at(n, ("read",), 7, 2002, 2003)]
    swapped = [seen[0], at(n, ("read",), 8, 2002, 2003)]
    for reads, expected in ((seen, OK), (swapped, ILLEGAL)):
        assert check_operations_verbose(model, writes + reads, monitors=False).verdict is expected


def test_an_ok_comes_with_a_linearization_that_names_every_operation_once():
    history = generate.register(300, 6, 4)
    operations = [
        at(i, [("read",), ("write", v), ("cas", v, w), ("cas", v, 9)][f], [v or None, None, True, False][f], c, r)
        for i, (f, v, w, c, r) in enumerate(zip(*(x.tolist() for x in columns_of(history)), strict=True))
    ]
    result = check("cas-register", operations)
    assert result.verdict is OK
    assert sorted(result.partitions[0].linearization) == list(range(300))


def columns_of(history):
    return history.f, history.value, history.new, history.call, history.ret


def test_illegal_names_the_operation_that_cannot_be_placed():
    operations = [at(0, ("write", 1), None, 0, 1), at(1, ("cas", 1, 2), True, 2, 3), at(2, ("read",), 1, 4, 5)]
    found = check("cas-register", operations).illegal
    assert found.culprits == [2] and found.stuck == [2] and found.linearization == [0, 1]
    assert "read() -> 1 by 2" in found.reason and "state 2" in found.reason


@pytest.mark.parametrize(
    ("operations", "culprits", "words"),
    [
        ([("d", 7, 0, 1)], [0], "never put in"),
        ([("e", 1, 0, 1), ("d", 1, 2, 3), ("d", 1, 4, 5)], [1, 2, 0], "two operations take the same value"),
        ([("d", 1, 0, 1), ("e", 1, 2, 3)], [0, 1], "before the put of it began"),
        ([("e", 1, 0, 1), ("e", 2, 2, 3), ("d", 2, 4, 5), ("d", 1, 6, 7)], [2, 3, 0], "taken later"),
        ([("e", 1, 0, 1), ("e", 2, 2, 3), ("d", 2, 4, 5)], [2, 1, 0], "never taken"),
        ([("e", 1, 0, 1), ("d", None, 2, 3)], [1], "saw the container empty"),
    ],
)
def test_queue_patterns(operations, culprits, words):
    made = [at(i, ("enqueue", v) if f == "e" else ("dequeue",), v if f == "d" else None, c, r)
            for i, (f, v, c, r) in enumerate(operations)]  # fmt: skip
    found = check("fifo-queue", made).illegal
    assert found.method == "monitor" and found.culprits == culprits and words in found.reason


def test_a_crashed_dequeue_may_have_taken_the_value_that_is_missing():
    operations = [at(0, ("enqueue", 1), None, 0, 1), at(0, ("enqueue", 2), None, 2, 3), at(1, ("dequeue",), 2, 4, 5)]
    assert check("fifo-queue", operations).verdict is ILLEGAL
    assert check("fifo-queue", [*operations, at(2, ("dequeue",), None, 3.5, None)]).verdict is OK
    assert check("fifo-queue", [*operations, at(2, ("dequeue",), None, 6, None)]).verdict is ILLEGAL


def test_limits_give_unknown():
    rng = random.Random(5)
    operations = [at(i, ("push", rng.randrange(2)), None, i / 100, 10 + i / 100) for i in range(40)]
    operations += [at(99, ("pop",), v, 20 + 2 * i, 21 + 2 * i) for i, v in enumerate([0, 1] * 19 + [1, 1])]
    model = porcupine.model_named("stack")
    assert check_operations_verbose(model, operations, max_steps=50).verdict is UNKNOWN
    assert check_operations_verbose(model, operations, timeout=0.05).seconds < 5


class Dice(Model):
    """Nondeterministic: a roll may leave any face up."""

    name = "dice"

    def init(self):
        return 1

    def steps(self, state, input, output):
        if input == "roll":
            return range(1, 7)
        return (state,) if output in (state, porcupine.NO_OUTPUT) else ()


def test_a_nondeterministic_model_in_plain_python():
    operations = [at(0, "roll", None, 0, 9), at(1, "look", 1, 1, 2), at(1, "look", 4, 3, 4)]
    assert porcupine.check_operations(Dice(), operations) is OK
    again = [*operations, at(1, "look", 5, 5, 6)]
    result = check_operations_verbose(Dice(), again)
    assert result.verdict is ILLEGAL and result.illegal.culprits == [3]


class Maximum(porcupine.CompiledModel):
    """A compiled model of one's own: a register that keeps the largest value put."""

    name = "maximum"
    functions = {"put": 1, "get": 0}  # noqa: RUF012
    _step = None

    def init(self):
        return 0

    def step(self, state, input, output):
        if input[0] == "put":
            return True, max(state, input[1])
        return output in (state, porcupine.NO_OUTPUT), state

    def encode(self, operations):
        built = porcupine.Builder()
        for i, operation in enumerate(operations):
            f, *rest = self.arguments(operation)
            if f == "put":
                built.add(0, i, 100, rest[0])
            elif operation.ret is not None:
                built.add(0, i, 101, operation.output, flags=porcupine.PURE)
        return built.done([None])

    def kernel(self):
        def step(state, f, a, b):
            if f == 100:
                return max(state, a)
            return state if state == a else -1

        Maximum._step = Maximum._step or porcupine.compile_step(step)
        return Maximum._step


def test_a_compiled_model_of_ones_own_agrees_with_its_plain_form():
    rng = random.Random(1)
    verdicts = set()
    for _ in range(200):
        operations = []
        for client in range(6):
            call = rng.randrange(10)
            ret = rng.choice([None, call + 1, call + 3, call + 6])
            kind = rng.choice([("put", rng.randrange(4)), ("get",), ("get",)])
            operations.append(at(client, kind, rng.randrange(4) if kind == ("get",) and ret else None, call, ret))
        expected = OK if linearizable(Maximum(), operations) else ILLEGAL
        assert porcupine.check_operations(Maximum(), operations) is expected
        verdicts.add(expected)
    assert verdicts == {OK, ILLEGAL}


def test_events():
    events = [
        Event("call", 1, ("write", 1)),
        Event("call", 2, ("read",)),
        Event("return", 2, 1),
        Event("return", 1, None),
    ]
    model = porcupine.model_named("register")
    assert porcupine.check_events(model, events) is OK
    late = [events[0], events[3], events[1], Event("return", 2, None)]
    assert porcupine.check_events_verbose(model, late).verdict is ILLEGAL
    with pytest.raises(PorcupineError, match="event 0: return of operation 1, which was not called"):
        porcupine.check_events(model, events[3:])
    with pytest.raises(PorcupineError, match="event 1: operation 1 is called twice"):
        porcupine.check_events(model, [events[0], events[0]])


def test_bad_operations_are_refused():
    with pytest.raises(PorcupineError, match="unknown operation"):
        check("register", [at(0, ("cas", 1, 2), True, 0, 1)])
    with pytest.raises(PorcupineError, match="needs 1 argument"):
        check("register", [at(0, ("write",), True, 0, 1)])
    with pytest.raises(PorcupineError, match="before its call"):
        check("register", [at(0, ("read",), None, 2, 1)])
    with pytest.raises(PorcupineError, match="not a number"):
        check("register", [at(0, ("read",), None, float("nan"), 1)])
    with pytest.raises(PorcupineError, match="null stands for empty"):
        check("fifo-queue", [at(0, ("enqueue", None), None, 0, 1)])


@pytest.mark.parametrize("unordered", [False, True])
@pytest.mark.parametrize("values", [None, 3])
def test_queue_columns_agree_with_operations(unordered, values):
    name = "unordered-queue" if unordered else "fifo-queue"
    verdicts = set()
    for seed in range(40):
        history = generate.queue(60, 4, seed, values)
        if seed % 2:
            history = generate.spoil_queue(history, 0.5)
        ret = history.ret.copy()
        ret[seed % 60] = -1
        rows = zip(*(x.tolist() for x in (history.f, history.value, history.call, ret)), strict=True)
        operations = [
            at(
                i,
                ("enqueue", v) if f == ENQUEUE else ("dequeue",),
                v if f == DEQUEUE and r >= 0 else None,
                c,
                r if r >= 0 else None,
            )
            for i, (f, v, c, r) in enumerate(rows)
        ]
        expected = check(name, operations).verdict
        verdicts.add(expected)
        found = check_queue_columns(history.f, history.value, history.call, ret, unordered=unordered)
        assert found.verdict is expected, seed
        raw = [None if f == DEQUEUE_EMPTY else f"v{v}" for f, v in zip(history.f, history.value, strict=True)]
        late = np.where(ret < 0, -1, ret * 10.5)
        assert check_queue_columns(history.f, raw, history.call * 10.5, late, unordered=unordered).verdict is expected
    assert verdicts == {OK, ILLEGAL}


def test_register_columns_take_many_partitions_in_a_call():
    good = [generate.register(50, 3, seed) for seed in range(20)]
    joined = [np.concatenate([getattr(h, c) for h in good]) for c in ("f", "value", "call", "ret", "new")]
    partition = np.repeat(np.arange(20), 50)
    result = check_register_columns(*joined[:4], new=joined[4], partition=partition)
    assert result.verdict is OK and len(result.partitions) == 20
    reads = np.nonzero((joined[0] == 0) & (partition == 13))[0]
    joined[1][reads[-1]] = 99
    spoilt = check_register_columns(*joined[:4], new=joined[4], partition=partition)
    assert spoilt.verdict is ILLEGAL and spoilt.partitions[13] is ILLEGAL


def test_columns_may_be_arrow_or_pandas_and_read_only():
    pa = pytest.importorskip("pyarrow")
    pd = pytest.importorskip("pandas")
    history = generate.queue(500, 5, 1)
    columns = (history.f, history.value, history.call, history.ret)
    assert check_queue_columns(*map(pa.array, columns)).verdict is OK
    assert check_queue_columns(*(pa.chunked_array([c[:100], c[100:]]) for c in columns)).verdict is OK
    assert check_queue_columns(*map(pd.Series, columns)).verdict is OK


def test_bad_columns_are_refused():
    history = generate.queue(50, 5, 1)
    with pytest.raises(PorcupineError, match="column value has 3 rows"):
        check_queue_columns(history.f, [1, 2, 3], history.call, history.ret)
    with pytest.raises(PorcupineError, match="column f"):
        check_queue_columns(history.f + 5, history.value, history.call, history.ret)
    with pytest.raises(PorcupineError, match="before its call"):
        check_queue_columns(history.f, history.value, history.call + 500, history.ret)


def test_illegal_registers_of_20_processes_are_refuted_by_a_window():
    history = generate.spoil_register(generate.register(3000, 20, 2), 0.7)
    result = check_register_columns(history.f, history.value, history.call, history.ret, new=history.new)
    assert result.verdict is ILLEGAL and result.steps < 400_000


def test_parquet_in_the_schema_of_stormproof(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    rows = [
        (0, 0, 0, "write", -1, 5, None), (1, 0, 1, "write", -1, 5, None), (2, -1, 3, "start", -1, -2, '"cut"'),
        (3, 1, 0, "cas", -1, 5 << 32 | 0, None), (4, 1, 1, "cas", -1, 5 << 32 | 0, None),
        (5, 2, 0, "read", -1, -1, None), (6, 2, 1, "read", -1, 5, None),
    ]  # fmt: skip
    names = ("index", "process", "type", "f", "key", "value", "text")
    table = pa.table({n: [r[i] for r in rows] for i, n in enumerate(names)})
    table = table.append_column("run", pa.array(["a"] * len(rows)).dictionary_encode())
    file = tmp_path / "h.parquet"
    pq.write_table(table, file)
    model = porcupine.model_named("cas-register")
    operations = porcupine.read_history(file, model)
    assert [o.input for o in operations] == [("write", 5), ("cas", 5, 0), ("read",)]
    assert porcupine.check_operations(model, operations) is ILLEGAL
    pq.write_table(table.drop_columns(["key"]), file)
    with pytest.raises(PorcupineError, match='column "key" is missing'):
        porcupine.read_history(file, model)


def test_the_page_is_escaped_and_self_contained():
    evil = "</script><script>alert(1)</script><!--"
    operations = [at(evil, ("write", evil), None, 0, 1), at(1, ("read",), None, 2, 3)]
    result = check("register", operations)
    page = porcupine.html(porcupine.model_named("register"), operations, result, title=evil)
    assert page.count("</script>") == 2 and "<!--" not in page
    assert "http" not in page and "src=" not in page
    start = page.index('type="application/json">') + len('type="application/json">')
    data = json.loads(page[start : page.index("</script>", start)])
    assert data["title"] == evil and data["ops"][0][0] == evil


def test_annotations_become_bands():
    operations = [at(0, ("write", 1), None, 10, 20), at(0, ("write", 2), None, 30, 40)]
    result = check("register", operations)
    bands = [porcupine.Annotation(15, 35, "partition"), porcupine.Annotation(35, None, "pause")]
    page = porcupine.html(porcupine.model_named("register"), operations, result, annotations=bands)
    assert '"bands":[[0.5,2.5,"partition"],[2.5,-1.0,"pause"]]' in page


def test_minimal_history_of_a_lost_update():
    operations = [at(i, ("get-and-add", 1), i, 10 * i, 10 * i + 5) for i in range(20)]
    operations.append(at(20, ("get-and-add", 1), 19, 194, 206))
    operations.append(at(21, ("read",), 21, 300, 301))
    model = porcupine.model_named("counter")
    smallest = porcupine.minimal_history(model, operations, timeout=20)
    assert smallest.proven and smallest.operations[-1] == 20
    assert porcupine.check_operations(model, [operations[i] for i in smallest.operations]) is ILLEGAL


def test_compiling_does_not_count_against_the_timeout(tmp_path):
    code = (
        "import porcupine\n"
        "from porcupine import Operation as O\n"
        "ops = [O(0, ('write', 1), None, 0, 1), O(1, ('cas', 1, 2), True, 2, 3), O(1, ('read',), 2, 4, 5)]\n"
        "print(porcupine.check_operations(porcupine.model_named('cas-register'), ops, timeout=0.2).value)\n"
    )
    root = str(Path(porcupine.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "ok\n"


def test_histories_checked_together_have_the_verdicts_that_each_has_by_itself():
    model = porcupine.model_named("cas-register")
    histories = [generate.etcd(seed) for seed in range(30)]
    alone = [porcupine.check_operations(model, history) for history in histories]
    assert set(alone) == {OK, ILLEGAL}
    assert porcupine.check_histories(model, histories) == alone
    assert porcupine.check_histories(model, []) == [] and porcupine.check_histories(model, [[], []]) == [OK, OK]
    assert porcupine.check_histories(model, [[], *histories, []], max_steps=1).count(UNKNOWN) > 20
    # Values that can't be hashed, and models of several keys.
    lists = [at(0, ("write", [1]), None, 0, 1), at(0, ("read",), [1], 2, 3)]
    assert porcupine.check_histories(model, [lists, histories[0], lists[1:]]) == [OK, alone[0], ILLEGAL]
    kv = porcupine.model_named("kv")
    assert porcupine.check_histories(kv, [generate.texts(50, 4, 2, 1), []]) == [OK, OK]
    with pytest.raises(PorcupineError, match="operation 0 returns at 1"):
        porcupine.check_histories(model, [lists, [at(0, ("read",), None, 2, 1)]])


@given(st.lists(register_histories(), max_size=4))
@settings(max_examples=150, deadline=None)
def test_registers_checked_together_agree_with_the_definition(histories):
    model = porcupine.model_named("cas-register")
    expected = [OK if linearizable(model, operations) else ILLEGAL for operations in histories]
    assert porcupine.check_histories(model, histories) == expected


@given(st.lists(st.text("ab\x00é\U0001f600", max_size=3), min_size=6, max_size=6), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_texts_in_bulk_agree_with_texts_one_by_one(pieces, rng):
    from porcupine.models import registers

    model = porcupine.model_named("kv")
    operations, held = [], {"k": "", "l": ""}
    for i, piece in enumerate(pieces):
        key = rng.choice("kl")
        f = rng.choice(["put", "append", "append", "cas", "get"])
        call, ret = i - rng.choice([0, 0, 1.5]), rng.choice([i + 0.5, i + 2, None])
        if f == "get":
            seen = held[key] if rng.random() < 0.8 else piece
            operations.append(at(i, (f, key), rng.choice([seen, seen or None]), call, ret))
        elif f == "cas":
            operations.append(at(i, (f, key, held[key], piece), True, call, ret))
            held[key] = piece
        else:
            operations.append(at(i, (f, key, piece), None, call, ret))
            held[key] = piece if f == "put" else held[key] + piece
    operations += [at(9, ("get", key), text, 20, 21) for key, text in held.items() if rng.random() < 0.7]
    parts = [operations[i : i + 1] for i in range(len(operations))]
    expected = all(linearizable(model, [o for o in operations if o.input[1] == key]) for key in "kl")
    assert (porcupine.check_operations(model, operations) is OK) is expected, parts
    keys = list(dict.fromkeys(o.input[1] for o in operations))
    numbers = [keys.index(o.input[1]) for o in operations]
    if any(o.input[0] == "append" for o in operations):
        assert registers._encode_plain_texts(operations, numbers, keys) is not None
        slow = registers._encode_texts(operations, numbers, keys)
        quick = registers._encode_plain_texts(operations, numbers, keys)
        assert (quick.f == slow.f).all() and (quick.flags == slow.flags).all() and (quick.part == slow.part).all()
        observing = (quick.f != 4) & (quick.f != 1)
        assert len(np.unique(quick.a[observing])) == len(np.unique(slow.a[observing]))


def test_generated_shapes_are_what_they_say():
    texts = generate.texts(300, 20, 5, 3)
    assert len(texts) == 300 and {o.input[0] for o in texts} == {"get", "append", "put"}
    assert check("kv", texts).verdict is OK
    spoilt = [*texts, at(99, ("get", "0"), "x 0 0 yx", 1e9, 2e9)]
    assert check("kv", spoilt).verdict is ILLEGAL
