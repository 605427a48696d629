"""Packet faults: links that lose, delay, double, reorder or damage packets, carry little, or reset connections.

They hit every link between nodes, or every link of one node; client hosts stand beside their node as in a partition.
Proof: the packets that were disturbed, counted on each link.
"""

from __future__ import annotations

import random
from dataclasses import asdict

from harness.protocols import Cluster, Condition, Option
from harness.undo import CONDITIONS
from nemesis.api import Facts, Infeasible, Plan, Proof, kind_option, option_value
from nemesis.partition import CLIENTS, arrow, links_between

KINDS = ("loss", "delay", "duplicate", "reorder", "corrupt", "rate", "reset", "flaky")


class Packets:
    """Lets links suffer, short of cutting them."""

    name = "packets"
    summary = "links lose, delay, double, reorder, damage, slow down or reset packets"
    lane = "packets"
    undo = CONDITIONS
    kinds: tuple[str, ...] = KINDS
    options: tuple[Option, ...] = (kind_option("packets", KINDS), CLIENTS)

    def plan(self, kind: str, facts: Facts, rng: random.Random) -> Plan:
        """Choose all nodes or one, and how bad it is; ``targets`` are the nodes whose links suffer."""
        if len(facts.nodes) < 2:
            raise Infeasible("packet faults need at least two nodes")
        targets = facts.nodes if rng.random() < 0.5 else (rng.choice(facts.nodes),)
        condition = condition_of(kind, rng)
        beside = option_value(facts.options, CLIENTS) == "beside"
        hosts = set(facts.hosts.values()) if beside else set()
        conditions = {}
        for node in targets:
            near = [node, *([facts.hosts[node]] if beside else [])]
            others = [other for other in facts.nodes if other != node]
            far = others + [facts.hosts[other] for other in others if beside]
            for link in sorted(links_between(near, far, hosts) | links_between(far, near, hosts)):
                conditions[link] = condition
        return Plan(kind, targets, conditions=conditions)

    async def inject(self, cluster: Cluster, plan: Plan) -> Proof:
        """Set the conditions; what they did is known at the end."""
        await cluster.backend.set_conditions(plan.conditions)
        condition = next(iter(plan.conditions.values()))
        return Proof({"links": len(plan.conditions), "condition": {k: v for k, v in asdict(condition).items() if v}})

    async def heal(self, cluster: Cluster, plan: Plan, injected: Proof) -> Proof:
        """Read how many packets suffered, and let no more do so."""
        disturbed = await cluster.backend.disturbed()
        await cluster.backend.set_conditions({})
        counters = {arrow(link): disturbed.get(link, 0) for link in sorted(plan.conditions)}
        return Proof({"disturbed": counters}, any(counters.values()))


def condition_of(kind: str, rng: random.Random) -> Condition:
    """How bad a fault of a kind is."""
    if kind == "loss":
        return Condition(loss=_share(rng, 0.05, 0.4))
    if kind == "delay":
        delay = round(rng.uniform(0.02, 0.3), 3)
        return Condition(delay=delay, jitter=round(delay * rng.random(), 3))
    if kind == "duplicate":
        return Condition(duplicate=_share(rng, 0.05, 0.5))
    if kind == "reorder":
        return Condition(reorder=_share(rng, 0.05, 0.5), delay=0.01)
    if kind == "corrupt":
        return Condition(corrupt=_share(rng, 0.05, 0.3))
    if kind == "rate":
        return Condition(rate=float(round(10 ** rng.uniform(3.7, 5.0))))
    if kind == "reset":
        return Condition(reset=_share(rng, 0.01, 0.06))
    return Condition(
        loss=_share(rng, 0.02, 0.2), delay=round(rng.uniform(0.0, 0.1), 3), jitter=round(rng.uniform(0.0, 0.1), 3),
        duplicate=_share(rng, 0.0, 0.2), reorder=_share(rng, 0.0, 0.2), corrupt=_share(rng, 0.0, 0.05),
    )  # fmt: skip


def _share(rng: random.Random, least: float, most: float) -> float:
    return round(rng.uniform(least, most), 3)
