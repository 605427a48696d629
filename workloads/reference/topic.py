"""Workload ``topic``: producers publish to topics; durable and transient subscribers take, and their observations are
compared.

A subscription's number is its key; the value of ``attach`` (durable) and ``listen`` (transient) has a bit for each
topic that its pattern selects. Durable subscribers sometimes detach and reattach; at the end they are drained. A
transient subscription lasts as long as its process.
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
from stormproof.generator import (
    Generator,
    Seed,
    Source,
    any_of,
    clients,
    on_threads,
    per_thread,
    rate,
    sequence,
    time_limit,
)
from stormproof.operation import INVOKE, Op
from stormproof.test import Test
from workloads.draws import TOPIC as DRAWS
from workloads.feature_coverage import FEATURE_COVERAGE, UNSUBSCRIBE, FeatureWorkload
from workloads.options import CLIENT_HEARTBEAT, CONNECTING, TIMEOUTS
from workloads.reference.dialogue.broker_model import selects
from workloads.reference.topic_client import TopicClient, topic_name
from workloads.subscribers import Publishes, SubscriberLoad, subscriptions

SEND_SHARE = 1 / 3
"""The share of the test's rate that is published; each event is delivered to several subscribers."""
MAX_TOPICS = 30
DELETE_SHARE = 0.3
"""The share of a durable subscriber's departures that delete the subscription, where all features are used."""
COVERAGE_PATTERNS = (">", "t.>", "t.a.>", "t.*.*", "*.a.*", "*.*.0", "t.b.1", "*.b.>", "*.*.*", "t.*.2")
"""Patterns that subscriptions then use in addition to the test's own patterns."""


class TopicWorkload(FeatureWorkload):
    """Producers send with receipts; each subscriber holds one subscription and acknowledges each message."""

    name = "topic"
    needs: tuple[str, ...] = ("topics",)
    draws = DRAWS
    options: tuple[Option, ...] = (
        Option("producers", 2, "threads that publish", load=True),
        Option("durables", 2, "durable subscriptions, a thread each", load=True),
        Option("transients", 2, "transient subscriptions, a thread each", load=True),
        Option("topics", 3, "number of topics: t.a.0, t.b.1, t.a.2...", load=True),
        Option("topic_patterns", "t.>,t.a.*", "patterns of durable subscriptions in turn, and of transient ones",
               was="patterns"),
        Option("window", 8, "messages that are pushed to a subscriber ahead of its acknowledgements"),
        Option("stay", 40, "operations after which a durable subscriber detaches, on average; 0: never"),
        Option("away", 0.5, "seconds that a durable subscriber stays detached"),
        *TIMEOUTS,
        Option("poll", 0.25, "seconds a take waits for a message"),
        CLIENT_HEARTBEAT,
        *CONNECTING,
        Option("drain_patience", 12.0, "seconds the drain waits for messages that the broker says are there"),
        Option("drain_limit", 60.0, "seconds that the drain may take in all"),
        Option("min_ok", 50, "confirmed sends, and takes, below which the verdict is unknown"),
        FEATURE_COVERAGE,
    )
    guarantees = ("topic-lost", "topic-phantom", "topic-duplicated", "topic-order", "agreement", "gaps", "depth")

    def __init__(self) -> None:
        self._latest: dict[int, int] = {}
        """Initial number of a durable subscription -> the number of the subscription that now has its name."""

    @classmethod
    def concurrency(cls, options: Mapping[str, Any]) -> int:
        """Return the number of client threads.

        Raises:
            UsageError: there would be no producer or subscriber, a number is out of range, or a pattern selects no
                topic.
        """
        topics, subscriptions = options["topics"], options["durables"] + options["transients"]
        if options["producers"] < 1 or subscriptions < 1:
            raise UsageError("--set producers, and durables or transients: at least 1")
        if not 1 <= topics <= MAX_TOPICS:
            raise UsageError(f"--set topics={topics}: between 1 and {MAX_TOPICS}")
        if options["window"] < 1:
            raise UsageError("--set window: at least 1")
        for pattern in _patterns(options):
            if not _mask(pattern, topics):
                names = ", ".join(topic_name(topic) for topic in range(topics))
                raise UsageError(f"--set topic_patterns: {pattern!r} selects none of the topics {names}")
        return int(options["producers"] + subscriptions)

    @classmethod
    def gates(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the coverage gates: the activity that a run needs for its verdict to be *valid*."""
        least = max(1, options["min_ok"])
        return {"min_ok": {"publish": least, "receive": least}, "drain": True, "depth": True, "faults_confirmed": True}

    @classmethod
    def demands(cls, options: Mapping[str, Any]) -> Demands:
        """Demand the topics."""
        return Demands(topics=tuple(topic_name(topic) for topic in range(options["topics"])))

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """Return a client for one process of a thread; it tries the replica nearest to its host first."""
        return TopicClient(cluster, host, thread, self.pattern(cluster.test, thread), self.coverage_of(cluster.test),
                           self._latest)

    @staticmethod
    def pattern(test: Test, thread: int) -> str:
        """Return the pattern of a thread's subscription."""
        return _pattern(test, max(0, thread - test.options["producers"]))

    def main(self, test: Test) -> Generator:
        """Publish at their share of the test's rate; take messages as they arrive."""
        options, producers = test.options, test.options["producers"]
        # Each publisher has a separate rate: among threads that share a rate and compete with others, the first get
        # most of it.
        each = test.rate * SEND_SHARE / producers
        publishers = per_thread(lambda thread: rate(each, Publishes(options["topics"]), test.rng(f"rate/{thread}")))
        load = on_threads(range(producers), publishers)
        rng = test.rng("subscribers")
        seeds = [Seed.of(rng) for _ in range(test.concurrency)]

        def role(thread: int) -> Source:
            taker = self._subscriber(test, thread - producers, "receive", seeds[thread])
            if taker.ask == "listen" or not options["stay"]:
                return taker
            found = self.coverage_of(test)
            deletes = DELETE_SHARE if found is not None and UNSUBSCRIBE in found.features else 0.0
            return replace(taker, stay=options["stay"], away=round(options["away"] * 1e9), deletes=deletes)

        takers = on_threads(range(producers, test.concurrency), per_thread(role))
        return clients(time_limit(test.time_limit, any_of(load, takers)))

    def drain(self, test: Test) -> Generator:
        """Let each durable subscriber reattach and take until no message is left."""
        first = test.options["producers"]
        threads = range(first, first + test.options["durables"])
        drains = per_thread(lambda thread: self._subscriber(test, self._now(thread - first), "drain", Seed(0)))
        return clients(time_limit(test.options["drain_limit"], on_threads(threads, drains)))

    def depth(self, test: Test) -> Generator:
        """Read the number of messages in each durable subscription, once the subscribers are gone."""
        reads = sequence(*(Op(INVOKE, "depth", key=self._now(key)) for key in range(test.options["durables"])))
        return on_threads([0], reads)

    def _now(self, key: int) -> int:
        return self._latest.get(key, key)

    @staticmethod
    def _subscriber(test: Test, key: int, take: str, seed: Seed) -> SubscriberLoad:
        place = key % subscriptions(test.options)
        mask = _mask(_pattern(test, place), test.options["topics"])
        return SubscriberLoad(key, mask, "attach" if place < test.options["durables"] else "listen", take, seed)


def _patterns(options: Mapping[str, Any]) -> list[str]:
    return [pattern.strip() for pattern in str(options["topic_patterns"]).split(",")]


def _pattern(test: Test, key: int) -> str:
    """Return a subscription's pattern: the patterns are assigned in turn, to the durable and to the transient ones."""
    patterns, durables = _patterns(test.options), test.options["durables"]
    if test.options[FEATURE_COVERAGE.name]:
        known = [pattern for pattern in COVERAGE_PATTERNS if _mask(pattern, test.options["topics"])]
        return test.rng(f"surface/pattern/{key}").choice([*patterns, *known])
    return patterns[(key if key < durables else key - durables) % len(patterns)]


def _mask(pattern: str, topics: int) -> int:
    return sum(1 << topic for topic in range(topics) if selects(pattern, topic_name(topic)))
