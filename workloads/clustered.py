"""Workload ``clustered``: queues that are spread over several HA servers (HA Joram, 6).

Each producer and each consumer connects to one of the servers, so that messages have to be moved to where the consumers
are. What the queue workload promises is promised of each queue as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stormproof.contracts.client import Client
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.demands import Demands
from stormproof.contracts.option import Option
from stormproof.errors import UsageError
from workloads.client import SubCluster
from workloads.queue import QueueWorkload
from workloads.queue_client import QueueClient


class ClusteredWorkload(QueueWorkload):
    """The queue workload with every queue on ``ha_servers`` servers."""

    name = "clustered"
    options = (
        Option("ha_servers", 2, "servers of the design, each with its replicas, that every queue is spread over"),
        *QueueWorkload.options,
    )

    @classmethod
    def concurrency(cls, options: Mapping[str, Any]) -> int:
        """Number of client threads.

        Raises:
            UsageError: as the queue workload, or there is one server only.
        """
        if options["ha_servers"] < 2:
            raise UsageError("--set ha_servers: at least 2; with one, it is the workload `queue`")
        return super().concurrency(options)

    @classmethod
    def demands(cls, options: Mapping[str, Any]) -> Demands:
        """The queues, each on all servers."""
        return replace(super().demands(options), servers=options["ha_servers"], spread=True)

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """A client of one of the servers: producers and consumers take turns over them."""
        return QueueClient(SubCluster(cluster, cluster.servers[thread % len(cluster.servers)]), host, thread)
