"""Nemesis ``membership``: what it asks for, and what confirms it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, cast

import pytest

from harness.run.settings import make_test
from nemesis import membership
from nemesis.membership import MembershipFault
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.fault import ClusterFacts, Evidence, FaultPlan, Infeasible
from stormproof.errors import StormproofError, UsageError


class Growing:
    """A group that takes nodes in when it is asked, or later, or never."""

    def __init__(self, *nodes: str, at_once: bool = True, refuses: bool = False) -> None:
        self.nodes, self.at_once, self.refuses = nodes, at_once, refuses
        self.asked: list[str] = []

    async def members(self) -> tuple[str, ...]:
        return self.nodes

    async def add_member(self, node: str) -> str | None:
        if self.refuses:
            return "nobody serves"
        self.asked.append(node)
        if self.at_once and node not in self.nodes:
            self.nodes = (*self.nodes, node)
        return None


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "JOIN_SECONDS", 0.05)
    monkeypatch.setattr(membership, "_POLL_SECONDS", 0.01)


def planned(kind: str, *spares: str) -> tuple[str, ...]:
    facts = ClusterFacts(("n1", "n2", "n3", "n4", "n5"), {}, {}, None, 1, {}, spares)
    return MembershipFault().plan(kind, facts, random.Random(1)).targets


async def confirmations(fault: MembershipFault, system: Growing, *targets: str) -> tuple[bool, bool]:
    cluster, plan = cast(Cluster, system), FaultPlan("add", targets)
    injected = await fault.inject(cluster, plan)
    return injected.confirmed, (await fault.heal(cluster, plan, injected)).confirmed


def test_it_adds_one_spare_node_or_all() -> None:
    assert planned("add-all", "n3", "n4") == ("n3", "n4")
    assert planned("add", "n3", "n4") in {("n3",), ("n4",)}
    with pytest.raises(Infeasible, match="spares=1"):
        planned("add")


async def test_a_group_seen_without_the_nodes_and_then_with_them_confirms_once() -> None:
    fault, system = MembershipFault(), Growing("n1", "n2")
    assert await confirmations(fault, system, "n3", "n4") == (False, True)
    assert sorted(system.asked) == ["n3", "n4"]
    assert await confirmations(fault, system, "n3", "n4") == (False, False), "nothing has changed since"


async def test_a_node_that_joins_after_the_fault_confirms_the_next() -> None:
    fault, system = MembershipFault(), Growing("n1", "n2", at_once=False)
    assert await confirmations(fault, system, "n3") == (False, False)
    assert system.asked.count("n3") > 1, "a master whose predecessor had been asked is asked again"
    system.nodes = ("n1", "n2", "n3")
    assert await confirmations(fault, system, "n3") == (True, False)


@pytest.mark.parametrize("nodes", [("n1", "n2"), ()])
async def test_a_node_that_nobody_takes_in_is_an_error(nodes: Any) -> None:
    with pytest.raises(StormproofError, match="nobody takes n3 in: nobody serves"):
        await confirmations(MembershipFault(), Growing(*nodes, refuses=True), "n3")


class Shrinking(Growing):
    """A group that gives replicas up when it is asked, or says why not."""

    async def remove_member(self, node: str) -> str | None:
        if self.refuses:
            return "its group gives no replica up"
        self.nodes = tuple(each for each in self.nodes if each != node)
        return None


def test_removal_is_refused_where_no_group_can_do_it() -> None:
    with pytest.raises(UsageError, match="the group of joram gives no replica up; leave membership:remove out"):
        make_test(system="joram", workload="queue", nemesis="membership:remove", backend="sim", nodes=4, time_limit=30,
                  rate=50, seed=1, settings={"partitions": "unspecified"})  # fmt: skip


def test_removal_is_refused_where_the_group_is_too_small() -> None:
    def made(nodes: int, **settings: str) -> object:
        settings = {"membership_kind": "remove", **settings}
        return make_test(system="joram", workload="queue", nemesis="membership", backend="sim", nodes=nodes,
                         time_limit=30, rate=50, seed=1, settings=settings)  # fmt: skip

    with pytest.raises(UsageError, match="needs a group of 3 replicas or more, and this has 2"):
        made(3, spares="1")
    assert made(4, spares="1")
    assert made(3, spares="1", membership_kind="add,remove"), "the group has three when one was added"


async def test_a_replica_is_removed_and_taken_in_again() -> None:
    fault, group = MembershipFault(), Shrinking("n1", "n2", "n3")
    cluster, plan = cast(Cluster, group), FaultPlan("remove", ("n2",))
    injected = await fault.inject(cluster, plan)
    assert injected.confirmed and group.nodes == ("n1", "n3")
    healed = await fault.heal(cluster, plan, injected)
    assert healed.confirmed and healed.found["after"] == ["n1", "n3", "n2"] and group.asked == ["n2"]


class Leaderless(Shrinking):
    """A group of which nobody tells who belongs to it, when it is asked for the first time."""

    looks = 0

    async def members(self) -> tuple[str, ...]:
        self.looks += 1
        return self.nodes if self.looks > 1 else ()


async def test_a_removal_waits_for_who_tells_who_belongs_to_the_group() -> None:
    group = Leaderless("n1", "n2", "n3")
    injected = await MembershipFault().inject(cast(Cluster, group), FaultPlan("remove", ("n2",)))
    assert injected.confirmed and injected.found["before"] == ["n1", "n2", "n3"]


async def test_a_group_that_gives_nobody_up_says_why_and_nobody_is_taken_in() -> None:
    fault, group = MembershipFault(), Shrinking("n1", "n2", "n3", refuses=True)
    cluster, plan = cast(Cluster, group), FaultPlan("remove", ("n2",))
    with pytest.raises(StormproofError, match="nobody removes n2: its group gives no replica up"):
        await fault.inject(cluster, plan)
    assert not (await fault.heal(cluster, plan, Evidence())).confirmed and group.asked == []


async def test_a_group_that_says_yes_and_does_nothing_proves_nothing() -> None:
    group = Shrinking("n1", "n2", "n3")
    fault, plan = MembershipFault(), FaultPlan("remove", ("n9",))
    assert not (await fault.inject(cast(Cluster, group), plan)).confirmed, "it never was one of them"


def test_who_serves_is_not_removed_and_two_are_left() -> None:
    states = dict.fromkeys(("n1", "n2", "n3", "n4"), "running")
    facts = ClusterFacts(("n1", "n2", "n3", "n4"), {}, states, "n1", 1, {}, ("n4",))
    plans = [MembershipFault().plan("remove", facts, random.Random(seed)) for seed in range(20)]
    assert {plan.targets for plan in plans} == {("n2",), ("n3",)}
    with pytest.raises(Infeasible, match="too few replicas"):
        MembershipFault().plan("remove", replace(facts, states={**states, "n3": "dead"}), random.Random(1))


def test_another_servers_replicas_are_not_removed() -> None:
    nodes = ("n1", "n2", "n3", "n4", "n5", "n6")
    facts = ClusterFacts(nodes, {}, dict.fromkeys(nodes, "running"), "n1", 1, {}, groups=(nodes[:3], nodes[3:]))
    plans = [MembershipFault().plan("remove", facts, random.Random(seed)) for seed in range(20)]
    assert {plan.targets for plan in plans} == {("n2",), ("n3",)}
