"""Figures of the design ``qpid``: the duration of a takeover, and of a backup's catching up.

``python -m harness.tools.bench.reference.qpid BACKEND WHAT SETTINGS`` is the child that holds the nodes; it prints one
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
from harness.tools.bench.reference.cluster import IN_FLIGHT
from harness.tools.bench.reference.load import BROKEN, connected, fill, producers, rates, send
from harness.tools.bench.reference.nodes import healthy, running
from nodes.reference.designs.qpid.options import STANDBYS
from nodes.reference.designs.qpid.states import CATCHUP, READY
from nodes.systems.reference.cluster import ReferenceCluster
from nodes.timeouts import within
from stormproof.contracts.cluster import MAIN
from stormproof.errors import StormproofError
from workloads.reference.connection import StompConnection

TIMEOUTS = (0.5, 1.0, 2.0)
"""Seconds of silence after which a broker's connection, and a manager, count as lost."""
_WAITS = 5.0
"""Seconds for which a new primary waits for absent backups before it confirms without them: the default."""
TAKEOVERS = 5
BACKLOG = 100_000
_TIME_LIMIT = 900
_PATIENCE = 120
_CATCH_UP_LIMIT = 120


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


def _measure(backend: str, what: str, settings: Mapping[str, Any]) -> dict[str, float]:
    prefix = BACKENDS.load(backend).launch_prefix()
    child = subprocess.run(
        [*prefix, sys.executable, "-m", "harness.tools.bench.reference.qpid", backend, what, json.dumps(settings)],
        capture_output=True, text=True, timeout=_TIME_LIMIT, check=False,
    )  # fmt: skip
    if child.returncode:
        raise StormproofError(f"measuring qpid on {backend} failed: {child.stderr.strip()[-500:]}")
    figures: dict[str, float] = json.loads(child.stdout.splitlines()[-1])
    return figures


@asynccontextmanager
async def _cluster(backend_name: str, settings: Mapping[str, Any]) -> AsyncIterator[ReferenceCluster]:
    test = make_test(system="qpid", workload="queue", nemesis="none", backend=backend_name, nodes=3, time_limit=60.0,
                     rate=1e6, seed=1, settings={"producers": IN_FLIGHT, "consumers": 1, **settings})  # fmt: skip
    async with running(test) as cluster:
        yield cluster


async def _primary(cluster: ReferenceCluster) -> str:
    node = await cluster.primary()
    if node is None:
        raise StormproofError(f"nobody serves: {await cluster.describe()}")
    return node


async def _takeover(backend: str, settings: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds from the kill of the primary until a retrying client has its next receipt."""
    settings = dict(settings)
    what, backlog = settings.pop("what"), settings.pop("backlog", 0)
    loop = asyncio.get_running_loop()
    taken = []
    async with _cluster(backend, settings) as cluster:
        await fill(cluster, backlog)
        for _ in range(TAKEOVERS):
            connection = await connected(cluster)
            await send(connection)
            node = await _primary(cluster)
            programs = cluster.programs(node) if what == "node" else (MAIN,)
            killed = loop.time()
            for program in reversed(programs):  # A manager would start the broker again.
                await cluster.backend.kill(node, program)
            connection = await _until_confirmed(cluster, connection)
            taken.append(loop.time() - killed)
            await connection.close()
            await cluster.start_node(node)
            await healthy(cluster)
    return {"median": statistics.median(taken), "most": max(taken)}


async def _until_confirmed(cluster: ReferenceCluster, connection: StompConnection) -> StompConnection:
    """Send one message, with a new connection after each failure; returns the connection that succeeded."""
    async with within(_PATIENCE):
        while True:
            try:
                await send(connection)
                return connection
            except BROKEN:
                await connection.abort()
                connection = await connected(cluster)


async def _catch_up(backend: str, settings: Mapping[str, Any]) -> dict[str, float]:
    """Measure how a killed backup, restarted by its manager, catches up while producers send."""
    settings = dict(settings)
    backlog = int(settings.pop("backlog"))
    loop = asyncio.get_running_loop()
    async with _cluster(backend, settings) as cluster:
        await fill(cluster, backlog)
        primary = await _primary(cluster)
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
    async with within(_CATCH_UP_LIMIT):
        while await _backup_state(cluster, primary, node) not in states:  # noqa: ASYNC110 - another process's state
            await asyncio.sleep(0.02)
    return loop.time()


async def _backup_state(cluster: ReferenceCluster, primary: str, node: str) -> str | None:
    detail = (await cluster.status(primary)).detail or {}
    state: str | None = detail.get("backups", {}).get(node)
    return state


_WHAT = {"takeover": _takeover, "catch-up": _catch_up}

if __name__ == "__main__":
    print(json.dumps(asyncio.run(_WHAT[sys.argv[2]](sys.argv[1], json.loads(sys.argv[3])))))
