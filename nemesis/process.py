"""Faults of a machine's programs: pause (they stop for a while) and kill (they end and are started again).

The evidence is the operating system's state of the process before and after. If a machine runs several programs, each
fault hits one of them; a role of helper machines is also a kind.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nemesis.facts import ONE, await_state, pick_node
from nemesis.families import ANY_KIND, LEADER_OF, MAX_DOWN, PRIMARY, kind_option
from stormproof.contracts.backend import DEAD, KILL, PAUSE, PAUSED, RUNNING, ProcessState
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.draw import Draw
from stormproof.contracts.fault import (
    ENDS_PROCESS,
    STOPS_TIME,
    ClusterFacts,
    Evidence,
    Fault,
    FaultPlan,
    Infeasible,
)
from stormproof.contracts.option import Option
from stormproof.history.disk_use import STORES_NOTHING
from stormproof.history.undo import RESUME, START

KINDS = (ONE, "master", "random")
PROGRAM = ("program of a machine that runs several: its name, or any in turn (of the leading node: the program that "
           "leads)")


def process_options(family: str) -> tuple[Option, ...]:
    """Return the options of a family that hits programs."""
    return kind_option(family, KINDS, roles=True), Option(f"{family}_program", ANY_KIND, PROGRAM), MAX_DOWN


def plan_nodes(kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
    """Choose running nodes to take down: one, the master, a random number of them, or the helpers with a role.

    Raises:
        Infeasible: none runs, or as many as allowed are down already.
    """
    if helpers := facts.helpers(kind):
        up = tuple(helper for helper in helpers if facts.states[helper] == RUNNING)
        if not up:
            raise Infeasible(f"no {kind} is running")
        return FaultPlan(kind, up)
    running, allowed = facts.eligible(), facts.may_go_down()
    if not running:
        raise Infeasible("no node is running")
    if facts.named:
        node = pick_node(kind, facts, running, rng)
        return FaultPlan(kind, (node,), note=_beyond(facts))
    if allowed < 1:
        down = len(facts.nodes) - len(running)
        raise Infeasible(f"{down} of {len(facts.nodes)} nodes are down already, max_down is {facts.max_down}")
    if kind == "random":
        chosen = rng.sample(running, rng.randint(1, min(allowed, len(running))))
        return FaultPlan(kind, tuple(node for node in facts.nodes if node in chosen))
    return FaultPlan(kind, (pick_node(kind, facts, running, rng),))


def _beyond(facts: ClusterFacts) -> str | None:
    """Return how a fault that a written schedule aims at a node exceeds ``max_down``; None if it does not."""
    down = facts.max_down - facts.may_go_down()
    if down < facts.max_down:
        return None
    return f"beyond max_down={facts.max_down}, as the schedule says: {down} of {len(facts.nodes)} nodes were down"


def plan_programs(plan: FaultPlan, wanted: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
    """Return the plan with the program to hit, if the targets have several: one that runs now on all of them.

    Raises:
        Infeasible: a target has no program of the wanted name, or it does not run.
    """
    common = [name for name in facts.programs.get(plan.targets[0], ())
              if all(name in facts.programs[target] for target in plan.targets)]  # fmt: skip
    if wanted not in (ANY_KIND, *common):
        raise Infeasible(f"{', '.join(plan.targets)} run no program {wanted!r} (but: {', '.join(common)})")
    if len(common) < 2:
        return plan if wanted == ANY_KIND else replace(plan, program=wanted)
    running = [name for name in common if _runs(name, plan, facts)]
    if wanted == ANY_KIND and (plan.kind == PRIMARY or plan.kind.startswith(LEADER_OF)):
        wanted = common[0]  # the leader is the node's main program, not the one next to it
    chosen = rng.choice(running or common) if wanted == ANY_KIND else wanted
    if not _runs(chosen, plan, facts):
        raise Infeasible(f"{', '.join(plan.targets)}: {chosen} is not running")
    return replace(plan, program=chosen)


def _runs(program: str, plan: FaultPlan, facts: ClusterFacts) -> bool:
    return all(program in facts.running.get(target, (program,)) for target in plan.targets)


class PauseFault(Fault):
    """Stops the processes of a program with SIGSTOP and resumes them with SIGCONT."""

    name = "pause"
    conflict_group = "process"
    undo = RESUME
    needs = (PAUSE,)
    effects = frozenset({STOPS_TIME})
    aims_at_roles = True
    kinds = KINDS
    named_kinds = (ONE,)
    overlaps = True
    draws = (Draw("pause_kind", ("master", "master", "random"), 0.5),)
    options = process_options("pause")

    def expects_replica(self, kind: str) -> bool:
        """Return True: replicas continue without the targets."""
        return True

    def plan(self, kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
        """Choose running nodes, at most as many as may go down."""
        return plan_programs(plan_nodes(kind, facts, rng), _wanted("pause", facts), facts, rng)

    async def inject(self, cluster: Cluster, plan: FaultPlan) -> Evidence:
        """Stop the targets."""
        backend = cluster.backend
        before = await states_of(cluster, plan)
        await asyncio.gather(*(backend.pause(node, program_on(cluster, node, plan)) for node in plan.targets))
        after = await states_of(cluster, plan, PAUSED)
        confirmed = all(
            before[node].state == RUNNING and after[node] == replace(before[node], state=PAUSED)
            for node in plan.targets
        )
        return Evidence(state_evidence(before, after, plan), confirmed)

    async def heal(self, cluster: Cluster, plan: FaultPlan, injected: Evidence) -> Evidence:
        """Resume the targets; they must have been stopped until now."""
        backend = cluster.backend
        before = await states_of(cluster, plan)
        await asyncio.gather(*(
            backend.resume(node, program_on(cluster, node, plan))
            for node in plan.targets if before[node].state != DEAD
        ))  # fmt: skip
        after = await states_of(cluster, plan, RUNNING)
        confirmed = all(before[n].state == PAUSED and after[n].state == RUNNING for n in plan.targets)
        return Evidence(state_evidence(before, after, plan), confirmed)


class KillFault(Fault):
    """Ends the processes of a program with SIGKILL; healing starts it again, unless the system does so itself."""

    name = "kill"
    conflict_group = "process"
    undo = START
    needs = (KILL,)
    effects = frozenset({ENDS_PROCESS})
    aims_at_roles = True
    kinds = KINDS
    named_kinds = (ONE,)
    overlaps = True
    draws = (Draw("kill_kind", ("master", "master", "random"), 0.5),)
    options = process_options("kill")

    def expects_replica(self, kind: str) -> bool:
        """Return True: replicas continue without the targets."""
        return True

    def plan(self, kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
        """Choose running nodes, at most as many as may go down."""
        return plan_programs(plan_nodes(kind, facts, rng), _wanted(self.name, facts), facts, rng)

    async def end(self, cluster: Cluster, node: str, program: str) -> None:
        """End one program."""
        await cluster.backend.kill(node, program)

    async def inject(self, cluster: Cluster, plan: FaultPlan) -> Evidence:
        """End the targets: each process must be gone, even if another one has been started since."""
        before = await states_of(cluster, plan)
        await asyncio.gather(*(self.end(cluster, node, program_on(cluster, node, plan)) for node in plan.targets))
        # If the system restarts the program, its dead state may never be observed.
        after = await states_of(cluster, plan, DEAD, [n for n in plan.targets if not restarts(cluster, n, plan)])
        confirmed = all(before[n].state == RUNNING and ended(before[n], after[n]) for n in plan.targets)
        declared = {node: why for node in plan.targets if (why := cluster.stores_nothing(node))}
        found = state_evidence(before, after, plan) | ({STORES_NOTHING: declared} if declared else {})
        return Evidence(found, confirmed)

    async def heal(self, cluster: Cluster, plan: FaultPlan, injected: Evidence) -> Evidence:
        """Start the targets that are dead; each must come up as a new process."""
        before = await states_of(cluster, plan)
        await asyncio.gather(*(
            cluster.start_program(n, program_on(cluster, n, plan))
            for n in plan.targets if before[n].state == DEAD and not restarts(cluster, n, plan)
        ))  # fmt: skip
        after = await states_of(cluster, plan, RUNNING)
        killed: Mapping[str, Any] = injected.found.get("before", {})
        confirmed = all(
            after[node].state == RUNNING and node in killed and told(after[node]) != killed[node]
            for node in plan.targets
        )
        return Evidence(state_evidence(before, after, plan), confirmed)


def _wanted(family: str, facts: ClusterFacts) -> str:
    return str(facts.options.get(f"{family}_program", ANY_KIND))


def program_on(cluster: Cluster, machine: str, plan: FaultPlan) -> str:
    """Return the program that a fault hits on one of its targets."""
    return plan.program or cluster.programs(machine)[0]


def restarts(cluster: Cluster, machine: str, plan: FaultPlan) -> bool:
    """Return whether the system itself restarts the program that a fault hits on one of its targets."""
    return cluster.restarted(machine, program_on(cluster, machine, plan))


def ended(before: ProcessState, after: ProcessState) -> bool:
    """Return whether a process is gone: it is dead, or another one has replaced it."""
    return after.state == DEAD or (after.pid, after.born) != (before.pid, before.born)


async def states_of(
    cluster: Cluster, plan: FaultPlan, awaited: str = "", waiting: Sequence[str] | None = None,
    program: Callable[[str], str] | None = None,
) -> dict[str, ProcessState]:
    """Return the states of the targets' programs, each once it matches ``awaited`` or a time limit has passed.
    ``waiting`` are the targets to wait for, by default all; ``program`` selects a target's program, by default the one
    that is hit."""
    backend = cluster.backend
    where = [(node, program(node) if program else program_on(cluster, node, plan)) for node in plan.targets]
    reads = (
        await_state(backend, *place, awaited)
        if awaited and (waiting is None or place[0] in waiting)
        else backend.process(*place)
        for place in where
    )
    return dict(zip(plan.targets, await asyncio.gather(*reads), strict=True))


def told(state: ProcessState) -> dict[str, Any]:
    """Return a state as evidence."""
    return {"state": state.state, "pid": state.pid} | ({"born": state.born} if state.born else {})


def state_evidence(
    before: Mapping[str, ProcessState], after: Mapping[str, ProcessState], plan: FaultPlan
) -> dict[str, Any]:
    """Return both as evidence, and the program that was hit if its machine has several."""
    found: dict[str, Any] = {"program": plan.program} if plan.program else {}
    for name, states in (("before", before), ("after", after)):
        found[name] = {node: told(state) for node, state in states.items()}
    return found
