"""Network partitions: halves, one node, the master, one way.

Client hosts stand beside their node (``cI`` on ``nI``'s side), or outside, where they reach every node.
Proof: a connection attempt over a cut link is answered before and not during the fault, and the packets that
each cut link dropped are counted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Sequence

from harness.protocols import Backend, Cluster, Link, Option
from harness.undo import NETWORK
from nemesis.api import Facts, Infeasible, Plan, Proof, kind_option, option_value, pick_node

KINDS = ("halves", "one", "master", "one-way")

CLIENTS = Option(
    "clients",
    "beside",
    "where clients stand in a partition: beside their node, or outside (they reach all nodes)",
    ("beside", "outside"),
)

PROBE_SECONDS = 0.5
OPEN, CUT = "open", "cut"


class Partition:
    """Cuts links between groups of nodes, dropping every packet."""

    name = "partition"
    summary = "cuts the network: halves, one node, the master, one way"
    lane = "network"
    undo = NETWORK
    kinds: tuple[str, ...] = KINDS
    options: tuple[Option, ...] = (kind_option("partition", KINDS), CLIENTS)

    def plan(self, kind: str, facts: Facts, rng: random.Random) -> Plan:
        """Choose the sides; ``targets`` are the nodes of the smaller side (one way: the node that is not heard)."""
        if len(facts.nodes) < 2:
            raise Infeasible("a partition needs at least two nodes")
        if kind == "halves":
            side = rng.sample(facts.nodes, len(facts.nodes) // 2)
            note = None
        else:
            node, note = pick_node(kind, facts, facts.nodes, rng)
            side = [node]
        targets = [node for node in facts.nodes if node in side]
        others = [node for node in facts.nodes if node not in side]
        if option_value(facts.options, CLIENTS) == "beside":
            hosts = {facts.hosts[node] for node in facts.nodes}
            near = targets + [facts.hosts[node] for node in targets]
            far = others + [facts.hosts[node] for node in others]
        else:
            hosts, near, far = set(), targets, others
        cut = links_between(near, far, hosts)
        if kind != "one-way":
            cut |= links_between(far, near, hosts)
        elif rng.random() < 0.5:
            cut, note = links_between(far, near, hosts), f"{targets[0]} does not hear the others"
        else:
            note = f"{targets[0]} is not heard by the others"
        return Plan(kind, tuple(targets), cut, note)

    async def inject(self, cluster: Cluster, plan: Plan) -> Proof:
        """Cut the links, and try some of them before and after."""
        backend = cluster.backend
        links = probe_links(plan.cut, cluster.test.node_names)
        before = await probe(backend, links)
        await backend.set_network(plan.cut)
        after = await probe(backend, links)
        proven = bool(links) and all(before[link] == OPEN and after[link] == CUT for link in links)
        return Proof({"links": len(plan.cut), "probe": {arrow(k): [before[k], after[k]] for k in links}}, proven)

    async def heal(self, cluster: Cluster, plan: Plan, injected: Proof) -> Proof:
        """Read what the cut links dropped, let all links pass, and try them again."""
        backend = cluster.backend
        dropped = await backend.dropped()
        await backend.set_network(frozenset())
        after = await probe(backend, probe_links(plan.cut, cluster.test.node_names))
        counters = {arrow(link): dropped.get(link, 0) for link in sorted(plan.cut)}
        return Proof(
            {"dropped": counters, "probe": {arrow(link): state for link, state in after.items()}},
            any(counters.values()),
        )


def links_between(sources: Sequence[str], targets: Sequence[str], hosts: Collection[str]) -> frozenset[Link]:
    """All links from one side to the other, but those between two client hosts."""
    return frozenset((a, b) for a in sources for b in targets if not (a in hosts and b in hosts))


def probe_links(cut: frozenset[Link], nodes: Sequence[str]) -> list[Link]:
    """At most two of the cut links between nodes, to try: the first and the last."""
    between = sorted(link for link in cut if link[0] in nodes and link[1] in nodes)
    return between if len(between) < 2 else [between[0], between[-1]]


async def probe(backend: Backend, links: Sequence[Link]) -> dict[Link, str]:
    """For each link whether a packet passes and is answered (``open``), is not (``cut``), or can't be told."""
    probes = (backend.probe(link, PROBE_SECONDS) for link in links)
    return dict(zip(links, await asyncio.gather(*probes), strict=True))


def arrow(link: Link) -> str:
    """The link as evidence writes it."""
    return f"{link[0]}>{link[1]}"
