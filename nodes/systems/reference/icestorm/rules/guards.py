"""Watchers that ask HA IceStorm's code how it would treat what no run reaches: a full database, too many events."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from nodes.reference.designs.icestorm.delivery import PublishedEvent, SubscriberOutbox
from nodes.reference.designs.icestorm.topics import (
    ORDERED,
    ReplicatedTopic,
    RequestError,
    TopicDatabase,
    TopicSubscriber,
)
from nodes.systems.reference.icestorm.probes import IceStormProbe
from nodes.systems.reference.rules.guards import AsksOnce

_MOST_ROWS = 20_000
"""The number of topics, subscribers and links that a database holds."""
_MOST_BYTES = 64 << 20
"""The bytes of events that wait for a subscriber."""
_NOBODY = TopicSubscriber("s", "h:1", 0, ORDERED, "1.1")


class RefusesWhenFull(AsksOnce):
    """Asks whether a database that is nearly full, and one that is full, would take one more of each kind."""

    def ask(self, program: IceStormProbe) -> str:
        """Ask about both."""
        return misjudges_room(_MOST_ROWS - 1) or misjudges_room(_MOST_ROWS)


class KeepsWhatMayWait(AsksOnce):
    """Asks which events wait for a subscriber when too many come."""

    def ask(self, program: IceStormProbe) -> str:
        """Ask about many events, and about large ones."""
        return misjudges_events([1] * 4, 3, 3) or misjudges_events([_MOST_BYTES // 2] * 2, 9, 2) or misjudges_events(
            [_MOST_BYTES // 2, _MOST_BYTES // 2, 1], 9, 2)


def misjudges_events(sizes: Sequence[int], most: int, kept: int) -> str:
    """Describe a wrong choice of the events of these sizes that wait, of which the last ``kept`` are to, when they come
    one after the other."""
    outbox: Any = SimpleNamespace(
        task=SimpleNamespace(done=lambda: False), again=0, _last=0, queue=deque[PublishedEvent](), waiting_bytes=0,
        _note=lambda *about: None, _options=SimpleNamespace(max_waiting=most), unqueued=0, subscriber=_NOBODY,
        _runtime=SimpleNamespace(log=lambda *about, **more: None), _moved=SimpleNamespace(set=lambda: None),
    )  # fmt: skip
    for number, size in enumerate(sizes, 1):
        SubscriberOutbox.add(outbox, PublishedEvent(number, "n", "t", {}, cast("bytes", range(size))))
    numbers = [event.number for event in outbox.queue]
    if numbers == list(range(len(sizes) - kept + 1, len(sizes) + 1)):
        return ""
    return f"of events of {list(sizes)} bytes, of which {most} may wait, those with the numbers {numbers} do"


class _Many(dict[str, Any]):
    """Counts as so many items, of which it has none: a database is full at once."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def __len__(self) -> int:
        return self._count


def misjudges_room(held: int) -> str:
    """Describe a change that a database with so many topics, subscribers and links accepts, or refuses, wrongly."""
    database: Any = object.__new__(TopicDatabase)
    topics = ReplicatedTopic("a", _Many(held - 3), _Many(1)), ReplicatedTopic("b")
    database.topics = {each.name: each for each in topics}
    for change in (["create", "c"], ["subscribe", "a", "s", "h:1", 0, ORDERED], ["link", "a", "b", 0]):
        try:
            database.check(change)
            said = ""
        except RequestError as error:
            said = str(error)
        if said != ("full" if held >= _MOST_ROWS else ""):
            return f"a database that holds {held} answers {change[0]} with {said or 'yes'}"
    return ""
