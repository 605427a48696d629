"""Network partitions: halves, one node, the master, one way, one link; the master with a minority; overlapping sides;
nodes from clients.

Client hosts are on the side of their node (``cI`` with ``nI``), or outside, where they reach every node. Evidence: a
connection attempt over a cut link is answered before and not during the fault, and the packets that each cut link
dropped are counted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from nemesis.cuts import set_cut
from nemesis.facts import pick_node
from nemesis.families import (
    ANY_KIND,
    LINK,
    PRIMARY,
    PRIMARY_FROM_MAJORITY,
    kind_option,
    option_value,
)
from nemesis.shapes import BRIDGE, DRAWN, MAJORITY_RING, SHAPES
from stormproof.contracts.backend import LINKS, Backend, Link
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.draw import Draw
from stormproof.contracts.fault import (
    CUTS_CLIENTS,
    CUTS_LINKS,
    LEAVES_LINKS,
    ClusterFacts,
    Evidence,
    Fault,
    FaultPlan,
    Infeasible,
)
from stormproof.contracts.option import Option
from stormproof.contracts.topology import Topology, endpoint, machine_of
from stormproof.history.undo import NETWORK as UNDO_NETWORK
from stormproof.test import Test

KINDS = ("halves", "one", "master", "one-way")
FROM_CLIENTS = "from-clients"
"""The kind that cuts nodes off from all clients, and not from each other."""
SHAPES_NEED = 3
"""The number of nodes below which a majority ring or a bridge does not exist."""

CLIENTS_OUTSIDE = "outside"
CLIENTS = Option(
    "clients",
    "beside",
    "place of clients in a partition: with their node, or outside (they reach all nodes)",
    ("beside", CLIENTS_OUTSIDE),
)

BOTH, NEAR, FAR = "both", "targets", "others"
HELPERS = Option(
    "partition_helpers", ANY_KIND,
    "place of helper machines in a partition: in reach of both sides, with the targets, with the others, or any",
    (ANY_KIND, BOTH, NEAR, FAR),
)  # fmt: skip

MAIN_NETWORK, ALL_NETWORKS = "main", "all"
NETWORK = Option(
    "fault_network",
    ANY_KIND,
    "network that partitions and packet faults affect in a system with several: its name, main, all, or any "
    "of these in turn",
)

PROBE_SECONDS = 0.5
OPEN, CUT = "open", "cut"


class PartitionFault(Fault):
    """Cuts links between groups of nodes, dropping every packet."""

    name = "partition"
    conflict_group = "network"
    undo = UNDO_NETWORK
    needs = (LINKS,)
    effects = frozenset({CUTS_LINKS})
    kind_effects: ClassVar[Mapping[str, frozenset[str]]] = {
        **dict.fromkeys((LINK, *SHAPES), frozenset({CUTS_LINKS, LEAVES_LINKS})),
        FROM_CLIENTS: frozenset({CUTS_LINKS, LEAVES_LINKS, CUTS_CLIENTS}),
    }
    aims_at_roles = True
    kinds = KINDS
    aimed_kinds = (LINK, PRIMARY_FROM_MAJORITY, *SHAPES, FROM_CLIENTS)
    named_kinds = ("one", "one-way", LINK, FROM_CLIENTS)
    overlaps = True
    draws = (Draw("partition_kind", ("master", "one-way", "link", "majority-ring", "bridge", "random"), 0.5),
             Draw("clients", ("outside",), 0.3))
    options = (kind_option("partition", (*KINDS, *aimed_kinds), roles=True), CLIENTS, HELPERS, NETWORK)

    def __init__(self, owner: str = "") -> None:
        """Cut links on behalf of ``owner``, the name of another family, or of this family by default."""
        self._owner = owner or self.name

    def why_impossible(self, kind: str, test: Test, topology: Topology) -> str:
        """Return why no such partition is possible: too few nodes, or an unknown network."""
        if why := unknown_network(test, topology):
            return why
        if kind in topology.roles or kind == FROM_CLIENTS:
            return ""
        if test.nodes < 2:
            return f"a partition needs at least two nodes: use --nodes 2 or more, or {self.name}:{FROM_CLIENTS}"
        least = SHAPES_NEED if kind in (MAJORITY_RING, BRIDGE) else 2
        return f"{kind} needs at least three nodes: use more --nodes or another kind" if test.nodes < least else ""

    def expects_replica(self, kind: str) -> bool:
        """Return whether replicas are cut off from each other."""
        return kind != FROM_CLIENTS

    def plan(self, kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
        """Choose the sides; ``targets`` are the machines of the smaller side (one way: the node that is not heard).

        A helper machine is on the side that the option says; a kind that is its role cuts it off from all other
        machines.
        """
        if kind == LINK:
            return _plan_link(facts, rng)
        if kind == FROM_CLIENTS and not facts.helpers(kind):
            return _plan_from_clients(facts, rng)
        if kind in SHAPES and not facts.helpers(kind):
            return _plan_shape(kind, facts, rng)
        machines = facts.topology.machines or facts.nodes
        note = None
        if helpers := facts.helpers(kind):
            side = list(helpers)
        elif kind == "halves":
            side = rng.sample(facts.nodes, len(facts.nodes) // 2)
        else:
            aim = PRIMARY if kind == PRIMARY_FROM_MAJORITY else kind
            node = pick_node(aim, facts, facts.nodes, rng)
            side = [node]
            if kind == PRIMARY_FROM_MAJORITY:
                others = [other for other in facts.nodes if other != node]
                side += rng.sample(others, max(0, (len(facts.nodes) - 1) // 2 - 1))
        if not helpers:
            place, everybody = option_value(facts.options, HELPERS), [each.name for each in facts.topology.helpers]
            drawn = [helper for helper in everybody if rng.random() < 0.5]
            side += {ANY_KIND: drawn, NEAR: everybody}.get(str(place), [])
            machines = tuple(machine for machine in machines if place != BOTH or machine not in everybody)
        targets = [machine for machine in machines if machine in side]
        others = [machine for machine in machines if machine not in side]
        near, far, hosts = targets, others, set()
        if option_value(facts.options, CLIENTS) == "beside":
            hosts = {facts.hosts[node] for node in facts.nodes}
            near = targets + [facts.hosts[node] for node in targets if node in facts.hosts]
            far = others + [facts.hosts[node] for node in others if node in facts.hosts]
        networks = networks_hit(facts, rng)
        cut = across(facts, networks, near, far, hosts)
        if kind != "one-way":
            cut |= across(facts, networks, far, near, hosts)
        elif rng.random() < 0.5:
            cut, note = across(facts, networks, far, near, hosts), f"{targets[0]} does not hear the others"
        else:
            note = f"{targets[0]} is not heard by the others"
        return FaultPlan(kind, tuple(targets), cut, _noted(note, facts, networks))

    async def inject(self, cluster: Cluster, plan: FaultPlan) -> Evidence:
        """Cut the links, and probe some of them before and after."""
        backend = cluster.backend
        links = _probed(plan, cluster)
        before = await probe(backend, links)
        await set_cut(backend, self._owner + plan.named, plan.cut)
        after = await probe(backend, links)
        confirmed = bool(links) and all(before[link] == OPEN and after[link] == CUT for link in links)
        return Evidence({"links": len(plan.cut), "probe": {arrow(k): [before[k], after[k]] for k in links}}, confirmed)

    async def heal(self, cluster: Cluster, plan: FaultPlan, injected: Evidence) -> Evidence:
        """Read the numbers of dropped packets, restore all links, and probe them again."""
        backend = cluster.backend
        dropped = await backend.dropped()
        await set_cut(backend, self._owner + plan.named, frozenset())
        after = await probe(backend, _probed(plan, cluster))
        counters = {arrow(link): dropped.get(link, 0) for link in sorted(plan.cut)}
        return Evidence(
            {"dropped": counters, "probe": {arrow(link): state for link, state in after.items()}},
            any(counters.values()),
        )


def _plan_from_clients(facts: ClusterFacts, rng: random.Random) -> FaultPlan:
    """Plan a cut between one node, or all of them, and all clients, wherever they stand; the nodes hear each other."""
    targets = facts.nodes if rng.random() < 0.5 else (rng.choice(facts.nodes),)
    targets = (facts.named,) if facts.named else targets
    hosts = sorted(set(facts.hosts.values()))
    cut = links_between(targets, hosts, ()) | links_between(hosts, targets, ())
    return FaultPlan(FROM_CLIENTS, tuple(targets), cut)


def _probed(plan: FaultPlan, cluster: Cluster) -> list[Link]:
    """Return the cut links to probe: between machines, or, where only clients are cut off, from nodes to them."""
    if plan.kind != FROM_CLIENTS:
        return probe_links(plan.cut, cluster.topology.machines)
    return probe_links(frozenset(link for link in plan.cut if link[0] in plan.targets),
                       (*cluster.topology.nodes, *cluster.topology.client_hosts))  # fmt: skip


def _plan_link(facts: ClusterFacts, rng: random.Random) -> FaultPlan:
    """Plan a cut between the serving node and one other node; all other machines still hear both."""
    node = pick_node(PRIMARY, replace(facts, named=""), facts.nodes, rng)
    other = facts.named or rng.choice([each for each in facts.nodes if each != node])
    if other == node:
        raise Infeasible(f"{node} leads, and the schedule names it as the other end of the link")
    networks = networks_hit(facts, rng)
    cut = across(facts, networks, [node], [other], ()) | across(facts, networks, [other], [node], ())
    return FaultPlan(LINK, (node, other), cut, _noted(None, facts, networks))


def _plan_shape(kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
    """Plan a partition in which nodes hear only some others; helper machines hear all nodes."""
    pairs, words = DRAWN[kind](facts.nodes, rng)
    beside = option_value(facts.options, CLIENTS) == "beside"
    hosts = set(facts.hosts.values()) if beside else set()
    networks = networks_hit(facts, rng)
    cut: frozenset[Link] = frozenset()
    for source, target in sorted(pairs):
        near, far = ([node, *([facts.hosts[node]] if beside else [])] for node in (source, target))
        cut |= across(facts, networks, near, far, hosts)
    return FaultPlan(kind, facts.nodes, cut, _noted(words, facts, networks))


def _noted(note: str | None, facts: ClusterFacts, networks: Sequence[str]) -> str | None:
    if not facts.topology.networks:
        return note
    return f"{note}; on {', '.join(networks)}" if note else f"on {', '.join(networks)}"


def networks_hit(facts: ClusterFacts, rng: random.Random) -> tuple[str, ...]:
    """Return the networks that a fault hits: all, or one of them, by the option or in turn."""
    names = (MAIN_NETWORK, *facts.topology.networks)
    if len(names) == 1:
        return names
    wanted = str(option_value(facts.options, NETWORK))
    if wanted == ANY_KIND:
        wanted = rng.choice([ALL_NETWORKS, *names])
    if wanted == ALL_NETWORKS:
        return names
    return (wanted,)


def unknown_network(test: Test, topology: Topology) -> str:
    """Return why the option ``fault_network`` names no network of the test; empty: it does."""
    wanted, known = str(option_value(test.options, NETWORK)), (ANY_KIND, ALL_NETWORKS, MAIN_NETWORK, *topology.networks)
    return "" if wanted in known else f"unknown network {wanted!r} ({NETWORK.name}: one of {', '.join(known)})"


def across(
    facts: ClusterFacts, networks: Sequence[str], sources: Sequence[str], targets: Sequence[str],
    hosts: Collection[str],
) -> frozenset[Link]:
    """Return all links from one side to the other on these networks; clients are on the main one."""
    found: set[Link] = set()
    for network in networks:
        if network == MAIN_NETWORK:
            found |= links_between(sources, targets, hosts)
            continue
        there = facts.topology.on(network)
        found |= {(endpoint(a, network), endpoint(b, network))
                  for a in sources for b in targets if a in there and b in there}  # fmt: skip
    return frozenset(found)


def links_between(sources: Sequence[str], targets: Sequence[str], hosts: Collection[str]) -> frozenset[Link]:
    """Return all links from one side to the other, except those between two client hosts."""
    return frozenset((a, b) for a in sources for b in targets if not (a in hosts and b in hosts))


def probe_links(cut: frozenset[Link], nodes: Sequence[str]) -> list[Link]:
    """Return at most two of the cut links between nodes for probes: the first and the last."""
    between = sorted(link for link in cut if all(machine_of(end) in nodes for end in link))
    return between if len(between) < 2 else [between[0], between[-1]]


async def probe(backend: Backend, links: Sequence[Link]) -> dict[Link, str]:
    """Return for each link whether a packet passes and is answered (``open``), is not (``cut``), or is undetermined."""
    probes = (backend.probe(link, PROBE_SECONDS) for link in links)
    return dict(zip(links, await asyncio.gather(*probes), strict=True))


def arrow(link: Link) -> str:
    """Return the link in the notation of evidence."""
    return f"{link[0]}>{link[1]}"
