"""Event delivery to subscribers: each replica delivers the events that were published at it.

Each subscriber is a separate listener. The replica connects to its endpoint and sends MESSAGE frames; the subscriber
answers each with an ACK of its ``ack`` header. Events wait in memory only: events that a replica had not delivered when
it died are lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nodes import stomp
from nodes.reference.api import Config, MessageNotes, Runtime
from nodes.reference.designs.icestorm.options import DISCARDED, IceStormOptions
from nodes.reference.designs.icestorm.topics import ORDERED, TopicDatabase, TopicSubscriber
from nodes.reference.engine.trace import name_of
from nodes.stomp import Frame, ProtocolError
from nodes.timeouts import within

COST = "x-cost"
MAX_WAITING_BYTES = 64 << 20
"""Upper bound of the bytes of event bodies that wait for one subscriber."""
WINDOW = 16
_READ = 1 << 16
_REMEMBERED = 2 * WINDOW
"""The number of acknowledged events per subscriber that are remembered."""
RESTS, CONNECTS, _DELIVERS = "rests", "connects", "delivers"


@dataclass(frozen=True)
class PublishedEvent:
    """One event; ``number`` is its sequence number at ``replica``, where it was published."""

    number: int
    replica: str
    topic: str
    headers: Mapping[str, str]
    body: bytes

    def frame(self, subscriber: str) -> bytes:
        """Encode the event as a frame for a subscriber."""
        headers = {"subscription": subscriber, "message-id": str(self.number), "destination": f"/topic/{self.topic}",
                   "ack": str(self.number), "x-replica": self.replica}
        # A publisher can't override headers that only a replica knows.
        headers = {**self.headers, **headers, "content-length": str(len(self.body))}
        return stomp.encode(Frame("MESSAGE", headers, self.body))


class EventDelivery:
    """All subscribers of this replica's database, each with its waiting events."""

    def __init__(self, config: Config, runtime: Runtime, options: IceStormOptions, database: TopicDatabase,
                 failed: Callable[[str, TopicSubscriber], None], notes: MessageNotes | None = None) -> None:
        """Create the delivery. ``failed`` is called with (topic, subscriber) when a subscriber's attempts are used up;
        ``notes`` traces the waiting events if tracing is on."""
        self._node = config.node
        self._runtime = runtime
        self._options = options
        self._database = database
        self._failed = failed
        self._notes = notes
        self.outboxes: dict[tuple[str, str], SubscriberOutbox] = {}
        self._events = 0

    def publish(self, topic: str, headers: Mapping[str, str], body: bytes) -> None:
        """Queue an event for every subscriber of the topic and of the topics that it links to.

        An event goes over one link at most, and only over links whose cost is 0 or not below the event's.
        """
        self._events += 1
        event = PublishedEvent(self._events, self._node, topic, headers, body)
        cost = int(headers.get(COST, "0"))
        targets = [topic, *(name for name, limit in self._database.topics[topic].links.items()
                            if limit == 0 or cost <= limit)]
        for name in targets:
            for subscriber in self._database.topics[name].subscribers.values():
                self._outbox(name, subscriber).add(event)

    def forget_gone(self) -> None:
        """Drop the waiting events of former subscribers."""
        for (topic, ident), outbox in list(self.outboxes.items()):
            known = self._database.topics.get(topic)
            if known is None or known.subscribers.get(ident) != outbox.subscriber:
                outbox.stop()
                del self.outboxes[(topic, ident)]

    def waiting(self) -> dict[str, int]:
        """Return subscriber -> the number of events not yet delivered to it; every subscriber is listed."""
        counts = {ident: 0 for topic in self._database.topics.values() for ident in topic.subscribers}
        for (_, ident), outbox in self.outboxes.items():
            counts[ident] = counts.get(ident, 0) + outbox.waiting
        return counts

    def stop(self) -> None:
        """Stop all deliveries."""
        for outbox in self.outboxes.values():
            outbox.stop()

    def _outbox(self, topic: str, subscriber: TopicSubscriber) -> SubscriberOutbox:
        outbox = self.outboxes.get((topic, subscriber.ident))
        if outbox is None or outbox.subscriber != subscriber:
            if outbox is not None:
                outbox.stop()
            outbox = SubscriberOutbox(self._runtime, self._options, subscriber, lambda: self._failed(topic, subscriber),
                            self._notes)
            self.outboxes[(topic, subscriber.ident)] = outbox
        return outbox


class SubscriberOutbox:
    """The events for one subscriber, and the connection to it."""

    def __init__(self, runtime: Runtime, options: IceStormOptions, subscriber: TopicSubscriber,
                 failed: Callable[[], None], notes: MessageNotes | None) -> None:
        self.subscriber = subscriber
        self._notes = notes
        self._runtime = runtime
        self._options = options
        self._failed = failed
        self.queue: deque[PublishedEvent] = deque()
        self.waiting_bytes = 0
        self.in_flight: dict[str, tuple[PublishedEvent, float]] = {}
        self._attempts = 0
        self.tries, self.phase = 0, RESTS
        """The number of connection attempts, and the present phase."""
        self.again = 0
        """Events that arrived twice, or were resent after the subscriber had acknowledged them; must stay 0."""
        self.unqueued = 0
        """Events that were dropped on arrival instead of the oldest; must stay 0."""
        self._last = 0
        self._taken: deque[int] = deque(maxlen=_REMEMBERED)
        self.most = 0
        """The maximum number of events in flight at once."""
        self._moved = asyncio.Event()
        self.window = 1 if subscriber.reliability == ORDERED else WINDOW
        self.task = runtime.spawn(self._run(), f"delivery to {subscriber.ident}")

    @property
    def waiting(self) -> int:
        """The number of events that the subscriber has not acknowledged."""
        return len(self.queue) + len(self.in_flight)

    def add(self, event: PublishedEvent) -> None:
        """Queue an event; the oldest waiting ones are dropped when there are far too many."""
        if self.task.done():
            return  # its attempts are used up, and it will be removed
        self.again += event.number <= self._last
        self._last = event.number
        self.queue.append(event)
        self._note("put", "send", event)
        self.waiting_bytes += len(event.body)
        most = self._options.max_waiting
        while len(self.queue) > most or (self.waiting_bytes > MAX_WAITING_BYTES and len(self.queue) > 1):
            dropped = self.queue.popleft()
            self.waiting_bytes -= len(dropped.body)
            self._note("gone", "dropped: too many wait", dropped)
            self._runtime.log("event dropped", level="warning", subscriber=self.subscriber.ident)
        self.unqueued += self.queue[-1] is not event
        self._moved.set()

    def stop(self) -> None:
        """Stop delivering."""
        self._note("gone", "no longer subscribed here", *self.queue, *(event for event, _ in self.in_flight.values()))
        self.task.cancel()

    async def _run(self) -> None:
        while True:
            while not self.queue:
                self._moved.clear()
                await self._moved.wait()
            try:
                await self._connection()
            except _Quiet:
                continue
            except (OSError, TimeoutError, EOFError, ProtocolError, UnicodeError) as error:
                self._take_back()
                self._attempts += 1
                self._runtime.log("delivery failed", subscriber=self.subscriber.ident, attempt=self._attempts,
                                  error=str(error) or type(error).__name__)
                if 0 <= self.subscriber.retry_count < self._attempts:
                    self._failed()
                    return
                await asyncio.sleep(self._options.retry_interval)

    def _take_back(self) -> None:
        """Put the events in flight back to the front of the queue."""
        failed = [event for event, _ in self.in_flight.values()]
        self.in_flight.clear()
        self.waiting_bytes += sum(len(event.body) for event in failed)
        self.queue.extendleft(reversed(failed))
        if self._notes is not None:
            for event in failed:
                before = self.queue.index(event)
                self._note("gone", "undelivered", event)
                self._note("put", f"retry behind {before} of {len(self.queue) - 1}", event)
        if self._options.offline_events == DISCARDED:
            self._note("gone", "discarded: the subscriber could not be reached", *self.queue)
            self.queue.clear()
            self.waiting_bytes = 0

    def _note(self, what: str, reason: str, *events: PublishedEvent) -> None:
        if self._notes is not None:
            for event in events:
                self._notes.note(what, f"events:{self.subscriber.ident}", name_of(event.headers, event.body), reason)
            self._notes.tell()

    async def _connection(self) -> None:
        """Connect and deliver until it fails."""
        host, _, port = self.subscriber.endpoint.rpartition(":")
        self.tries, self.phase = self.tries + 1, CONNECTS
        try:
            async with within(self._options.delivery_timeout):
                reader, writer = await self._runtime.connect(host.strip("[]"), int(port))
        except BaseException:
            self.phase = RESTS
            raise
        self.phase = _DELIVERS
        parser = stomp.Parser()
        reading: asyncio.Future[bytes] | None = None
        try:
            while True:
                while self.queue and len(self.in_flight) < self.window:
                    event = self.queue.popleft()
                    self.waiting_bytes -= len(event.body)
                    self.again += event.number in self._taken
                    self.in_flight[str(event.number)] = (event, self._runtime.now())
                    writer.write(event.frame(self.subscriber.ident))
                self.most = max(self.most, len(self.in_flight))
                if reading is None:
                    reading = asyncio.ensure_future(reader.read(_READ))
                await self._something(reading)
                if not reading.done():
                    continue
                if not self.in_flight and (reading.exception() is not None or not reading.result()):
                    raise _Quiet
                if not reading.result():
                    raise EOFError("closed by the subscriber")
                for frame in parser.feed(reading.result()):
                    flown = self.in_flight.pop(frame.headers.get("id", ""), None) if isinstance(frame, Frame) else None
                    if flown is not None:
                        self._note("gone", "ack", flown[0])
                        self._taken.append(flown[0].number)
                        self._attempts = 0
                reading = None
        finally:
            self.phase = RESTS
            if reading is not None:
                reading.cancel()
            writer.transport.abort()

    async def _something(self, reading: asyncio.Future[bytes]) -> None:
        """Wait until the subscriber has sent something, or another event may be sent.

        Raises:
            TimeoutError: the event that has been in flight for longest was not acknowledged in time.
        """
        self._moved.clear()
        moved = asyncio.ensure_future(self._moved.wait())
        awaited = (reading, moved) if len(self.in_flight) < self.window else (reading,)
        patience = None
        if self.in_flight:
            _, oldest = next(iter(self.in_flight.values()))
            patience = max(oldest + self._options.delivery_timeout - self._runtime.now(), 0.0)
        try:
            done, _ = await asyncio.wait(awaited, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        finally:
            moved.cancel()
        if not done:
            raise TimeoutError("no acknowledgement in time")


class _Quiet(Exception):
    """The subscriber closed an idle connection, which is not a failure."""
