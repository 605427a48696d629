"""Compares an engine's memory with the state that a restart would build from its store: not rows, but derived state.

The order of service, the room of subscriptions and the sums for limits are not stored: they are derived from the rows
when a broker is started, or takes a state over. A broker that was not restarted must have the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nodes.reference.engine.model import ConnectionContext, Message, Queue, Transaction
from nodes.reference.engine.state import EngineState

_MAX_DIFFERENCES_TOLD = 3
"""Maximum number of differences reported."""


def unlike_rebuilt(state: EngineState) -> str:
    """Describe how the state differs from one that a restart would build from its store; empty if it does not."""
    try:
        other = EngineState(state.database, state.cache, state.window)
    except (KeyError, ValueError, TypeError) as error:
        return f"what the store holds makes no state: {error!r}"
    for what, mine, its in zip(_parts(), _pictures(state), _pictures(other), strict=True):
        if mine == its:
            continue
        told = [f"{key} is {mine.get(key)}, and after a start {its.get(key)}" for key in {**mine, **its}
                if mine.get(key) != its.get(key)]  # fmt: skip
        differences = "; ".join(told[:_MAX_DIFFERENCES_TOLD])
        return f"{what}: {differences}" if told else f"{what} are in another order than after a start"
    return ""


def _parts() -> tuple[str, ...]:
    return ("queues", "messages", "connections", "transactions", "sums", "orders")


def _pictures(state: EngineState) -> Iterator[Mapping[Any, Any]]:
    yield {queue.id: _queue(queue) for queue in state.all_queues()}
    yield {message.id: _message(message) for message in state.messages.values()}
    yield {context.conn: _connection(context) for context in state.contexts.values()}
    transactions = [each for context in state.contexts.values() for each in context.transactions.values()]
    yield {each.id: _transaction(each) for each in (*transactions, *state.prepared.values())}
    copies = {each.shared.id: each.shared.copies for each in state.messages.values() if each.shared is not None}
    yield {"reserved": state.reserved, "deferred": state.deferred, "routes": len(state.routes), "copies": copies}
    yield {"connections": list(state.contexts), "messages": list(state.messages), "prepared": list(state.prepared),
           "branches": sorted(state.branches), "closed": list(state.closed), "outcomes": list(state.outcomes),
           "queues": sorted(state.queues), "durables": sorted(state.durables), "proxies": sorted(state.proxies)}


def _queue(queue: Queue) -> tuple[Any, ...]:
    return (queue.depth, [each.id for each in queue.fresh], sorted(identity for identity, _ in queue.returned),
            list(queue.subscriptions), queue.with_room)


def _message(message: Message) -> tuple[Any, ...]:
    holder = message.subscription
    return (message.queue.id, message.size, message.sequence, message.redeliveries,
            (holder.id, message.out_seq) if holder is not None else None,
            message.branch.id if message.branch is not None else None)


def _connection(context: ConnectionContext) -> tuple[Any, ...]:
    subscriptions = {name: (each.held, each.prefetch, [(place, one.id) for place, one in each.unacked.items()])
                     for name, each in context.subscriptions.items()}
    return (context.held, context.window, context.backlog, list(context.inflight), subscriptions,
            list(context.subscriptions), list(context.transactions))


def _transaction(transaction: Transaction) -> tuple[Any, ...]:
    return transaction.size, [each.id for each in transaction.items], sorted(transaction.taken)
