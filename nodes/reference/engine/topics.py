"""Topics: which subscriptions get a topic's messages."""

from __future__ import annotations

from nodes.reference.engine.model import Queue

TOPIC_PREFIX = "/topic/"
TOPIC_MANAGER = "/topic-manager"
"""Where requests to the topic manager go, in designs that have one."""
MANAGEMENT = "/management"
"""Where requests that make and remove queues, exchanges and bindings go, in designs that have them."""
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


class Routes:
    """The queues of all topic subscriptions, in order of creation; remembers where a topic's messages go."""

    def __init__(self) -> None:
        self._queues: dict[int, Queue] = {}
        self._known: dict[str, tuple[Queue, ...]] = {}

    def __len__(self) -> int:
        return len(self._queues)

    def add(self, queue: Queue) -> None:
        """A new subscription's queue."""
        self._queues[queue.id] = queue
        self._known.clear()

    def remove(self, queue: Queue) -> None:
        """The subscription is gone."""
        del self._queues[queue.id]
        self._known.clear()

    def to(self, topic: str) -> tuple[Queue, ...]:
        """The queues of the subscriptions that select this topic."""
        found = self._known.get(topic)
        if found is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            found = tuple(queue for queue in self._queues.values() if matches(queue.pattern, topic))
            self._known[topic] = found
        return found
