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


class TopicRoutes:
    """The queues of all topic subscriptions, in order of their ids; caches the routes of each topic."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[int, Queue]] = {}
        self._patterns: dict[int, Queue] = {}
        self.known: dict[str, tuple[Queue, ...]] = {}
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
            self.known.clear()
        else:
            self._exact.setdefault(queue.pattern, {})[queue.id] = queue
            self.known.pop(queue.pattern, None)

    def remove(self, queue: Queue) -> None:
        """Remove the queue of a subscription that has ended."""
        self._count -= 1
        if is_pattern(queue.pattern):
            del self._patterns[queue.id]
            self.known.clear()
            return
        alike = self._exact[queue.pattern]
        del alike[queue.id]
        if not alike:
            del self._exact[queue.pattern]
        self.known.pop(queue.pattern, None)

    def to(self, topic: str) -> tuple[Queue, ...]:
        """Return the queues of the subscriptions that select this topic."""
        found = self.known.get(topic)
        if found is None:
            if len(self.known) >= _MAX_KNOWN:
                self.known.clear()
            found = self.known[topic] = self.selecting(topic)
        return found

    def selecting(self, topic: str) -> tuple[Queue, ...]:
        """Compare every subscription with the topic; ``to`` remembers the result."""
        selecting = [queue for queue in self._patterns.values() if matches(queue.pattern, topic)]
        selecting += self._exact.get(topic, {}).values()
        return tuple(sorted(selecting, key=lambda queue: queue.id))
