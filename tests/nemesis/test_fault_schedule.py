"""The schedule of faults: a pure function of the test."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemesis.facts import max_down_of
from nemesis.families import families_of
from nemesis.partition import KINDS as PARTITION_KINDS
from nemesis.schedule import Step, fault_generator, options_of, schedule
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.fault import ClusterFacts, Evidence, Fault, FaultPlan
from stormproof.errors import UsageError
from stormproof.generator import any_of, clients, delay, limit, repeat
from stormproof.generator.simulate import SimulatedOutcome, invocations, simulate
from stormproof.history.undo import NETWORK
from stormproof.operation import INFO, INVOKE, NEMESIS, OK, Op
from stormproof.test import Test

FAMILIES = ("partition", "pause", "kill")


def planned(test: Test) -> tuple[Step, ...]:
    return schedule(test, families_of(test))


def a_test(*nemesis: str, seed: int = 7, time_limit: float = 60.0, **options: object) -> Test:
    return Test("joram", "queue", nemesis, seed=seed, time_limit=time_limit, options=options)


def windows(steps: tuple[Step, ...], *families: str) -> list[tuple[float, float, str]]:
    ends = {step.id: step.at for step in steps if step.phase == "heal"}
    return [(s.at, ends[s.id], s.fault) for s in steps if s.phase == "inject" and s.fault in families]


def test_the_schedule_of_a_seed_is_known() -> None:
    steps = planned(a_test("partition", "kill", time_limit=30, fault_duration=5, fault_gap=2))
    assert [(step.at, step.fault, step.phase, step.id, step.kind) for step in steps] == [
        (5.466778, "kill", "inject", 0, "one"),
        (6.414192, "partition", "inject", 1, "one"),
        (10.55331, "kill", "heal", 0, "one"),
        (11.482117, "partition", "heal", 1, "one"),
        (13.362461, "kill", "inject", 2, "random"),
        (14.172574, "partition", "inject", 3, "one-way"),
        (18.703486, "kill", "heal", 2, "random"),
        (21.127233, "partition", "heal", 3, "one-way"),
    ]


@pytest.mark.parametrize("change", [{"seed": 8}, {"time_limit": 61.0}])
def test_the_same_test_gives_the_same_schedule_another_another(change: dict[str, float]) -> None:
    assert planned(a_test(*FAMILIES)) == planned(a_test(*FAMILIES))
    assert planned(a_test(*FAMILIES, **change)) != planned(a_test(*FAMILIES))


def test_a_family_s_faults_do_not_depend_on_other_conflict_groups() -> None:
    alone = windows(planned(a_test("partition")), "partition")
    assert windows(planned(a_test("partition", "kill", "pause")), "partition") == alone


FOUR = ("partition", "pause", "kill", "clock")


@given(st.sets(st.sampled_from(FOUR), min_size=2), st.integers(0, 10_000))
def test_nested_faults_meet_and_never_exclude_each_other(families: set[str], seed: int) -> None:
    names = sorted(families)
    test = a_test(*names, seed=seed, fault_order="nested", fault_lengths="0.5,1.5", fault_gap=0.3)
    steps = planned(test)
    assert {step.fault for step in steps} == families
    assert steps == planned(test)
    groups = [each for each in (["partition"], ["pause", "kill"], ["clock"]) if set(each) & families]
    for group in groups:
        assert all(one[1] <= next_[0] for one, next_ in pairwise(windows(steps, *group)))
    if len(groups) < 2:
        assert steps == planned(a_test(*names, seed=seed, fault_lengths="0.5,1.5", fault_gap=0.3))
        return
    spans = windows(steps, *names)
    met = sum(any(start - 0.6 <= other[1] and other[0] <= start <= other[1] + 1.01 for other in spans
                  if other[2] != name) for start, _, name in spans)  # fmt: skip
    assert met >= len(spans) / 3


SOME_TESTS = st.builds(
    a_test,
    st.just("partition"),
    st.sampled_from(["pause", "kill"]),
    seed=st.integers(0, 2**31),
    time_limit=st.floats(5, 3600),
    fault_duration=st.sampled_from([0, 0.5, 1.5]),
    fault_gap=st.sampled_from([0, 0.25, 1.0]),
    quiet_before=st.sampled_from([0.0, 0.15, 0.3]),
    quiet_after=st.sampled_from([0.2, 0.4]),
)


@settings(max_examples=150, deadline=None)
@given(test=SOME_TESTS)
def test_every_schedule_keeps_its_guarantees(test: Test) -> None:
    steps = planned(test)
    start = test.time_limit * test.options["quiet_before"]
    end = test.time_limit * (1 - test.options["quiet_after"])
    assert all(start - 1e-6 <= step.at <= end + 1e-5 for step in steps)
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    ids = [step.id for step in steps if step.phase == "inject"]
    assert sorted(ids) == list(range(len(ids))) == sorted(step.id for step in steps if step.phase == "heal")
    assert {step.fault for step in steps} == set(test.nemesis)
    shortest = test.options["fault_duration"]
    for family in test.nemesis:
        spans = windows(steps, family)
        assert all(b - a >= shortest - 1e-5 for a, b, _ in spans)
        assert all(first[1] + test.options["fault_gap"] <= second[0] + 1e-5 for first, second in pairwise(spans))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), time_limit=st.floats(5, 600))
def test_faults_of_one_conflict_group_never_overlap_and_all_families_come(seed: int, time_limit: float) -> None:
    spans = windows(planned(a_test("pause", "kill", seed=seed, time_limit=time_limit)), "pause", "kill")
    assert all(first[1] < second[0] for first, second in pairwise(spans))
    assert {family for _, _, family in spans} == {"pause", "kill"}


def test_kinds_come_in_rounds_or_only_the_one_that_was_asked_for() -> None:
    steps = planned(a_test("partition", time_limit=300, fault_duration=1, fault_gap=1))
    kinds = [step.kind for step in steps if step.phase == "inject"]
    assert len(kinds) > 40
    for start in range(0, 40, 4):
        assert sorted(kinds[start : start + 4]) == sorted(PARTITION_KINDS)
    only = planned(a_test("partition", partition_kind="master"))
    assert {step.kind for step in only} == {"master"}
    several = planned(a_test("partition", time_limit=300, fault_duration=1, fault_gap=1, partition_kind="master,link"))
    assert {step.kind for step in several} == {"master", "link"}


def test_no_nemesis_means_no_steps() -> None:
    assert planned(a_test()) == ()
    assert options_of([]) == ()
    assert simulate(fault_generator(a_test(), [])) == []


class Harmless(Fault):
    """A family that is in no catalog and does nothing."""

    name = conflict_group = "none"
    undo = NETWORK
    kinds = ("none",)

    def plan(self, kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
        return FaultPlan(kind, ())

    async def inject(self, cluster: Cluster, plan: FaultPlan) -> Evidence:
        return Evidence()

    async def heal(self, cluster: Cluster, plan: FaultPlan, injected: Evidence) -> Evidence:
        return Evidence()


def test_a_no_op_family_can_be_scheduled() -> None:
    assert {step.fault for step in schedule(a_test(), [Harmless()])} == {"none"}


def test_options_are_declared_once() -> None:
    names = [option.name for option in options_of(families_of(a_test(*FAMILIES)))]
    assert len(names) == len(set(names))
    assert {"partition_kind", "pause_kind", "kill_kind", "max_down", "fault_duration", "quiet_after"} <= set(names)


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("partition", {"fault_duration": 50.0}, "leaves 39.0 s for faults, but one needs 50.0 s"),
        ("partition", {"quiet_before": 0.5, "quiet_after": 0.5}, "leave no time for faults"),
        ("partition", {"quiet_after": 1.5}, "quiet_after must be at least 0 and below 1, not 1.5"),
        ("partition", {"fault_duration": -1.0}, "must not be negative"),
        ("clock", {"clock_kind": "sideways"}, "clock_kind=sideways is not possible; choose one of any, bump"),
    ],
)
def test_options_that_do_not_fit_are_told(family: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        planned(a_test(family, **options))


def test_two_families_of_one_conflict_group_need_room_for_both() -> None:
    with pytest.raises(UsageError, match=r"2 of them need 44\.0 s"):
        planned(a_test("pause", "kill", fault_duration=20.0, fault_gap=4.0))


def test_a_nemesis_named_twice_or_unknown_is_told() -> None:
    with pytest.raises(UsageError, match="named twice"):
        families_of(a_test("kill", "kill"))
    with pytest.raises(UsageError, match="no nemesis 'partitoin'; did you mean 'partition'"):
        families_of(a_test("partitoin"))


@pytest.mark.parametrize(("nodes", "most"), [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2), (7, 3)])
def test_a_minority_may_be_down_unless_told_otherwise(nodes: int, most: int) -> None:
    assert max_down_of({}, nodes) == most
    assert max_down_of({"max_down": 4}, nodes) == 4


def quick_nemesis(op: Op, number: int) -> SimulatedOutcome:
    return SimulatedOutcome(INFO, 0) if op.process == NEMESIS else SimulatedOutcome(OK, 10)


def carried_out(test: Test, seconds: Sequence[float]) -> list[tuple[int, str, float, float, float, float]]:
    """Each fault, when the nemesis takes so long for its steps in turn: id, family, and the seconds of injection,
    injected, heal and healed."""

    def model(op: Op, number: int) -> SimulatedOutcome:
        return SimulatedOutcome(INFO, round(seconds[number % len(seconds)] * 1e9))

    rows = simulate(fault_generator(test, families_of(test)), model, test=test)
    pairs = zip(rows[::2], rows[1::2], strict=True)
    times = {(op.value["id"], op.f): (op.time / 1e9, done.time / 1e9) for op, done in pairs}
    faults = []
    for (ident, name), (start, done) in times.items():
        family, phase = name.split(".")
        if phase == "inject":
            faults.append((ident, family, start, done, *times[ident, f"{family}.heal"]))
    return faults


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**31), time_limit=st.floats(6, 60), shortest=st.sampled_from([0.3, 0.6]),
    gap=st.sampled_from([0.1, 0.5]), quiet_after=st.sampled_from([0.0, 0.2]),
    seconds=st.lists(st.sampled_from([0.0, 0.004, 0.5, 3.0]), min_size=1, max_size=7),
)  # fmt: skip
def test_faults_and_gaps_keep_their_length_however_slow_the_nemesis_is(
    seed: int, time_limit: float, shortest: float, gap: float, quiet_after: float, seconds: list[float]
) -> None:
    test = a_test("partition", "pause", "kill", seed=seed, time_limit=time_limit, fault_duration=shortest,
                  fault_gap=gap, quiet_after=quiet_after)
    faults = carried_out(test, seconds)
    ends = {step.id: step.at for step in planned(test) if step.phase == "heal"}
    starts = {step.id: step.at for step in planned(test) if step.phase == "inject"}
    firsts: set[str] = set()
    for ident, family, start, injected, heal, _ in faults:
        assert start >= starts[ident] - 1e-6
        assert heal - injected >= shortest - 1e-6
        assert heal <= max(time_limit, injected + shortest) + max(seconds) + 1e-6, "only what the nemesis does keeps it"
        assert start < time_limit, "the load is still on"
        assert family not in firsts or start + shortest <= time_limit + 1e-6
        if not any(seconds):
            assert (start, heal) == pytest.approx((starts[ident], ends[ident]), abs=1e-6)
        firsts.add(family)
    for group in (["partition"], ["pause", "kill"]):
        spans = [fault for fault in faults if fault[1] in group]
        assert all(first[5] + gap <= second[2] + 1e-6 for first, second in pairwise(spans))
    assert faults, "something fits always"


def test_what_does_not_fit_any_more_is_left_out_but_not_a_family_s_first_fault_under_load() -> None:
    test = a_test("pause", "kill", seed=1, time_limit=20, fault_duration=2, fault_gap=1)
    assert [family for _, family, *_ in carried_out(test, [0.0])] == ["kill", "pause", "pause"]
    slow = carried_out(test, [6.0])
    assert [family for _, family, *_ in slow] == ["kill", "pause"]
    _, _, start, injected, heal, _ = slow[1]
    assert 18 < start < 20, "too late for a second one, not for the first"
    assert heal == pytest.approx(injected + 2)
    assert [family for _, family, *_ in carried_out(test, [8.0])] == ["kill"], "the load is over"


def test_a_given_schedule_keeps_what_was_asked_for() -> None:
    schedule = {"schedule": "pause:one:1-2:7 kill:one:8-10:8 pause:one:3-4.5:9"}

    def lengths(seconds: float, **options: object) -> list[tuple[int, float]]:
        faults = carried_out(a_test("pause", "kill", time_limit=10, **schedule, **options), [seconds])
        return [(fault, round(heal - injected, 6)) for fault, _, _, injected, heal, _ in faults]

    assert lengths(0.0) == [(0, 1.0), (1, 1.5), (2, 2.0)]
    assert lengths(0.9) == [(0, 0.666667), (1, 1.0), (2, 1.333333)], "two thirds at least"
    assert lengths(0.9, fault_duration=1.2) == [(0, 1.0), (1, 1.2), (2, 1.2)]
    assert lengths(9.0) == [(0, 0.666667)], "the load is over"
    assert lengths(3.8) == [(0, 0.666667), (2, 1.333333)], "no room for the second pause, but for the first kill"


def test_what_follows_a_fault_that_was_left_out_keeps_its_gap_to_the_one_before() -> None:
    schedule = {"schedule": "pause:one:1-2:7 pause:one:2-8:8 pause:one:8.5-8.6:9"}
    faults = carried_out(a_test("pause", time_limit=10, fault_gap=1, **schedule), [3.25])
    assert [fault for fault, *_ in faults] == [0, 2]
    assert faults[1][2] == pytest.approx(faults[0][5] + 0.5), "as far apart as the third was from the second"


def test_the_generator_injects_and_heals_at_the_planned_times_beside_the_clients() -> None:
    test = a_test("partition", time_limit=30, partition_kind="one")
    load = clients(limit(20, delay(1, repeat(Op(INVOKE, "enqueue")))))
    ops = invocations(simulate(any_of(load, fault_generator(test, families_of(test))), quick_nemesis))
    faults = [op for op in ops if op.process == -1]
    assert [(op.time, op.f, op.value["id"]) for op in faults] == [
        (round(step.at * 1e9), f"partition.{step.phase}", step.id) for step in planned(test)
    ]
    assert all(op.type == INFO and op.value["kind"] == "one" for op in faults)
    assert len(ops) == 20 + len(faults)
