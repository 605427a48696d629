"""Changes of the group: a node that nobody knew becomes a replica while everything goes on, or one is removed from it
and taken in again.

The spare nodes (``--set spares=1``) run from the beginning and belong to nobody. Evidence is the group, as its master
tells it before and after.
"""

from __future__ import annotations

import asyncio
import random

from nemesis.families import kind_option, wanted_kinds
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.draw import Draw
from stormproof.contracts.fault import ClusterFacts, Evidence, Fault, FaultPlan, Infeasible
from stormproof.contracts.system import System
from stormproof.errors import StormproofError, UsageError
from stormproof.history.undo import NETWORK
from stormproof.test import Test

KINDS = ("add", "add-all")
REMOVE = "remove"
PATIENCE = 3.0
"""Seconds in which somebody must take the request to add a node, and, when the fault ends, for it to have joined."""
_POLL = 0.1
_LEAST_REPLICAS = 3
"""Replicas of a group that gives one up: two are the least that a group is."""
REMOVED = "after the removal"


class Membership(Fault):
    """Adds a spare node to the group; ``remove``, where a system can, takes a replica out of it until the heal."""

    name = "membership"
    conflict_group = "membership"
    undo = NETWORK
    kinds = KINDS
    drawn = 4
    aimed_kinds = (REMOVE,)
    draws = (Draw("membership_kind", ("add", "add-all", "remove", "add,remove", "add-all,remove"), 0.8),)
    options = (kind_option("membership", (*KINDS, REMOVE), several=True),)

    def __init__(self) -> None:
        self._without: dict[str, tuple[str, ...]] = {}
        """Spare node -> the group as it was first seen in this run, without it."""

    def check(self, test: Test, system: System) -> None:
        """There must be spare nodes, and a group that takes them, unless a replica is to be removed."""
        kinds = wanted_kinds(test, self)
        if REMOVE in kinds and not system.gives_up_replicas(test):
            raise UsageError(f"--nemesis {self.name}: the group of {system.name} gives no replica up; leave "
                             f"{self.name}:{REMOVE} out")
        spares, why = 0, ""
        try:
            spares = system.spare_nodes(test)
        except UsageError as error:
            why = str(error)
        if kinds == (REMOVE,):
            if test.nodes - spares < _LEAST_REPLICAS:
                raise UsageError(f"--nemesis {self.name}:{REMOVE} needs a group of {_LEAST_REPLICAS} replicas or more, "
                                 f"and this has {test.nodes - spares}; use more --nodes")
            return
        if why:
            hint = f"; use --nemesis {self.name}:{REMOVE}" if system.gives_up_replicas(test) else ""
            raise UsageError(f"--nemesis {self.name}: {why}{hint}")
        if not spares:
            raise UsageError(f"--nemesis {self.name} adds spare nodes: keep some with --set spares=1 and more --nodes")

    def plan(self, kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
        """Choose a spare node, or all of them, or a replica that runs and does not serve.

        Raises:
            Infeasible: the test has none.
        """
        if kind == REMOVE:
            # Other servers' replicas are none of this group: asked to take them in again, its master would do it.
            first = facts.groups[0] if facts.groups else facts.nodes
            group = next((each for each in facts.groups if facts.primary in each), first)
            replicas = [node for node in facts.eligible()
                        if node in group and node not in (facts.primary, *facts.spares)]
            if len(replicas) < _LEAST_REPLICAS - 1:  # the one that serves is not among them
                raise Infeasible("there are too few replicas to give one up")
            return FaultPlan(kind, (rng.choice(replicas),))
        if not facts.spares:
            raise Infeasible("there is no spare node: --set spares=1 keeps one")
        return FaultPlan(kind, facts.spares if kind == "add-all" else (rng.choice(facts.spares),))

    async def inject(self, cluster: Cluster, plan: FaultPlan) -> Evidence:
        """Have the master take the nodes in, all at the same time; it is confirmed when the group has them.

        Or have it go on without one, which is confirmed when the group has it no more.
        """
        if plan.kind == REMOVE:
            return await self._remove(cluster, plan.targets[0])
        before = await self._await_group(cluster, plan)
        refusals = await asyncio.gather(*(self._ask(cluster, node) for node in plan.targets))
        if any(refusals):
            raise StormproofError("; ".join(refusal for refusal in refusals if refusal))
        return self._proof("before", before, plan)

    async def heal(self, cluster: Cluster, plan: FaultPlan, injected: Evidence) -> Evidence:
        """See what became of it; a master whose predecessor had been asked is asked again.

        A replica that was removed is taken in again.
        """
        if plan.kind == REMOVE:  # whoever was asked may still do it, where nobody saw that
            await asyncio.gather(*(cluster.add_member(node) for node in plan.targets))
            if REMOVED not in injected.found:
                return Evidence()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        while True:
            after = await self._group(cluster, plan)
            missing = [node for node in plan.targets if node not in after]
            if not missing or loop.time() >= deadline:
                return self._proof("after", after, plan)
            await asyncio.gather(*(cluster.add_member(node) for node in missing))
            await asyncio.sleep(_POLL)

    async def _remove(self, cluster: Cluster, node: str) -> Evidence:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        # Who serves tells who belongs to the group: without that nothing could be proven.
        before = await cluster.members()
        while loop.time() < deadline and not before:
            await asyncio.sleep(_POLL)
            before = await cluster.members()
        deadline = loop.time() + PATIENCE
        refusal = await cluster.remove_member(node)
        after = await cluster.members()
        while loop.time() < deadline and (refusal or not after or node in after):
            await asyncio.sleep(_POLL)
            refusal = await cluster.remove_member(node) if refusal else None
            after = await cluster.members()
        if refusal:
            raise StormproofError(f"nobody removes {node}: {refusal}")
        gone = bool(after) and node not in after
        if gone:
            self._without[node] = after
        return Evidence({"before": list(before), REMOVED: list(after)}, gone and node in before)

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
