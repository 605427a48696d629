"""Changes of the group: an unknown node becomes a replica while the system runs, or a replica is removed and added
again.

The spare nodes (``--set spares=1``) run from the beginning and belong to no group. Evidence is the group, as its master
reports it before and after.
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
JOIN_SECONDS = 3.0
"""The time limit in seconds for a master to accept the request to add a node, and, when the fault ends, for the node to
have joined."""
_POLL_SECONDS = 0.1
_LEAST_REPLICAS = 3
"""The minimum number of replicas of a group that gives one up: a group has at least two."""
REMOVED = "after the removal"


class MembershipFault(Fault):
    """Adds a spare node to the group; ``remove``, if a system supports it, removes a replica from the group until the
    heal."""

    name = "membership"
    conflict_group = "membership"
    undo = NETWORK
    kinds = KINDS
    drawn = 9
    aimed_kinds = (REMOVE,)
    draws = (Draw("membership_kind", ("add", "add-all", "add-all", "remove", "add-all,remove"), 0.8),)
    options = (kind_option("membership", (*KINDS, REMOVE), several=True),)

    def __init__(self) -> None:
        self._without: dict[str, tuple[str, ...]] = {}
        """Spare node -> the group as it was first seen in this run, without that node."""

    def check(self, test: Test, system: System) -> None:
        """Raise UsageError unless there are spare nodes and a group that accepts them, or a replica that can be
        removed."""
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
        """Choose a spare node, or all of them, or a running replica that does not serve.

        Raises:
            Infeasible: the test has none.
        """
        if kind == REMOVE:
            # Replicas of other servers don't belong to this group: its master would add them if asked to after the
            # removal.
            first = facts.groups[0] if facts.groups else facts.nodes
            group = next((each for each in facts.groups if facts.primary in each), first)
            replicas = [node for node in facts.eligible()
                        if node in group and node not in (facts.primary, *facts.spares)]
            if len(replicas) < _LEAST_REPLICAS - 1:  # the serving one is not among them
                raise Infeasible("too few replicas to remove one")
            return FaultPlan(kind, (rng.choice(replicas),))
        if not facts.spares:
            raise Infeasible("no spare node: --set spares=1 keeps one")
        return FaultPlan(kind, facts.spares if kind == "add-all" else (rng.choice(facts.spares),))

    async def inject(self, cluster: Cluster, plan: FaultPlan) -> Evidence:
        """Ask the master to add the nodes, all at the same time; this is confirmed once the group contains them.

        For ``remove``, ask it to remove one node; this is confirmed once the group does not contain it any longer.
        """
        if plan.kind == REMOVE:
            return await self._remove(cluster, plan.targets[0])
        before = await self._await_group(cluster, plan)
        refusals = await asyncio.gather(*(self._ask(cluster, node) for node in plan.targets))
        if any(refusals):
            raise StormproofError("; ".join(refusal for refusal in refusals if refusal))
        return self._proof("before", before, plan)

    async def heal(self, cluster: Cluster, plan: FaultPlan, injected: Evidence) -> Evidence:
        """Observe the outcome; repeat the request to a new master whose predecessor had been asked.

        A removed replica is added again.
        """
        if plan.kind == REMOVE:  # the asked master may still remove it, if the removal was not observed
            await asyncio.gather(*(cluster.add_member(node) for node in plan.targets))
            if REMOVED not in injected.found:
                return Evidence()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + JOIN_SECONDS
        while True:
            after = await self._group(cluster, plan)
            missing = [node for node in plan.targets if node not in after]
            if not missing or loop.time() >= deadline:
                return self._proof("after", after, plan)
            await asyncio.gather(*(cluster.add_member(node) for node in missing))
            await asyncio.sleep(_POLL_SECONDS)

    async def _remove(self, cluster: Cluster, node: str) -> Evidence:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + JOIN_SECONDS
        # The serving node reports the group's members: without it nothing could be proven.
        before = await cluster.members()
        while loop.time() < deadline and not before:
            await asyncio.sleep(_POLL_SECONDS)
            before = await cluster.members()
        deadline = loop.time() + JOIN_SECONDS
        refusal = await cluster.remove_member(node)
        after = await cluster.members()
        while loop.time() < deadline and (refusal or not after or node in after):
            await asyncio.sleep(_POLL_SECONDS)
            refusal = await cluster.remove_member(node) if refusal else None
            after = await cluster.members()
        if refusal:
            raise StormproofError(f"nobody removes {node}: {refusal}")
        gone = bool(after) and node not in after
        if gone:
            self._without[node] = after
        return Evidence({"before": list(before), REMOVED: list(after)}, gone and node in before)

    async def _group(self, cluster: Cluster, plan: FaultPlan) -> tuple[str, ...]:
        """Return the group's members now; empty if no node serves."""
        group = await cluster.members()
        for node in plan.targets:
            if group and node not in group:
                self._without.setdefault(node, group)
        return group

    async def _await_group(self, cluster: Cluster, plan: FaultPlan) -> tuple[str, ...]:
        """Return the group's members; empty if no node serves for ``JOIN_SECONDS`` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + JOIN_SECONDS
        while True:
            group = await self._group(cluster, plan)
            if group or loop.time() >= deadline:
                return group
            await asyncio.sleep(_POLL_SECONDS)

    async def _ask(self, cluster: Cluster, node: str) -> str:
        """Ask the serving node to add a node; return the reason for a lasting refusal, else empty."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + JOIN_SECONDS
        while refusal := await cluster.add_member(node):
            if loop.time() >= deadline:
                return f"nobody takes {node} in: {refusal}"
            await asyncio.sleep(_POLL_SECONDS)
        return ""

    def _proof(self, when: str, group: tuple[str, ...], plan: FaultPlan) -> Evidence:
        """Return evidence that the targets belong to the group, and that the group had been seen before without at
        least one of them.

        An earlier request may be the one that succeeded: the group was then seen without the node before that request.
        """
        if not set(plan.targets) <= set(group):
            return Evidence({when: list(group)})
        without = {node: list(self._without.pop(node)) for node in plan.targets if node in self._without}
        return Evidence({when: list(group), "without": without}, bool(without))
