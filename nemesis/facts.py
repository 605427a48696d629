"""The present state of a system, as faults are planned on it, and the choice of targets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

from nemesis.families import LEADER_OF, MAX_DOWN, option_value, setting
from stormproof.contracts.backend import RUNNING, Backend, ProcessState
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.fault import ClusterFacts, Infeasible
from stormproof.contracts.option import Option

PRIMARY = "master"
"""The kind that hits the node that serves."""
PRIMARY_FROM_MAJORITY = "master-from-majority"
"""The kind that cuts the node that serves, and others with it up to a minority, off from the majority."""
LINK = "link"
"""The kind that hits what joins the node that serves and one other."""
BACKUP = "backup"
"""A node that does not serve."""
ONE = "one"
_ABOUT_PRIMARY = (PRIMARY, PRIMARY_FROM_MAJORITY, LINK, "remove", "partial")
"""Kinds for which it must be known who serves."""
HOLDER = "holder"
"""The node that holds the lock."""


def max_down_of(options: Mapping[str, Any], nodes: int) -> int:
    """The most of so many nodes that may be down at once under a test's options.

    Unless these say how many: the most that leave a majority (one, if there are too few for that).
    """
    return int(option_value(options, MAX_DOWN)) or max(1, (nodes - 1) // 2)


def pick_node(kind: str, facts: ClusterFacts, nodes: Sequence[str], rng: random.Random) -> tuple[str, str | None]:
    """One of ``nodes`` by the rule ``master`` or ``leader-of-NAME`` (or else at random), and a note when the rule could
    not be kept.

    Raises:
        Infeasible: the rule is ``backup``, ``holder``, or a role that nodes tell, and none of them is that.
    """
    if kind.startswith(LEADER_OF):
        led = kind.removeprefix(LEADER_OF)
        if (leader := facts.leaders.get(led)) in nodes:
            return str(leader), None
        why = f"nobody leads {led}" if leader is None else f"{leader}, which leads {led}, is not running"
        node = rng.choice(list(nodes))
        return node, f"{why}; took {node} instead"
    if kind == PRIMARY:
        if facts.primary is not None and facts.primary in nodes:
            return facts.primary, None
        why = "no master answered" if facts.primary is None else f"the master {facts.primary} is not running"
        node = rng.choice(list(nodes))
        return node, f"{why}; took {node} instead"
    if kind == BACKUP:
        others = _demand(kind, [node for node in nodes if node != facts.primary])
        node = rng.choice(others)
        return node, None if facts.primary is not None else f"nobody serves; took {node}"
    if kind == HOLDER:
        holder = facts.lock.holder if facts.lock is not None else ""
        if holder not in nodes:
            raise Infeasible(f"{holder}, which holds the lock, is not running" if holder else "nobody holds the lock")
        return holder, None
    if kind == facts.aim and kind != ONE:
        nodes = _demand(kind, [node for node in nodes if facts.node_roles.get(node) == kind])
    return rng.choice(list(nodes)), None


def _demand(role: str, nodes: Sequence[str]) -> Sequence[str]:
    if not nodes:
        raise Infeasible(f"none of the nodes that run is {role}")
    return nodes


def aim_option(family: str, meaning: str, default: str = ONE) -> Option:
    """The option ``<family>_target``: which node a family hits whose kinds tell what happens to it."""
    rules = f"{meaning}: one node's, the serving one's, that of one beside it, or of a role that nodes tell"
    return Option(setting(family, "target"), default, rules, (ONE, PRIMARY, BACKUP), extensible=True)


async def gather_facts(cluster: Cluster, kind: str, data_loss: tuple[str, ...] = (), aim: str = "") -> ClusterFacts:
    """The present state of the system; ``data_loss`` is what the family's ``inspect`` found, ``aim`` its ``Fault.aim``.
    """
    test, backend = cluster.test, cluster.backend
    nodes, machines = test.node_names, cluster.topology.machines
    programs = {machine: cluster.programs(machine) for machine in machines}
    states = await asyncio.gather(*(backend.process(machine, lasting(cluster, machine)) for machine in machines))
    running = {machine: await _running(backend, machine, names) for machine, names in programs.items()
               if len(names) > 1}  # fmt: skip
    return ClusterFacts(
        nodes=nodes,
        hosts=dict(zip(nodes, test.client_hosts, strict=True)),
        states={machine: state.state for machine, state in zip(machines, states, strict=True)},
        primary=await cluster.primary() if kind in _ABOUT_PRIMARY or aim in (PRIMARY, BACKUP) else None,
        leaders=await cluster.leaders() if kind.startswith(LEADER_OF) else {},
        max_down=max_down_of(test.options, test.nodes),
        options=test.options,
        spares=cluster.spares(),
        groups=tuple(cluster.servers),
        data_loss=data_loss,
        topology=cluster.topology,
        programs=programs,
        running=running,
        aim=aim,
        node_roles=await _node_roles(cluster) if aim not in ("", ONE, PRIMARY, BACKUP, HOLDER) else {},
        program_roles=cluster.program_roles(),
        lock=await cluster.lock() if aim == HOLDER else None,
        private_networks=cluster.private_networks(),
    )


async def _node_roles(cluster: Cluster) -> dict[str, str]:
    return {status.node: status.role for status in await cluster.statuses() if status.reachable}


def lasting(cluster: Cluster, machine: str) -> str:
    """The program that tells whether a machine is down: one that nobody but the harness starts, if there is one."""
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
    """The state of a program once it is ``state``, or what it is after ``timeout`` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while True:
        found = await backend.process(machine, program)
        if found.state == state or loop.time() >= deadline:
            return found
        await asyncio.sleep(0.02)
