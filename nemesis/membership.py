"""Changes of the group: a node that nobody knew becomes a replica while everything goes on.

The spare nodes (``--set spares=1``) run from the beginning and belong to nobody. Proof is the group, as its master
tells it before and after.
"""

from __future__ import annotations

import asyncio
import random
from typing import cast

from harness.errors import StormproofError
from harness.protocols import Cluster, Option
from harness.undo import NETWORK
from nemesis.api import Facts, GrowingCluster, Infeasible, Plan, Proof, kind_option

KINDS = ("add", "add-all")
PATIENCE = 3.0
"""Seconds in which somebody must take the request to add a node, and, when the fault ends, for it to have joined."""
_POLL = 0.1


class Membership:
    """Adds a spare node to the group."""

    name = "membership"
    summary = "adds replicas, which the group did not know, while it runs"
    lane = "membership"
    undo = NETWORK
    kinds: tuple[str, ...] = KINDS
    options: tuple[Option, ...] = (kind_option("membership", KINDS),)

    def __init__(self) -> None:
        self._without: dict[str, tuple[str, ...]] = {}
        """Spare node -> the group as it was first seen in this run, without it."""

    def plan(self, kind: str, facts: Facts, rng: random.Random) -> Plan:
        """Choose a spare node, or all of them.

        Raises:
            Infeasible: the test has none.
        """
        if not facts.spares:
            raise Infeasible("there is no spare node: --set spares=1 keeps one")
        return Plan(kind, facts.spares if kind == "add-all" else (rng.choice(facts.spares),))

    async def inject(self, cluster: Cluster, plan: Plan) -> Proof:
        """Have the master take the nodes in, all at the same time; it is proven when the group has them."""
        system = cast(GrowingCluster, cluster)
        before = await self._await_group(system, plan)
        refusals = await asyncio.gather(*(self._ask(system, node) for node in plan.targets))
        if any(refusals):
            raise StormproofError("; ".join(refusal for refusal in refusals if refusal))
        return self._proof("before", before, plan)

    async def heal(self, cluster: Cluster, plan: Plan, injected: Proof) -> Proof:
        """See what became of it; a master whose predecessor had been asked is asked again."""
        system = cast(GrowingCluster, cluster)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        while True:
            after = await self._group(system, plan)
            missing = [node for node in plan.targets if node not in after]
            if not missing or loop.time() >= deadline:
                return self._proof("after", after, plan)
            await asyncio.gather(*(system.add_node(node) for node in missing))
            await asyncio.sleep(_POLL)

    async def _group(self, system: GrowingCluster, plan: Plan) -> tuple[str, ...]:
        """Who belongs to the group now; empty when nobody serves."""
        group = await system.group()
        for node in plan.targets:
            if group and node not in group:
                self._without.setdefault(node, group)
        return group

    async def _await_group(self, system: GrowingCluster, plan: Plan) -> tuple[str, ...]:
        """Who belongs to the group; empty when nobody serves for ``PATIENCE`` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        while True:
            group = await self._group(system, plan)
            if group or loop.time() >= deadline:
                return group
            await asyncio.sleep(_POLL)

    async def _ask(self, system: GrowingCluster, node: str) -> str:
        """Have somebody take a node in; why nobody does, else empty."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        while refusal := await system.add_node(node):
            if loop.time() >= deadline:
                return f"nobody takes {node} in: {refusal}"
            await asyncio.sleep(_POLL)
        return ""

    def _proof(self, when: str, group: tuple[str, ...], plan: Plan) -> Proof:
        """Evidence that the targets belong to the group, of which one at least had been seen outside of it before.

        An earlier request may be the one that was heard: then the group was seen without the node before that.
        """
        if not set(plan.targets) <= set(group):
            return Proof({when: list(group)})
        without = {node: list(self._without.pop(node)) for node in plan.targets if node in self._without}
        return Proof({when: list(group), "without": without}, bool(without))
