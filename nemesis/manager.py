"""Faults of managers: programs next to the nodes' main programs that start and end them, and decide which node serves.

``manager`` hits one manager but not the program that it manages; ``quorum`` hits a majority, so that every node's main
program has to end. Both are for systems with a program of the role ``MANAGER``. Evidence is that of the fault applied
to the managers; for ``quorum`` also that the managed programs have ended.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from nemesis.crash import recovery_seconds
from nemesis.cuts import everywhere
from nemesis.facts import ONE, aim_option, asked_target
from nemesis.families import ANY_KIND, MAX_DOWN, PRIMARY, kind_option
from nemesis.partition import CUT, PartitionFault
from nemesis.process import KillFault, PauseFault, ended, plan_nodes, told
from stormproof.contracts.backend import KILL, LINKS, PAUSE, RUNNING, ProcessState
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.fault import MAY_END_PROCESS, ClusterFacts, Evidence, Fault, FaultPlan, Infeasible
from stormproof.contracts.system import MANAGER, System
from stormproof.errors import UsageError
from stormproof.history.undo import NETWORK, RESUME, START
from stormproof.test import Test
from stormproof.timeout_scale import timeout_scale

KINDS = ("kill", "pause", "cut")
PROGRAMS_END_SECONDS = 6.0
"""The time in seconds for which managers stay unavailable beyond the fault's planned end, until the managed programs
have ended."""
_POLL_SECONDS = 0.05


class _ManagerFault(Fault):
    """The common part of both families: a manager is killed, paused, or cut off, depending on the kind."""

    conflict_group = "process"
    kind_undo: ClassVar[Mapping[str, str]] = {"kill": START, "pause": RESUME, "cut": NETWORK}
    kind_needs: ClassVar[Mapping[str, tuple[str, ...]]] = {"kill": (KILL,), "pause": (PAUSE,), "cut": (LINKS,)}
    effects = frozenset({MAY_END_PROCESS})
    kinds = KINDS

    def __init__(self) -> None:
        self._by_kind: Mapping[str, Fault] = {
            "kill": KillFault(), "pause": PauseFault(), "cut": PartitionFault(self.name)}  # fmt: skip

    def expects_replica(self, kind: str) -> bool:
        """Return True: managers promote a replica."""
        return True

    def check(self, test: Test, system: System) -> None:
        """Raise UsageError unless the system has managers."""
        if MANAGER not in system.program_roles(test):
            raise UsageError(f"--nemesis {self.name}: {system.name}, set like this, runs no program with the role "
                             f"{MANAGER!r} on its nodes; leave {self.name} out")

    async def inject(self, cluster: Cluster, plan: FaultPlan) -> Evidence:
        """Apply the fault of the plan's kind to the managers."""
        return await self._by_kind[plan.kind].inject(cluster, plan)

    async def heal(self, cluster: Cluster, plan: FaultPlan, injected: Evidence) -> Evidence:
        """Undo the fault."""
        return await self._by_kind[plan.kind].heal(cluster, plan, injected)


class ManagerFault(_ManagerFault):
    """Hits one manager but not the program that it manages; ``cut``: the two can't hear each other."""

    name = "manager"
    options = (kind_option("manager", KINDS), aim_option("manager", "whose manager is hit", ANY_KIND), MAX_DOWN)

    def aim(self, options: Mapping[str, Any]) -> str:
        """Return the rule for the node whose manager is hit."""
        wanted = asked_target(self.name, options, ANY_KIND)
        return PRIMARY if wanted == ANY_KIND else wanted  # `plan` draws one of the two

    def plan(self, kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
        """Choose a node whose manager runs, if one more may go down; raise Infeasible if there is none."""
        wanted = asked_target(self.name, facts.options, ANY_KIND)
        aim = rng.choice((ONE, PRIMARY)) if wanted == ANY_KIND else wanted
        found = plan_nodes(aim, replace(facts, nodes=_managed(facts)), rng)
        program, (node,) = facts.program_roles[MANAGER], found.targets
        if program not in facts.running.get(node, (program,)):
            raise Infeasible(f"{node}: its {program} is not running")
        cut = everywhere(facts.topology, node, node) if kind == "cut" else frozenset()
        return FaultPlan(kind, found.targets, cut, program=program)


class QuorumFault(_ManagerFault):
    """Takes a majority of managers away; ``cut``: from each other and from the rest. An operator recovers the system.
    """

    name = "quorum"
    options = (kind_option("quorum", KINDS),)

    def plan(self, kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
        """Choose a majority, regardless of ``max_down``.

        Raises:
            Infeasible: fewer managers run, or no managed program does.
        """
        program = facts.program_roles[MANAGER]
        managed = _managed(facts)
        running = [node for node in managed if program in facts.running.get(node, (program,))]
        needed = len(managed) // 2 + 1
        if len(running) < needed:
            raise Infeasible(f"only {len(running)} of {len(managed)} managers run")
        if not any(set(facts.running.get(node, ())) - {program} for node in managed):
            raise Infeasible("nothing runs that managers look after")
        chosen = rng.sample(running, needed)
        targets = tuple(node for node in facts.nodes if node in chosen)
        cut = frozenset(link for a in facts.nodes for b in facts.nodes if a != b and {a, b} & set(targets)
                        for link in everywhere(facts.topology, a, b))  # fmt: skip
        return FaultPlan(kind, targets, cut if kind == "cut" else frozenset(), program=program)

    async def inject(self, cluster: Cluster, plan: FaultPlan) -> Evidence:
        """Take the managers away; the heal finds out whether that was enough."""
        before = await _looked_after(cluster)
        evidence = await super().inject(cluster, plan)
        # If another fault had cut some of the links before, it is enough that they are cut.
        away = evidence.confirmed or (plan.kind == "cut" and all(
            after == CUT for _, after in evidence.found["probe"].values()))  # fmt: skip
        return Evidence({**evidence.found, "away": away, "looked after": _as_evidence(before)})

    async def heal(self, cluster: Cluster, plan: FaultPlan, injected: Evidence) -> Evidence:
        """Wait for the end of the managed programs, bring the managers back, and have an operator recover the system.
        """
        before = {node: ProcessState(**state) for node, state in injected.found.get("looked after", {}).items()
                  if state["state"] == RUNNING}  # fmt: skip
        after = await _await_end(cluster, before)
        done = await super().heal(cluster, plan, injected)
        repair = await cluster.recover(recovery_seconds(cluster))
        over = [node for node, state in after.items() if ended(before[node], state)]
        found = {**done.found, "ended": over, "serves": await cluster.primary()}
        return Evidence(found, bool(injected.found.get("away")) and bool(over) and len(over) == len(before), repair)


def _managed(facts: ClusterFacts) -> tuple[str, ...]:
    """Return the nodes that have a manager."""
    return tuple(node for node in facts.nodes if facts.program_roles[MANAGER] in facts.programs.get(node, ()))


async def _looked_after(cluster: Cluster) -> dict[str, ProcessState]:
    """Return the state of the first program of each node that has a manager."""
    manager = cluster.program_roles()[MANAGER]
    nodes = [node for node in cluster.node_names if manager in cluster.programs(node)]
    states = await asyncio.gather(*(cluster.backend.process(node, cluster.programs(node)[0]) for node in nodes))
    return dict(zip(nodes, states, strict=True))


async def _await_end(cluster: Cluster, before: Mapping[str, ProcessState]) -> dict[str, ProcessState]:
    """Wait until all these processes have ended, or until patience runs out; return the programs' states then."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PROGRAMS_END_SECONDS * timeout_scale(cluster.backend)
    while True:
        now = await _looked_after(cluster)
        if loop.time() >= deadline or all(ended(state, now[node]) for node, state in before.items()):
            return {node: now[node] for node in before}
        await asyncio.sleep(_POLL_SECONDS)


def _as_evidence(states: Mapping[str, ProcessState]) -> dict[str, dict[str, Any]]:
    return {node: told(state) for node, state in states.items()}
