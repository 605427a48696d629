"""Changes of the group: a node that nobody knew becomes a replica while everything goes on.

The spare nodes (``--set spares=1``) run from the beginning and belong to nobody. Proof is the group, as its master
tells it before and after.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Protocol, cast

from harness.errors import StormproofError
from harness.protocols import Cluster, Option
from harness.undo import NETWORK
from nemesis.api import Facts, Infeasible, Plan, Proof, kind_option

KINDS = ("add",)
PATIENCE = 3.0
"""Seconds in which somebody must take the request to add a node."""


class GrowingCluster(Cluster, Protocol):
    """A cluster to which nodes can be added."""

    def spares(self) -> Sequence[str]:
        """The nodes that don't belong to the group at the beginning."""
        ...

    async def group(self) -> tuple[str, ...]:
        """Who belongs to the group, as the serving node says; empty when nobody serves."""
        ...

    async def add_node(self, node: str) -> str | None:
        """Ask the serving node to take a node in; None if it will, otherwise why not."""
        ...


class Membership:
    """Adds a spare node to the group."""

    name = "membership"
    summary = "adds a replica, which the group did not know, while it runs"
    lane = "membership"
    undo = NETWORK
    kinds: tuple[str, ...] = KINDS
    options: tuple[Option, ...] = (kind_option("membership", KINDS),)

    def __init__(self) -> None:
        self._without: dict[str, tuple[str, ...]] = {}
        """Spare node -> the group as it was first seen in this run, without it."""

    def plan(self, kind: str, facts: Facts, rng: random.Random) -> Plan:
        """Choose a spare node.

        Raises:
            Infeasible: the test has none.
        """
        count = int(facts.options.get("spares", 0))
        if count < 1:
            raise Infeasible("there is no spare node: --set spares=1 keeps one")
        return Plan(kind, (rng.choice(facts.nodes[-count:]),))

    async def inject(self, cluster: Cluster, plan: Plan) -> Proof:
        """Have the master take the node in; it is proven when the group has it."""
        system, node = cast(GrowingCluster, cluster), plan.targets[0]
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        while not (before := await system.group()) or (refusal := await system.add_node(node)):
            if loop.time() >= deadline:
                raise StormproofError(f"nobody takes {node} in: {refusal if before else 'nobody serves'}")
            await asyncio.sleep(0.1)
        if node not in before:
            self._without.setdefault(node, before)
        return Proof({"before": list(before)})

    async def heal(self, cluster: Cluster, plan: Plan, injected: Proof) -> Proof:
        """See what became of it; if a change of masters ended it, ask once more."""
        system, node = cast(GrowingCluster, cluster), plan.targets[0]
        after = await system.group()
        if after and node not in after:
            await system.add_node(node)
        if node not in after:
            return Proof({"after": list(after)})
        # An earlier request may be the one that was heard: then the group was seen without the node before that.
        without = self._without.pop(node, None)
        return Proof({"after": list(after), "without": list(without or ())}, without is not None)
