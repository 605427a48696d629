"""Faults of a whole machine: power loss (no clean shutdown, unsynced writes are lost) and a clean reboot.

Evidence: the broker is gone, and after the heal the machine is in another boot; for a power loss also that the system
had files on the disk of a machine that lost its power.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nemesis.disk_use import note_losses, use_of
from nemesis.facts import ONE, lasting
from nemesis.families import MAX_DOWN, kind_option
from nemesis.process import plan_nodes, state_evidence, states_of
from stormproof.contracts.backend import DEAD, POWER, REBOOT, RUNNING, PowerControl, ProcessState, Reboots
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.draw import Draw
from stormproof.contracts.fault import (
    ENDS_PROCESS,
    ClusterFacts,
    Evidence,
    Fault,
    FaultPlan,
    Infeasible,
)
from stormproof.history.disk_use import in_use
from stormproof.history.undo import POWER as UNDO_POWER

POWER_KINDS = (ONE, "master", "minority", "all")
REBOOT_KINDS = (ONE, "master")


class PowerFault(Fault):
    """Cuts the power of machines; healing restores it and starts the brokers."""

    name = "power"
    conflict_group = "process"
    undo = UNDO_POWER
    needs = (POWER,)
    effects = frozenset({ENDS_PROCESS})
    aims_at_roles = True
    kinds = POWER_KINDS
    named_kinds = (ONE,)
    overlaps = True
    draws = (Draw("power_kind", ("all", "master"), 0.4),)
    options = (kind_option("power", POWER_KINDS, roles=True), MAX_DOWN)

    def expects_replica(self, kind: str) -> bool:
        """Return True unless all nodes are hit: replicas continue without the targets."""
        return kind != "all"

    def plan(self, kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
        """Choose running nodes, at most as many as may go down; ``all`` takes every node, regardless of ``max_down``.
        """
        if kind == "all":
            if not facts.eligible():
                raise Infeasible("no node is running")
            return FaultPlan(kind, facts.nodes)
        return replace(plan_nodes("random" if kind == "minority" else kind, facts, rng), kind=kind)

    async def inject(self, cluster: Cluster, plan: FaultPlan) -> Evidence:
        """Cut the power."""
        before = await _states(cluster, plan)
        boots = await _boots(cluster, plan.targets)
        use = await use_of(cluster, plan.targets)
        await _power_of(cluster).power_off(plan.targets)
        after = await _states(cluster, plan, DEAD)
        await note_losses(cluster, use)
        confirmed = in_use(use) and any(state.state == RUNNING for state in before.values()) and all(
            state.state == DEAD for state in after.values()
        )
        return Evidence({**state_evidence(before, after, plan), "boots": boots, **use}, confirmed)

    async def heal(self, cluster: Cluster, plan: FaultPlan, injected: Evidence) -> Evidence:
        """Restore the power, and start the brokers; each machine must have booted."""
        await _power_of(cluster).power_on(plan.targets)
        healed = await _start(cluster, plan, injected)
        return replace(healed, confirmed=healed.confirmed and in_use(injected.found))


class RebootFault(Fault):
    """Restarts a machine cleanly; healing starts its broker."""

    name = "reboot"
    conflict_group = "process"
    undo = UNDO_POWER
    needs = (REBOOT,)
    effects = frozenset({ENDS_PROCESS})
    aims_at_roles = True
    kinds = REBOOT_KINDS
    named_kinds = (ONE,)
    overlaps = True
    options = (kind_option("reboot", REBOOT_KINDS, roles=True), MAX_DOWN)

    def expects_replica(self, kind: str) -> bool:
        """Return True: replicas continue without the targets."""
        return True

    def plan(self, kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
        """Choose a running node, if one more may go down."""
        return plan_nodes(kind, facts, rng)

    async def inject(self, cluster: Cluster, plan: FaultPlan) -> Evidence:
        """Restart the machine."""
        before = await _states(cluster, plan)
        boots = await _boots(cluster, plan.targets)
        await asyncio.gather(*(_reboots(cluster).reboot(node) for node in plan.targets))
        after = await _states(cluster, plan, DEAD)
        now = await _boots(cluster, plan.targets)
        confirmed = all(
            before[n].state == RUNNING and after[n].state == DEAD and boots[n] != now[n] for n in plan.targets
        )
        return Evidence({**state_evidence(before, after, plan), "boots": boots}, confirmed)

    async def heal(self, cluster: Cluster, plan: FaultPlan, injected: Evidence) -> Evidence:
        """Start the broker."""
        return await _start(cluster, plan, injected)


def _power_of(cluster: Cluster) -> PowerControl:
    assert isinstance(cluster.backend, PowerControl), "a backend without the ability is refused before"
    return cluster.backend


def _reboots(cluster: Cluster) -> Reboots:
    assert isinstance(cluster.backend, Reboots), "a backend without the ability is refused before"
    return cluster.backend


async def _start(cluster: Cluster, plan: FaultPlan, injected: Evidence) -> Evidence:
    before = await _states(cluster, plan)
    await asyncio.gather(*(cluster.start_node(node) for node in plan.targets if before[node].state == DEAD))
    after = await _states(cluster, plan, RUNNING)
    earlier: dict[str, Any] = injected.found.get("boots", {})
    boots = await _boots(cluster, plan.targets)
    confirmed = all(
        after[node].state == RUNNING and node in earlier and boots[node] != earlier[node] for node in plan.targets
    )
    return Evidence({**state_evidence(before, after, plan), "boots": boots}, confirmed)


async def _states(cluster: Cluster, plan: FaultPlan, awaited: str = "") -> dict[str, ProcessState]:
    """Return the states of the programs that indicate whether a machine is down."""
    return await states_of(cluster, plan, awaited, program=lambda machine: lasting(cluster, machine))


async def _boots(cluster: Cluster, nodes: Sequence[str]) -> dict[str, str]:
    backend = cluster.backend
    assert isinstance(backend, PowerControl | Reboots)
    return dict(zip(nodes, await asyncio.gather(*(backend.boot(node) for node in nodes)), strict=True))
