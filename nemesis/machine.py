"""Faults of a whole machine: power loss (nothing ends in order, un-synced writes are gone) and an orderly reboot.

Proof: the broker is gone, and after the heal the machine is in another boot.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from harness.protocols import Cluster, Option
from harness.undo import POWER
from nemesis.api import DEAD, MAX_DOWN, RUNNING, Facts, Infeasible, Plan, Proof, kind_option
from nemesis.process import plan_nodes, state_evidence, states_of

POWER_KINDS = ("one", "master", "minority", "all")
REBOOT_KINDS = ("one", "master")


class Power:
    """Cuts the power of machines; healing gives it back and starts the brokers."""

    name = "power"
    summary = "machines lose power at once, with what was not synced"
    lane = "process"
    undo = POWER
    kinds: tuple[str, ...] = POWER_KINDS
    options: tuple[Option, ...] = (kind_option("power", POWER_KINDS), MAX_DOWN)

    def plan(self, kind: str, facts: Facts, rng: random.Random) -> Plan:
        """Choose running nodes, no more than may go down; ``all`` takes every node, whatever ``max_down`` says."""
        if kind == "all":
            if not facts.eligible():
                raise Infeasible("no node is running")
            return Plan(kind, facts.nodes)
        plan = plan_nodes("random" if kind == "minority" else kind, facts, rng)
        return Plan(kind, plan.targets, note=plan.note)

    async def inject(self, cluster: Cluster, plan: Plan) -> Proof:
        """Cut the power."""
        before = await states_of(cluster, plan)
        boots = await _boots(cluster, plan.targets)
        await cluster.backend.power_off(plan.targets)
        after = await states_of(cluster, plan, DEAD)
        proven = any(state.state == RUNNING for state in before.values()) and all(
            state.state == DEAD for state in after.values()
        )
        return Proof({**state_evidence(before, after), "boots": boots}, proven)

    async def heal(self, cluster: Cluster, plan: Plan, injected: Proof) -> Proof:
        """Give the power back, and start the brokers; each machine must have booted."""
        await cluster.backend.power_on(plan.targets)
        return await _start(cluster, plan, injected)


class Reboot:
    """Restarts a machine in order; healing starts its broker."""

    name = "reboot"
    summary = "a machine restarts in order"
    lane = "process"
    undo = POWER
    kinds: tuple[str, ...] = REBOOT_KINDS
    options: tuple[Option, ...] = (kind_option("reboot", REBOOT_KINDS), MAX_DOWN)

    def plan(self, kind: str, facts: Facts, rng: random.Random) -> Plan:
        """Choose a running node, if one more may go down."""
        return plan_nodes(kind, facts, rng)

    async def inject(self, cluster: Cluster, plan: Plan) -> Proof:
        """Restart the machine."""
        before = await states_of(cluster, plan)
        boots = await _boots(cluster, plan.targets)
        await asyncio.gather(*(cluster.backend.reboot(node) for node in plan.targets))
        after = await states_of(cluster, plan, DEAD)
        now = await _boots(cluster, plan.targets)
        proven = all(
            before[n].state == RUNNING and after[n].state == DEAD and boots[n] != now[n] for n in plan.targets
        )
        return Proof({**state_evidence(before, after), "boots": boots}, proven)

    async def heal(self, cluster: Cluster, plan: Plan, injected: Proof) -> Proof:
        """Start the broker."""
        return await _start(cluster, plan, injected)


async def _start(cluster: Cluster, plan: Plan, injected: Proof) -> Proof:
    before = await states_of(cluster, plan)
    await asyncio.gather(*(cluster.start_node(node) for node in plan.targets if before[node].state == DEAD))
    after = await states_of(cluster, plan, RUNNING)
    earlier: dict[str, Any] = injected.evidence.get("boots", {})
    boots = await _boots(cluster, plan.targets)
    proven = all(
        after[node].state == RUNNING and node in earlier and boots[node] != earlier[node] for node in plan.targets
    )
    return Proof({**state_evidence(before, after), "boots": boots}, proven)


async def _boots(cluster: Cluster, nodes: Sequence[str]) -> dict[str, str]:
    return dict(zip(nodes, await asyncio.gather(*(cluster.backend.boot(node) for node in nodes)), strict=True))
