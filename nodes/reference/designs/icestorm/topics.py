"""The replicated database: topics, their subscribers and links, and the stamp of the last change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nodes.reference import wire
from nodes.reference.api import Broker
from nodes.reference.designs.icestorm.decisions import Stamp
from nodes.reference.designs.icestorm.object_trace import ObjectTrace
from nodes.reference.engine.trace import START, STATE

ORDERED, UNORDERED = "ordered", "unordered"
MAX_NAME = 200
MAX_ROWS = 20_000
"""Maximum number of topics, subscribers and links in a database: all of them must fit into one link frame."""

Change = Sequence[Any]
"""``[kind, topic, ...]``: ``create``, ``destroy``, ``subscribe`` (id, endpoint, retry count, reliability),
``unsubscribe`` (id), ``remove`` (id, since; succeeds also if that subscription is already gone), ``link`` (target,
cost), ``unlink`` (target).
"""

_ARGUMENTS: Mapping[str, tuple[type, ...]] = {
    "create": (), "destroy": (), "subscribe": (str, str, int, str), "unsubscribe": (str,), "remove": (str, str),
    "link": (str, int), "unlink": (str,),
}


def is_change(value: Any) -> bool:
    """Tell whether a value from a peer is a change."""
    if not isinstance(value, list) or len(value) < 2 or not all(isinstance(part, str) for part in value[:2]):
        return False
    wanted = _ARGUMENTS.get(value[0])
    return wanted is not None and tuple(map(type, value[2:])) == wanted and all(
        part.isprintable() for part in value if isinstance(part, str))


def is_dump(value: Any) -> bool:
    """Tell whether a value from a peer has the format of ``TopicDatabase.dump``."""
    try:
        for name, content in value:
            topic = ReplicatedTopic.decode(name, content)
            if not all(each.isprintable() for each in (name, *topic.subscribers, *topic.links)):
                return False
    except (ValueError, TypeError, IndexError, AttributeError):
        return False
    return isinstance(value, list)


class RequestError(Exception):
    """A change or a question can't be carried out in the present state; the text is one word for programs."""


@dataclass(frozen=True)
class TopicSubscriber:
    """A receiver of a topic's events at ``endpoint`` (``host:port``).

    ``retry_count`` is the number of further attempts after a failed delivery before the subscriber is removed (-1:
    unlimited). ``reliability`` tells whether events must arrive in order. ``since`` distinguishes this subscription
    from an earlier one of the same name.
    """

    ident: str
    endpoint: str
    retry_count: int
    reliability: str = UNORDERED
    since: str = ""


@dataclass
class ReplicatedTopic:
    """A topic; ``links`` maps the names of linked topics to the cost of the link."""

    name: str
    subscribers: dict[str, TopicSubscriber] = field(default_factory=dict)
    links: dict[str, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Encode the topic for the database."""
        subscribers = [[s.ident, s.endpoint, s.retry_count, s.reliability, s.since]
                       for s in self.subscribers.values()]
        return wire.encode([subscribers, self.links])

    @classmethod
    def decode(cls, name: str, content: bytes) -> ReplicatedTopic:
        """Decode a topic that ``encode`` wrote."""
        subscribers, links = wire.decode(content)
        return cls(name, {row[0]: TopicSubscriber(*row) for row in subscribers}, dict(links))


class TopicDatabase:
    """One replica's database.

    ``promised`` is the newest epoch whose changes this replica has agreed to accept; ``changed`` is called after topics
    have changed.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sql = broker.database
        self._sql.execute("CREATE TABLE IF NOT EXISTS icestorm_topics (name TEXT PRIMARY KEY, content BLOB NOT NULL)")
        self._sql.execute("CREATE TABLE IF NOT EXISTS icestorm_meta (id INTEGER PRIMARY KEY, value BLOB NOT NULL)")
        self.topics: dict[str, ReplicatedTopic] = {}
        self._trace = ObjectTrace(broker.engine.message_trace)
        self.changed: Callable[[], None] = lambda: None
        self.last_change: Change | None = None
        """The last change since this replica was started."""
        self.taken_over = False
        """Whether another replica's topics were taken over when the last group began."""
        self.stamp = Stamp(0, 0)
        self.promised = 0
        rows = self._sql.execute("SELECT name, content FROM icestorm_topics ORDER BY name")
        self.topics = {name: ReplicatedTopic.decode(name, content) for name, content in rows}
        for (value,) in self._sql.execute("SELECT value FROM icestorm_meta WHERE id = 0"):
            self.promised, epoch, counter, wall = wire.decode(value)
            self.stamp = Stamp(epoch, counter, wall)
        self._trace.compare(self._objects(), START)

    def promise(self, epoch: int) -> None:
        """Agree, on disk, to reject the changes of older epochs."""
        with self._broker.transaction():
            self.promised = epoch
            self._write_meta()

    def check(self, change: Change) -> None:
        """Check that the change is possible; raises RequestError otherwise."""
        kind, name = change[0], change[1]
        topic = self.topics.get(name)
        if kind == "create":
            if topic is not None:
                raise RequestError("topic-exists")
            self._check_room()
            return
        if topic is None:
            if kind != "remove":
                raise RequestError("no-such-topic")
        elif kind == "subscribe":
            if change[2] in topic.subscribers:
                raise RequestError("already-subscribed")
            self._check_room()
        elif kind == "unsubscribe" and change[2] not in topic.subscribers:
            raise RequestError("no-such-subscriber")
        elif kind == "link":
            if change[2] not in self.topics:
                raise RequestError("no-such-topic")
            if change[2] in topic.links:
                raise RequestError("link-exists")
            if change[2] == name:
                raise RequestError("link-to-itself")
            self._check_room()
        elif kind == "unlink" and change[2] not in topic.links:
            raise RequestError("no-such-link")

    def apply(self, change: Change, stamp: Stamp) -> None:
        """Make a change that ``check`` has passed, on disk."""
        with self._broker.transaction():
            for name in self._change(change, f"{stamp.epoch}.{stamp.counter}"):
                self._write_topic(name)
            self.stamp = stamp
            self._write_meta()
        self.last_change = change
        self._trace.compare(self._objects(), change[0])
        self.changed()

    def dump(self) -> list[list[Any]]:
        """Return all topics, for a transfer."""
        return [[name, self.topics[name].encode()] for name in sorted(self.topics)]

    def replace(self, rows: Iterable[Sequence[Any]] | None, stamp: Stamp) -> None:
        """Take over a dumped database (None: keep the topics), in one transaction."""
        with self._broker.transaction():
            if rows is not None:
                self.topics = {name: ReplicatedTopic.decode(name, content) for name, content in rows}
                self._sql.execute("DELETE FROM icestorm_topics")
                for name in self.topics:
                    self._write_topic(name)
            self.stamp = stamp
            self._write_meta()
        self.taken_over = rows is not None
        self._trace.compare(self._objects(), STATE)
        self.changed()

    def _objects(self) -> set[str]:
        """Return the trace names of the present objects; empty if tracing is off."""
        if not self._trace.exists:
            return set()
        found = {f"topic-{name}" for name in self.topics}
        for topic in self.topics.values():
            found |= {f"subscription-of-{ident}-to-{topic.name}" for ident in topic.subscribers}
            found |= {f"link-from-{topic.name}-to-{target}" for target in topic.links}
        return found

    def _check_room(self) -> None:
        rows = sum(1 + len(topic.subscribers) + len(topic.links) for topic in self.topics.values())
        if rows >= MAX_ROWS:
            raise RequestError("full")

    def _change(self, change: Change, since: str) -> list[str]:
        """Change the topics in memory; return the names of those that changed."""
        kind, name = change[0], change[1]
        if kind == "create":
            self.topics[name] = ReplicatedTopic(name)
            return [name]
        if kind == "destroy":
            del self.topics[name]
            linking = [topic for topic in self.topics.values() if name in topic.links]
            for topic in linking:
                del topic.links[name]
            return [name, *(topic.name for topic in linking)]
        topic = self.topics.get(name, ReplicatedTopic(name))
        if kind == "subscribe":
            ident, endpoint, retries, reliability = change[2:]
            topic.subscribers[ident] = TopicSubscriber(ident, endpoint, retries, reliability, since)
        elif kind == "unsubscribe":
            topic.subscribers.pop(change[2], None)
        elif kind == "remove":
            if name not in self.topics:
                return []
            known = topic.subscribers.get(change[2])
            if known is not None and known.since == change[3]:
                del topic.subscribers[change[2]]
        elif kind == "link":
            topic.links[change[2]] = change[3]
        elif kind == "unlink":
            del topic.links[change[2]]
        else:
            raise ValueError(f"no change is called {kind!r}")
        return [name]

    def _write_topic(self, name: str) -> None:
        topic = self.topics.get(name)
        if topic is None:
            self._sql.execute("DELETE FROM icestorm_topics WHERE name = ?", (name,))
        else:
            self._sql.execute("INSERT OR REPLACE INTO icestorm_topics VALUES (?, ?)", (name, topic.encode()))

    def _write_meta(self) -> None:
        value = wire.encode([self.promised, *self.stamp])
        self._sql.execute("INSERT OR REPLACE INTO icestorm_meta VALUES (0, ?)", (value,))
