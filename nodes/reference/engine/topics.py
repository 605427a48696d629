"""Topics: the routing of a topic's messages to subscriptions."""

from __future__ import annotations

from collections.abc import Iterator

from nodes.reference.engine.model import Queue

TOPIC_PREFIX = "/topic/"
TOPIC_MANAGER = "/topic-manager"
"""The destination of requests to the topic manager, in designs that have one."""
MANAGEMENT = "/management"
"""The destination of requests that create and remove queues, exchanges and bindings, in designs that have them."""
SECURITY = "/security"
"""The destination of requests about principals, rights and administered objects, in brokers that have them."""
EXCHANGE_PREFIX = "/exchange/"
"""``/exchange/NAME/KEY``: a message for the bound queues, in designs that have exchanges."""
_MAX_KNOWN = 10_000


def matches(pattern: str, topic: str) -> bool:
    """Return whether a pattern selects a topic: ``*`` matches any one level, a final ``>`` one or more levels."""
    wanted, levels = pattern.split("."), topic.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(levels) <= len(wanted):
            return False
        levels = levels[: len(wanted)]
    return len(wanted) == len(levels) and all(
        want in ("*", level) for want, level in zip(wanted, levels, strict=True))


def is_pattern(name: str) -> bool:
    """Return whether it may select topics other than the one of its name."""
    return "*" in name or ">" in name


class Routes:
    """The queues of all topic subscriptions, in order of their ids; caches the routes of each topic."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[int, Queue]] = {}
        self._patterns: dict[int, Queue] = {}
        self._known: dict[str, tuple[Queue, ...]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Queue]:
        yield from self._patterns.values()
        for alike in self._exact.values():
            yield from alike.values()

    def add(self, queue: Queue) -> None:
        """Add a new subscription's queue."""
        self._count += 1
        if is_pattern(queue.pattern):
            self._patterns[queue.id] = queue
            self._known.clear()
        else:
            self._exact.setdefault(queue.pattern, {})[queue.id] = queue
            self._known.pop(queue.pattern, None)

    def remove(self, queue: Queue) -> None:
        """Remove the queue of a subscription that has ended."""
        self._count -= 1
        if is_pattern(queue.pattern):
            del self._patterns[queue.id]
            self._known.clear()
            return
        alike = self._exact[queue.pattern]
        del alike[queue.id]
        if not alike:
            del self._exact[queue.pattern]
        self._known.pop(queue.pattern, None)

    def miscounted(self) -> str:
        """Describe a cached value that is wrong; empty when all are right."""
        there = sum(1 for _ in self)
        if there != self._count:
            return f"subscriptions to topics: {self._count} are counted, and there are {there}"
        for topic, known in self._known.items():
            if known != self._selecting(topic):
                return f"subscriptions to topic {topic}: {[each.id for each in known]} are remembered, and others there"
        return ""

    def to(self, topic: str) -> tuple[Queue, ...]:
        """Return the queues of the subscriptions that select this topic."""
        found = self._known.get(topic)
        if found is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            found = self._known[topic] = self._selecting(topic)
        return found

    def _selecting(self, topic: str) -> tuple[Queue, ...]:
        selecting = [queue for queue in self._patterns.values() if matches(queue.pattern, topic)]
        selecting += self._exact.get(topic, {}).values()
        return tuple(sorted(selecting, key=lambda queue: queue.id))
