"""The present state of a system as the basis for planning faults, and the choice of targets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from nemesis.families import (
    BACKUP,
    FOLLOWER_OF,
    LEADER_OF,
    LINK,
    MAX_DOWN,
    PRIMARY,
    PRIMARY_FROM_MAJORITY,
    canonical,
    option_value,
    setting,
)
from stormproof.apart import left_after
from stormproof.contracts.backend import RUNNING, Backend, ProcessState
from stormproof.contracts.cluster import Cluster, NodeStatus
from stormproof.contracts.fault import ClusterFacts, FaultPlan, Infeasible, NoTarget
from stormproof.contracts.option import Option
from stormproof.timeout_scale import timeout_scale

T = TypeVar("T")

ONE = "one"
_ABOUT_PRIMARY = (PRIMARY, PRIMARY_FROM_MAJORITY, LINK, "remove", "partial")
"""Kinds that depend on the identity of the leader."""
HOLDER = "holder"
"""The node that holds the lock."""
ANSWER_SECONDS = 3.0
"""The time limit in seconds for an answer about the system's state, for which a fault waits; longer on slow machines.
"""
_AIMS_WITHOUT_ROLE = ("", ONE, PRIMARY, BACKUP, HOLDER)


def max_down_of(options: Mapping[str, Any], nodes: int) -> int:
    """Return the maximum number of nodes, of ``nodes`` in total, that may be down at once under a test's options.

    By default: the most that leave a majority (one, if there are too few nodes for that).
    """
    return int(option_value(options, MAX_DOWN)) or max(1, (nodes - 1) // 2)


def pick_node(kind: str, facts: ClusterFacts, nodes: Sequence[str], rng: random.Random) -> str:
    """Pick one of ``nodes`` by the rule ``master``, ``backup``, ``leader-of-NAME`` or ``holder``, by a role that nodes
    report, or else at random.

    Raises:
        NoTarget: the rule needs a leader, and there is none, or it does not run.
        Infeasible: no node matches another rule.
    """
    if facts.named:
        if facts.named not in nodes:
            raise NoTarget(f"{facts.named} is not running")
        return facts.named
    if kind.startswith(LEADER_OF):
        led = kind.removeprefix(LEADER_OF)
        return _running_leader(facts.leaders.get(led), f"nobody leads {led}", f"leads {led}", nodes)
    if kind == PRIMARY:
        return _running_leader(facts.primary, _no_leader(facts), "leads", nodes)
    if kind == BACKUP:
        if facts.primary is None:
            raise NoTarget(_no_leader(facts))
        nodes = _demand(kind, [node for node in nodes if node != facts.primary])
    elif kind == HOLDER:
        if facts.lock is None:
            raise Infeasible("the system reports no lock holder")
        holder = facts.lock.holder
        if holder not in nodes:
            raise Infeasible(f"{holder}, which holds the lock, is not running" if holder else "the lock is free")
        return holder
    elif kind == facts.aim and kind != ONE:
        nodes = _demand(kind, [node for node in nodes if facts.node_roles.get(node) == kind])
    return rng.choice(list(nodes))


def named_node(word: str, facts: ClusterFacts, rng: random.Random) -> str:
    """Return the node that a written schedule names: by its name, as leader, or as a follower of an object's leader.

    Raises:
        NoTarget: there is no such node now.
    """
    if word in facts.nodes:
        return word
    if word.startswith(FOLLOWER_OF):
        leader = facts.leaders.get(word.removeprefix(FOLLOWER_OF))
        if leader is None:
            raise NoTarget(f"nobody leads {word.removeprefix(FOLLOWER_OF)}")
        followers = [node for node in group_of(leader, facts) if node != leader and node in facts.eligible()]
        if not followers:
            raise NoTarget(f"no node but {leader} is running")
        return rng.choice(followers)
    return pick_node(canonical(word), facts, facts.eligible(), rng)


def _running_leader(leader: str | None, nobody: str, leads: str, nodes: Sequence[str]) -> str:
    if leader is None:
        raise NoTarget(nobody)
    if leader not in nodes:
        raise NoTarget(f"{leader}, which {leads}, is not running")
    return leader


def _no_leader(facts: ClusterFacts) -> str:
    """Return why no node leads alone."""
    if len(facts.rivals) < 2:
        return "nobody leads"
    return f"{' and '.join(facts.rivals)} {'both' if len(facts.rivals) == 2 else 'all'} say that they lead"


def _demand(role: str, nodes: Sequence[str]) -> Sequence[str]:
    if not nodes:
        raise Infeasible(f"none of the nodes that run is {role}")
    return nodes


def with_replica(plan: FaultPlan, facts: ClusterFacts, told: bool) -> FaultPlan:
    """Return the plan of a fault that expects a replica, marked as unmet if no replica has joined in the group that it
    hits. A group of one node needs none. ``told``: the system reports joined replicas; otherwise the plan is marked as
    unchecked."""
    hit = next((node for node in plan.targets if node in facts.nodes), None)
    group = () if hit is None else [node for node in group_of(hit, facts) if node not in facts.spares]
    if len(group) < 2:
        return plan
    if not told:
        return replace(plan, unchecked="whether a replica had joined, which the system does not tell")
    if facts.joined is None or set(group) & set(facts.joined):
        return plan
    return replace(plan, unmet="no replica has joined")


def group_of(node: str, facts: ClusterFacts) -> tuple[str, ...]:
    """Return the nodes that hold the same data as this one, including itself."""
    return next((group for group in facts.groups if node in group), facts.nodes)


def aim_option(family: str, meaning: str, default: str = ONE) -> Option:
    """Return the option ``<family>_target``: the node to hit, for a family whose kinds specify the effect."""
    rules = f"{meaning}: one node's, the leading one's, that of another one, or of a role that nodes report"
    return Option(setting(family, "target"), default, rules, (ONE, PRIMARY, BACKUP), extensible=True)


def asked_target(family: str, options: Mapping[str, Any], default: str = ONE) -> str:
    """Return the value of the option ``<family>_target``."""
    return canonical(str(options.get(setting(family, "target"), default)))


async def gather_facts(cluster: Cluster, kind: str, data_loss: tuple[str, ...] = (), aim: str = "",
                       replicas: bool = False) -> ClusterFacts:  # fmt: skip
    """Return the present state of the system.

    ``data_loss`` is the result of the family's ``inspect``, ``aim`` is its ``Fault.aim``. With ``replicas``, nodes are
    queried for whether they have joined; a query for the leader reports that, too.
    """
    test, backend = cluster.test, cluster.backend
    nodes, machines = test.node_names, cluster.topology.machines
    programs = {machine: cluster.programs(machine) for machine in machines}
    states = await asyncio.gather(*(backend.process(machine, lasting(cluster, machine)) for machine in machines))
    running = {machine: await _running(backend, machine, names) for machine, names in programs.items()
               if len(names) > 1}  # fmt: skip
    of_object = any(word.startswith((LEADER_OF, FOLLOWER_OF)) for word in (kind, aim))
    by_leader = kind in _ABOUT_PRIMARY or aim in (PRIMARY, BACKUP)
    by_role = aim not in _AIMS_WITHOUT_ROLE and not aim.startswith((LEADER_OF, FOLLOWER_OF))
    statuses = await _statuses(cluster) if by_leader or by_role or replicas else []
    primary = cluster.leading(statuses) if by_leader else None
    return ClusterFacts(
        nodes=nodes,
        hosts=dict(zip(nodes, test.client_hosts, strict=True)),
        states={machine: state.state for machine, state in zip(machines, states, strict=True)},
        primary=primary,
        rivals=cluster.claimants(statuses) if by_leader and primary is None else (),
        leaders=(await _answer(cluster, cluster.leaders()) or {}) if of_object else {},
        max_down=max_down_of(test.options, test.nodes),
        options=test.options,
        spares=cluster.spares(),
        groups=tuple(cluster.servers),
        data_loss=data_loss,
        topology=cluster.topology,
        programs=programs,
        running=running,
        aim=aim,
        node_roles={each.node: each.role for each in statuses if each.reachable} if by_role else {},
        joined=cluster.joined(statuses) if statuses else None,
        program_roles=cluster.program_roles(),
        lock=await _answer(cluster, cluster.lock()) if aim == HOLDER else None,
        private_networks=cluster.private_networks(),
    )


async def _statuses(cluster: Cluster) -> list[NodeStatus]:
    """Return the nodes' statuses; a node that does not answer in time is unreachable."""
    if cluster.backend.in_process:
        return await cluster.statuses()
    told = await asyncio.gather(*(_answer(cluster, cluster.status(node)) for node in cluster.node_names))
    return [status or NodeStatus(node, reachable=False) for node, status in zip(cluster.node_names, told, strict=True)]


async def _answer(cluster: Cluster, question: Awaitable[T]) -> T | None:
    """Return the answer to a query about the system; None if there was none in time."""
    if cluster.backend.in_process:
        return await question
    try:
        return await left_after(ANSWER_SECONDS * timeout_scale(cluster.backend), question)
    except TimeoutError:
        return None


def lasting(cluster: Cluster, machine: str) -> str:
    """Return the program that indicates whether a machine is down: one that only the harness starts, if there is one.
    """
    programs = cluster.programs(machine)
    if len(programs) == 1:
        return programs[0]
    return next((name for name in programs if not cluster.restarted(machine, name)), programs[0])


async def _running(backend: Backend, machine: str, programs: Sequence[str]) -> tuple[str, ...]:
    states = await asyncio.gather(*(backend.process(machine, name) for name in programs))
    return tuple(name for name, state in zip(programs, states, strict=True) if state.state == RUNNING)


async def await_state(
    backend: Backend, machine: str, program: str, state: str, timeout: float = 5.0
) -> ProcessState:
    """Return the state of a program once it is ``state``, or its state after ``timeout`` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while True:
        found = await backend.process(machine, program)
        if found.state == state or loop.time() >= deadline:
            return found
        await asyncio.sleep(0.02)
