"""Disk faults: a full, failing or slow disk, one that loses or tears unsynced data, that is damaged, or replaced by an
empty one. On request: flipped bits, or a lost end, of chosen files.

A broker on a failing disk ends rather than confirm data that it can't keep; healing repairs the disk and starts the
broker again. A broker that finds its data damaged refuses to start; healing gives it an empty disk, as a person would.
Damages of chosen files stay: they test whether the system finds and repairs them.

Evidence: the disk's counts of the system's calls that failed or were slow, of dropped caches, and of damaged pieces of
the system's files. A file that the harness writes and syncs next to the data shows that the disk fails, but not that
the system uses it: that suffices only for a system that declares that it stores nothing, and that has no file on the
disk.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from nemesis.disk_use import use_of
from nemesis.facts import aim_option, asked_target, await_state, group_of, max_down_of
from nemesis.families import MAX_DOWN, kind_option, option_value
from nemesis.process import plan_nodes
from stormproof.contracts.backend import DEAD, DISK_DAMAGES, DISK_FAULTS, DISKS, RUNNING, DiskFault, Disks
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.draw import Draw
from stormproof.contracts.fault import (
    LOSES_DATA,
    LOSES_SYNCED,
    MAY_END_PROCESS,
    ClusterFacts,
    Evidence,
    Fault,
    FaultPlan,
    Infeasible,
)
from stormproof.contracts.option import Option
from stormproof.history.disk_use import DISKS as DISK_USE
from stormproof.history.disk_use import STORES_NOTHING, WRITES_TO
from stormproof.history.undo import DISK

KINDS = DISK_FAULTS
FILES = Option("disk_files", "**", "files that `bits` and `truncate` damage: a shell pattern of paths below the data "
               "folder, as **/*.blk")  # fmt: skip
BITS = Option("disk_bits", 1, "bits that `bits` flips, at random places of these files", least=1)

WHEN_IT_DIES = ("lose-unsynced", "torn")
"""Faults that take effect when the broker is killed."""
WHEN_DEAD = ("corrupt", "empty", *DISK_DAMAGES)
"""Faults of stored data, set while no program uses it."""
_WHEN_STILL = (*WHEN_IT_DIES, *WHEN_DEAD)
"""Faults that affect no call of a program."""
INSPECTION_SECONDS = 0.3
"""The time limit of the health check in seconds: the first query after a node's restart may meet its old connection."""
REFUSAL_SECONDS = 2.0
"""The time in seconds for a broker to find out that its data is damaged."""
ENDING_SECONDS = 0.5
"""The time in seconds for the node's other programs to end from errors that they met, once its disk is repaired."""


class StorageFault(Fault):
    """Makes one node's disk fail."""

    name = "disk"
    conflict_group = "process"
    undo = DISK
    needs = (DISKS,)
    effects = frozenset({MAY_END_PROCESS, LOSES_DATA})
    kind_effects: ClassVar[Mapping[str, frozenset[str]]] = dict.fromkeys(WHEN_DEAD, effects | {LOSES_SYNCED})
    kinds = KINDS
    aimed_kinds = DISK_DAMAGES
    named_kinds = (*KINDS, *DISK_DAMAGES)
    overlaps = True
    draws = (Draw("disk_target", ("master",), 0.3),)
    options = (kind_option("disk", (*KINDS, *DISK_DAMAGES)), aim_option("disk", "whose disk fails"), MAX_DOWN, FILES,
               BITS)  # fmt: skip

    def __init__(self) -> None:
        self._lost: dict[str, None] = {}
        """Nodes that have lost their stored data, and may not have received it back from the others yet."""
        self._damaged: dict[str, None] = {}
        """Nodes with damaged files: a healthy system may not have found the damage."""

    def aim(self, options: Mapping[str, Any]) -> str:
        """Return the rule for the node whose disk fails."""
        return asked_target(self.name, options)

    def expects_replica(self, kind: str) -> bool:
        """Return True: replicas have the data that one of them loses."""
        return True

    async def inspect(self, cluster: Cluster) -> tuple[str, ...]:
        """Return the nodes that have lost their data, unless it is restored: all nodes are up and agree. A damage of
        chosen files counts to the end."""
        if self._lost and await cluster.await_healthy(INSPECTION_SECONDS):
            self._lost.clear()
        return tuple({**self._lost, **self._damaged})

    def plan(self, kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
        """Choose a running node, if one more may go down, since a failing disk takes a broker down.

        Raises:
            Infeasible: no node may go down, no node matches ``disk_target``, or its group would lose the data of more
                than a minority (or ``max_down``) of its nodes before the others have restored it.
        """
        found = plan_nodes(self.aim(facts.options), facts, rng)
        node = found.targets
        if kind in WHEN_DEAD and not facts.named:
            group = group_of(node[0], facts)
            most = max_down_of(facts.options, sum(each not in facts.spares for each in group))
            lost = [each for each in facts.data_loss if each in group and each not in node]
            if len(lost) >= most:
                raise Infeasible(f"{', '.join(lost)} may still lack lost data, and at most {most} may lack it")
        if kind in DISK_DAMAGES:
            fault = DiskFault(kind, files=option_value(facts.options, FILES), bits=option_value(facts.options, BITS))
        else:
            fault = DiskFault(kind, round(rng.uniform(0.02, 0.5), 3) if kind == "slow" else 0.0)
        return replace(found, kind=kind, disk=fault)

    async def inject(self, cluster: Cluster, plan: FaultPlan) -> Evidence:
        """Make the disk fail, and end the broker if the kind of fault requires it."""
        backend, disks, (node,), kind = cluster.backend, disks_of(cluster), plan.targets, plan.kind
        main = cluster.programs(node)[0]
        use = await use_of(cluster, plan.targets)
        if kind in WHEN_DEAD:
            (self._damaged if kind in DISK_DAMAGES else self._lost)[node] = None
            await _kill(cluster, node)
        await disks.set_disk(node, plan.disk)
        if kind in WHEN_IT_DIES:
            await _kill(cluster, node)
        shown, probe = await disks.disk_fault_count(node), await disks.probe_disk(node)
        if kind in WHEN_DEAD:
            await cluster.start_node(node)
            await await_state(backend, node, main, DEAD, REFUSAL_SECONDS)
        state = await backend.process(node, main)
        found = {"shown": shown, "probe": probe, "broker": state.state, **use}
        if kind in DISK_DAMAGES:
            none = f"no file matches {FILES.name}={option_value(cluster.test.options, FILES)}"
            found["damaged"] = list((await disks.disk_use(node)).damaged) if shown else none
        exempt = STORES_NOTHING in use[DISK_USE][node] and (kind in _WHEN_STILL or probe in ("failed", "slow"))
        return Evidence(found, shown > 0 or (exempt and kind not in DISK_DAMAGES))

    async def heal(self, cluster: Cluster, plan: FaultPlan, injected: Evidence) -> Evidence:
        """Read the disk's fault count, repair the disk, and start the programs that have ended: the broker, or its
        manager.
        """
        backend, disks, (node,) = cluster.backend, disks_of(cluster), plan.targets
        main = cluster.programs(node)[0]
        await disks.set_disk(node, None)
        shown = await disks.disk_fault_count(node)
        failing = plan.kind not in ("slow", *WHEN_DEAD)
        ends = shown and failing
        use: dict[str, Any] = {}
        if not shown and not injected.confirmed:
            now = await use_of(cluster, plan.targets, met=False)
            if now[DISK_USE][node].get(WRITES_TO):  # otherwise the injection recorded it, when the node still ran
                use = now
        state = await (await_state(backend, node, main, DEAD) if ends else backend.process(node, main))
        others = [name for name in cluster.programs(node)[1:] if not cluster.restarted(node, name)]
        if ends and others:
            await asyncio.sleep(ENDING_SECONDS)
        ended = [name for name in others if (await backend.process(node, name)).state == DEAD]
        if state.state == DEAD or ended:
            if plan.kind == "corrupt":
                await disks.set_disk(node, DiskFault("empty"))
                await disks.set_disk(node, None)
            await cluster.start_node(node)
        after = await await_state(backend, node, main, RUNNING)
        return Evidence({"shown": shown, "broker": state.state, "after": after.state, **use}, shown > 0)


def disks_of(cluster: Cluster) -> Disks:
    """Return the cluster's machines, whose disks can fail."""
    assert isinstance(cluster.backend, Disks), "a backend without the ability is refused before"
    return cluster.backend


async def _kill(cluster: Cluster, node: str) -> None:
    """End all programs of a node."""
    for program in cluster.programs(node):
        await cluster.backend.kill(node, program)
        await await_state(cluster.backend, node, program, DEAD)
