"""The tables of the engine's own state, with the rows that its objects are stored as."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nodes.reference import wire
from nodes.reference.engine.model import (
    ConnectionContext,
    Message,
    Queue,
    Shared,
    Subscription,
    Transaction,
    TransactionItem,
)
from nodes.reference.engine.store import Row, Table


@dataclass(slots=True)
class NextNumbers:
    """The next numbers to be assigned: to messages, and to everything else."""

    next_id: int = 1
    next_message: int = 1


class StateTables:
    """The tables; ``closed`` and ``outcome`` return the row of a closed connection, or of a branch that has ended."""

    def __init__(self, closed: Callable[[str], Row], outcome: Callable[[tuple[str, str]], Row]) -> None:
        self.counters: Table[NextNumbers] = Table("counters", lambda c: (0, c.next_id, c.next_message))
        self.queues: Table[Queue] = Table("queues", lambda q: (q.id, q.name, q.kind, q.pattern, q.served, q.enqueued))
        self.contexts: Table[ConnectionContext] = Table("contexts", _context_row)
        self.subscriptions: Table[Subscription] = Table(
            "subscriptions", lambda s: (s.id, s.context.id, s.name, s.queue.id, s.ack, s.prefetch))
        self.shared: Table[Shared] = Table("shared", _shared_row)
        self.messages: Table[Message] = Table("messages", _message_row)
        self.deliveries: Table[Message] = Table("deliveries", _delivery_row)
        self.transactions: Table[Transaction] = Table(
            "transactions",
            lambda t: (t.id, t.context.id if t.context is not None else 0, t.name, t.login, t.xid, t.prepared))
        self.items: Table[TransactionItem] = Table(
            "items", lambda i: (i.id, i.transaction.id, i.kind, wire.encode(i.args)))
        self.closed: Table[str] = Table("closed", closed)
        self.outcomes: Table[tuple[str, str]] = Table("outcomes", outcome)
        self.without_content: tuple[Table[Any], ...] = (
            self.counters, self.queues, self.contexts, self.subscriptions, self.deliveries, self.transactions,
            self.items, self.outcomes, self.closed)
        """Those whose objects do not hold the content of messages."""
        self.all: tuple[Table[Any], ...] = (*self.without_content, self.messages, self.shared)
        """All tables, in the order in which they are written."""


def _context_row(context: ConnectionContext) -> Row:
    return (context.id, context.conn, int(context.reliable), context.login,
            context.in_seq, context.out_seq, context.received)


def _shared_row(shared: Shared) -> Row:
    if shared.content is None:
        raise ValueError(f"message {shared.id} has no content to store")
    headers, body = shared.content
    return (shared.id, shared.topic, wire.encode(headers), body)


def _message_row(message: Message) -> Row:
    if message.shared is not None:
        return (message.id, message.queue.id, message.shared.id, b"", b"", message.sequence)
    if message.content is None:
        raise ValueError(f"message {message.id} has no content to store")
    headers, body = message.content
    return (message.id, message.queue.id, 0, wire.encode(headers), body, message.sequence)


def _delivery_row(message: Message) -> Row:
    subscription = message.subscription
    return (message.id, subscription.id if subscription is not None else 0, message.out_seq,
            message.redeliveries, message.branch.id if message.branch is not None else 0)
