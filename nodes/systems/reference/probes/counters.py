"""Recounts of an engine's running counters, which must equal the actual numbers and stay within its limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from nodes.reference.engine.engine import StoreEngine
from nodes.reference.engine.last_values import LastValues
from nodes.reference.engine.limits import Limits
from nodes.reference.engine.model import (
    DURABLE,
    PROXY,
    PULLED,
    TRANSIENT,
    ConnectionContext,
    Message,
    Queue,
    Subscription,
    content_bytes,
)
from nodes.reference.engine.security import GRANT, PRINCIPAL, Security
from nodes.reference.engine.server_queues import SERVER_PREFIX, ServerQueues
from nodes.reference.engine.state import EngineState
from nodes.reference.engine.topics import TopicRoutes

_WINDOW_BYTES = 8 << 20
"""Bytes in flight at which a subscription is full (docs/stomp.md, Window)."""


def has_waiting(queue: Queue) -> bool:
    """Return whether a queue has a message that is not delivered."""
    return len(queue.returned) + len(queue.fresh) > 0


def has_room(subscription: Subscription) -> bool:
    """Return whether a subscription may be given one more message."""
    context = subscription.context
    return (len(subscription.unacked) < subscription.prefetch
            and _bytes(subscription.unacked) < _WINDOW_BYTES and _bytes(context.inflight) < context.window)


def _bytes(messages: Mapping[int, Message]) -> int:
    return sum(message.size for message in messages.values())


def miscounted(engine: StoreEngine) -> str:
    """Describe a counter or an index that is wrong, or a limit that is exceeded; empty if there is none."""
    return (miscounted_state(engine.state, engine.limits) or _values(engine.last_values) or _routes(engine.state.routes)
            or _server_queues(engine.server_queues) or _rights(engine.security))


def miscounted_state(state: EngineState, limits: Limits) -> str:
    """Describe a counter of the engine's own state that is wrong or exceeds a limit; empty if there is none."""
    return next(_wrong(state, limits), "")


def _values(values: LastValues) -> str:
    """Describe indexed messages that differ from a queue's, keys without a value, or removed queues."""
    queues = list(values.state.all_queues())
    if gone := values.known.keys() - {queue.id for queue in queues}:
        return f"values of queues that are gone: {len(gone)} are known"
    for queue in queues:
        known = values.known.get(queue.id)
        if known is None:
            continue
        here = sum(map(len, known.values()))
        if here != len(there := {message.id for message in queue.waiting()}) or any(
                message.id not in there for held in known.values() for message in held):
            return f"values of {queue.name}: {here} are known, and {len(there)} are there, or others"
        if not all(known.values()):
            return f"keys of {queue.name}: {len(known)} are known, and not all of them have a value"
    return ""


def _routes(routes: TopicRoutes) -> str:
    """Describe a cached value of the subscriptions to topics that is wrong."""
    there = sum(1 for _ in routes)
    if there != len(routes):
        return f"subscriptions to topics: {len(routes)} are counted, and there are {there}"
    for topic, known in routes.known.items():
        if known != routes.selecting(topic):
            return f"subscriptions to topic {topic}: {[each.id for each in known]} are remembered, and others there"
    return ""


def _server_queues(queues: ServerQueues) -> str:
    """Describe a wrong counter of the messages for other servers."""
    depths: dict[str, int] = {}
    for peer in queues.peers.values():
        if list(peer.outgoing) != list(range(peer.acked + 1, peer.sent + 1)):
            return f"messages for server {peer.server}: {peer.acked + 1} to {peer.sent} should be kept"
        for each in peer.outgoing.values():
            name = f"{SERVER_PREFIX}{each.server}{each.destination}"
            depths[name] = depths.get(name, 0) + 1
    if depths != queues.depths():
        return f"messages for other servers: {queues.depths()} are counted, and there are {depths}"
    held = sum(each.size for peer in queues.peers.values() for each in peer.outgoing.values()
               if each.content is not None)
    if held != queues.cached:
        return f"bytes of messages for other servers: {queues.cached} are counted, and there are {held}"
    return ""


def _rights(security: Security) -> str:
    """Describe indexed principals or rights that differ from the stored rows."""
    grants: dict[str, dict[tuple[str, str], None]] = {}
    for kind, name in security.rows:
        if kind == GRANT:
            login, right, destination = name.split(" ", 2)
            grants.setdefault(login, {})[destination, right] = None
    if grants != security.grants:
        return f"rights: {security.grants} are known, and there are {grants}"
    ids = {name: row.id for (kind, name), row in security.rows.items() if kind == PRINCIPAL}
    if ids != {name: each.id for name, each in security.principals.items()}:
        return f"principals: {sorted(security.principals)} are known, and there are {sorted(ids)}, or others"
    return ""


def _wrong(state: EngineState, limits: Limits) -> Iterator[str]:
    yield from _of_messages(state, limits)
    for queue in state.all_queues():
        yield from _of_queue(queue)
    for context in state.contexts.values():
        yield from _of_connection(context, limits)
    transactions = [each for context in state.contexts.values() for each in context.transactions.values()]
    transactions += state.prepared.values()
    for transaction in transactions:
        yield from _most("items of a transaction", len(transaction.items), limits.max_transaction_items)
        yield from _most("bytes of a transaction", transaction.size, limits.max_transaction_bytes)
    yield from _same("bytes of open transactions", state.deferred, sum(each.size for each in transactions))
    reserved = sum(len(each.items) for each in state.prepared.values())
    yield from _same("sends of prepared branches", state.reserved, reserved)
    yield from _most("prepared branches", len(state.prepared), limits.max_prepared)
    own = sum(queue.id > 0 for queue in state.queues.values())  # services are not bound by this limit
    yield from _most("queues and subscriptions to topics", own + len(state.routes) + len(state.proxies),
                     limits.max_queues)
    yield from _most("ends of connections that are remembered", len(state.closed), limits.max_closed)
    yield from _most("ends of branches that are remembered", len(state.outcomes), limits.max_outcomes)


def _of_messages(state: EngineState, limits: Limits) -> Iterator[str]:
    shared = {each.shared.id: each.shared for each in state.messages.values() if each.shared is not None}
    cached = sum(content_bytes(each.size, each.content) for each in state.messages.values())
    cached += sum(content_bytes(each.size, each.content) for each in shared.values())
    yield from _same("bytes of contents", state.cached, cached)
    copies = Counter(each.shared.id for each in state.messages.values() if each.shared is not None)
    for each in shared.values():
        yield from _same(f"copies of the topics' message {each.id}", each.copies, copies[each.id])
    depths = Counter(each.queue.id for each in state.messages.values())
    queues = {queue.id for queue in state.all_queues()}
    yield from _same("queues of messages", len(depths), len(depths.keys() & queues))
    for queue in state.all_queues():
        yield from _same(f"messages of queue {queue.id} ({queue.name})", queue.depth, depths[queue.id])


def _of_queue(queue: Queue) -> Iterator[str]:
    with_room = sorted(each.id for each in queue.subscriptions.values() if has_room(each))
    if queue.with_room != with_room:
        yield f"queue {queue.id} ({queue.name}): {queue.with_room} are subscriptions with room, and {with_room} have it"
    if queue.kind in (TRANSIENT, PROXY):
        yield from _same(f"subscriptions that queue {queue.id} is for", 1, len(queue.subscriptions))
    elif queue.kind == DURABLE:
        yield from _most(f"consumers of {queue.name}", len(queue.subscriptions), 1)


def _of_connection(context: ConnectionContext, limits: Limits) -> Iterator[str]:
    name = f"of connection {context.conn}"
    yield from _same(f"window {name}", context.window, limits.max_window)
    delivered = [each for subscription in context.subscriptions.values() for each in subscription.unacked.values()]
    yield from _same(f"messages in flight {name}", len(context.inflight), len(delivered))
    yield from _same(f"bytes in flight {name}", context.held, sum(each.size for each in delivered))
    transient = [each.queue for each in context.subscriptions.values() if each.queue.kind == TRANSIENT]
    yield from _same(f"messages for topics' subscribers {name}", context.backlog, sum(each.depth for each in transient))
    yield from _most(f"subscriptions {name}", len(context.subscriptions), limits.max_subscriptions)
    yield from _most(f"transactions {name}", len(context.transactions), limits.max_transactions)
    for each in context.subscriptions.values():
        yield from _same(f"bytes in flight of subscription {each.name} {name}", each.held,
                         sum(message.size for message in each.unacked.values()))
        if each.ack != PULLED:
            yield from _most(f"window of subscription {each.name} {name}", each.prefetch, limits.max_prefetch)
            yield from _most(f"messages in flight of subscription {each.name} {name}", len(each.unacked), each.prefetch)


def _same(what: str, counted: int, there: int) -> Iterator[str]:
    if counted != there:
        yield f"{what}: {counted} are counted, and there are {there}"


def _most(what: str, there: int, most: int) -> Iterator[str]:
    if there > most:
        yield f"{what}: there are {there}, and may be {most}"
