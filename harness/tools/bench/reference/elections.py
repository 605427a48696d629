"""The duration of design icestorm's elections: by the size of the group, and after faults.

``python -m harness.tools.bench.reference.elections BACKEND NODES TIMEOUT FAULTS`` is the child that holds real nodes;
it prints one JSON object. ``on_nodes`` starts it.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from harness.run.settings import make_test
from harness.sim.loop import simulation
from harness.tools.bench.child import measured
from harness.tools.bench.reference.nodes import healthy, provisioned
from nodes.systems.reference.cluster import ReferenceCluster
from stormproof.contracts.cluster import MAIN
from stormproof.errors import StormproofError
from stormproof.test import Test

SIZES = (3, 5, 7, 15, 31)
REAL_SIZES = (3, 5, 7)
SEEDS = 5
ROUNDS = 3
START, KILL, PAUSE, PARTITION = "start", "kill", "pause", "partition"
FAULTS = (KILL, PAUSE, PARTITION)
_LIMIT_SECONDS = 60.0
_CHILD_LIMIT_SECONDS = 300


def convergence(size: int) -> tuple[float, float]:
    """Return the median simulated seconds until a group of ``size`` replicas is normal.

    The first figure is for the start of all replicas, the second for the rest after the kill of their coordinator.
    Time-outs have their defaults (1 s).
    """
    found = [_simulated(size, seed) for seed in range(1, SEEDS + 1)]
    return statistics.median(start for start, _ in found), statistics.median(again for _, again in found)


def _simulated(size: int, seed: int) -> tuple[float, float]:
    with simulation() as loop:
        task = loop.create_task(_start_and_kill(_test("sim", size, seed, 1.0)))
        found: tuple[float, float] = loop.run_until_complete(task)
    return found


async def _start_and_kill(test: Test) -> tuple[float, float]:
    async with provisioned(test) as cluster:
        began = asyncio.get_running_loop().time()
        await cluster.start()
        started = await _until_normal(cluster, test.node_names) - began
        hit, others = test.node_names[-1], test.node_names[:-1]
        began = asyncio.get_running_loop().time()
        await cluster.backend.kill(hit, MAIN)
        return started, await _until_normal(cluster, others, without=hit) - began


def on_nodes(backend: str, nodes: int, timeout: float, faults: Sequence[str] = FAULTS) -> Mapping[str, float]:
    """Return, for each fault, the median seconds on real nodes until the other replicas are a normal group again.

    The fault hits the group's coordinator. ``start`` is the time from the start of the first process until all are a
    normal group. The election's time-outs are ``timeout``.

    Raises:
        StormproofError: the child failed.
    """
    found: dict[str, float] = measured("reference.elections", backend, str(nodes), str(timeout), *faults,
                                       seconds=_CHILD_LIMIT_SECONDS)
    return found


async def _measured(backend_name: str, nodes: int, timeout: float, faults: Sequence[str]) -> dict[str, float]:
    test = _test(backend_name, nodes, 1, timeout)
    loop = asyncio.get_running_loop()
    times: dict[str, list[float]] = {what: [] for what in (START, *faults)}
    async with provisioned(test) as cluster:
        await cluster.install()
        began = loop.time()
        await cluster.start()
        times[START].append(await _until_normal(cluster, test.node_names) - began)
        for _ in range(ROUNDS):
            for fault in faults:
                await healthy(cluster)
                hit = await cluster.primary()
                if hit is None:
                    raise StormproofError("the group has no coordinator")
                heal = await _inject(fault, cluster, hit)
                began = loop.time()
                others = [node for node in test.node_names if node != hit]
                times[fault].append(await _until_normal(cluster, others, without=hit) - began)
                await heal()
    return {fault: statistics.median(found) for fault, found in times.items()}


async def _inject(fault: str, cluster: ReferenceCluster, hit: str) -> Callable[[], Awaitable[None]]:
    """Inject a fault into a node; returns the function that heals it."""
    backend = cluster.backend
    if fault == KILL:
        await backend.kill(hit, MAIN)
        return lambda: cluster.start_node(hit)
    if fault == PAUSE:
        await backend.pause(hit, MAIN)
        return lambda: backend.resume(hit, MAIN)
    others = [node for node in cluster.test.node_names if node != hit]
    await backend.set_network(frozenset([(hit, node) for node in others] + [(node, hit) for node in others]))
    return lambda: backend.set_network(frozenset())


async def _until_normal(cluster: ReferenceCluster, nodes: Any, without: str | None = None) -> float:
    """Return the time, by the loop's clock, at which all these nodes form one normal group.

    ``without`` must not lead the group.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _LIMIT_SECONDS
    while loop.time() < deadline:
        found = [(await cluster.status(node)).detail or {} for node in nodes]
        groups = {status.get("group") for status in found if status.get("state") == "normal"}
        masters = {status.get("master") for status in found}
        if len(groups) == 1 and without not in masters and all(status.get("state") == "normal" for status in found):
            return loop.time()
        await asyncio.sleep(0.01)
    raise StormproofError(f"no normal group: {await cluster.describe()}")


def _test(backend: str, nodes: int, seed: int, timeout: float) -> Test:
    settings = {"election_timeout": timeout, "master_timeout": timeout, "response_timeout": timeout / 2}
    return make_test(system="icestorm", workload="subscriptions", nemesis="none", backend=backend, nodes=nodes,
                     time_limit=5.0, rate=100.0, seed=seed, settings=settings)  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_measured(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]))))
