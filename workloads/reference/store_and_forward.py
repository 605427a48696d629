"""Workload ``store-and-forward``: store and forward through local servers (HA Joram, 1.1.2).

Each producer sends to a local server. The local server is not replicated; it confirms the messages that it has stored,
and forwards them to the HA server. Consumers take at the HA server, or at local servers as well (1.1.1), to which the
destination's server delivers. A local server may be an HA server, too. The promises of the queue workload apply end to
end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stormproof.contracts.client import Client
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.option import Option
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError
from workloads.draws import STORE_AND_FORWARD as DRAWS
from workloads.messages import destination
from workloads.queue import QueueWorkload
from workloads.reference.queue_client import QueueClient
from workloads.reference.stomp_client import SubCluster

HA_SERVER = 0
"""Number of the server that has the queues: the first."""
AT_HA_SERVER, AT_OWN_SERVER = "ha-server", "own-server"
LOCAL, HA = "local", "ha"


class RemoteClient(QueueClient):
    """Sends to queues of the HA server, or consumes from them, through the server that it is connected to."""

    def target(self, key: int) -> str:
        """Return the queue, at the HA server."""
        return f"/server/{HA_SERVER}{destination(key)}"

    def source(self, key: int) -> str:
        """Return the queue, at the HA server."""
        return self.target(key)


class StoreAndForwardWorkload(QueueWorkload):
    """The queue workload with servers between producers, or all clients, and the HA server that has the queues."""

    name = "store-and-forward"
    needs = ("queues", "servers")
    draws = DRAWS
    options = (
        Option("local_servers", 2, "servers, not replicated, that the producers send to; each is one node more"),
        Option(
            "own_servers",
            LOCAL,
            "destination of the producers: local_servers; or one more HA server, with replicas",
            (LOCAL, HA),
        ),
        Option(
            "consume_at",
            AT_HA_SERVER,
            "server that consumers connect to: the HA server that has the queues; or their local "
            "server, to which that one delivers",
            (AT_HA_SERVER, AT_OWN_SERVER),
        ),
        *QueueWorkload.options,
    )

    @classmethod
    def concurrency(cls, options: Mapping[str, Any]) -> int:
        """Return the number of client threads.

        Raises:
            UsageError: as the queue workload, or there is no local server.
        """
        if options["local_servers"] < 1:
            raise UsageError("--set local_servers: at least 1; without any, it is the workload `queue`")
        return super().concurrency(options)

    @classmethod
    def demands(cls, options: Mapping[str, Any]) -> Demands:
        """Demand the queues, and the servers in addition to the one that has them."""
        if options["own_servers"] == HA:
            return replace(super().demands(options), servers=2)
        return replace(super().demands(options), local_servers=options["local_servers"])

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """Return a client of a local server; or a consumer at the HA server."""
        ha_server, *own = cluster.servers
        options, coverage = cluster.test.options, self.coverage_of(cluster.test)
        if thread < options["producers"] or options["consume_at"] == AT_OWN_SERVER:
            nodes = own[thread % len(own)]
            return RemoteClient(SubCluster(cluster, nodes), host, thread if len(nodes) > 1 else 0, coverage)
        return QueueClient(SubCluster(cluster, ha_server), host, thread, coverage)
