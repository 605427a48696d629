"""A cluster to measure: on machines of a backend, running, and removed afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from harness.backends.catalog import BACKENDS
from harness.run.deployment import cluster_of, topology_of
from harness.run.settings import make_test
from nodes.systems.reference.cluster import ReferenceCluster
from stormproof.contracts.backend import Backend
from stormproof.errors import StormproofError
from stormproof.test import Test

START_LIMIT_SECONDS = 60.0
IN_FLIGHT = 32
"""The number of producers that are many."""


@asynccontextmanager
async def provisioned(test: Test) -> AsyncIterator[ReferenceCluster]:
    """Yield a test's cluster on its machines; nothing is installed or started yet."""
    backend: Backend = BACKENDS.load(test.backend)()
    cluster = cluster_of(test, backend, "bench-passcode")
    assert isinstance(cluster, ReferenceCluster)
    with tempfile.TemporaryDirectory(prefix="stormproof-bench-") as folder:
        try:
            await backend.provision(test, topology_of(test), Path(folder))
            yield cluster
        finally:
            await backend.release()


@asynccontextmanager
async def running(test: Test) -> AsyncIterator[ReferenceCluster]:
    """Yield a test's cluster, healthy.

    Raises:
        StormproofError: it did not become healthy.
    """
    async with provisioned(test) as cluster:
        await cluster.install()
        await cluster.start()
        await healthy(cluster)
        yield cluster
        await cluster.stop()


@asynccontextmanager
async def queue_cluster(design: str, backend: str, nodes: int, settings: Mapping[str, Any],
                        ) -> AsyncIterator[ReferenceCluster]:
    """Yield a healthy cluster of a design for many producers; raises as ``running``."""
    test = make_test(system=design, workload="queue", nemesis="none", backend=backend, nodes=nodes, time_limit=60.0,
                     rate=1e6, seed=1, settings={"producers": IN_FLIGHT, "consumers": 1, **settings})  # fmt: skip
    async with running(test) as cluster:
        yield cluster


async def serving(cluster: ReferenceCluster) -> str:
    """Return the node that serves.

    Raises:
        StormproofError: none does.
    """
    node = await cluster.primary()
    if node is None:
        raise StormproofError(f"nobody serves: {await cluster.describe()}")
    return node


async def healthy(cluster: ReferenceCluster) -> None:
    """Wait until the cluster is healthy.

    Raises:
        StormproofError: the cluster did not become healthy.
    """
    if not await cluster.await_healthy(START_LIMIT_SECONDS):
        raise StormproofError(f"not healthy: {await cluster.describe()}")
