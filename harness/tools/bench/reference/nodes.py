"""A cluster to measure: on machines of a backend, running, and removed afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from harness.backends.catalog import BACKENDS
from harness.run.deployment import cluster_of, topology_of
from nodes.systems.reference.cluster import ReferenceCluster
from stormproof.contracts.backend import Backend
from stormproof.errors import StormproofError
from stormproof.test import Test

START_LIMIT = 60.0


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


async def healthy(cluster: ReferenceCluster) -> None:
    """Wait until the cluster is healthy.

    Raises:
        StormproofError: the cluster did not become healthy.
    """
    if not await cluster.await_healthy(START_LIMIT):
        raise StormproofError(f"not healthy: {await cluster.describe()}")
