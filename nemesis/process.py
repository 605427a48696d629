"""Faults of a node's broker process: pause (it stops for a while) and kill (it ends and is started again).

Proof is what the operating system says of the process before and after.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from harness.protocols import Cluster, Option, ProcessState
from harness.undo import RESUME, START
from nemesis.api import (
    DEAD,
    MAX_DOWN,
    PAUSED,
    RUNNING,
    Facts,
    Infeasible,
    Plan,
    Proof,
    await_state,
    kind_option,
    pick_node,
)

KINDS = ("one", "master", "random")


def plan_nodes(kind: str, facts: Facts, rng: random.Random) -> Plan:
    """Choose running nodes to take down: one, the master, or a random number of them.

    Raises:
        Infeasible: none runs, or as many as allowed are down already.
    """
    running, allowed = facts.eligible(), facts.may_go_down()
    if not running:
        raise Infeasible("no node is running")
    if allowed < 1:
        down = len(facts.nodes) - len(running)
        raise Infeasible(f"{down} of {len(facts.nodes)} nodes are down already, max_down is {facts.max_down}")
    if kind == "random":
        chosen = rng.sample(running, rng.randint(1, min(allowed, len(running))))
        return Plan(kind, tuple(node for node in facts.nodes if node in chosen))
    node, note = pick_node(kind, facts, running, rng)
    return Plan(kind, (node,), note=note)


class Pause:
    """Stops the processes of a node with SIGSTOP and lets them go on with SIGCONT."""

    name = "pause"
    summary = "stops a node's processes and lets them go on"
    lane = "process"
    undo = RESUME
    kinds: tuple[str, ...] = KINDS
    options: tuple[Option, ...] = (kind_option("pause", KINDS), MAX_DOWN)

    def plan(self, kind: str, facts: Facts, rng: random.Random) -> Plan:
        """Choose running nodes, no more than may go down."""
        return plan_nodes(kind, facts, rng)

    async def inject(self, cluster: Cluster, plan: Plan) -> Proof:
        """Stop the targets."""
        backend = cluster.backend
        before = await states_of(cluster, plan)
        await asyncio.gather(*(backend.pause(node) for node in plan.targets))
        after = await states_of(cluster, plan, PAUSED)
        proven = all(
            before[node].state == RUNNING and after[node] == ProcessState(PAUSED, before[node].pid)
            for node in plan.targets
        )
        return Proof(state_evidence(before, after), proven)

    async def heal(self, cluster: Cluster, plan: Plan, injected: Proof) -> Proof:
        """Let the targets go on; they must have been stopped until now."""
        backend = cluster.backend
        before = await states_of(cluster, plan)
        await asyncio.gather(*(backend.resume(node) for node in plan.targets if before[node].state != DEAD))
        after = await states_of(cluster, plan, RUNNING)
        proven = all(before[n].state == PAUSED and after[n].state == RUNNING for n in plan.targets)
        return Proof(state_evidence(before, after), proven)


class Kill:
    """Ends the processes of a node with SIGKILL; healing starts the broker again."""

    name = "kill"
    summary = "ends a node's processes at once and starts them again"
    lane = "process"
    undo = START
    kinds: tuple[str, ...] = KINDS
    options: tuple[Option, ...] = (kind_option("kill", KINDS), MAX_DOWN)

    def plan(self, kind: str, facts: Facts, rng: random.Random) -> Plan:
        """Choose running nodes, no more than may go down."""
        return plan_nodes(kind, facts, rng)

    async def inject(self, cluster: Cluster, plan: Plan) -> Proof:
        """Kill the targets."""
        backend = cluster.backend
        before = await states_of(cluster, plan)
        await asyncio.gather(*(backend.kill(node) for node in plan.targets))
        after = await states_of(cluster, plan, DEAD)
        proven = all(before[n].state == RUNNING and after[n].state == DEAD for n in plan.targets)
        return Proof(state_evidence(before, after), proven)

    async def heal(self, cluster: Cluster, plan: Plan, injected: Proof) -> Proof:
        """Start the targets that are dead; each must come up as a new process."""
        before = await states_of(cluster, plan)
        await asyncio.gather(*(cluster.start_node(n) for n in plan.targets if before[n].state == DEAD))
        after = await states_of(cluster, plan, RUNNING)
        killed: Mapping[str, Any] = injected.evidence.get("before", {})
        proven = all(
            after[node].state == RUNNING and node in killed and after[node].pid != killed[node]["pid"]
            for node in plan.targets
        )
        return Proof(state_evidence(before, after), proven)


async def states_of(cluster: Cluster, plan: Plan, awaited: str | None = None) -> dict[str, ProcessState]:
    """The states of the targets' brokers, each once it is as ``awaited`` or a while has passed."""
    backend = cluster.backend
    reads = (await_state(backend, node, awaited) if awaited else backend.process(node) for node in plan.targets)
    return dict(zip(plan.targets, await asyncio.gather(*reads), strict=True))


def state_evidence(before: Mapping[str, ProcessState], after: Mapping[str, ProcessState]) -> dict[str, Any]:
    """Both as evidence."""
    return {
        name: {node: {"state": state.state, "pid": state.pid} for node, state in states.items()}
        for name, states in (("before", before), ("after", after))
    }
