"""Faults of families that were not proven are injected again, and the load goes on meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from nemesis.again import Attempt, attempts
from nemesis.families import families_of
from nemesis.schedule import fault_generator, lasting, schedule
from stormproof.errors import UsageError
from stormproof.generator import any_of, clients, delay, repeat, time_limit
from stormproof.generator.simulate import SimulatedOutcome, simulate
from stormproof.history.ledger import UNMET
from stormproof.operation import INFO, INVOKE, NEMESIS, OK, Op
from stormproof.test import Test

LIMIT = 20.0


def a_test(**options: object) -> Test:
    settings = {"fault_duration": 2.0, "fault_gap": 1.0, **options}
    return Test("a", "b", ("partition", "kill"), time_limit=LIMIT, seed=3, options=settings)


def carried_out(
    test: Test, proves: Callable[[int, str], bool], lacks: Callable[[int, str], bool] = lambda ident, kind: False
) -> tuple[list[Op], list[Op]]:
    """What the nemesis is asked for, and when clients begin their operations; ``proves`` says of an id and a family
    whether the injection is proven, ``lacks`` of an id and a kind whether the fault lacks the state that it expects."""

    def model(op: Op, number: int) -> SimulatedOutcome:
        if op.process != NEMESIS:
            return SimulatedOutcome(OK, 10)
        name, _, phase = op.f.partition(".")
        unmet = {UNMET: "nobody leads"} if lacks(op.value["id"], op.value["kind"]) else {}
        proven = phase == "inject" and proves(op.value["id"], name) and not unmet
        return SimulatedOutcome(INFO, 0, {**op.value, "proven": proven, **unmet})

    families = families_of(test)
    load = clients(time_limit(LIMIT, delay(0.5, repeat(Op(INVOKE, "enqueue")))))
    rows = simulate(any_of(lasting(test, families, load), fault_generator(test, families)), model, test=test)
    begun = [op for op in rows if op.type == INVOKE or op.process == NEMESIS]
    asked = {(op.f, op.value["id"]): op for op in reversed(begun) if op.process == NEMESIS}
    return sorted(asked.values(), key=lambda op: op.time), [op for op in begun if op.process != NEMESIS]


def again(test: Test, faults: list[Op]) -> list[tuple[str, int]]:
    """Families and ids of what came after the planned faults."""
    planned = 1 + max(step.id for step in schedule(test, families_of(test)))
    return [(op.f.partition(".")[0], op.value["id"]) for op in faults if op.f.endswith("inject")
            and op.value["id"] >= planned]


def test_nothing_is_tried_again_unless_asked_for_or_where_all_is_proven() -> None:
    usual, load = carried_out(a_test(), lambda ident, name: False)
    assert not again(a_test(), usual)
    assert load[-1].time < LIMIT * 1e9
    patient = a_test(fault_retries=3)
    proven, longer = carried_out(patient, lambda ident, name: True)
    assert [(op.f, op.time) for op in proven] == [(op.f, op.time) for op in usual]
    assert [op.time for op in longer] == [op.time for op in load]


def test_a_family_is_tried_again_until_it_is_proven_and_the_load_goes_on() -> None:
    test = a_test(fault_retries=3)
    planned = 1 + max(step.id for step in schedule(test, families_of(test)))
    faults, load = carried_out(test, lambda ident, name: name == "partition" or ident == planned + 2)
    assert again(test, faults) == [("kill", planned), ("kill", planned + 1), ("kill", planned + 2)]
    first, second, third = [op for op in faults if op.f == "kill.inject" and op.value["id"] >= planned]
    heals = {op.value["id"]: op.time for op in faults if op.f == "kill.heal"}
    assert heals[planned] - first.time >= 2e9
    assert second.time > heals[planned]
    last = max(op.time for op in load)
    assert third.time > LIMIT * 1e9
    assert third.time - 0.5e9 < last < third.time + 0.5e9, "there is load until it is proven"


def test_a_kind_that_the_test_names_is_tried_again_though_its_family_was_proven() -> None:
    test = a_test(fault_retries=3, kill_kind="master,one")
    planned = 1 + max(step.id for step in schedule(test, families_of(test)))
    kinds = {step.kind for step in schedule(test, families_of(test)) if step.fault == "kill"}
    assert kinds == {"master", "one"}, "both are planned"
    faults, load = carried_out(test, lambda *_: True, lambda ident, kind: kind == "master" and ident < planned + 2)
    assert again(test, faults) == [("kill", planned + each) for each in range(3)]
    assert {op.value["kind"] for op in faults if op.value["id"] >= planned} == {"master"}
    assert max(op.time for op in load) > LIMIT * 1e9
    faults, _ = carried_out(test, lambda *_: True, lambda ident, kind: kind == "master")
    assert len(again(test, faults)) == 3
    faults, _ = carried_out(a_test(fault_retries=3), lambda *_: True, lambda ident, kind: kind == "master")
    assert not again(a_test(fault_retries=3), faults), "any kind was asked for"


def test_a_kind_of_which_one_fault_counted_is_not_tried_again() -> None:
    test = a_test(fault_retries=3, kill_kind="master")
    masters = sorted({step.id for step in schedule(test, families_of(test)) if step.fault == "kill"})
    assert len(masters) > 1
    faults, _ = carried_out(test, lambda *_: True, lambda ident, kind: kind == "master" and ident != masters[0])
    assert not again(test, faults)


def test_it_is_not_tried_for_ever() -> None:
    test = a_test(fault_retries=2)
    faults, load = carried_out(test, lambda ident, name: name == "partition")
    assert [name for name, _ in again(test, faults)] == ["kill", "kill"]
    assert max(op.time for op in load) < 2 * LIMIT * 1e9
    many = a_test(fault_retries=1000)
    faults, load = carried_out(many, lambda ident, name: False)
    assert {name for name, _ in again(many, faults)} == {"partition", "kill"}
    assert max(op.time for op in faults) < (2 * LIMIT + 5) * 1e9
    assert max(op.time for op in load) < (2 * LIMIT + 1) * 1e9


def test_given_faults_are_not_repeated() -> None:
    test = a_test(fault_retries=3, schedule="kill:one:1-2:7")
    faults, _ = carried_out(test, lambda ident, name: False)
    assert [op.f for op in faults] == ["kill.inject", "kill.heal"]
    with pytest.raises(UsageError, match="fault_retries=-1"):
        fault_generator(a_test(fault_retries=-1), families_of(test))


def test_each_kind_comes_before_any_comes_again() -> None:
    found = attempts(("a", "b", "c"), 7, random.Random(1))
    assert len(found) == 7
    assert all(isinstance(each, Attempt) for each in found)
    assert {each.kind for each in found[:3]} == {each.kind for each in found[3:6]} == {"a", "b", "c"}
