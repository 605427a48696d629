"""Workload ``events``: publishers of HA IceStorm's kinds, and subscribers that any replica delivers to.

Links and subscriptions are created before the load begins and last to the end, so that every replica knows them. A
subscription's number is its key, and the topic's number is the key of an event that is published on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stormproof.contracts.client import Client, EventConnection
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.option import Option
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError
from stormproof.generator import (
    Generator,
    Seed,
    Source,
    any_of,
    clients,
    on_threads,
    per_thread,
    rate,
    time_limit,
)
from stormproof.test import Test
from stormproof.vocabulary import EVENTS
from workloads.clients import CLIENTS
from workloads.draws import EVENTS as DRAWS
from workloads.event_names import COSTS, KINDS, ORDERED, UNORDERED, classes, follows, link_cost, links, topic_name
from workloads.feature_coverage import FEATURE_COVERAGE, FeatureWorkload
from workloads.generic_events import GenericListener, GenericPublisher
from workloads.options import CLIENT_HEARTBEAT, TIMEOUTS
from workloads.subscribers import Publishes, SubscriberLoad

MIXED = "mixed"
ENDLESS_RETRIES = 1_000
"""A retry count that no run uses up: such a subscriber is never removed."""
PROMISED, ALL, RESUMED = "promised", "all", "resumed"
"""Values of the option ``owed``, which the check ``event-lost`` reads."""
SEND_SHARE = 1 / 3
"""The share of the test's rate that is published; each event is delivered to several subscribers."""


class EventsWorkload(FeatureWorkload):
    """Publishers get a receipt when a replica has queued their event; subscribers acknowledge the events that are
    pushed to them."""

    name = "events"
    subject = EVENTS
    needs = ("events",)
    draws = DRAWS
    options = (
        Option("producers", 3, "threads that publish", load=True),
        Option("subscribers", 3, "threads that subscribe", load=True),
        Option("topics", 2, "number of topics", load=True),
        Option("links", 1, "topics whose events go to the next topic's subscribers, too", load=True),
        Option("publisher", MIXED, "kind of the publishers' proxies; mixed: each kind in turn", (MIXED, *KINDS)),
        Option("reliability", ORDERED, "quality of service: whether events must arrive in order", (ORDERED, UNORDERED)),
        Option("retry_count", ENDLESS_RETRIES,
               "further attempts after a failed delivery; then the subscriber is removed"),
        Option("work", 0.0, "seconds that a subscriber takes for each event before it acknowledges it"),
        Option("owed", PROMISED, "events that every subscriber must receive: those that HA IceStorm promises; all that "
               "were confirmed; or those confirmed when all faults have been over for resume_within",
               (PROMISED, ALL, RESUMED)),
        Option("resume_within", 10.0, "seconds after the last fault within which events must arrive again"),
        *TIMEOUTS,
        Option("poll", 0.25, "seconds a take waits for an event"),
        CLIENT_HEARTBEAT,
        Option("drain_patience", 12.0, "seconds the drain waits for events that replicas say are there"),
        Option("drain_limit", 60.0, "seconds that the drain may take in all"),
        Option("min_ok", 50, "confirmed publishes, and events received, below which the verdict is unknown"),
        FEATURE_COVERAGE,
    )
    observation_checks = ("content",)
    guarantees = ("topic-phantom", "event-lost", "event-order", "elections")

    @classmethod
    def concurrency(cls, options: Mapping[str, Any]) -> int:
        """Return the number of client threads.

        Raises:
            UsageError: there would be no publisher, subscriber or topic.
        """
        for name in ("producers", "subscribers", "topics"):
            if options[name] < 1:
                raise UsageError(f"--set {name}={options[name]}: at least 1")
        return int(options["producers"] + options["subscribers"])

    @classmethod
    def gates(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the coverage gates: the activity that a run needs for its verdict to be *valid*."""
        least = max(1, options["min_ok"])
        return {"min_ok": {"publish": least, "receive": least}, "faults_confirmed": True}

    @classmethod
    def demands(cls, options: Mapping[str, Any]) -> Demands:
        """Demand the topics."""
        return Demands(topics=tuple(topic_name(topic) for topic in range(options["topics"])))

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """Return a client for one process of a thread; it tries the replica nearest to its host first.

        Raises:
            UsageError: the system's connections don't publish and subscribe.
        """
        options, connection = cluster.test.options, cluster.queue_connection()
        if connection is not None and not isinstance(connection, EventConnection):
            raise UsageError(f"{cluster.test.system}: its connections lack publish or subscribe; see docs/systems.md")
        if connection is not None and options[FEATURE_COVERAGE.name]:
            raise UsageError(f"--set {FEATURE_COVERAGE.name}: clients of {cluster.test.system} know of no more than "
                             "events")
        if thread >= options["producers"]:
            key = thread - options["producers"]
            if connection is not None:
                return GenericListener(cluster, connection, host, thread, key)
            return CLIENTS.load("listener")(cluster, host, thread, key, self.coverage_of(cluster.test))
        kind = KINDS[thread % len(KINDS)] if options["publisher"] == MIXED else options["publisher"]
        if connection is not None:
            return GenericPublisher(cluster, connection, host, thread, kind)
        return CLIENTS.load("publisher")(cluster, host, thread, kind, self.coverage_of(cluster.test))

    def main(self, test: Test) -> Generator:
        """Publish at its share of the test's rate; take events as they arrive."""
        producers = test.options["producers"]
        each = test.rate * SEND_SHARE / producers
        keys = test.options["topics"] * classes(test.options)
        publishers = per_thread(
            lambda thread: rate(each, Publishes(keys), test.rng(f"rate/{thread}"))
        )
        takers = per_thread(lambda thread: self._subscriber(test, thread - producers, "receive"))
        load = any_of(
            on_threads(range(producers), publishers), on_threads(range(producers, test.concurrency), takers)
        )
        return clients(time_limit(test.time_limit, load))

    def drain(self, test: Test) -> Generator:
        """Let each subscriber take events until no replica has any left for it."""
        first = test.options["producers"]
        drains: Source = per_thread(lambda thread: self._subscriber(test, thread - first, "drain"))
        return clients(time_limit(test.options["drain_limit"], on_threads(range(first, test.concurrency), drains)))

    @staticmethod
    def _subscriber(test: Test, key: int, take: str) -> SubscriberLoad:
        topics = int(test.options["topics"])
        mask = 0
        for number in range(classes(test.options)):
            linked = [source for source, target in links(test.options)
                      if target == key % topics and follows(COSTS[number], link_cost(test, source))]
            mask |= sum(1 << topic + number * topics for topic in (key % topics, *linked))
        return SubscriberLoad(key, mask, "attach", take, Seed(0))
