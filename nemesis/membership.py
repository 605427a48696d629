"""Changes of the group: a node that nobody knew becomes a replica while everything goes on.

The spare nodes (``--set spares=1``) run from the beginning and belong to nobody. Evidence is the group, as its master
tells it before and after.
"""

from __future__ import annotations

import asyncio
import random

from nemesis.families import kind_option
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.fault import ClusterFacts, Evidence, Fault, FaultPlan, Infeasible
from stormproof.contracts.system import System
from stormproof.errors import StormproofError, UsageError
from stormproof.history.undo import NETWORK
from stormproof.test import Test

KINDS = ("add", "add-all")
PATIENCE = 3.0
"""Seconds in which somebody must take the request to add a node, and, when the fault ends, for it to have joined."""
_POLL = 0.1


class Membership(Fault):
    """Adds a spare node to the group."""

    name = "membership"
    conflict_group = "membership"
    undo = NETWORK
    kinds = KINDS
    options = (kind_option("membership", KINDS),)

    def __init__(self) -> None:
        self._without: dict[str, tuple[str, ...]] = {}
        """Spare node -> the group as it was first seen in this run, without it."""

    def check(self, test: Test, system: System) -> None:
        """There must be spare nodes, and a group that takes them."""
        try:
            spares = system.spare_nodes(test)
        except UsageError as error:
            raise UsageError(f"--nemesis {self.name}: {error}") from None
        if not spares:
            raise UsageError(f"--nemesis {self.name} adds spare nodes: keep some with --set spares=1 and more --nodes")

    def plan(self, kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
        """Choose a spare node, or all of them.

        Raises:
            Infeasible: the test has none.
        """
        if not facts.spares:
            raise Infeasible("there is no spare node: --set spares=1 keeps one")
        return FaultPlan(kind, facts.spares if kind == "add-all" else (rng.choice(facts.spares),))

    async def inject(self, cluster: Cluster, plan: FaultPlan) -> Evidence:
        """Have the master take the nodes in, all at the same time; it is confirmed when the group has them."""
        before = await self._await_group(cluster, plan)
        refusals = await asyncio.gather(*(self._ask(cluster, node) for node in plan.targets))
        if any(refusals):
            raise StormproofError("; ".join(refusal for refusal in refusals if refusal))
        return self._proof("before", before, plan)

    async def heal(self, cluster: Cluster, plan: FaultPlan, injected: Evidence) -> Evidence:
        """See what became of it; a master whose predecessor had been asked is asked again."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        while True:
            after = await self._group(cluster, plan)
            missing = [node for node in plan.targets if node not in after]
            if not missing or loop.time() >= deadline:
                return self._proof("after", after, plan)
            await asyncio.gather(*(cluster.add_member(node) for node in missing))
            await asyncio.sleep(_POLL)

    async def _group(self, cluster: Cluster, plan: FaultPlan) -> tuple[str, ...]:
        """Who belongs to the group now; empty when nobody serves."""
        group = await cluster.members()
        for node in plan.targets:
            if group and node not in group:
                self._without.setdefault(node, group)
        return group

    async def _await_group(self, cluster: Cluster, plan: FaultPlan) -> tuple[str, ...]:
        """Who belongs to the group; empty when nobody serves for ``PATIENCE`` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        while True:
            group = await self._group(cluster, plan)
            if group or loop.time() >= deadline:
                return group
            await asyncio.sleep(_POLL)

    async def _ask(self, cluster: Cluster, node: str) -> str:
        """Have somebody take a node in; why nobody does, else empty."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        while refusal := await cluster.add_member(node):
            if loop.time() >= deadline:
                return f"nobody takes {node} in: {refusal}"
            await asyncio.sleep(_POLL)
        return ""

    def _proof(self, when: str, group: tuple[str, ...], plan: FaultPlan) -> Evidence:
        """Evidence that the targets belong to the group, of which one at least had been seen outside of it before.

        An earlier request may be the one that was heard: then the group was seen without the node before that.
        """
        if not set(plan.targets) <= set(group):
            return Evidence({when: list(group)})
        without = {node: list(self._without.pop(node)) for node in plan.targets if node in self._without}
        return Evidence({when: list(group), "without": without}, bool(without))
