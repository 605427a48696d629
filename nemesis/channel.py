"""Cuts of the private networks, which carry only traffic between nodes: clients still reach all nodes, and nodes reach
all other machines.

Evidence is that of a partition: a connection attempt, and the packets that each cut link dropped.
"""

from __future__ import annotations

import random
from dataclasses import replace

from nemesis.cuts import on_networks
from nemesis.families import kind_option
from nemesis.partition import PartitionFault
from stormproof.contracts.backend import LINKS
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.fault import CUTS_LINKS, ClusterFacts, Evidence, Fault, FaultPlan, Infeasible
from stormproof.contracts.system import System
from stormproof.errors import UsageError
from stormproof.history.undo import NETWORK
from stormproof.test import Test

KINDS = ("cut", "one-way")


class ChannelFault(Fault):
    """Cuts all nodes from each other on their private networks, or makes one of them unheard by the others."""

    name = "channel"
    conflict_group = "channel"
    undo = NETWORK
    needs = (LINKS,)
    effects = frozenset({CUTS_LINKS})
    kinds = KINDS
    options = (kind_option("channel", KINDS),)

    def __init__(self) -> None:
        self._cut = PartitionFault(self.name)

    def check(self, test: Test, system: System) -> None:
        """Raise UsageError unless the system has such a network."""
        if not system.private_networks(test):
            raise UsageError(f"--nemesis {self.name}: {system.name}, set like this, has no private network between its "
                             f"nodes; leave {self.name} out")

    def expects_replica(self, kind: str) -> bool:
        """Return True: nodes that follow each other are cut off from each other."""
        return True

    def plan(self, kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
        """Plan to cut all links between nodes on these networks, or those from one node to the others."""
        networks = facts.private_networks
        if not networks or len(facts.nodes) < 2:
            raise Infeasible("nodes have no private network in common")
        unheard = rng.choice(facts.nodes)
        targets = (unheard,) if kind == "one-way" else facts.nodes
        cut = frozenset(link for a in targets for b in facts.nodes if a != b
                        for link in on_networks(facts.topology, networks, a, b))  # fmt: skip
        note = f"{unheard} is not heard by the others" if kind == "one-way" else None
        return FaultPlan(kind, targets, cut, note)

    async def inject(self, cluster: Cluster, plan: FaultPlan) -> Evidence:
        """Cut the links."""
        evidence = await self._cut.inject(cluster, plan)
        # Each node is a separate side: clients reach them all.
        return replace(evidence, found={**evidence.found, "sides": [[node] for node in cluster.node_names]})

    async def heal(self, cluster: Cluster, plan: FaultPlan, injected: Evidence) -> Evidence:
        """Heal the links."""
        return await self._cut.heal(cluster, plan, injected)
