"""The resources and the work of nodes that nobody uses, observed at the end of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from harness.run.traffic import dialled_between, since, work_done
from nemesis.membership import MembershipFault
from stormproof.contracts.backend import CountsFrames, Holding
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.topology import Topology
from stormproof.generator.core import SECOND
from stormproof.test import Test

REST_SECONDS = 3.0
"""Seconds, in addition to twice the system's longest time-out, after which unused nodes are idle. The time-outs after
which abandoned connections are closed have also expired then."""


def holdings(backend: Holding, topology: Topology) -> dict[str, dict[str, int]]:
    """Return the resources that each machine's programs hold."""
    return {node: dict(backend.holdings(node)) for node in topology.machines}


async def resting_state(test: Test, backend: Holding, topology: Topology, cluster: Cluster, timeouts: Iterable[str],
                        clock: Callable[[], int]) -> dict[str, Any]:
    """Return the resources that the nodes hold after some time without use, and their work, if it can be counted.

    ``timeouts`` are the options that are time-outs of the system.
    """
    longest = max((float(test.options[name]) for name in timeouts), default=0.0)
    await asyncio.sleep(max(2 * longest, cluster.linger))
    counts = backend if isinstance(backend, CountsFrames) else None
    begun = (counts.sent(), counts.written(), counts.dialled()) if counts is not None else None
    await asyncio.sleep(REST_SECONDS)
    outside = await _outside(test, cluster)
    found: dict[str, Any] = {
        "rest": {node: held for node, held in holdings(backend, topology).items() if node not in outside}
    }
    if counts is not None and begun is not None:
        sent, written, dialled = begun
        machines, now = topology.machines, counts.written()
        inside = [machine for machine in machines if machine not in outside]
        found["work"] = work_done(counts.sent(), machines, clock() / SECOND)
        found["work"]["rest"] = {
            "machines": work_done(since(counts.sent(), sent), machines, REST_SECONDS)["machines"],
            "seconds": REST_SECONDS, "dialled": dialled_between(counts.dialled(), dialled, inside),
            "writes": {machine: now[machine] - written.get(machine, 0) for machine in inside if machine in now}}
    return found


async def _outside(test: Test, cluster: Cluster) -> set[str]:
    """Return the nodes outside the group, if the system knows its members. A node whose addition was broken off keeps
    its resources until it is added again."""
    if not cluster.spares() and MembershipFault.name not in test.nemesis:
        return set()
    members = {*(await cluster.members())}
    return {node for server in cluster.servers if members & {*server} for node in server} - members
