"""Faults of a helper machine that all nodes need in order to serve: the one that grants their lock, or the one with
their only database.

Both can be killed, or cut off from one node or all nodes, while the nodes still hear each other. The database can also
be slow or damaged. Evidence is that of the fault applied to the machine.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any, ClassVar

from nemesis.cuts import both_ways
from nemesis.disk import disks_of
from nemesis.disk_use import use_of
from nemesis.facts import ONE, aim_option, asked_target, await_state, pick_node
from nemesis.families import ANY_KIND, PRIMARY, kind_option, setting
from nemesis.partition import PartitionFault
from nemesis.process import PROGRAM, KillFault, plan_nodes, plan_programs
from stormproof.contracts.backend import DEAD, DISKS, KILL, LINKS, RUNNING, DiskFault
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.fault import (
    CUTS_LINKS,
    ENDS_PROCESS,
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
from stormproof.contracts.system import GATEWAY, SHARED_DATABASE, System
from stormproof.errors import UsageError
from stormproof.history.undo import DISK, NETWORK, START
from stormproof.test import Test

KINDS = ("kill", "cut", "cut-one")


class _HelperFault(Fault):
    """The common part of both families; ``role`` is the machine's."""

    role: ClassVar[str]
    kind_undo: ClassVar[Mapping[str, str]] = {"kill": START, "cut": NETWORK, "cut-one": NETWORK}
    kind_needs: ClassVar[Mapping[str, tuple[str, ...]]] = {"kill": (KILL,), "cut": (LINKS,), "cut-one": (LINKS,)}
    kind_effects: ClassVar[Mapping[str, frozenset[str]]] = {
        "kill": frozenset({ENDS_PROCESS}), "cut": frozenset({CUTS_LINKS}), "cut-one": frozenset({CUTS_LINKS}),
    }  # fmt: skip
    kinds: tuple[str, ...] = KINDS

    def __init__(self) -> None:
        self._kill, self._cut = KillFault(), PartitionFault(self.name)

    def check(self, test: Test, system: System) -> None:
        """Raise UsageError unless the system has such a machine."""
        if self.role not in system.helper_roles(test):
            raise UsageError(f"--nemesis {self.name}: {system.name}, set like this, needs no machine with the role "
                             f"{self.role!r}; leave {self.name} out")

    def aim(self, options: Mapping[str, Any]) -> str:
        """Return the rule for the node to cut off from the machine, if it is a single one."""
        wanted = asked_target(self.name, options, ANY_KIND)
        return PRIMARY if wanted == ANY_KIND else wanted  # `plan` draws one of the two

    def plan(self, kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
        """Plan to hit the machine. Raise Infeasible if it does not run, or if no node matches the requested target."""
        found = plan_nodes(self.role, facts, rng)
        (machine,) = found.targets
        if kind == "kill":
            wanted = str(facts.options.get(setting(self.name, "program"), ANY_KIND))
            return plan_programs(FaultPlan(kind, found.targets), wanted, facts, rng)
        if kind == "cut":
            links = [both_ways(facts.topology, machine, node) for node in facts.nodes]
            return FaultPlan(kind, found.targets, frozenset().union(*links), f"from {', '.join(facts.nodes)}")
        wanted = asked_target(self.name, facts.options, ANY_KIND)
        aim = rng.choice((ONE, PRIMARY)) if wanted == ANY_KIND else wanted
        if not facts.eligible():
            raise Infeasible("no node is running")
        node = pick_node(aim, facts, facts.eligible(), rng)
        return FaultPlan(kind, found.targets, both_ways(facts.topology, machine, node), f"from {node}")

    async def inject(self, cluster: Cluster, plan: FaultPlan) -> Evidence:
        """Apply the fault of the plan's kind."""
        return await (self._kill if plan.kind == "kill" else self._cut).inject(cluster, plan)

    async def heal(self, cluster: Cluster, plan: FaultPlan, injected: Evidence) -> Evidence:
        """Undo the fault."""
        return await (self._kill if plan.kind == "kill" else self._cut).heal(cluster, plan, injected)


def _target(family: str) -> Option:
    return aim_option(family, "the node from which it is cut off, if it is a single one", ANY_KIND)


class GatewayFault(_HelperFault):
    """Hits the machine that grants the lock."""

    name = "gateway"
    role = GATEWAY
    drawn = 2
    conflict_group = "lock"  # without a gateway there is no lock to take away
    options = (kind_option("gateway", KINDS), _target("gateway"), Option("gateway_program", ANY_KIND, PROGRAM))


class SharedDatabaseFault(_HelperFault):
    """Hits the machine with the only database.

    ``slow``: each sync of its disk takes longer. ``damage``: noise has replaced a piece of the stored data, and healing
    puts an empty database in its place, as a person without a copy would have to: all its content is lost.
    """

    name = "shared-db"
    role = SHARED_DATABASE
    conflict_group = "shared-db"
    kind_undo: ClassVar[Mapping[str, str]] = {**_HelperFault.kind_undo, "slow": DISK, "damage": DISK}
    kind_needs: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **_HelperFault.kind_needs, "slow": (DISKS,), "damage": (DISKS, KILL),
    }  # fmt: skip
    kind_effects: ClassVar[Mapping[str, frozenset[str]]] = {
        **_HelperFault.kind_effects, "slow": frozenset(),
        "damage": frozenset({MAY_END_PROCESS, LOSES_DATA, LOSES_SYNCED}),
    }  # fmt: skip
    kinds = (*KINDS, "slow")
    aimed_kinds = ("damage",)
    options = (
        kind_option("shared-db", (*KINDS, "slow", "damage")), _target("shared-db"),
        Option("shared_db_program", ANY_KIND, PROGRAM),
    )  # fmt: skip

    def plan(self, kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
        """Plan to hit the machine. Raise Infeasible if it does not run."""
        if kind not in ("slow", "damage"):
            return super().plan(kind, facts, rng)
        targets = plan_nodes(self.role, facts, rng).targets
        if kind == "slow":
            return FaultPlan(kind, targets, disk=DiskFault("slow", round(rng.uniform(0.02, 0.5), 3)))
        return FaultPlan(kind, targets, disk=DiskFault("corrupt"))

    async def inject(self, cluster: Cluster, plan: FaultPlan) -> Evidence:
        """Apply the fault of the plan's kind."""
        if plan.disk is None:
            return await super().inject(cluster, plan)
        disks, (machine,) = disks_of(cluster), plan.targets
        use = await use_of(cluster, plan.targets)
        if plan.kind == "damage":
            await _end(cluster, machine)
        await disks.set_disk(machine, plan.disk)
        shown = await disks.disk_fault_count(machine)
        if plan.kind == "damage":
            await cluster.start_node(machine)
        return Evidence({"shown": shown, "seconds": plan.disk.seconds, **use}, shown > 0)

    async def heal(self, cluster: Cluster, plan: FaultPlan, injected: Evidence) -> Evidence:
        """Undo the fault."""
        if plan.disk is None:
            return await super().heal(cluster, plan, injected)
        disks, (machine,) = disks_of(cluster), plan.targets
        states = await _states(cluster, machine)
        shown = await disks.disk_fault_count(machine)
        repair = ""
        if plan.kind == "damage":
            await _end(cluster, machine)
            await disks.set_disk(machine, DiskFault("empty"))
            repair = f"{machine}: put an empty database in the place of the damaged one; whatever it held is lost"
        await disks.set_disk(machine, None)
        if DEAD in states.values() or plan.kind == "damage":
            await cluster.start_node(machine)
        main = cluster.programs(machine)[0]
        after = (await await_state(cluster.backend, machine, main, RUNNING)).state
        return Evidence({"shown": shown, "before": states, "after": after}, shown > 0, repair)


async def _states(cluster: Cluster, machine: str) -> dict[str, str]:
    programs = cluster.programs(machine)
    found = await asyncio.gather(*(cluster.backend.process(machine, program) for program in programs))
    return {program: state.state for program, state in zip(programs, found, strict=True)}


async def _end(cluster: Cluster, machine: str) -> None:
    """End all programs of a machine, beginning with those that use others."""
    for program in reversed(cluster.programs(machine)):
        await cluster.backend.kill(machine, program)
        await await_state(cluster.backend, machine, program, DEAD)
