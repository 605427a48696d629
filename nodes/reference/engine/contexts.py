"""Connection contexts: what the broker knows of a client beyond its TCP connection.

A context holds subscriptions, open transactions, deliveries that await acknowledgement, and the counters of
the reliable connection (Joram's connection context: identifier, input and output counters, output queue).
The output queue needs no storage of its own: it is the deliveries in flight that the client hasn't reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nodes.reference.engine.queues import Message, Queue

AUTO, CLIENT, INDIVIDUAL = "auto", "client", "client-individual"
ACK_MODES = (AUTO, CLIENT, INDIVIDUAL)


def content_size(args: Mapping[str, Any]) -> int:
    """Bytes of headers (about) and body in a command's arguments."""
    headers = args.get("headers") or {}
    return len(args.get("body", b"")) + sum(len(name) + len(value) for name, value in headers.items())


@dataclass(slots=True, eq=False)
class Subscription:
    """A client's interest in a queue.

    ``unacked`` maps output counters, ascending, to messages; ``held`` is the size of their bodies.
    """

    id: int
    context: Context
    name: str
    queue: Queue
    ack: str
    prefetch: int
    unacked: dict[int, Message] = field(default_factory=dict)
    held: int = 0

    def hold(self, message: Message, out_seq: int) -> None:
        """The message is delivered to this subscription, as the connection's output of that number."""
        message.subscription, message.out_seq = self, out_seq
        self.unacked[out_seq] = message
        self.context.inflight[out_seq] = message
        self.held += message.size

    def release(self, message: Message) -> None:
        """The message is no longer delivered to this subscription."""
        del self.unacked[message.out_seq]
        del self.context.inflight[message.out_seq]
        self.held -= message.size
        message.subscription = None


@dataclass(slots=True, eq=False)
class Item:
    """One send, ack or nack that waits in a transaction."""

    id: int
    transaction: Transaction
    kind: str
    args: Mapping[str, Any]


@dataclass(slots=True, eq=False)
class Transaction:
    """A transaction that was begun and not yet committed or aborted; ``size`` is in bytes.

    A branch of a distributed one has an ``xid``. Once it is ``prepared`` (a number in the order of preparations) it has
    no ``context`` any more, its items are sends only, and ``taken`` holds the messages that it acknowledges, by id.
    """

    id: int
    context: Context | None
    name: str
    login: str
    xid: str = ""
    prepared: int = 0
    items: list[Item] = field(default_factory=list)
    size: int = 0
    taken: dict[int, Message] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        """What names a branch: the login that it belongs to, and its XID."""
        return self.login, self.xid

    def add(self, item: Item) -> None:
        """Put one more item at the end."""
        self.items.append(item)
        self.size += content_size(item.args)


@dataclass(slots=True, eq=False)
class Context:
    """A client's connection; ``in_seq``, ``out_seq`` and ``received`` are its three counters."""

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

    def find(self, ack_id: str) -> Message | None:
        """The delivered message that awaits an acknowledgement with this id."""
        out_seq = ack_id.rpartition("-")[2]
        # At most 19 digits: a client's long number must not cost us a long conversion.
        if not (out_seq.isascii() and out_seq.isdecimal() and len(out_seq) < 20):
            return None
        message = self.inflight.get(int(out_seq))
        return message if message is not None and message.ack_id == ack_id else None

    def covered(self, message: Message) -> list[Message]:
        """What an acknowledgement of this message covers: with ``client`` and ``auto`` all older ones too."""
        subscription = message.subscription
        if subscription is None or subscription.ack == INDIVIDUAL:
            return [message]
        messages = []
        for out_seq, older in subscription.unacked.items():
            if out_seq > message.out_seq:
                break
            messages.append(older)
        return messages
