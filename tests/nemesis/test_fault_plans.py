"""Which links and nodes a fault hits, given the facts."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemesis.families import ANY_KIND
from nemesis.partition import PartitionFault
from nemesis.process import KillFault, PauseFault, plan_programs
from stormproof.contracts.fault import ClusterFacts, FaultPlan, Infeasible, NoTarget
from stormproof.contracts.topology import Helper, Topology


def facts(
    nodes: int = 3, primary: str | None = "n1", max_down: int = 1, clients: str = "beside", **states: str
) -> ClusterFacts:
    names = tuple(f"n{i + 1}" for i in range(nodes))
    return ClusterFacts(
        nodes=names,
        hosts={name: f"c{name[1:]}" for name in names},
        states={name: states.get(name, "running") for name in names},
        primary=primary,
        max_down=max_down,
        options={"clients": clients},
    )


def both(*pairs: str) -> frozenset[tuple[str, str]]:
    links = [tuple(pair.split("-")) for pair in pairs]
    return frozenset([(a, b) for a, b in links] + [(b, a) for a, b in links])


def test_the_primary_is_cut_off_with_the_clients_beside_it() -> None:
    plan = PartitionFault().plan("master", facts(), random.Random(0))
    assert plan.targets == ("n1",)
    assert plan.cut == both("n1-n2", "n1-n3", "n1-c2", "n1-c3", "c1-n2", "c1-n3")
    assert plan.note is None


def test_clients_outside_reach_every_node() -> None:
    plan = PartitionFault().plan("master", facts(clients="outside"), random.Random(0))
    assert plan.cut == both("n1-n2", "n1-n3")


@pytest.mark.parametrize("kind", ["master", "link", "master-from-majority"])
def test_without_a_leader_no_other_node_is_taken(kind: str) -> None:
    with pytest.raises(NoTarget, match=r"^nobody leads$"):
        PartitionFault().plan(kind, facts(primary=None), random.Random(0))


def test_halves_leave_a_majority_when_there_is_one() -> None:
    sides = {PartitionFault().plan("halves", facts(nodes=5), random.Random(seed)).targets for seed in range(40)}
    assert {len(side) for side in sides} == {2}
    assert len(sides) > 6


def test_one_hits_every_node_at_some_seed() -> None:
    assert {PartitionFault().plan("one", facts(), random.Random(seed)).targets[0] for seed in range(40)} == {
        "n1", "n2", "n3",
    }  # fmt: skip


def test_one_way_cuts_a_single_direction() -> None:
    plans = [PartitionFault().plan("one-way", facts(), random.Random(seed)) for seed in range(40)]
    assert all(not plan.cut & frozenset((b, a) for a, b in plan.cut) for plan in plans)
    assert {str(plan.note)[3:] for plan in plans} == {"does not hear the others", "is not heard by the others"}
    for plan in plans:
        node = plan.targets[0]
        side = {node, f"c{node[1:]}"}
        ends = {a for a, b in plan.cut} if "is not heard" in str(plan.note) else {b for a, b in plan.cut}
        assert ends == side


def test_a_link_joins_the_master_and_one_other() -> None:
    plans = [PartitionFault().plan("link", facts(), random.Random(seed)) for seed in range(20)]
    assert {plan.targets for plan in plans} == {("n1", "n2"), ("n1", "n3")}
    assert all(plan.cut == {plan.targets, plan.targets[::-1]} for plan in plans), "both ways, and no client's"
    with pytest.raises(Infeasible, match="at least two nodes"):
        PartitionFault().plan("link", facts(nodes=1), random.Random(0))


def test_one_node_cannot_be_partitioned() -> None:
    with pytest.raises(Infeasible, match="at least two machines"):
        PartitionFault().plan("one", facts(nodes=1), random.Random(0))
    beside = replace(facts(nodes=1), topology=Topology(("n1",), ("c1",), (Helper("g1", "gateway"),)))
    with pytest.raises(Infeasible, match="at least two nodes"):
        PartitionFault().plan("one", beside, random.Random(0))


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    nodes=st.integers(2, 7),
    kind=st.sampled_from(["halves", "one", "master"]),
    clients=st.sampled_from(["beside", "outside"]),
)
def test_every_partition_separates_two_sides_completely(seed: int, nodes: int, kind: str, clients: str) -> None:
    situation = facts(nodes=nodes, clients=clients)
    plan = PartitionFault().plan(kind, situation, random.Random(seed))
    others = set(situation.nodes) - set(plan.targets)
    assert others and plan.targets
    assert {link for link in plan.cut if link[0][0] == link[1][0] == "n"} == {
        link for a in plan.targets for b in others for link in ((a, b), (b, a))
    }
    assert not any(a[0] == b[0] == "c" for a, b in plan.cut)
    for client, node in [(a, b) for a, b in plan.cut if a[0] == "c"]:
        assert (f"n{client[1:]}" in plan.targets) != (node in plan.targets)
    assert all((b, a) in plan.cut for a, b in plan.cut)


@pytest.mark.parametrize("family", [PauseFault(), KillFault()])
@pytest.mark.parametrize("kind", ["one", "master", "random"])
def test_only_running_nodes_are_taken_down(family: PauseFault | KillFault, kind: str) -> None:
    now = facts(nodes=5, max_down=3, n1="dead", n3="paused")
    for seed in range(30):
        if kind == "master":
            with pytest.raises(NoTarget, match="n1, which leads, is not running"):
                family.plan(kind, now, random.Random(seed))
            continue
        plan = family.plan(kind, now, random.Random(seed))
        assert set(plan.targets) <= {"n2", "n4", "n5"}
        assert len(plan.targets) == 1  # two of the three that may be down are down already


@pytest.mark.parametrize("family", [PauseFault(), KillFault()])
def test_no_more_than_allowed_go_down(family: PauseFault | KillFault) -> None:
    with pytest.raises(Infeasible, match="1 of 3 nodes are down already, max_down is 1"):
        family.plan("one", facts(n2="dead"), random.Random(0))
    with pytest.raises(Infeasible, match="no node is running"):
        family.plan("one", facts(nodes=1, n1="dead"), random.Random(0))
    sizes = {len(family.plan("random", facts(nodes=5, max_down=2), random.Random(seed)).targets) for seed in range(30)}
    assert sizes == {1, 2}


def test_a_program_that_does_not_run_is_not_hit() -> None:
    """Where a machine has several, any that runs; one that is named and doesn't run makes the fault infeasible."""
    several = dict.fromkeys(("n1", "n2", "n3"), ("broker", "manager"))
    now = replace(facts(), programs=several, running=several | {"n1": ("manager",)})
    hit = {target: {plan_programs(FaultPlan("one", (target,)), ANY_KIND, now, random.Random(seed)).program
                    for seed in range(20)} for target in ("n1", "n2")}  # fmt: skip
    assert hit == {"n1": {"manager"}, "n2": {"broker", "manager"}}
    with pytest.raises(Infeasible, match="broker is not running"):
        plan_programs(FaultPlan("one", ("n1",)), "broker", now, random.Random(1))
    with pytest.raises(Infeasible, match="run no program 'nobody'"):
        plan_programs(FaultPlan("one", ("n1",)), "nobody", now, random.Random(1))
