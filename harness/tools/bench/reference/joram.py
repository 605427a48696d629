"""Figures of the design ``joram``: the cost of its modes, the duration of a failover and of adding a replica.

``python -m harness.tools.bench.reference.joram BACKEND WHAT SETTINGS`` is the child that holds the nodes; it prints one
JSON object.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from harness.backends.catalog import BACKENDS
from harness.run.settings import make_test
from harness.tools.bench.reference.cluster import IN_FLIGHT, sends_a_second
from harness.tools.bench.reference.load import connected, fill, producers, rates, send
from harness.tools.bench.reference.nodes import healthy, running
from nodes.systems.reference.cluster import ReferenceCluster
from nodes.timeouts import within
from stormproof.contracts.cluster import MAIN, NodeStatus
from stormproof.errors import StormproofError

MODES: Mapping[str, Mapping[str, Any]] = {
    "ack=all": {"ack": "all"},
    "ack=majority": {"ack": "majority"},
    "propagation=asynchronous": {"propagation": "asynchronous"},
}
FAILOVERS = 5
DETECTION_TIMEOUT = 1.0
BACKLOG = 100_000
_TIME_LIMIT = 600
_JOIN_LIMIT = 120


def joram_figures(backend: str, backlog: int = BACKLOG) -> Iterator[tuple[str, str, str]]:
    """Yield (what, figure, remark), measured one after the other."""
    for mode, settings in MODES.items():
        found = _measure(backend, "sends", settings)
        name = f"joram, 3 nodes on {backend}, {mode}: confirmed sends"
        yield f"{name}, 1 producer", f"{found['one']:,.0f} /s", ""
        yield f"{name}, {IN_FLIGHT} producers", f"{found['many']:,.0f} /s", ""
    found = _measure(backend, "failover", {"detection_timeout": DETECTION_TIMEOUT})
    yield (f"joram on {backend}: master killed until the first confirmed send, median of {FAILOVERS}",
           f"{found['median']:.2f} s", f"detection_timeout is {DETECTION_TIMEOUT:g} s; slowest {found['most']:.2f} s")
    for form in ("held-back", "two-step"):
        found = _measure(backend, "growth", {"transfer": form, "backlog": backlog})
        name = f"joram on {backend}: add a replica, {backlog:,} messages, under load, {form}"
        sent = f"{found['bytes'] / 1e6:.0f} MB sent" if found["bytes"] else "its link broke while it loaded the state"
        yield name, f"{found['seconds']:.1f} s", sent
        yield (f"{name}: longest time without a confirmation", f"{found['gap']:.2f} s",
               f"{found['rate']:,.0f} sends/s meanwhile, {found['before']:,.0f} before")


def _measure(backend: str, what: str, settings: Mapping[str, Any]) -> dict[str, float]:
    prefix = BACKENDS.load(backend).launch_prefix()
    child = subprocess.run(
        [*prefix, sys.executable, "-m", "harness.tools.bench.reference.joram", backend, what, json.dumps(settings)],
        capture_output=True, text=True, timeout=_TIME_LIMIT, check=False,
    )  # fmt: skip
    if child.returncode:
        raise StormproofError(f"measuring joram on {backend} failed: {child.stderr.strip()[-500:]}")
    figures: dict[str, float] = json.loads(child.stdout.splitlines()[-1])
    return figures


@asynccontextmanager
async def _cluster(backend_name: str, nodes: int, settings: Mapping[str, Any]) -> AsyncIterator[ReferenceCluster]:
    test = make_test(system="joram", workload="queue", nemesis="none", backend=backend_name, nodes=nodes,
                     time_limit=60.0, rate=1e6, seed=1,
                     settings={"producers": IN_FLIGHT, "consumers": 1, **settings})  # fmt: skip
    async with running(test) as cluster:
        yield cluster


async def _sends(backend: str, settings: Mapping[str, Any]) -> dict[str, float]:
    async with _cluster(backend, 3, settings) as cluster:
        one = await sends_a_second(cluster.test, cluster, 1)
        return {"one": one, "many": await sends_a_second(cluster.test, cluster, IN_FLIGHT)}


async def _failover(backend: str, settings: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds from the kill of the master until a client that continues to send has its next receipt."""
    loop = asyncio.get_running_loop()
    taken = []
    async with _cluster(backend, 3, settings) as cluster:
        for _ in range(FAILOVERS):
            connection = await connected(cluster)
            await send(connection)
            master = await cluster.primary()
            if master is None:
                raise StormproofError("nobody serves")
            killed = loop.time()
            await cluster.backend.kill(master, MAIN)
            await send(connection)
            taken.append(loop.time() - killed)
            await connection.close()
            await cluster.start_node(master)
            await healthy(cluster)
    return {"median": statistics.median(taken), "most": max(taken)}


async def _growth(backend: str, settings: Mapping[str, Any]) -> dict[str, float]:
    """Measure an empty replica's joining while producers send."""
    settings = dict(settings)
    backlog = int(settings.pop("backlog"))
    loop = asyncio.get_running_loop()
    async with _cluster(backend, 4, {"spares": 1, "detection_timeout": DETECTION_TIMEOUT, **settings}) as cluster:
        await fill(cluster, backlog)
        node = cluster.spares()[0]
        async with producers(cluster) as confirmed:
            await asyncio.sleep(3)
            began = loop.time()
            refusal = await cluster.add_member(node)
            if refusal:
                raise StormproofError(refusal)
            await _await_joined(cluster, node)
            ended = loop.time()
        master = (await _master(cluster)).node
        log = (await cluster.backend.download(master, f"{cluster.backend.node_dir(master)}/broker.log")).decode()
    if f"state transfer begin to={node}" not in log:
        raise StormproofError(f"{node} was not given the state: raise the backlog")
    ends = [line for line in log.splitlines() if f"state transfer end to={node}" in line]
    size = sum(float(line.partition("bytes=")[2].split()[0]) for line in ends)
    return {"seconds": ended - began, "bytes": size, **rates(confirmed, began, ended)}


async def _await_joined(cluster: ReferenceCluster, node: str) -> None:
    try:
        async with within(_JOIN_LIMIT):
            while node not in (await cluster.status(node)).view:  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise StormproofError(f"{node} has not joined: {await cluster.describe()}") from None


async def _master(cluster: ReferenceCluster) -> NodeStatus:
    name = await cluster.primary()
    if name is None:
        raise StormproofError(f"nobody serves: {await cluster.describe()}")
    return await cluster.status(name)


_WHAT = {"sends": _sends, "failover": _failover, "growth": _growth}

if __name__ == "__main__":
    print(json.dumps(asyncio.run(_WHAT[sys.argv[2]](sys.argv[1], json.loads(sys.argv[3])))))
