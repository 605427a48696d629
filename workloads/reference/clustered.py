"""Workloads ``clustered`` and ``clustered-topic``: destinations that are spread over several HA servers (HA Joram, 6).

Each producer and each consumer connects to one of the servers, so messages have to be moved to the consumers' servers.
The promises of the queue workload apply to each queue as a whole.

Each producer and each subscriber of topics has its server, too. The server's element of the topic forwards each message
published there to all other elements. The promises of the topic workload apply on every element. Elements share no
common order, and a message that was published on one element may reach a subscription that was created on another
element after the publication.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nodes.stomp import Frame
from stormproof.contracts.client import Client
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.option import Option
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError
from workloads.queue import QueueWorkload
from workloads.reference.queue_client import QueueClient
from workloads.reference.stomp_client import SubCluster
from workloads.reference.topic import TopicWorkload
from workloads.reference.topic_client import TOPIC_PREFIX, TopicClient

SERVERS = Option("ha_servers", 2, "servers of the design, each with its replicas, that share the load")


class ClusteredWorkload(QueueWorkload):
    """The queue workload with every queue on ``ha_servers`` servers."""

    name = "clustered"
    needs = ("queues", "servers")
    # A message that moves to another server is a new message there.
    observation_checks = ("content", "subscription", "refusal")
    options = (SERVERS, *QueueWorkload.options)

    @classmethod
    def concurrency(cls, options: Mapping[str, Any]) -> int:
        """Return the number of client threads.

        Raises:
            UsageError: as the queue workload, or there is only one server.
        """
        _check_servers(options, "queue")
        return super().concurrency(options)

    @classmethod
    def demands(cls, options: Mapping[str, Any]) -> Demands:
        """Demand the queues, each on all servers."""
        return replace(super().demands(options), servers=options["ha_servers"], spread=True)

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """Return a client of one of the servers: producers and consumers are spread over them in turn."""
        return QueueClient(SubCluster(cluster, cluster.servers[thread % len(cluster.servers)]), host, thread,
                           self.coverage_of(cluster.test))


class ClusteredTopicWorkload(TopicWorkload):
    """The topic workload with every topic on ``ha_servers`` servers."""

    name = "clustered-topic"
    needs = ("topics", "servers")
    options = (SERVERS, *TopicWorkload.options)

    @classmethod
    def concurrency(cls, options: Mapping[str, Any]) -> int:
        """Return the number of client threads.

        Raises:
            UsageError: as the topic workload, or there is only one server.
        """
        _check_servers(options, "topic")
        return super().concurrency(options)

    @classmethod
    def demands(cls, options: Mapping[str, Any]) -> Demands:
        """Demand the topics, each on all servers."""
        return replace(super().demands(options), servers=options["ha_servers"], spread=True)

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """Return a client of one of the servers: producers, durable and transient subscribers are each spread over them
        in turn."""
        options, servers = cluster.test.options, cluster.servers
        place = thread
        for part in ("producers", "durables"):
            if place < options[part]:
                break
            place -= options[part]
        pattern = self.pattern(cluster.test, thread)
        return ElementClient(SubCluster(cluster, servers[place % len(servers)]), host, thread, pattern,
                             self.coverage_of(cluster.test), self._latest)


class ElementClient(TopicClient):
    """A client of one element of the topics."""

    def left(self, depths: Mapping[str, int], key: int) -> int:
        """Return the number of messages in the subscription and in transit between the elements, which may be for
        it."""
        return super().left(depths, key) + sum(count for name, count in depths.items() if name.startswith(TOPIC_PREFIX))

    async def await_drained(self, key: int) -> Frame | None:
        """Return the next message; None when none is left at two successive checks. One check is not enough: servers
        report one by one, and a message may reach one after its report and have left the other before that one's
        report."""
        return await super().await_drained(key) or await super().await_drained(key)


def _check_servers(options: Mapping[str, Any], alone: str) -> None:
    if options["ha_servers"] < 2:
        raise UsageError(f"--set ha_servers: at least 2; with one, it is the workload `{alone}`")
