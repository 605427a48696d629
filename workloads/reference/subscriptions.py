"""Workload ``subscriptions``: a set of subscriptions, topics and links, changed and checked by many clients.

Each subscription (a subscriber of a topic), each topic of a second set that has no subscribers, and each link between
two topics of the first set is an object that exists or does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodes.reference.engine.topics import TOPIC_MANAGER
from stormproof.contracts.client import Client
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.option import Option
from workloads.draws import SUBSCRIPTIONS as DRAWS
from workloads.reference.managed_objects import (
    COMMON_OPTIONS,
    CREATE,
    DESTROY,
    LOOK,
    ManagedConnection,
    ManagedObject,
    ManagedObjectsWorkload,
    Prerequisite,
)
from workloads.reference.stomp_client import StompCluster

SUBSCRIBE, UNSUBSCRIBE, LINK, UNLINK = "subscribe", "unsubscribe", "link", "unlink"


def topic_objects(options: Mapping[str, Any]) -> tuple[ManagedObject, ...]:
    """Return the objects of a test: subscriptions first, then topics, then links."""
    topics = int(options["topics"])
    links = min(int(options["links"]), topics * (topics - 1))
    return (
        *(_subscription(f"t{topic}", f"s{number}")
          for number in range(int(options["subscribers"])) for topic in range(topics)),
        *(_topic(f"loose{number}") for number in range(int(options["loose_topics"]))),
        *(_link(f"t{link % topics}", f"t{(link + 1 + link // topics) % topics}") for link in range(links)),
    )


def _subscription(topic: str, subscriber: str) -> ManagedObject:
    body = {"topic": topic, "subscriber": subscriber, "endpoint": "127.0.0.1:9", "retryCount": -1}
    return ManagedObject(
        f"subscription of {subscriber} to {topic}", (SUBSCRIBE, UNSUBSCRIBE),
        ("already-subscribed", "no-such-subscriber"),
        {SUBSCRIBE: (SUBSCRIBE, body), UNSUBSCRIBE: (UNSUBSCRIBE, body), LOOK: ("subscribers", {"topic": topic})},
        found=lambda rows: any(row[0] == subscriber for row in rows))


def _topic(topic: str) -> ManagedObject:
    body = {"topic": topic}
    return ManagedObject(f"topic {topic}", (CREATE, DESTROY), ("topic-exists", "no-such-topic"),
                         {CREATE: (CREATE, body), DESTROY: (DESTROY, body), LOOK: ("retrieve", body)},
                         missing="no-such-topic")


def _link(source: str, target: str) -> ManagedObject:
    body = {"topic": source, "target": target}
    return ManagedObject(f"link from {source} to {target}", (LINK, UNLINK), ("link-exists", "no-such-link"),
                         {LINK: (LINK, body), UNLINK: (UNLINK, body), LOOK: ("links", {"topic": source})},
                         found=lambda rows: any(row[0] == target for row in rows))


class SubscriptionClient(ManagedConnection):
    """A client of the topic manager; it makes sure that the topics to subscribe to exist."""

    destination = TOPIC_MANAGER

    def __init__(self, cluster: StompCluster, host: str, first: int) -> None:
        options = cluster.test.options
        topics = [f"t{number}" for number in range(int(options["topics"]))]
        super().__init__(cluster, host, first, topic_objects(options), [
            Prerequisite(CREATE, {"topic": topic}, "topic-exists", f"topic {topic} can't be created")
            for topic in topics])


class SubscriptionsWorkload(ManagedObjectsWorkload):
    """Clients that subscribe, unsubscribe, create, destroy, link and unlink."""

    name = "subscriptions"
    needs = ("topic manager",)
    draws = DRAWS
    options = (
        Option("changers", 4, "threads that subscribe, unsubscribe, create, destroy, link and unlink", load=True),
        Option("lookers", 3, "threads that query", load=True),
        Option("topics", 2, "topics to subscribe to", load=True),
        Option("subscribers", 3, "subscribers, each of which may subscribe to each of these topics", load=True),
        Option("loose_topics", 2, "topics that are created and destroyed", load=True),
        Option("links", 2, "links between the topics to subscribe to; each links to each other at most", load=True),
        *COMMON_OPTIONS,
    )
    guarantees = ("metadata", "elections")
    positive = ("changers", "lookers", "topics", "subscribers")
    countable = ("loose_topics", "links")

    @classmethod
    def objects(cls, options: Mapping[str, Any]) -> tuple[ManagedObject, ...]:
        """Return the objects behind the keys."""
        return topic_objects(options)

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """Return a client for one process of a thread; it tries the replica nearest to its host first."""
        return SubscriptionClient(cluster, host, thread)
