"""Crashes that require a person's help: of all nodes at once, or of the serving node. The heal starts the ended
programs and then does what an operator does by the system's manual (``Cluster.recover``). In addition, if the system
supports it, a clean shutdown of all nodes: programs that could not complete it are killed.

Evidence: every program of the targets has ended; for a power loss, the system had files on a disk; for a shutdown,
nodes had shut down cleanly. After the heal the machine is in another boot, or other processes run, a node serves, and
the ledger records the manual actions.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any, ClassVar

from nemesis.facts import await_state
from nemesis.families import PRIMARY, kind_option, wanted_kinds
from nemesis.machine import PowerFault
from nemesis.process import plan_nodes, told
from stormproof.contracts.backend import DEAD, KILL, POWER, RUNNING, ProcessState
from stormproof.contracts.cluster import POLL, Cluster
from stormproof.contracts.fault import ENDS_PROCESS, ClusterFacts, Evidence, Fault, FaultPlan, Infeasible
from stormproof.contracts.system import System
from stormproof.errors import UsageError
from stormproof.history.disk_use import in_use
from stormproof.history.undo import POWER as UNDO_POWER
from stormproof.history.undo import START
from stormproof.test import Test
from stormproof.timeout_scale import timeout_scale

KINDS = ("power", "kill", PRIMARY)
SHUTDOWN = "shutdown"
_RECOVERY_SECONDS = 15.0
"""The time in seconds for an operator to restore service: other faults, which may prevent it, wait for their heal."""

_ENDED_SECONDS = 6.0
"""The time in seconds for programs to end by themselves after a clean shutdown."""

_STARTED_SECONDS = 5.0
"""The time in seconds for programs that ended during the recovery to run again."""

States = dict[str, dict[str, ProcessState]]
"""Machine -> program -> its state."""


class CrashFault(Fault):
    """Takes down all nodes, or the serving one, with all their programs; an operator recovers the system."""

    name = "crash"
    conflict_group = "process"
    kind_undo: ClassVar[Mapping[str, str]] = {"power": UNDO_POWER, "kill": START, PRIMARY: START, SHUTDOWN: START}
    kind_needs: ClassVar[Mapping[str, tuple[str, ...]]] = {"power": (POWER,), "kill": (KILL,), PRIMARY: (KILL,),
                                                          SHUTDOWN: (KILL,)}  # fmt: skip
    effects = frozenset({ENDS_PROCESS})
    kinds = KINDS
    aimed_kinds = (SHUTDOWN,)
    options = (kind_option("crash", (*KINDS, *aimed_kinds)),)

    def check(self, test: Test, system: System) -> None:
        """Raise UsageError if a clean shutdown is requested of a system that does not support it."""
        if SHUTDOWN in wanted_kinds(test, self) and not system.shuts_down(test):
            raise UsageError(f"--nemesis {self.name}: {system.name} has no orderly end; leave {self.name}:{SHUTDOWN} "
                             "out")

    def expects_replica(self, kind: str) -> bool:
        """Return whether a replica must take over, from the former leader."""
        return kind == PRIMARY

    def plan(self, kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
        """Plan to hit all nodes, regardless of ``max_down``, or the master, if one more node may go down."""
        if kind == PRIMARY:
            return plan_nodes(kind, facts, rng)
        if not facts.eligible():
            raise Infeasible("no node is running")
        return FaultPlan(kind, facts.nodes)

    async def inject(self, cluster: Cluster, plan: FaultPlan) -> Evidence:
        """Take the targets down."""
        before = await _states(cluster, plan)
        if plan.kind == "power":
            evidence = await PowerFault().inject(cluster, plan)
        else:
            said = {SHUTDOWN: await cluster.shut_down(recovery_seconds(cluster))} if plan.kind == SHUTDOWN else {}
            if said and said[SHUTDOWN].get("clean"):
                await _ended(cluster, plan)
            await asyncio.gather(*(_end(cluster, node) for node in plan.targets))
            evidence = Evidence(said)
        after = await _states(cluster, plan)
        ran = [(node, name) for node in before for name, state in before[node].items() if state.state == RUNNING]
        confirmed = bool(ran) and all(state.state == DEAD for found in after.values() for state in found.values())
        if plan.kind == "power":
            confirmed = confirmed and in_use(evidence.found)
        if plan.kind == SHUTDOWN:  # without a clean shutdown, it was a kill
            confirmed = confirmed and bool(evidence.found[SHUTDOWN].get("clean"))
        return Evidence({**evidence.found, "before": _told(before), "after": _told(after)}, confirmed)

    async def heal(self, cluster: Cluster, plan: FaultPlan, injected: Evidence) -> Evidence:
        """Start the ended programs, and recover the system."""
        if plan.kind == "power":
            found = dict((await PowerFault().heal(cluster, plan, injected)).found)
        else:
            await asyncio.gather(*(_start(cluster, node) for node in plan.targets))
            found = {}
        loop = asyncio.get_running_loop()
        began = loop.time()
        repair = await cluster.recover(recovery_seconds(cluster))
        seconds = round(loop.time() - began, 3)
        after = await _running(cluster, plan)
        serves = await cluster.primary()
        killed = {(node, name): state for node, programs in injected.found.get("before", {}).items()
                  for name, state in programs.items()}  # fmt: skip
        new = all(state.state == RUNNING and killed.get((node, name)) != told(state)
                  for node, programs in after.items() for name, state in programs.items())  # fmt: skip
        new = new and (plan.kind != "power" or in_use(injected.found))
        return Evidence({**found, "after": _told(after), "serves": serves, "recovered_s": seconds}, new, repair)


def recovery_seconds(cluster: Cluster) -> float:
    """Return the seconds for which an operator may try to restore service."""
    return _RECOVERY_SECONDS * timeout_scale(cluster.backend)


async def _ended(cluster: Cluster, plan: FaultPlan) -> None:
    """Wait until all programs have ended by themselves, or their time for that is over."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _ENDED_SECONDS * timeout_scale(cluster.backend)
    while loop.time() < deadline:
        found = await _states(cluster, plan)
        if all(state.state == DEAD for programs in found.values() for state in programs.values()):
            return
        await asyncio.sleep(POLL)


async def _end(cluster: Cluster, node: str) -> None:
    """End all programs of a node, beginning with those that would restart others."""
    for program in reversed(cluster.programs(node)):
        await cluster.backend.kill(node, program)
        await await_state(cluster.backend, node, program, DEAD)


async def _start(cluster: Cluster, node: str) -> None:
    if any(state.state == DEAD for state in (await _of(cluster, node)).values()):
        await cluster.start_node(node)


async def _states(cluster: Cluster, plan: FaultPlan) -> States:
    return {node: await _of(cluster, node) for node in plan.targets}


async def _running(cluster: Cluster, plan: FaultPlan) -> States:
    """Return the states once all programs run: some may have been restarted to recover the system."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _STARTED_SECONDS * timeout_scale(cluster.backend)
    while True:
        found = await _states(cluster, plan)
        alive = all(state.state == RUNNING for programs in found.values() for state in programs.values())
        if alive or loop.time() >= deadline:
            return found
        await asyncio.sleep(POLL)


async def _of(cluster: Cluster, node: str) -> dict[str, ProcessState]:
    return {program: await cluster.backend.process(node, program) for program in cluster.programs(node)}


def _told(states: States) -> dict[str, dict[str, Any]]:
    return {node: {program: told(state) for program, state in found.items()} for node, found in states.items()}
