"""Partitions whose sides overlap or are many, the leader with a minority, and faults named with their aim."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.run.settings import make_test
from nemesis.families import split_aims
from nemesis.packets import PacketsFault
from nemesis.partition import PartitionFault
from nemesis.shapes import bridge, groups, majority_ring
from stormproof.contracts.fault import ClusterFacts, FaultPlan, Infeasible, NoTarget
from stormproof.contracts.topology import machine_of
from stormproof.errors import UsageError

pytestmark = pytest.mark.requirement("H5")


def facts(nodes: int, primary: str | None = "n1", clients: str = "beside") -> ClusterFacts:
    names = tuple(f"n{i + 1}" for i in range(nodes))
    return ClusterFacts(nodes=names, hosts={name: f"c{name[1:]}" for name in names}, primary=primary,
                        states=dict.fromkeys(names, "running"), max_down=1, options={"clients": clients})  # fmt: skip


def heard(machines: list[str], cut: frozenset[tuple[str, str]]) -> dict[str, frozenset[str]]:
    """Whom each hears, itself included."""
    return {target: frozenset(source for source in machines if (source, target) not in cut) for target in machines}


NODES = st.integers(3, 9).map(lambda count: [f"n{i + 1}" for i in range(count)])


@given(NODES, st.integers())
def test_on_a_majority_ring_each_hears_a_majority_and_no_two_the_same(machines: list[str], seed: int) -> None:
    cut, _ = majority_ring(machines, random.Random(seed))
    found = heard(machines, cut)
    assert {len(each) for each in found.values()} == {len(machines) // 2 + 1}
    assert len(set(found.values())) == len(machines)
    assert all(machine in each for machine, each in found.items())
    if (len(machines) // 2 + 1) % 2:
        assert cut == {(b, a) for a, b in cut}, "an odd majority lies the same on both sides"


@given(NODES, st.integers())
def test_a_bridge_hears_both_halves_which_do_not_hear_each_other(machines: list[str], seed: int) -> None:
    cut, words = bridge(machines, random.Random(seed))
    found = heard(machines, cut)
    (middle,) = [machine for machine, each in found.items() if len(each) == len(machines)]
    halves = {each - {middle} for machine, each in found.items() if machine != middle}
    assert sorted(map(len, halves)) == [(len(machines) - 1) // 2, len(machines) // 2]
    assert words.startswith(f"{middle} is the bridge between ") and cut == {(b, a) for a, b in cut}


@given(NODES, st.integers())
def test_groups_by_chance_are_at_least_two_and_apart(machines: list[str], seed: int) -> None:
    cut, _ = groups(machines, random.Random(seed))
    found = heard(machines, cut)
    assert len(set(found.values())) >= 2
    assert all(found[a] == found[b] or not found[a] & found[b] for a, b in permutations(machines, 2))


def test_groups_by_chance_are_more_than_two_at_some_seed() -> None:
    machines = ["n1", "n2", "n3", "n4", "n5"]
    counts = {len(set(heard(machines, groups(machines, random.Random(seed))[0]).values())) for seed in range(300)}
    assert counts == {2, 3, 4, 5}


def test_clients_stand_beside_their_node_or_reach_all() -> None:
    plan = PartitionFault().plan("majority-ring", facts(5), random.Random(1))
    nodes = {(a, b) for a, b in plan.cut if a[0] == b[0] == "n"}
    assert len(nodes) == 10 and len(plan.cut) == 30, "each cut link, to the client beside, and from it"
    assert all((f"c{a[1:]}", b) in plan.cut and (a, f"c{b[1:]}") in plan.cut for a, b in nodes)
    outside = PartitionFault().plan("bridge", facts(5, clients="outside"), random.Random(1))
    assert {machine_of(end)[0] for link in outside.cut for end in link} == {"n"}
    assert "is the bridge" in str(outside.note)


@pytest.mark.parametrize("kind", ["majority-ring", "bridge"])
def test_two_nodes_have_no_such_shape(kind: str) -> None:
    with pytest.raises(Infeasible, match="at least three nodes"):
        PartitionFault().plan(kind, facts(2), random.Random(1))


@pytest.mark.parametrize(("kinds", "nodes", "words"), [
    ("majority-ring", 2, "majority-ring needs at least three nodes"),
    ("bridge", 2, "bridge needs at least three nodes"),
    ("majority-ring+bridge", 2, "needs at least three nodes"), ("bridge", 3, ""), ("random", 2, ""),
    ("bridge+one", 2, "bridge needs at least three nodes"), ("one", 2, ""), ("one", 1, "partition:from-clients"),
    ("from-clients", 1, ""),
])  # fmt: skip
def test_a_test_is_refused_that_names_a_kind_that_can_not_be(kinds: str, nodes: int, words: str) -> None:
    def made() -> object:
        nemesis = ",".join(f"partition:{kind}" for kind in kinds.split("+"))
        return make_test(system="joram" if nodes > 1 else "standalone", workload="queue", nemesis=nemesis,
                         backend="sim", nodes=nodes, time_limit=30, rate=50, seed=1, settings={})  # fmt: skip

    if not words:
        assert made()
        return
    with pytest.raises(UsageError, match=words):
        made()


@pytest.mark.parametrize(("nodes", "side"), [(2, 1), (3, 1), (4, 1), (5, 2), (7, 3)])
def test_the_leader_takes_a_minority_with_it(nodes: int, side: int) -> None:
    fault, all_nodes = PartitionFault(), facts(nodes, "n2")
    plans = [fault.plan("master-from-majority", all_nodes, random.Random(seed)) for seed in range(30)]
    assert {len(plan.targets) for plan in plans} == {side} and all("n2" in plan.targets for plan in plans)
    assert len({plan.targets for plan in plans}) > 1 or side == 1
    with pytest.raises(NoTarget, match="nobody leads"):
        PartitionFault().plan("master-from-majority", facts(3, None), random.Random(1))


def planned(nemesis: str, **settings: str) -> object:
    test = make_test(system="joram", workload="queue", nemesis=nemesis, backend="sim", nodes=5, time_limit=30,
                     rate=50, seed=1, settings=settings)  # fmt: skip
    return test.nemesis, {name: value for name, value in test.options.items() if name.endswith("_kind")}


def test_a_fault_is_named_with_its_aim() -> None:
    assert planned("pause:leader,kill:coordinator") == (("pause", "kill"), {"pause_kind": "master",
                                                                            "kill_kind": "master"})
    assert planned("partition:leader-from-majority,kill") == (
        ("partition", "kill"), {"partition_kind": "master-from-majority", "kill_kind": "any"})  # fmt: skip
    assert planned("kill:primary,kill:random") == (("kill",), {"kill_kind": "master,random"})
    assert planned("partition:majority-ring", partition_kind="majority-ring")[0] == ("partition",)  # type: ignore[index]
    assert split_aims("./mine.py:Mine,kill:one") == ("./mine.py:Mine,kill", {"kill_kind": "one"})
    assert split_aims("none") == ("none", {})
    assert split_aims("shared-db:cut") == ("shared-db", {"shared_db_kind": "cut"})


@pytest.mark.parametrize(("nemesis", "settings", "words"), [
    ("pause:leader,pause", {}, "pause is named twice"),
    ("kill,kill", {}, "kill is named twice"),
    ("kill:", {}, "write it as FAMILY or FAMILY:KIND"),
    ("kill:one", {"kill_kind": "random"}, "kill:one and --set kill_kind=random say different things"),
    ("kill:ledaer", {}, "can't inject kill_kind=ledaer (it can: one, master, random)"),
    ("packets:los", {}, "can't inject packets_kind=los (it can: loss, delay"),
])
def test_an_aim_that_makes_no_sense_is_told(nemesis: str, settings: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        planned(nemesis, **settings)
    assert words in str(caught.value)


def test_packets_suffer_on_the_links_that_are_asked_for() -> None:
    def plans(where: str) -> list[FaultPlan]:
        given = replace(facts(3, clients="outside"), options={"clients": "outside", "packets_links": where})
        return [PacketsFault().plan("loss", given, random.Random(seed)) for seed in range(20)]

    for plan in plans("pair"):
        assert plan.conditions.keys() == {plan.targets, plan.targets[::-1]}
    for plan in plans("one-way"):
        assert list(plan.conditions) == [plan.targets] and plan.note == f"from {plan.targets[0]} to {plan.targets[1]}"
    assert {len(plan.targets) for plan in plans("all")} == {3} and {len(plan.targets) for plan in plans("one")} == {1}
    assert {len(plan.targets) for plan in plans("any")} == {1, 3}
