"""Workloads ``clustered`` and ``clustered-topic``: destinations that are spread over several HA servers (HA Joram, 6).

Each producer and each consumer connects to one of the servers, so that messages have to be moved to where the consumers
are. What the queue workload promises is promised of each queue as a whole.

Each producer and each subscriber of topics has its server, too, whose element forwards what is published there to all
others. What the topic workload promises is promised on every element; between two there is no common order, and what
was published on one may come to a subscription on another that was made meanwhile.
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
    looked_at = ("content", "subscription", "refusal")  # a message that goes to another server is a new one there
    options = (SERVERS, *QueueWorkload.options)

    @classmethod
    def concurrency(cls, options: Mapping[str, Any]) -> int:
        """Number of client threads.

        Raises:
            UsageError: as the queue workload, or there is one server only.
        """
        _check_servers(options, "queue")
        return super().concurrency(options)

    @classmethod
    def demands(cls, options: Mapping[str, Any]) -> Demands:
        """The queues, each on all servers."""
        return replace(super().demands(options), servers=options["ha_servers"], spread=True)

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """A client of one of the servers: producers and consumers take turns over them."""
        return QueueClient(SubCluster(cluster, cluster.servers[thread % len(cluster.servers)]), host, thread,
                           self.surface_of(cluster.test))


class ClusteredTopicWorkload(TopicWorkload):
    """The topic workload with every topic on ``ha_servers`` servers."""

    name = "clustered-topic"
    needs = ("topics", "servers")
    options = (SERVERS, *TopicWorkload.options)

    @classmethod
    def concurrency(cls, options: Mapping[str, Any]) -> int:
        """Number of client threads.

        Raises:
            UsageError: as the topic workload, or there is one server only.
        """
        _check_servers(options, "topic")
        return super().concurrency(options)

    @classmethod
    def demands(cls, options: Mapping[str, Any]) -> Demands:
        """The topics, each on all servers."""
        return replace(super().demands(options), servers=options["ha_servers"], spread=True)

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """A client of one of the servers: producers, durable and transient subscribers each take turns over them."""
        options, servers = cluster.test.options, cluster.servers
        place = thread
        for part in ("producers", "durables"):
            if place < options[part]:
                break
            place -= options[part]
        pattern = self.pattern(cluster.test, thread)
        return ElementClient(SubCluster(cluster, servers[place % len(servers)]), host, thread, pattern,
                             self.surface_of(cluster.test), self._latest)


class ElementClient(TopicClient):
    """A client of one element of the topics."""

    def left(self, depths: Mapping[str, int], key: int) -> int:
        """What the subscription holds, and what is on its way between the elements: that may be for it."""
        return super().left(depths, key) + sum(count for name, count in depths.items() if name.startswith(TOPIC_PREFIX))

    async def await_drained(self, key: int) -> Frame | None:
        """The next message; None when none is left, twice: servers are asked one by one, and a message may have come
        to one after it was asked and left the other before that was."""
        return await super().await_drained(key) or await super().await_drained(key)


def _check_servers(options: Mapping[str, Any], alone: str) -> None:
    if options["ha_servers"] < 2:
        raise UsageError(f"--set ha_servers: at least 2; with one, it is the workload `{alone}`")
