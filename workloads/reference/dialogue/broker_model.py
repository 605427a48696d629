"""Model of a broker of queues and topics: docs/stomp.md in a few lines, for destinations that a single client uses.

The model is sequential and exact. A client that uses a destination alone, one command after the other, can predict each
answer: the next message, its number of earlier deliveries, the commands that are refused (model-based testing: Claessen
and Hughes, "QuickCheck", ICFP 2000; Hughes, "Mysteries of Dropbox", ICST 2016).
"""

from __future__ import annotations

import re
from bisect import insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

INDIVIDUAL, CLIENT = "client-individual", "client"
COMMITTED, ABORTED = "committed", "aborted"
_BROKER_HEADER_BYTES = 100
"""Upper bound, in bytes, of a frame's headers other than those that its sender set."""

_LARGE_WINDOW = 1 << 20
"""Limits of so many bytes in flight are not reached on purpose."""


@dataclass(frozen=True)
class ClientLimits:
    """The limits that apply to a client, by the names of the broker's options (docs/stomp.md)."""

    max_backlog: int = 10_000
    max_connection_backlog: int = 10_000
    max_prefetch: int = 2_000
    max_fanout: int = 2_000
    max_transactions: int = 100
    max_subscriptions: int = 1_000
    max_transaction_items: int = 10_000
    max_transaction_bytes: int = 16 << 20
    max_headers: int = 128
    max_body: int = 4 << 20
    max_messages: int = 1_000_000
    max_queues: int = 10_000
    max_prepared: int = 400
    max_window: int = 12 << 20

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> ClientLimits:
        """Return the limits that a test's options set."""
        return cls(**{each.name: int(options[each.name]) for each in fields(cls) if each.name in options})

    @property
    def tight(self) -> bool:
        """Whether one message is as many bytes as a connection may hold."""
        return self.max_window < min(_LARGE_WINDOW, self.max_body)


_DEFAULTS = ClientLimits()
"""Limits that no run reaches."""
_IS_FULL = re.compile("the broker already (has|holds) its limit of")
"""The error of a full broker."""


@dataclass(eq=False)
class ModelMessage:
    """One copy of a message: ``number`` is its position in the order in which messages took effect."""

    number: int
    destination: str
    headers: Mapping[str, str]
    body: bytes
    redeliveries: int = 0

    def __lt__(self, other: ModelMessage) -> bool:
        return self.number < other.number


@dataclass(eq=False)
class Box:
    """A queue, or the backlog of one subscription to topics; ``ready`` is in the order of delivery.

    ``subscriptions`` are in the order in which they began; ``served`` is the ``place`` of the one served last.
    """

    name: str
    pattern: str = ""
    ready: list[ModelMessage] = field(default_factory=list)
    subscriptions: list[ModelSubscription] = field(default_factory=list)
    served: int = 0

    def in_turn(self) -> ModelSubscription | None:
        """Return the subscription that gets the next message: the first one with room that began after the one served
        last."""
        having = [each for each in self.subscriptions if len(each.unacknowledged) < each.window]
        return next((each for each in having if each.place > self.served), having[0] if having else None)

    def give_back(self, message: ModelMessage) -> None:
        """Return a delivered message to the queue, ahead of all messages that were sent after it."""
        message.redeliveries += 1
        insort(self.ready, message)


@dataclass(eq=False)
class ModelSubscription:
    """A subscription; ``unacknowledged`` is in the order of delivery, and the client has not received those in ``due``
    yet.

    ``held`` maps the id by which a received message is acknowledged to that message; ``place`` is the subscription's
    position in the order in which all subscriptions began.
    """

    name: str
    box: Box
    ack: str
    window: int
    durable: str = ""
    place: int = 0
    unacknowledged: list[ModelMessage] = field(default_factory=list)
    due: list[ModelMessage] = field(default_factory=list)
    held: dict[str, ModelMessage] = field(default_factory=dict)

    def covered(self, message: ModelMessage) -> list[ModelMessage]:
        """Return the messages that an acknowledgement of this message covers."""
        if self.ack == INDIVIDUAL:
            return [message]
        return self.unacknowledged[: self.unacknowledged.index(message) + 1]

    def let_go(self, messages: Iterable[ModelMessage]) -> None:
        """Remove messages from the subscription."""
        for message in messages:
            self.unacknowledged.remove(message)
            self.held = {ident: each for ident, each in self.held.items() if each is not message}


@dataclass(eq=False)
class ModelItem:
    """A frame of a transaction: a message to be sent, or one to be acknowledged (given back)."""

    kind: str
    destination: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    subscription: ModelSubscription | None = None
    message: ModelMessage | None = None

    @property
    def size(self) -> int:
        """The upper bound of the bytes that this item takes in a transaction."""
        return _BROKER_HEADER_BYTES + len(self.body) + sum(len(name) + len(text) for name, text in self.headers.items())


@dataclass(eq=False)
class ModelTransaction:
    """A transaction; ``xid`` is set if it is a branch; ``taken`` are the messages that it holds once prepared, each
    with its box."""

    name: str
    xid: str = ""
    items: list[ModelItem] = field(default_factory=list)
    taken: list[tuple[Box, ModelMessage]] = field(default_factory=list)

    def locks(self, subscription: ModelSubscription) -> bool:
        """Return whether it acknowledges messages of this subscription."""
        return any(item.subscription is subscription for item in self.items)


def selects(pattern: str, topic: str) -> bool:
    """Return whether a subscription's pattern selects a topic: ``*`` matches one level, ``>`` at the end one or
    more."""
    wanted, levels = pattern.split("."), topic.split(".")
    if wanted[-1] == ">":
        if len(levels) < len(wanted):
            return False
        wanted, levels = wanted[:-1], levels[: len(wanted) - 1]
    return len(wanted) == len(levels) and all(want in ("*", level) for want, level in zip(wanted, levels, strict=True))


def selected(kind: str, key: str, asked: str) -> bool:
    """Return whether a binding by ``key`` to an exchange of a kind routes a message that is sent with the key
    ``asked``."""
    if kind == "fanout":
        return True
    return key == asked if kind == "direct" else selects(key, asked)


class Mismatch(Exception):
    """The broker behaved differently from the model; the text names the difference in few words, so that it can be
    counted."""


class BrokerModel:
    """The destinations of one client, and its connection."""

    def __init__(self, limits: ClientLimits = _DEFAULTS) -> None:
        self._limits = limits
        self.queues: dict[str, Box] = {}
        self.durables: dict[str, Box] = {}
        self.transients: list[Box] = []
        self.apart: set[str] = set()
        """Queues that exist and that the model does not describe."""
        self.others: dict[str, Box] = {}
        """Login -> the backlog of its durable subscription."""
        self.subscriptions: dict[str, ModelSubscription] = {}
        self.transactions: dict[str, ModelTransaction] = {}
        self.prepared: dict[str, ModelTransaction] = {}
        self.outcomes: dict[str, str] = {}
        self.exchanges: dict[str, str] = {}
        self.bindings: set[tuple[str, str, str]] = set()
        """Exchange, queue and key."""
        self._sent = self._subscribed = 0

    def queue(self, name: str) -> Box:
        """Return a queue; it is created when it is first used."""
        return self.queues.setdefault(name, Box(name))

    def targets(self, destination: str) -> list[Box]:
        """Return the boxes that a message that takes effect now is delivered to."""
        _, kind, name = destination.split("/", 2)
        if kind == "queue":
            return [self.queue(name)]
        if kind == "topic":
            boxes = [*self.durables.values(), *self.transients, *self.others.values()]
            return [box for box in boxes if selects(box.pattern, name)]
        exchange, _, key = name.partition("/")
        bound = {queue for at, queue, by in self.bindings
                 if at == exchange and selected(self.exchanges[exchange], by, key)}
        return [self.queues[queue] for queue in sorted(bound)]

    def fanout(self, destinations: Iterable[str]) -> int:
        """Return the number of messages, as a broker counts them, that are created when one is sent to each
        destination."""
        return sum(len(self.targets(each)) if each.startswith("/topic/") else 1 for each in destinations)

    def held(self, box: Box) -> int:
        """Return the number of messages that belong to a subscription: waiting, unacknowledged, and taken by prepared
        branches."""
        taken = sum(other is box for each in self.prepared.values() for other, _ in each.taken)
        return len(box.ready) + sum(len(each.unacknowledged) for each in box.subscriptions) + taken

    def messages(self) -> int:
        """Return the least number of messages that a broker holds for this client."""
        boxes = [*self.queues.values(), *self.durables.values(), *self.transients, *self.others.values()]
        return sum(map(self.held, boxes))

    def overflows(self) -> bool:
        """Return whether transient subscriptions hold more than their limit, which ends the connection."""
        held = [self.held(box) for box in self.transients]
        return max(held, default=0) > self._limits.max_backlog or sum(held) > self._limits.max_connection_backlog

    # Commands. Each is carried out as a whole; then every message that can be delivered is delivered.

    def send(self, destination: str, headers: Mapping[str, str], body: bytes) -> None:
        """Apply SEND."""
        self._send(destination, headers, body)
        self._deliver()

    def subscribe(self, name: str, box: Box, ack: str, window: int, durable: str = "") -> ModelSubscription:
        """Apply SUBSCRIBE to a queue, or to the backlog of a subscription to topics."""
        self._subscribed += 1
        subscription = ModelSubscription(name, box, ack, window, durable, self._subscribed)
        self.subscriptions[name] = subscription
        box.subscriptions.append(subscription)
        self._deliver()
        return subscription

    def topic_box(self, pattern: str, durable: str = "") -> Box:
        """Return the backlog of a subscription to topics: a new one, or that of the durable subscription of that
        name."""
        if not durable:
            box = Box("", pattern)
            self.transients.append(box)
            return box
        known = self.durables.get(durable)
        if known is None or known.pattern != pattern:
            known = self.durables[durable] = Box(durable, pattern)
        return known

    def box_of(self, login: str, pattern: str) -> Box:
        """Return the backlog of another login's durable subscription."""
        return self.others.setdefault(login, Box(login, pattern))

    def unsubscribe(self, subscription: ModelSubscription, *, delete: bool = False) -> None:
        """Apply UNSUBSCRIBE; ``delete`` also deletes its durable subscription."""
        self._end(subscription)
        if delete:
            del self.durables[subscription.durable]
        self._deliver()

    def _end(self, subscription: ModelSubscription) -> None:
        del self.subscriptions[subscription.name]
        box = subscription.box
        box.subscriptions.remove(subscription)
        for message in subscription.unacknowledged:
            box.give_back(message)
        if box in self.transients:
            self.transients.remove(box)

    def settle(self, kind: str, subscription: ModelSubscription, message: ModelMessage) -> None:
        """Apply ACK or NACK."""
        self._settle(kind, subscription, message)
        self._deliver()

    def begin(self, name: str, xid: str = "") -> None:
        """Apply BEGIN."""
        self.transactions[name] = ModelTransaction(name, xid)

    def commit(self, name: str) -> None:
        """Apply COMMIT of a transaction that is not prepared."""
        transaction = self.transactions.pop(name)
        for item in transaction.items:
            if item.subscription is None or item.message is None:
                self._send(item.destination, item.headers, item.body)
            else:
                self._settle(item.kind, item.subscription, item.message)
        if transaction.xid:
            self.outcomes[transaction.xid] = COMMITTED
        self._deliver()

    def abort(self, name: str) -> None:
        """Apply ABORT of a transaction that is not prepared."""
        transaction = self.transactions.pop(name)
        if transaction.xid:
            self.outcomes[transaction.xid] = ABORTED

    def prepare(self, name: str) -> None:
        """Apply PREPARE: the messages that it acknowledges are taken, those that it rejects are given back."""
        transaction = self.transactions.pop(name)
        self.prepared[transaction.xid] = transaction
        for item in transaction.items:
            if item.subscription is None or item.message is None:
                continue
            if item.kind == "NACK":
                self._settle(item.kind, item.subscription, item.message)
                continue
            covered = item.subscription.covered(item.message)
            item.subscription.let_go(covered)
            transaction.taken += [(item.subscription.box, each) for each in covered]
        self._deliver()

    def end(self, xid: str, outcome: str) -> None:
        """Apply COMMIT or ABORT of a prepared branch."""
        transaction = self.prepared.pop(xid)
        self.outcomes[xid] = outcome
        if outcome == COMMITTED:
            for item in transaction.items:
                if item.kind == "SEND":
                    self._send(item.destination, item.headers, item.body)
        else:
            for box, message in transaction.taken:
                box.give_back(message)
        self._deliver()

    def close(self) -> None:
        """End the connection with its subscriptions and the transactions that are not prepared, including branches."""
        self.transactions.clear()
        for subscription in list(self.subscriptions.values()):
            self._end(subscription)

    def delete_exchange(self, name: str) -> None:
        """Delete an exchange and its bindings."""
        del self.exchanges[name]
        self.bindings = {each for each in self.bindings if each[0] != name}

    def delete_queue(self, name: str) -> None:
        """Delete a queue with its messages and bindings."""
        del self.queues[name]
        self.bindings = {each for each in self.bindings if each[1] != name}

    # State derived from the commands.

    def locked(self, subscription: ModelSubscription) -> bool:
        """Return whether an open transaction acknowledges messages of this subscription."""
        return any(transaction.locks(subscription) for transaction in self.transactions.values())

    def waiting(self) -> Iterator[Box]:
        """Yield the boxes that outlive the connection."""
        yield from self.queues.values()
        yield from self.durables.values()

    def owed(self) -> Collection[ModelSubscription]:
        """Return the subscriptions with messages in transit."""
        return [each for each in self.subscriptions.values() if each.due]

    def _send(self, destination: str, headers: Mapping[str, str], body: bytes) -> None:
        where = f"/{'/'.join(destination.split('/')[1:])}"
        for box in self.targets(destination):
            self._sent += 1
            named = f"/queue/{box.name}" if destination.startswith("/exchange/") else where
            box.ready.append(ModelMessage(self._sent, named, headers, body))

    def _settle(self, kind: str, subscription: ModelSubscription, message: ModelMessage) -> None:
        covered = subscription.covered(message)
        subscription.let_go(covered)
        if kind == "NACK":
            for each in covered:
                subscription.box.give_back(each)

    def _deliver(self) -> None:
        if self.overflows():
            return
        for box in {id(each.box): each.box for each in self.subscriptions.values()}.values():
            while box.ready and (subscription := box.in_turn()) is not None:
                message = box.ready.pop(0)
                box.served = subscription.place
                subscription.unacknowledged.append(message)
                subscription.due.append(message)


class BrokerFull(Exception):
    """The broker has reached a limit: the command has no effect, and the connection ends."""


def needs_capacity(command: str, headers: Mapping[str, str]) -> bool:
    """Return whether a full broker may refuse such a command. It never refuses to end a prepared branch."""
    return command in ("SEND", "SUBSCRIBE", "PREPARE") or (command == "COMMIT" and "transaction" in headers)


class Capacity:
    """The room that a broker with these limits has.

    Other clients use the broker as well, so a client cannot know in general whether it is full. But a client whose own
    messages reach the limit knows that it is.
    """

    def __init__(self, limits: ClientLimits) -> None:
        self._limits = limits
        self.small = (limits.max_messages < _DEFAULTS.max_messages or limits.max_queues < _DEFAULTS.max_queues
                      or limits.max_prepared < _DEFAULTS.max_prepared)
        """True if the broker may be full in this run."""

    def lacks(self, command: str, headers: Mapping[str, str], reason: str) -> bool:
        """Return whether the command was refused for lack of room, and may have been."""
        return self.small and needs_capacity(command, headers) and _IS_FULL.search(reason) is not None

    def taken(self, model: BrokerModel, command: str, headers: Mapping[str, str]) -> bool:
        """Return whether one client alone reaches the limit that a command needs, so that the broker has to refuse
        it."""
        if command == "PREPARE":
            return len(model.prepared) >= self._limits.max_prepared
        return (command == "SEND" and "transaction" not in headers and headers["destination"].startswith("/queue/")
                and model.messages() >= self._limits.max_messages)  # fmt: skip
