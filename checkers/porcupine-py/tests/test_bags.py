"""Bags whose values repeat: decided without a search where a FIFO queue with the same values is."""

import random
from collections import deque

import pytest
from histories import linearizable
from hypothesis import given, settings
from hypothesis import strategies as st

from porcupine import CheckResult, Operation, check_operations_verbose, generate, model_named

BAG, FIFO = model_named("unordered-queue"), model_named("fifo-queue")


def crashing(seed, values, n=10_000, processes=20, crashes=100):
    """A queue's operations, of which some happened and never returned."""
    columns = generate.queue(n, processes, seed, values)
    crashed = set(random.Random(seed).sample(range(n), crashes))
    rows = zip(*(column.tolist() for column in (columns.f, columns.value, columns.call, columns.ret)), strict=True)
    operations = []
    for i, (f, v, call, ret) in enumerate(rows):
        made = (("enqueue", v), None) if f == 0 else (("dequeue",), v if f == 1 else None)
        operations.append(Operation(i, *made, call, None if i in crashed else ret))
    return operations


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("values", [None, 3, 10, 1000])
def test_a_bag_is_decided_where_a_queue_is(values, seed):
    operations = crashing(seed, values)
    for model in (FIFO, BAG):
        result = check_operations_verbose(model, operations)
        assert result.verdict is CheckResult.OK
        assert result.partitions[0].method != "search"


@pytest.mark.parametrize("values", [None, 3, 10])
def test_a_take_too_many_is_told(values):
    operations = crashing(1, values)
    last = max(operation.ret for operation in operations if operation.ret is not None)
    extra = Operation(-1, ("dequeue",), 1, last + 1, last + 2)
    # As many as were ever put, of which some were taken.
    puts = sum(operation.input == ("enqueue", 1) for operation in operations)
    more = [Operation(-1, ("dequeue",), 1, last + 2 * i + 1, last + 2 * i + 2) for i in range(puts)]
    result = check_operations_verbose(BAG, [*operations, *more, extra])
    assert result.verdict is CheckResult.ILLEGAL and result.partitions[0].method == "monitor"
    assert "dequeue() -> 1" in result.illegal.reason


@st.composite
def bags(draw):
    """Operations of a bag with few values, some of which never returned, most of them right."""
    rng = draw(st.randoms(use_true_random=False))
    inside, operations, clock = deque(), [], 0
    for client in range(draw(st.integers(1, 8))):
        call = clock + rng.randrange(3)
        ret = call + rng.randrange(1, 12)
        clock = max(clock, call)
        if rng.random() < 0.5:
            value = rng.randrange(1, 4)
            inside.append(value)
            made = ("enqueue", value), None
        else:
            made = ("dequeue",), rng.choice([*inside, None, rng.randrange(1, 4)])
            if made[1] in inside and rng.random() < 0.9:
                inside.remove(made[1])
        operations.append(Operation(client, *made, call, None if rng.random() < 0.2 else ret))
    return operations


@settings(max_examples=400, deadline=None)
@given(bags())
def test_bags_agree_with_the_definition(operations):
    wanted = CheckResult.OK if linearizable(BAG, operations) else CheckResult.ILLEGAL
    assert check_operations_verbose(BAG, operations).verdict is wanted
    assert check_operations_verbose(BAG, operations, monitors=False).verdict is wanted
