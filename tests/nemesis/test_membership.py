"""Nemesis ``membership``: what it asks for, and what it takes for proof."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from harness.errors import StormproofError
from harness.protocols import Cluster
from nemesis import membership
from nemesis.api import Facts, Infeasible, Plan
from nemesis.membership import Membership


class Growing:
    """A group that takes nodes in when it is asked, or later, or never."""

    def __init__(self, *nodes: str, at_once: bool = True, refuses: bool = False) -> None:
        self.nodes, self.at_once, self.refuses = nodes, at_once, refuses
        self.asked: list[str] = []

    async def group(self) -> tuple[str, ...]:
        return self.nodes

    async def add_node(self, node: str) -> str | None:
        if self.refuses:
            return "nobody serves"
        self.asked.append(node)
        if self.at_once and node not in self.nodes:
            self.nodes = (*self.nodes, node)
        return None


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "PATIENCE", 0.05)
    monkeypatch.setattr(membership, "_POLL", 0.01)


def planned(kind: str, *spares: str) -> tuple[str, ...]:
    facts = Facts(("n1", "n2", "n3", "n4", "n5"), {}, {}, None, 1, {}, spares)
    return Membership().plan(kind, facts, random.Random(1)).targets


async def proofs(fault: Membership, system: Growing, *targets: str) -> tuple[bool, bool]:
    cluster, plan = cast(Cluster, system), Plan("add", targets)
    injected = await fault.inject(cluster, plan)
    return injected.proven, (await fault.heal(cluster, plan, injected)).proven


def test_it_adds_one_spare_node_or_all() -> None:
    assert planned("add-all", "n3", "n4") == ("n3", "n4")
    assert planned("add", "n3", "n4") in {("n3",), ("n4",)}
    with pytest.raises(Infeasible, match="spares=1"):
        planned("add")


async def test_a_group_seen_without_the_nodes_and_then_with_them_is_proof_once() -> None:
    fault, system = Membership(), Growing("n1", "n2")
    assert await proofs(fault, system, "n3", "n4") == (False, True)
    assert sorted(system.asked) == ["n3", "n4"]
    assert await proofs(fault, system, "n3", "n4") == (False, False), "nothing has changed since"


async def test_a_node_that_joins_after_the_fault_is_proof_for_the_next() -> None:
    fault, system = Membership(), Growing("n1", "n2", at_once=False)
    assert await proofs(fault, system, "n3") == (False, False)
    assert system.asked.count("n3") > 1, "a master whose predecessor had been asked is asked again"
    system.nodes = ("n1", "n2", "n3")
    assert await proofs(fault, system, "n3") == (True, False)


@pytest.mark.parametrize("nodes", [("n1", "n2"), ()])
async def test_a_node_that_nobody_takes_in_is_an_error(nodes: Any) -> None:
    with pytest.raises(StormproofError, match="nobody takes n3 in: nobody serves"):
        await proofs(Membership(), Growing(*nodes, refuses=True), "n3")
