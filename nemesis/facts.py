"""The present state of a system, as faults are planned on it, and the choice of targets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

from nemesis.families import LEADER_OF, MAX_DOWN, option_value
from stormproof.contracts.backend import RUNNING, Backend, ProcessState
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.fault import ClusterFacts

PRIMARY = "master"
"""The kind that hits the node that serves."""


def max_down_of(options: Mapping[str, Any], nodes: int) -> int:
    """The most of so many nodes that may be down at once under a test's options.

    Unless these say how many: the most that leave a majority (one, if there are too few for that).
    """
    return int(option_value(options, MAX_DOWN)) or max(1, (nodes - 1) // 2)


def pick_node(kind: str, facts: ClusterFacts, nodes: Sequence[str], rng: random.Random) -> tuple[str, str | None]:
    """One of ``nodes`` by the rule ``master`` or ``leader-of-NAME`` (or else at random), and a note when the rule could
    not be kept."""
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
    return rng.choice(list(nodes)), None


async def gather_facts(cluster: Cluster, kind: str, data_loss: tuple[str, ...] = ()) -> ClusterFacts:
    """The present state of the system; ``data_loss`` is what the family's ``inspect`` found."""
    test, backend = cluster.test, cluster.backend
    nodes, machines = test.node_names, cluster.topology.machines
    programs = {machine: cluster.programs(machine) for machine in machines}
    states = await asyncio.gather(*(backend.process(machine, _lasting(cluster, machine)) for machine in machines))
    running = {machine: await _running(backend, machine, names) for machine, names in programs.items()
               if len(names) > 1}  # fmt: skip
    return ClusterFacts(
        nodes=nodes,
        hosts=dict(zip(nodes, test.client_hosts, strict=True)),
        states={machine: state.state for machine, state in zip(machines, states, strict=True)},
        primary=await cluster.primary() if kind == PRIMARY else None,
        leaders=await cluster.leaders() if kind.startswith(LEADER_OF) else {},
        max_down=max_down_of(test.options, test.nodes),
        options=test.options,
        spares=cluster.spares(),
        groups=tuple(cluster.servers),
        data_loss=data_loss,
        topology=cluster.topology,
        programs=programs,
        running=running,
    )


def _lasting(cluster: Cluster, machine: str) -> str:
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
