"""Figures of the design ``qpid``: the duration of a takeover, and of a backup's catching up.

``python -m harness.tools.bench.reference.qpid BACKEND WHAT SETTINGS`` is the child that holds the nodes; it prints one
JSON object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

from harness.tools.bench.child import figures_of, print_figures
from harness.tools.bench.reference.load import failovers, fill, producers, rates
from harness.tools.bench.reference.nodes import queue_cluster, serving
from nodes.reference.designs.qpid.options import STANDBYS
from nodes.reference.designs.qpid.states import CATCHUP, READY
from nodes.systems.reference.cluster import ReferenceCluster
from nodes.timeouts import within
from stormproof.contracts.cluster import MAIN

TIMEOUTS = (0.5, 1.0, 2.0)
"""Seconds of silence after which a broker's connection, and a manager, count as lost."""
_WAITS = 5.0
"""Seconds for which a new primary waits for absent backups before it confirms without them: the default."""
TAKEOVERS = 5
BACKLOG = 100_000
_TIME_LIMIT_SECONDS = 900
_CATCH_UP_LIMIT_SECONDS = 120


_measure = partial(figures_of, "reference.qpid", seconds=_TIME_LIMIT_SECONDS)


def qpid_figures(backend: str, backlog: int = BACKLOG) -> Iterator[tuple[str, str, str]]:
    """Yield (what, figure, remark), measured one after the other."""
    name = f"qpid on {backend}: the primary's {{}} killed until the first confirmed send, median of {TAKEOVERS}"
    for seconds in TIMEOUTS:
        times = {"detection_timeout": seconds, "manager_lease": seconds}
        for what, waits in (("broker", _WAITS), ("node", seconds), ("node", _WAITS)):
            found = _measure(backend, "takeover", {**times, "what": what, "catchup_timeout": waits})
            yield (name.format(what), f"{found['median']:.2f} s",
                   f"time-outs {seconds:g} s, catchup_timeout {waits:g} s; slowest {found['most']:.2f} s")
    for standby in STANDBYS:
        settings = {"standby": standby, "what": "node", "catchup_timeout": 1.0, "backlog": backlog}
        found = _measure(backend, "takeover", settings)
        yield (f"{name.format('node')}, {backlog:,} messages, standby={standby}", f"{found['median']:.2f} s",
               f"time-outs 1 s, catchup_timeout 1 s; slowest {found['most']:.2f} s")
    found = _measure(backend, "catch-up", {"backlog": backlog})
    name = f"qpid on {backend}: a backup killed until it is ready, {backlog:,} messages, under load"
    yield name, f"{found['seconds']:.1f} s", f"of which catching up {found['catching_up']:.1f} s"
    yield (f"{name}: longest time without a confirmation", f"{found['gap']:.2f} s",
           f"{found['rate']:,.0f} sends/s meanwhile, {found['before']:,.0f} before")


async def _takeover(backend: str, settings: dict[str, Any]) -> dict[str, float]:
    """Return the seconds from the kill of the primary until a retrying client has its next receipt."""
    what, backlog = settings.pop("what"), settings.pop("backlog", 0)
    async with queue_cluster("qpid", backend, 3, settings) as cluster:
        await fill(cluster, backlog)
        # In reverse order, because a manager would start the broker again.
        return await failovers(cluster, TAKEOVERS,
                               lambda node: cluster.programs(node)[::-1] if what == "node" else (MAIN,))


async def _catch_up(backend: str, settings: dict[str, Any]) -> dict[str, float]:
    """Measure how a killed backup, restarted by its manager, catches up while producers send."""
    backlog = int(settings.pop("backlog"))
    loop = asyncio.get_running_loop()
    async with queue_cluster("qpid", backend, 3, settings) as cluster:
        await fill(cluster, backlog)
        primary = await serving(cluster)
        node = next(name for name in cluster.node_names if name != primary)
        async with producers(cluster) as confirmed:
            await asyncio.sleep(3)
            began = loop.time()
            await cluster.backend.kill(node, MAIN)
            await _await_backup(cluster, primary, node, None)
            attached = await _await_backup(cluster, primary, node, CATCHUP, READY)
            ended = await _await_backup(cluster, primary, node, READY)
    return {"seconds": ended - began, "catching_up": ended - attached, **rates(confirmed, began, ended)}


async def _await_backup(cluster: ReferenceCluster, primary: str, node: str, *states: str | None) -> float:
    """Wait until the primary reports a backup in one of these states (None: not attached); returns the time."""
    loop = asyncio.get_running_loop()
    async with within(_CATCH_UP_LIMIT_SECONDS):
        while await _backup_state(cluster, primary, node) not in states:  # noqa: ASYNC110 - another process's state
            await asyncio.sleep(0.02)
    return loop.time()


async def _backup_state(cluster: ReferenceCluster, primary: str, node: str) -> str | None:
    detail = (await cluster.status(primary)).detail or {}
    state: str | None = detail.get("backups", {}).get(node)
    return state


_WHAT = {"takeover": _takeover, "catch-up": _catch_up}

if __name__ == "__main__":
    print_figures(_WHAT)
