"""Written schedules that name nodes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from test_fault_plans import both, facts

from nemesis.clock import ClockFault
from nemesis.disk import StorageFault
from nemesis.explicit_schedule import read_schedule, write_schedule
from nemesis.facts import named_node
from nemesis.packets import PacketsFault
from nemesis.partition import PartitionFault
from nemesis.process import KillFault, PauseFault
from stormproof.contracts.fault import Fault, NoTarget
from stormproof.contracts.topology import Helper, Topology
from stormproof.errors import UsageError

FAMILIES = [PartitionFault(), PauseFault(), KillFault(), StorageFault(), ClockFault(), PacketsFault()]
NODES = ("n1", "n2", "n3")


@pytest.mark.parametrize(("text", "written"), [
    ("kill@n2:1-3", "kill:one@n2:1-3:1"),
    ("kill:one@n2:1-3:7", "kill:one@n2:1-3:7"),
    ("partition:one-way@leader:1.25-3:4", "partition:one-way@master:1.25-3:4"),
    ("disk:torn@a-follower-of-log0:1-3", "disk:torn@a-follower-of-log0:1-3:1"),
    ("pause:master:1-3:9", "pause:master:1-3:9"),
])  # fmt: skip
def test_parts_that_are_left_out_have_a_default(text: str, written: str) -> None:
    faults = read_schedule(text, FAMILIES, 10.0, NODES)
    assert write_schedule(faults) == written
    assert read_schedule(written, FAMILIES, 10.0, NODES) == faults


def test_a_kind_that_is_left_out_is_drawn_by_the_seed() -> None:
    kinds = {read_schedule(f"partition:1-3:{seed}", FAMILIES, 10.0)[0].kind for seed in range(30)}
    assert kinds == set(PartitionFault.kinds)


@pytest.mark.parametrize(("text", "told"), [
    ("kill@n9:1-3", "no node 'n9'"),
    ("kill:random@n2:1-3", r"kill:random can't be aimed at a node \(one can\)"),
    ("partition:halves@n2:1-3", "can't be aimed at a node"),
    ("disk@n2:1-3", "name the kind"),
    ("kill@n2:1-3 pause@n2:2-4", "on the same node has ended"),
    ("kill@n2:1-3 pause:one:2-4", "name different nodes"),
    ("clock:bump@n1:1-3 clock:bump@n2:2-4", "has ended"),
    ("kill@n1:1-3,kill@n2:4-5", "; separate several by spaces$"),
])  # fmt: skip
def test_a_name_that_makes_no_sense_is_refused(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        read_schedule(text, FAMILIES, 10.0, NODES)


@pytest.mark.parametrize(("family", "kind"), [
    (family, kind) for family in FAMILIES for kind in family.named_kinds if kind != "link"
])  # fmt: skip
def test_the_named_node_is_the_target(family: Fault, kind: str) -> None:
    for seed in range(20):
        assert family.plan(kind, replace(facts(), named="n2"), random.Random(seed)).targets == ("n2",)


def test_the_named_node_is_the_other_end_of_the_leaders_link() -> None:
    plan = PartitionFault().plan("link", replace(facts(), named="n2"), random.Random(0))
    assert plan.cut == both("n1-n2")


def test_a_follower_of_an_object_runs_and_does_not_lead_it() -> None:
    state = replace(facts(5, n3="dead"), leaders={"log0": "n2"})
    chosen = {named_node("a-follower-of-log0", state, random.Random(seed)) for seed in range(60)}
    assert chosen == {"n1", "n4", "n5"}
    with pytest.raises(NoTarget, match="nobody leads log1"):
        named_node("a-follower-of-log1", state, random.Random(0))
    assert named_node("leader-of-log0", state, random.Random(0)) == "n2"
    assert named_node("master", state, random.Random(0)) == "n1"


@pytest.mark.parametrize(("place", "cut"), [
    ("both", both("n1-n2", "n1-n3", "n1-c2", "n1-c3", "c1-n2", "c1-n3")),
    ("targets", both("n1-n2", "n1-n3", "n1-c2", "n1-c3", "c1-n2", "c1-n3", "h-n2", "h-n3", "h-c2", "h-c3")),
    ("others", both("n1-n2", "n1-n3", "n1-c2", "n1-c3", "c1-n2", "c1-n3", "n1-h", "c1-h")),
])  # fmt: skip
def test_helpers_are_on_the_chosen_side(place: str, cut: frozenset[tuple[str, str]]) -> None:
    state = facts()
    topology = Topology(NODES, tuple(state.hosts.values()), helpers=(Helper("h", "lock"),))
    state = replace(state, topology=topology, options={**state.options, "partition_helpers": place})
    for seed in range(10):
        assert PartitionFault().plan("master", state, random.Random(seed)).cut == cut
