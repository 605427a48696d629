"""The engine's objects in memory: queues with their messages, and the state of clients that outlives their connections.

A queue knows its ready messages, the subscriptions that have room, and the subscription to be served next. Each topic
subscription has its own queue, so it keeps, delivers and takes back messages as a queue does.

A client is represented by its connection context: its subscriptions, its open transactions, the deliveries that await
acknowledgement, and the counters of the reliable connection (Joram's connection context: identifier, input and output
counters, output queue). The output queue needs no separate storage: it consists of the deliveries in flight that the
client has not reported.

All decisions depend only on the order of commands, so all replicas decide the same.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

QUEUE_PREFIX = "/queue/"
PLAIN, DURABLE, TRANSIENT, PROXY = "queue", "durable", "transient", "proxy"
AUTO, CLIENT, INDIVIDUAL = "auto", "client", "client-individual"
ACK_MODES = (AUTO, CLIENT, INDIVIDUAL)
PULLED = "pulled"
"""Acts as client-individual, for collocated clients only: each ``pull`` requests one message, and no others are
delivered."""
MAX_WINDOW_BYTES = 8 << 20
"""A subscription whose unacknowledged messages reach this size gets no further ones, even if its window has room."""


def content_bytes(size: int, content: tuple[dict[str, str], bytes] | None) -> int:
    """Return the approximate memory of a content whose body has this size; 0 when it is not in memory."""
    if content is None:
        return 0
    headers = content[0]
    return size + sum(map(len, headers)) + sum(map(len, headers.values()))


@dataclass(slots=True, eq=False)
class Shared:
    """The part of a topic message that its subscriptions share; ``copies`` counts the queues that still hold it."""

    id: int
    topic: str
    size: int
    content: tuple[dict[str, str], bytes] | None
    copies: int = 0


@dataclass(slots=True, eq=False)
class Message:
    """A message in one queue, from SEND to its acknowledgement.

    ``size`` is that of its body; ``content`` is (headers, body) while memory holds it. A topic message has its content
    in ``shared``. ``sequence`` is its number in its queue. It is delivered to a subscription, or its acknowledgement is
    part of a prepared ``branch``, or it waits.
    """

    id: int
    queue: Queue
    size: int
    content: tuple[dict[str, str], bytes] | None = None
    redeliveries: int = 0
    subscription: Subscription | None = None
    out_seq: int = 0
    shared: Shared | None = None
    branch: Transaction | None = None
    sequence: int = 0

    @property
    def ack_id(self) -> str:
        """The id in the client's ACK, which identifies this one delivery on this one connection."""
        return f"{self.id}-{self.out_seq}"


@dataclass(slots=True, eq=False)
class Queue:
    """One destination, or one subscription to the topics that ``pattern`` selects.

    ``kind`` is ``queue``, ``durable``, ``transient`` or ``proxy``. A ``proxy`` queue holds the messages of a
    subscription to another server's destination, which ``pattern`` names; its ``name`` is that of a durable
    subscription there.
    Messages are served in the order of their ids, which is the order of sending. ``returned`` is a heap of messages
    that have been delivered before: all of them are older than every one in ``fresh``. ``served`` is the id of the
    subscription served last, ``enqueued`` the number of the last message, counted from 1.
    """

    id: int
    name: str
    kind: str = PLAIN
    pattern: str = ""
    served: int = 0
    enqueued: int = 0
    depth: int = 0
    fresh: deque[Message] = field(default_factory=deque)
    returned: list[tuple[int, Message]] = field(default_factory=list)
    subscriptions: dict[int, Subscription] = field(default_factory=dict)
    with_room: list[int] = field(default_factory=list)

    def add(self, message: Message) -> None:
        """Append a message that was just sent."""
        self.fresh.append(message)
        self.depth += 1

    def requeue(self, message: Message) -> None:
        """Make a delivered message ready again, ahead of all that were never delivered."""
        heapq.heappush(self.returned, (message.id, message))

    def waiting(self) -> list[Message]:
        """Return the undelivered messages."""
        return [*(message for _, message in self.returned), *self.fresh]

    def ready(self) -> bool:
        """Return whether there are a message and a subscription with room for it."""
        return bool(self.with_room) and bool(self.returned or self.fresh)

    def has_waiting(self) -> bool:
        """Return whether there is an undelivered message."""
        return bool(self.returned or self.fresh)

    def room(self) -> int:
        """Return the number of messages that its subscriptions have room for."""
        having = (self.subscriptions[identity] for identity in self.with_room)
        return sum(subscription.prefetch - len(subscription.unacked) for subscription in having)

    def pop(self) -> Message:
        """Take the next message, for a receiver other than a subscription; requires a waiting message."""
        return heapq.heappop(self.returned)[1] if self.returned else self.fresh.popleft()

    def next_delivery(self) -> tuple[Message, Subscription]:
        """Return the next message, and the next subscription in turn; requires ``ready``."""
        message = self.pop()
        turn = bisect_right(self.with_room, self.served)
        self.served = self.with_room[turn if turn < len(self.with_room) else 0]
        return message, self.subscriptions[self.served]

    def attach(self, subscription: Subscription) -> None:
        """Attach a new subscription, whose turn follows those of older ones."""
        self.subscriptions[subscription.id] = subscription
        self.update_room(subscription)

    def detach(self, subscription: Subscription) -> None:
        """Detach a subscription, which is no longer served."""
        del self.subscriptions[subscription.id]
        self._set_room(subscription.id, False)

    def update_room(self, subscription: Subscription) -> None:
        """Update whether a subscription has room; call it after its unacknowledged messages or its connection's
        ``full`` change."""
        self._set_room(subscription.id, subscription.has_room)

    def _set_room(self, identity: int, room: bool) -> None:
        place = bisect_left(self.with_room, identity)
        there = place < len(self.with_room) and self.with_room[place] == identity
        if room and not there:
            insort(self.with_room, identity)
        elif there and not room:
            self.with_room.pop(place)


def content_size(args: Mapping[str, Any]) -> int:
    """Return the size of body and headers (approximately) in a command's arguments, in bytes."""
    headers = args.get("headers") or {}
    return len(args.get("body", b"")) + sum(len(name) + len(value) for name, value in headers.items())


@dataclass(slots=True, eq=False)
class Subscription:
    """A client's subscription to a queue. ``prefetch`` is its window, or the number of requested messages of a pulled
    one.

    ``unacked`` maps output counters, ascending, to messages; ``held`` is the size of their bodies.
    """

    id: int
    context: ConnectionContext
    name: str
    queue: Queue
    ack: str
    prefetch: int
    unacked: dict[int, Message] = field(default_factory=dict)
    held: int = 0

    @property
    def has_room(self) -> bool:
        """Whether it may be given one more message."""
        return len(self.unacked) < self.prefetch and self.held < MAX_WINDOW_BYTES and not self.context.full

    def hold(self, message: Message, out_seq: int) -> None:
        """Record the delivery of a message to this subscription, with its output number on the connection."""
        message.subscription, message.out_seq = self, out_seq
        self.unacked[out_seq] = message
        self.context.inflight[out_seq] = message
        self.held += message.size
        self.context.held += message.size

    def release(self, message: Message) -> None:
        """End the delivery of a message to this subscription."""
        del self.unacked[message.out_seq]
        del self.context.inflight[message.out_seq]
        self.held -= message.size
        self.context.held -= message.size
        message.subscription = None

    def release_all(self) -> list[Message]:
        """End all deliveries to this subscription; return their messages, oldest first."""
        messages = list(self.unacked.values())
        for message in messages:
            del self.context.inflight[message.out_seq]
            message.subscription = None
        self.unacked.clear()
        self.context.held -= self.held
        self.held = 0
        return messages


@dataclass(slots=True, eq=False)
class TransactionItem:
    """One send, ack or nack that waits in a transaction."""

    id: int
    transaction: Transaction
    kind: str
    args: Mapping[str, Any]


@dataclass(slots=True, eq=False)
class Transaction:
    """A transaction that was begun and not yet committed or aborted; ``size`` is in bytes.

    A branch of a distributed transaction has an ``xid``. Once it is ``prepared`` (a number in the order of
    preparations), it has no ``context`` any longer, its items are sends only, and ``taken`` holds the messages that it
    acknowledges, by id.
    """

    id: int
    context: ConnectionContext | None
    name: str
    login: str
    xid: str = ""
    prepared: int = 0
    items: list[TransactionItem] = field(default_factory=list)
    size: int = 0
    taken: dict[int, Message] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        """The key of a branch: the login that owns it, and its XID."""
        return self.login, self.xid

    def add(self, item: TransactionItem) -> int:
        """Append an item; return its size."""
        size = content_size(item.args)
        self.items.append(item)
        self.size += size
        return size


@dataclass(slots=True, eq=False)
class ConnectionContext:
    """A client's connection; ``in_seq``, ``out_seq`` and ``received`` are its three counters.

    ``held`` is the size of the bodies in flight; when it reaches ``window``, the connection gets no further messages.
    ``backlog`` counts the messages in the queues of its transient subscriptions. ``settled`` is the highest output that
    was settled automatically (AUTO), as far as this process has seen.
    """

    id: int
    conn: str
    reliable: bool
    login: str
    in_seq: int = 0
    out_seq: int = 0
    received: int = 0
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    transactions: dict[str, Transaction] = field(default_factory=dict)
    inflight: dict[int, Message] = field(default_factory=dict)
    held: int = 0
    window: int = 1 << 62
    backlog: int = 0
    settled: int = 0

    @property
    def full(self) -> bool:
        """Whether none of its subscriptions gets any further message now."""
        return self.held >= self.window

    def find(self, ack_id: str) -> Message | None:
        """Find the delivered message that awaits an acknowledgement with this id."""
        out_seq = ack_id.rpartition("-")[2]
        # At most 19 digits: converting an overlong number from a client would be expensive.
        if not (out_seq.isascii() and out_seq.isdecimal() and len(out_seq) < 20):
            return None
        message = self.inflight.get(int(out_seq))
        return message if message is not None and message.ack_id == ack_id else None

    def most_covered(self, ack_id: str) -> int:
        """Return the maximum number of messages that an acknowledgement with this id covers."""
        message = self.find(ack_id)
        subscription = message.subscription if message is not None else None
        if message is None or subscription is None or subscription.ack in (INDIVIDUAL, PULLED):
            return 1
        oldest = next(iter(subscription.unacked))
        return min(len(subscription.unacked), message.out_seq - oldest + 1)

    def covered(self, message: Message) -> list[Message]:
        """Return the messages that an acknowledgement of this one covers: with ``client`` and ``auto`` all older ones
        too."""
        subscription = message.subscription
        if subscription is None or subscription.ack in (INDIVIDUAL, PULLED):
            return [message]
        messages = []
        for out_seq, older in subscription.unacked.items():
            if out_seq > message.out_seq:
                break
            messages.append(older)
        return messages


def restore_ready(messages: Iterable[Message]) -> None:
    """Put stored messages, oldest first, back into their queues; those not waiting only count towards the depth."""
    for message in messages:
        queue = message.queue
        queue.depth += 1
        if message.subscription is not None or message.branch is not None:
            continue
        if message.redeliveries:
            queue.requeue(message)
        else:
            queue.fresh.append(message)
