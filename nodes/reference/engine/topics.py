"""Topics: which subscriptions get a topic's messages."""

from __future__ import annotations

from collections.abc import Iterator

from nodes.reference.engine.model import Queue

TOPIC_PREFIX = "/topic/"
TOPIC_MANAGER = "/topic-manager"
"""Where requests to the topic manager go, in designs that have one."""
MANAGEMENT = "/management"
"""Where requests that make and remove queues, exchanges and bindings go, in designs that have them."""
SECURITY = "/security"
"""Where requests about principals, rights and administered objects go, in brokers that have them."""
EXCHANGE_PREFIX = "/exchange/"
"""``/exchange/NAME/KEY``: a message for the queues that are bound, in designs that have exchanges."""
_MAX_KNOWN = 10_000


def matches(pattern: str, topic: str) -> bool:
    """Whether a pattern selects a topic: ``*`` is any one level, ``>`` at the end any one or more."""
    wanted, levels = pattern.split("."), topic.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(levels) <= len(wanted):
            return False
        levels = levels[: len(wanted)]
    return len(wanted) == len(levels) and all(
        want in ("*", level) for want, level in zip(wanted, levels, strict=True))


def is_pattern(name: str) -> bool:
    """Whether it may select other topics than the one of its name."""
    return "*" in name or ">" in name


class Routes:
    """The queues of all topic subscriptions, in order of their ids; remembers where a topic's messages go."""

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
        """A new subscription's queue."""
        self._count += 1
        if is_pattern(queue.pattern):
            self._patterns[queue.id] = queue
            self._known.clear()
        else:
            self._exact.setdefault(queue.pattern, {})[queue.id] = queue
            self._known.pop(queue.pattern, None)

    def remove(self, queue: Queue) -> None:
        """The subscription is gone."""
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
        """What is remembered otherwise than it is, in words."""
        there = sum(1 for _ in self)
        if there != self._count:
            return f"subscriptions to topics: {self._count} are counted, and there are {there}"
        for topic, known in self._known.items():
            if known != self._selecting(topic):
                return f"subscriptions to topic {topic}: {[each.id for each in known]} are remembered, and others there"
        return ""

    def to(self, topic: str) -> tuple[Queue, ...]:
        """The queues of the subscriptions that select this topic."""
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
