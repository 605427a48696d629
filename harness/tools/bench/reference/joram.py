"""Figures of the design ``joram``: the cost of its modes, the duration of a failover and of adding a replica.

``python -m harness.tools.bench.reference.joram BACKEND WHAT SETTINGS`` is the child that holds the nodes; it prints one
JSON object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from harness.tools.bench.child import figures_of, print_figures
from harness.tools.bench.reference.cluster import sends_of
from harness.tools.bench.reference.load import failovers, fill, producers, rates
from harness.tools.bench.reference.nodes import IN_FLIGHT, queue_cluster, serving
from nodes.systems.reference.cluster import ReferenceCluster
from nodes.timeouts import within
from stormproof.errors import StormproofError

MODES: Mapping[str, Mapping[str, Any]] = {
    "ack=all": {"ack": "all"},
    "ack=majority": {"ack": "majority"},
    "propagation=asynchronous": {"propagation": "asynchronous"},
}
FAILOVERS = 5
DETECTION_TIMEOUT = 1.0
BACKLOG = 100_000
_TIME_LIMIT_SECONDS = 600
_JOIN_LIMIT_SECONDS = 120


_measure = partial(figures_of, "reference.joram", seconds=_TIME_LIMIT_SECONDS)


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


async def _sends(backend: str, settings: dict[str, Any]) -> dict[str, float]:
    async with queue_cluster("joram", backend, 3, settings) as cluster:
        return await sends_of(cluster)


async def _failover(backend: str, settings: dict[str, Any]) -> dict[str, float]:
    """Return the seconds from the kill of the master until a client that continues to send has its next receipt."""
    async with queue_cluster("joram", backend, 3, settings) as cluster:
        return await failovers(cluster, FAILOVERS)


async def _growth(backend: str, settings: dict[str, Any]) -> dict[str, float]:
    """Measure an empty replica's joining while producers send."""
    backlog = int(settings.pop("backlog"))
    loop = asyncio.get_running_loop()
    settings = {"spares": 1, "detection_timeout": DETECTION_TIMEOUT, **settings}
    async with queue_cluster("joram", backend, 4, settings) as cluster:
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
        master = await serving(cluster)
        log = (await cluster.backend.download(master, f"{cluster.backend.node_dir(master)}/broker.log")).decode()
    if f"state transfer begin to={node}" not in log:
        raise StormproofError(f"{node} was not given the state: raise the backlog")
    ends = [line for line in log.splitlines() if f"state transfer end to={node}" in line]
    size = sum(float(line.partition("bytes=")[2].split()[0]) for line in ends)
    return {"seconds": ended - began, "bytes": size, **rates(confirmed, began, ended)}


async def _await_joined(cluster: ReferenceCluster, node: str) -> None:
    try:
        async with within(_JOIN_LIMIT_SECONDS):
            while node not in (await cluster.status(node)).view:  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise StormproofError(f"{node} has not joined: {await cluster.describe()}") from None


_WHAT = {"sends": _sends, "failover": _failover, "growth": _growth}

if __name__ == "__main__":
    print_figures(_WHAT)
