"""Which links and nodes a fault hits, given the facts."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemesis.families import ANY_KIND
from nemesis.packets import PacketsFault
from nemesis.partition import PartitionFault
from nemesis.process import KillFault, PauseFault, plan_programs
from stormproof.contracts.fault import ClusterFacts, FaultPlan, Infeasible, NoTarget
from stormproof.contracts.topology import Helper, Topology
from stormproof.test import Test


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


@pytest.mark.parametrize("clients", ["beside", "outside"])
@pytest.mark.parametrize("nodes", [1, 3])
def test_nodes_are_cut_off_from_all_clients_and_from_nobody_else(nodes: int, clients: str) -> None:
    now, sizes = facts(nodes=nodes, clients=clients), set()
    for seed in range(30):
        plan = PartitionFault().plan("from-clients", now, random.Random(seed))
        sizes.add(len(plan.targets))
        assert plan.cut == {link for node in plan.targets for host in now.hosts.values()
                            for link in ((node, host), (host, node))}  # fmt: skip
    assert sizes == {1, nodes}


@pytest.mark.parametrize(("nodes", "kind", "why"), [
    *((1, kind, "a partition needs at least two nodes: use --nodes 2 or more, or partition:from-clients")
      for kind in ("halves", "one", "master", "one-way", "link", "random", "bridge")),
    (2, "bridge", "bridge needs at least three nodes: use more --nodes or another kind"),
    (2, "random", ""), (1, "from-clients", ""), (1, "gateway", ""), (3, "majority-ring", ""),
])  # fmt: skip
def test_a_partition_that_can_not_be_is_known_before(nodes: int, kind: str, why: str) -> None:
    test = Test("joram", "queue", ("partition",), nodes=nodes)
    topology = Topology(test.node_names, test.client_hosts, (Helper("g1", "gateway"),), networks=("back",))
    assert PartitionFault().why_impossible(kind, test, topology) == why
    elsewhere = replace(test, options={"fault_network": "front"})
    told = "unknown network 'front' (fault_network: one of any, all, main, back)"
    assert PartitionFault().why_impossible(kind, elsewhere, topology) == told
    assert PacketsFault().why_impossible("loss", elsewhere, topology) == told


@pytest.mark.parametrize(("nodes", "where", "why"), [
    (1, "pair", "packets_links=pair needs two nodes"), (1, "all", "packets_links=all needs two machines"),
    (1, "any", ""), (1, "clients", ""), (2, "one-way", ""),
])  # fmt: skip
def test_packets_of_links_that_do_not_exist_are_known_before(nodes: int, where: str, why: str) -> None:
    test = Test("joram", "queue", ("packets",), nodes=nodes, options={"packets_links": where})
    found = PacketsFault().why_impossible("loss", test, Topology(test.node_names, test.client_hosts))
    assert found.startswith(why) and bool(found) is bool(why)


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
