"""Load for a measured cluster: connections, a backlog, continuous producers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from harness.tools.bench.reference.nodes import healthy, serving
from nodes.systems.reference.cluster import ReferenceCluster
from nodes.timeouts import within
from stormproof.contracts.cluster import MAIN
from workloads.reference.connection import ConnectionBroken, NotSent, Rejected, Settings, StompConnection

BODY = b"x" * 500
BROKEN = (ConnectionBroken, NotSent, Rejected)
"""Errors of a send whose connection does not survive its broker."""
FAILOVER_LIMIT_SECONDS = 120
_LOADERS, _WINDOW = 4, 250
_LOAD = 8


async def connected(cluster: ReferenceCluster) -> StompConnection:
    """Return a connection that repeatedly searches for the serving broker."""
    settings = Settings(cluster.login, cluster.passcode, reliable=cluster.reliable_connections, heartbeat=0.3,
                        same_replica=0.1)  # fmt: skip
    connection = StompConnection(cluster.client_addresses(), settings)
    await connection.open(30)
    return connection


async def send(connection: StompConnection, body: bytes = BODY) -> None:
    """Send one message and await its confirmation."""
    await connection.request("SEND", {"destination": "/queue/q0"}, body, 60.0)


async def failovers(cluster: ReferenceCluster, rounds: int,
                    programs: Callable[[str], Sequence[str]] = lambda node: (MAIN,)) -> dict[str, float]:
    """Kill ``programs`` of the serving node, in this order, round by round.

    Return the seconds until a retrying client has its next receipt: the ``median`` and the ``most``.
    """
    loop = asyncio.get_running_loop()
    taken = []
    for _ in range(rounds):
        connection = await connected(cluster)
        await send(connection)
        node = await serving(cluster)
        killed = loop.time()
        for program in programs(node):
            await cluster.backend.kill(node, program)
        connection = await _until_confirmed(cluster, connection)
        taken.append(loop.time() - killed)
        await connection.close()
        await cluster.start_node(node)
        await healthy(cluster)
    return {"median": statistics.median(taken), "most": max(taken)}


async def _until_confirmed(cluster: ReferenceCluster, connection: StompConnection) -> StompConnection:
    """Send one message, with a new connection after each failure; returns the connection that succeeded."""
    async with within(FAILOVER_LIMIT_SECONDS):
        while True:
            try:
                await send(connection)
                return connection
            except BROKEN:
                await connection.abort()
                connection = await connected(cluster)


async def fill(cluster: ReferenceCluster, backlog: int) -> None:
    """Send ``backlog`` confirmed messages, several of them concurrently."""
    async def loader() -> None:
        connection, left = await connected(cluster), backlog // _LOADERS
        while left > 0:
            sends = (send(connection) for _ in range(min(left, _WINDOW)))
            failures = [each for each in await asyncio.gather(*sends, return_exceptions=True) if each is not None]
            left -= min(left, _WINDOW) - len(failures)
            if failures:
                if not isinstance(failures[0], BROKEN):
                    raise failures[0]
                await connection.abort()  # There was a failover.
                connection = await connected(cluster)
        await connection.close()

    await asyncio.gather(*(loader() for _ in range(_LOADERS)))


@asynccontextmanager
async def producers(cluster: ReferenceCluster) -> AsyncIterator[list[float]]:
    """Run producers until the end of the context; yields the times of their confirmations."""
    confirmed: list[float] = []
    load = [asyncio.create_task(_go_on(cluster, confirmed)) for _ in range(_LOAD)]
    try:
        yield confirmed
    finally:
        for task in load:
            task.cancel()
        await asyncio.wait(load)


async def _go_on(cluster: ReferenceCluster, confirmed: list[float]) -> None:
    loop = asyncio.get_running_loop()
    connection = await connected(cluster)
    try:
        with contextlib.suppress(ConnectionBroken):
            while True:
                await send(connection)
                confirmed.append(loop.time())
    finally:
        await connection.abort()


def rates(confirmed: Sequence[float], began: float, ended: float) -> dict[str, float]:
    """Return the rates of confirmations with these times.

    ``rate`` is the number a second between two times, ``before`` that in the two seconds before, and ``gap`` the
    longest time without one.
    """
    during = [began, *(time for time in confirmed if began <= time <= ended), ended]
    return {
        "rate": (len(during) - 2) / (ended - began),
        "before": sum(began - 2 <= time < began for time in confirmed) / 2,
        "gap": max(later - earlier for earlier, later in itertools.pairwise(during)),
    }
