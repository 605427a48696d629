"""Workload ``store-and-forward``: store and forward through local servers (HA Joram, 1.1.2).

Producers send to a local server of their own, which is not replicated, confirms what it has stored, and forwards it
to the HA server. Consumers take at the HA server. What the queue workload promises is promised end to end.
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
from workloads.queue_client import QueueClient, destination

HA_SERVER = 0
"""Number of the server that everything is forwarded to: the first."""


class Producer(QueueClient):
    """Sends to queues of the HA server, through the local server that it is connected to."""

    def target(self, key: int) -> str:
        """The queue, at the HA server."""
        return f"/server/{HA_SERVER}{destination(key)}"


class StoreAndForwardWorkload(QueueWorkload):
    """The queue workload with ``local_servers`` between producers and the HA server."""

    name = "store-and-forward"
    options = (
        Option("local_servers", 2, "servers, not replicated, that the producers send to; each is one node more"),
        *QueueWorkload.options,
    )

    @classmethod
    def concurrency(cls, options: Mapping[str, Any]) -> int:
        """Number of client threads.

        Raises:
            UsageError: as the queue workload, or there is no local server.
        """
        if options["local_servers"] < 1:
            raise UsageError("--set local_servers: at least 1; without any, it is the workload `queue`")
        return super().concurrency(options)

    @classmethod
    def demands(cls, options: Mapping[str, Any]) -> Demands:
        """The queues, and the local servers."""
        return replace(super().demands(options), local_servers=options["local_servers"])

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """A producer at one of the local servers, or a consumer at the HA server."""
        ha_server, *local = cluster.servers
        if thread < cluster.test.options["producers"]:
            return Producer(SubCluster(cluster, local[thread % len(local)]), host, 0)
        return QueueClient(SubCluster(cluster, ha_server), host, thread)
