"""Disk faults: full, failing, slow, losing or tearing what was not synced, damaged, replaced by an empty one.

A broker whose disk fails ends rather than confirm what it can't keep; healing sets the disk right and starts it again.
A broker that finds its data damaged refuses to start; healing gives it an empty disk, as a person would. Proof: the
disk's own count of calls that failed or were slow, of dropped caches, of damaged pieces; or a file that was written and
synced beside the data failed, or took long: a broker that is cut off has nothing to write itself.
"""

from __future__ import annotations

import random

from harness.protocols import DISK_TROUBLES, Cluster, DiskTrouble, Option
from harness.undo import DISK
from nemesis.api import (
    DEAD,
    MAX_DOWN,
    RUNNING,
    Facts,
    Infeasible,
    Plan,
    Proof,
    await_state,
    kind_option,
    max_down_of,
)
from nemesis.process import plan_nodes

KINDS = DISK_TROUBLES

WHEN_IT_DIES = ("lose-unsynced", "torn")
"""Troubles that show when the broker is killed."""
WHEN_DEAD = ("corrupt", "empty")
"""Troubles that befall what is stored, while nobody uses it."""
LOOK_SECONDS = 0.3
"""How long to ask whether all is well: the first question after a node's restart may meet its old connection."""
REFUSAL_SECONDS = 2.0
"""How long a broker has to find out that its data is damaged."""


class Disk:
    """Brings trouble upon one node's disk."""

    name = "disk"
    summary = "disks fill up, fail, slow down, lose or damage what was written"
    lane = "process"
    undo = DISK
    kinds: tuple[str, ...] = KINDS
    options: tuple[Option, ...] = (kind_option("disk", KINDS), MAX_DOWN)

    def __init__(self) -> None:
        self._bare: dict[str, None] = {}
        """Nodes that lost what they had stored, and may not have been given it back by the others yet."""

    async def look(self, cluster: Cluster) -> tuple[str, ...]:
        """Those that have lost their data, unless they have it again: all nodes are up and agree."""
        if self._bare and await cluster.await_healthy(LOOK_SECONDS):
            self._bare.clear()
        return tuple(self._bare)

    def plan(self, kind: str, facts: Facts, rng: random.Random) -> Plan:
        """Choose a running node, if one more may go down: that is what a failing disk does to a broker.

        Raises:
            Infeasible: none may, or its group would lose the data of more than a minority (or ``max_down``) of its
                nodes before the others have given it back.
        """
        node = plan_nodes("one", facts, rng).targets
        if kind in WHEN_DEAD:
            group = next((group for group in facts.groups if node[0] in group), facts.nodes)
            most = max_down_of(facts.options, sum(each not in facts.spares for each in group))
            bare = [each for each in facts.bare if each in group and each not in node]
            if len(bare) >= most:
                raise Infeasible(f"{', '.join(bare)} may not have got back yet what was lost, {most} may lack it")
        seconds = round(rng.uniform(0.02, 0.5), 3) if kind == "slow" else 0.0
        return Plan(kind, node, trouble=DiskTrouble(kind, seconds))

    async def inject(self, cluster: Cluster, plan: Plan) -> Proof:
        """Bring the trouble about, with the broker's end where it takes that."""
        backend, (node,), kind = cluster.backend, plan.targets, plan.kind
        if kind in WHEN_DEAD:
            self._bare[node] = None
            await backend.kill(node)
            await await_state(backend, node, DEAD)
        await backend.set_disk(node, plan.trouble)
        if kind in WHEN_IT_DIES:
            await backend.kill(node)
            await await_state(backend, node, DEAD)
        harm, probe = await backend.disk_harm(node), await backend.probe_disk(node)
        if kind in WHEN_DEAD:
            await cluster.start_node(node)
            await await_state(backend, node, DEAD, REFUSAL_SECONDS)
        state = await backend.process(node)
        return Proof({"harm": harm, "probe": probe, "broker": state.state}, harm > 0 or probe in ("failed", "slow"))

    async def heal(self, cluster: Cluster, plan: Plan, injected: Proof) -> Proof:
        """Read what the trouble did, set the disk right, and start a broker that has ended."""
        backend, (node,) = cluster.backend, plan.targets
        await backend.set_disk(node, None)
        harm = await backend.disk_harm(node)
        failing = plan.kind not in ("slow", *WHEN_DEAD)
        state = await (await_state(backend, node, DEAD) if harm and failing else backend.process(node))
        if state.state == DEAD:
            if plan.kind == "corrupt":
                await backend.set_disk(node, DiskTrouble("empty"))
                await backend.set_disk(node, None)
            await cluster.start_node(node)
        after = await await_state(backend, node, RUNNING)
        return Proof({"harm": harm, "broker": state.state, "after": after.state}, harm > 0)
