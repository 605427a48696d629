"""Packet faults: links that lose, delay, duplicate, reorder or corrupt packets, have little bandwidth, or reset
connections.

They hit every link between nodes, or every link of one node, or, on request, the links between two nodes, or one
direction of one link; client hosts are on the side of their node, as in a partition. Evidence: the number of affected
packets on each link.
"""

from __future__ import annotations

import random
from dataclasses import asdict

from nemesis.families import ANY_KIND, kind_option, option_value
from nemesis.partition import CLIENTS, NETWORK, across, arrow, links_between, networks_hit, unknown_network
from stormproof.contracts.backend import PACKETS, Link, LinkConditions, PacketFaults
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.draw import Draw
from stormproof.contracts.fault import DELAYS_MESSAGES, ClusterFacts, Evidence, Fault, FaultPlan
from stormproof.contracts.option import Option
from stormproof.contracts.topology import Topology
from stormproof.history.undo import CONDITIONS
from stormproof.test import Test

KINDS = ("loss", "delay", "duplicate", "reorder", "corrupt", "rate", "reset", "flaky")


ALL, ONE, PAIR, ONE_WAY, TO_CLIENTS = "all", "one", "pair", "one-way", "clients"
WHERE = Option(
    "packets_links",
    ANY_KIND,
    "affected links: of all nodes, of one, between two of them, from one to another, or between nodes and clients, "
    "also those beside them; any: of all or of one, or of clients where there is one node",
    (ANY_KIND, ALL, ONE, PAIR, ONE_WAY, TO_CLIENTS),
)


class PacketsFault(Fault):
    """Degrades links, short of cutting them."""

    name = "packets"
    conflict_group = "packets"
    undo = CONDITIONS
    needs = (PACKETS,)
    effects = frozenset({DELAYS_MESSAGES})
    kinds = KINDS
    named_kinds = KINDS
    draws = (Draw("clients", ("outside",), 0.3), Draw("packets_links", ("clients",), 0.15))
    options = (kind_option("packets", KINDS, several=True), WHERE, CLIENTS, NETWORK)

    def why_impossible(self, kind: str, test: Test, topology: Topology) -> str:
        """Return why no such links exist: too few machines, or an unknown network."""
        where = str(option_value(test.options, WHERE))
        if where in (PAIR, ONE_WAY) and test.nodes < 2:
            return f"{WHERE.name}={where} needs two nodes: use more --nodes, or {WHERE.name}={TO_CLIENTS}"
        if where in (ALL, ONE) and len(topology.machines) < 2:
            return f"{WHERE.name}={where} needs two machines: use more --nodes, or {WHERE.name}={TO_CLIENTS}"
        return unknown_network(test, topology)

    def plan(self, kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
        """Choose all nodes or one, and the severity; ``targets`` are the nodes whose links are degraded."""
        machines = facts.topology.machines or facts.nodes
        where = str(option_value(facts.options, WHERE))
        if where == TO_CLIENTS or (where == ANY_KIND and len(machines) < 2):
            return _plan_clients(kind, facts, rng)
        if where in (PAIR, ONE_WAY):
            return _plan_pair(kind, where, facts, rng)
        everybody = rng.random() < 0.5
        targets = facts.nodes if (everybody if where == ANY_KIND else where == ALL) else (rng.choice(facts.nodes),)
        targets = (facts.named,) if facts.named else targets
        conditions = conditions_of(kind, rng)
        beside = option_value(facts.options, CLIENTS) == "beside"
        hosts = set(facts.hosts.values()) if beside else set()
        networks = networks_hit(facts, rng)
        links: dict[Link, LinkConditions] = {}
        for node in targets:
            near = [node, *([facts.hosts[node]] if beside else [])]
            others = [other for other in machines if other != node]
            far = others + [facts.hosts[other] for other in others if beside and other in facts.hosts]
            there, back = across(facts, networks, near, far, hosts), across(facts, networks, far, near, hosts)
            for link in sorted(there | back):
                links[link] = conditions
        return FaultPlan(kind, targets, conditions=links)

    async def inject(self, cluster: Cluster, plan: FaultPlan) -> Evidence:
        """Set the conditions; the heal determines their effect."""
        await _packets(cluster).set_conditions(plan.conditions)
        conditions = next(iter(plan.conditions.values()))
        shown = {k: v for k, v in asdict(conditions).items() if v}
        return Evidence({"links": len(plan.conditions), "conditions": shown})

    async def heal(self, cluster: Cluster, plan: FaultPlan, injected: Evidence) -> Evidence:
        """Read the numbers of affected packets, and restore the links."""
        affected = await _packets(cluster).affected_packets()
        await _packets(cluster).set_conditions({})
        counters = {arrow(link): affected.get(link, 0) for link in sorted(plan.conditions)}
        return Evidence({"affected": counters}, any(counters.values()))


def _plan_clients(kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
    """Plan for all links between nodes, or one node, and clients, regardless of the clients' place."""
    hosts = sorted(set(facts.hosts.values()))
    targets = facts.nodes if rng.random() < 0.5 else (rng.choice(facts.nodes),)
    targets = (facts.named,) if facts.named else targets
    links = links_between(targets, hosts, ()) | links_between(hosts, targets, ())
    return FaultPlan(kind, tuple(targets), note="clients", conditions=dict.fromkeys(sorted(links),
                                                                                     conditions_of(kind, rng)))


def _plan_pair(kind: str, where: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
    """Plan for links between two nodes, without any client's: in both directions, or from the first to the second."""
    one, other = rng.sample(facts.nodes, 2)
    if facts.named:
        one, other = facts.named, rng.choice([node for node in facts.nodes if node != facts.named])
    networks, conditions = networks_hit(facts, rng), conditions_of(kind, rng)
    links = across(facts, networks, [one], [other], ())
    if where == PAIR:
        links |= across(facts, networks, [other], [one], ())
    note = f"from {one} to {other}" if where == ONE_WAY else None
    return FaultPlan(kind, (one, other), note=note, conditions=dict.fromkeys(sorted(links), conditions))


def _packets(cluster: Cluster) -> PacketFaults:
    assert isinstance(cluster.backend, PacketFaults), "a backend without the ability is refused before"
    return cluster.backend


def conditions_of(kind: str, rng: random.Random) -> LinkConditions:
    """Draw the severity of a fault of a kind."""
    if kind == "loss":
        return LinkConditions(loss=_share(rng, 0.05, 0.4))
    if kind == "delay":
        delay = round(rng.uniform(0.02, 0.3), 3)
        return LinkConditions(delay=delay, jitter=round(delay * rng.random(), 3))
    if kind == "duplicate":
        return LinkConditions(duplicate=_share(rng, 0.05, 0.5))
    if kind == "reorder":
        return LinkConditions(reorder=_share(rng, 0.05, 0.5), delay=0.01)
    if kind == "corrupt":
        return LinkConditions(corrupt=_share(rng, 0.05, 0.3))
    if kind == "rate":
        return LinkConditions(rate=float(round(10 ** rng.uniform(3.7, 5.0))))
    if kind == "reset":
        return LinkConditions(reset=_share(rng, 0.01, 0.06))
    return LinkConditions(
        loss=_share(rng, 0.02, 0.2), delay=round(rng.uniform(0.0, 0.1), 3), jitter=round(rng.uniform(0.0, 0.1), 3),
        duplicate=_share(rng, 0.0, 0.2), reorder=_share(rng, 0.0, 0.2), corrupt=_share(rng, 0.0, 0.05),
    )  # fmt: skip


def _share(rng: random.Random, least: float, most: float) -> float:
    return round(rng.uniform(least, most), 3)
