"""The engine's objects, indexed in memory and written through to the store."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from nodes.reference import wire
from nodes.reference.engine.model import (
    DURABLE,
    PLAIN,
    PROXY,
    TRANSIENT,
    ConnectionContext,
    Message,
    Queue,
    Shared,
    Subscription,
    Transaction,
    TransactionItem,
    content_bytes,
    restore_ready,
)
from nodes.reference.engine.queue_observer import QueueTap
from nodes.reference.engine.store import (
    Changes,
    no_progress,
    read_all,
    read_rows,
    replace_all,
    with_progress,
)
from nodes.reference.engine.tables import NextNumbers, StateTables
from nodes.reference.engine.topics import TopicRoutes
from nodes.reference.engine.trace import PREPARED, START, STATE, MessageTrace, name_of, place_of


class EngineState:
    """The engine's objects: queues and durable subscriptions by name; messages and proxy queues by id; open connection
    contexts and remembered closed ones by connection id.

    ``branches`` holds the distributed transactions that have begun, by login and XID. ``prepared`` holds the prepared
    ones among them, in the order of their preparation, and ``reserved`` counts the sends that these contain.
    ``outcomes`` holds the remembered outcomes of ended branches. ``deferred`` is the number of bytes that all open
    transactions hold, including prepared ones. A connection with ``window`` bytes in flight gets no further messages.
    The contents of waiting messages are kept in memory up to ``cache`` bytes; beyond that they are read from the store
    when the messages are delivered.
    """

    def __init__(self, database: sqlite3.Connection, cache: int, window: int) -> None:
        """Build the state from the store, whose tables exist."""
        self.database = database
        self.cache = cache
        self.window = window
        self.tap: QueueTap | None = None
        self.trace: MessageTrace | None = None
        self.tables = StateTables(lambda conn: (self._closed_ids[conn], conn, *self.closed[conn]),
                                  lambda key: (self._outcome_ids[key], *key, self.outcomes[key]))
        self._restore()

    def flush(self, changes: Changes | None) -> None:
        """Write all changes within the open transaction and mark them as saved."""
        self.write(changes)
        self.saved()

    def write(self, changes: Changes | None) -> None:
        """Write all changes, and keep them in memory until they are known to be saved."""
        for table in self.tables.all:
            if table.changed or table.removed:
                table.write(self.database, changes)

    def saved(self) -> None:
        """Note that the written changes are in the store."""
        tables = self.tables
        for table in tables.without_content:
            if table.changed or table.removed:
                table.saved()
        for message in tables.messages.saved():
            if message.subscription is not None or self.cached > self.cache:
                self._drop_content(message)
        # Other subscriptions will need the same content, so it stays in memory while there is room.
        for shared in tables.shared.saved():
            if self.cached > self.cache:
                self._drop_content(shared)

    @property
    def overflows(self) -> bool:
        """Whether contents that could not be stored take more than twice the memory allowed for waiting messages."""
        return self.cached > 2 * self.cache

    def all_queues(self) -> Iterator[Queue]:
        """Iterate over the clients' queues and the queues of subscriptions to topics and to other servers."""
        yield from self.queues.values()
        yield from self.routes
        yield from self.proxies.values()

    def rows(self) -> Iterator[list[Any]]:
        """Iterate over the rows of the stored state."""
        return read_all(self.database)

    def replace(self, rows: Iterable[list[Any]], on_progress: Callable[[], None] = no_progress) -> None:
        """Replace the whole state, on disk and in memory; ``on_progress`` is called periodically."""
        replace_all(self.database, with_progress(rows, on_progress))
        self.reload(on_progress)

    def reload(self, on_progress: Callable[[], None] = no_progress) -> None:
        """Load the state from the tables; changes that were not flushed are discarded."""
        for table in self.tables.all:
            table.forget()
        self._restore(on_progress)
        if self.trace is not None:
            self.trace.replaced(self, STATE)

    def use_trace(self, trace: MessageTrace) -> None:
        """Report the current messages to ``trace``, and from now on every message added or removed."""
        self.trace = trace
        trace.replaced(self, START)

    # Additions and removals.

    def add_queue(self, name: str, reserved: int = 0) -> Queue:
        """Add an empty queue, with the reserved identifier (below zero) if one is given."""
        queue = self.queues[name] = Queue(reserved or self._next_id(), name)
        self.tables.queues.insert(queue.id, queue)
        return queue

    def add_topic_queue(self, kind: str, name: str, pattern: str) -> Queue:
        """Add the queue of a new topic subscription; ``name`` is empty for a transient one."""
        queue = Queue(self._next_id(), name, kind, pattern)
        if kind == DURABLE:
            self.durables[name] = queue
        self.routes.add(queue)
        self.tables.queues.insert(queue.id, queue)
        return queue

    def add_proxy(self, name: str, pattern: str) -> Queue:
        """Add the queue of a new subscription to a destination of another server (``pattern``)."""
        queue = Queue(self._next_id(), name, PROXY, pattern)
        self.proxies[queue.id] = queue
        self.tables.queues.insert(queue.id, queue)
        return queue

    def remove_topic_queue(self, queue: Queue) -> None:
        """Remove the queue of a topic subscription or a proxy, with its messages; it must have no consumer."""
        waiting = queue.waiting()
        for message in waiting:
            self.remove_message(message)
        if queue.depth != len(waiting):
            self._remove_taken(queue)
        # Each message refers to its queue: such a reference cycle would stay in memory until a garbage collection.
        queue.fresh.clear()
        queue.returned.clear()
        if queue.kind == DURABLE:
            del self.durables[queue.name]
        if queue.kind == PROXY:
            del self.proxies[queue.id]
        else:
            self.routes.remove(queue)
        self.tables.queues.remove(queue.id)

    def remove_queue(self, queue: Queue) -> None:
        """Remove a queue that is empty and has no consumer."""
        del self.queues[queue.name]
        self.tables.queues.remove(queue.id)

    def _remove_taken(self, queue: Queue) -> None:
        """Remove the messages of a deleted queue that prepared branches have acknowledged."""
        for branch in self.prepared.values():
            for message in [each for each in branch.taken.values() if each.queue is queue]:
                del branch.taken[message.id]
                self.remove_message(message)

    def add_message(self, queue: Queue, headers: dict[str, str], body: bytes) -> Message:
        """Append a message to a queue."""
        content = (headers, body)
        message = Message(self._next_message(), queue, len(body), content)
        self._append(message)
        self.cached += content_bytes(len(body), content)
        return message

    def new_shared(self, topic: str, headers: dict[str, str], body: bytes) -> Shared:
        """Create a topic message, which is stored once its first copy is in a queue."""
        return Shared(self._next_message(), topic, len(body), (headers, body))

    def add_copy(self, queue: Queue, shared: Shared) -> None:
        """Append a copy of a topic message to a subscription's queue."""
        if not shared.copies:
            self.tables.shared.insert(shared.id, shared)
            self.cached += content_bytes(shared.size, shared.content)
        shared.copies += 1
        self._append(Message(self._next_message(), queue, shared.size, shared=shared))

    def _append(self, message: Message) -> None:
        queue = message.queue
        queue.enqueued += 1
        message.sequence = queue.enqueued
        self.tables.queues.update(queue.id, queue)
        self.messages[message.id] = message
        self.tables.messages.insert(message.id, message)
        queue.add(message)
        if self.tap is not None:
            self.tap.enqueued(message)
        if self.trace is not None:
            self.trace.added(message, *self.peek(message))

    def remove_message(self, message: Message) -> None:
        """Remove a message that has been consumed."""
        if self.tap is not None:
            self.tap.dequeued(message)
        if self.trace is not None:
            self.trace.removed(message)
        shared = message.shared
        if shared is not None:
            shared.copies -= 1
            if not shared.copies:
                self.cached -= content_bytes(shared.size, shared.content)
                self.tables.shared.remove(shared.id)
        else:
            self.cached -= content_bytes(message.size, message.content)
        del self.messages[message.id]
        self.tables.messages.remove(message.id)
        self.tables.deliveries.remove(message.id)

    def add_context(self, conn: str, reliable: bool, login: str) -> None:
        """Add the context of a connection that has been opened."""
        context = self.contexts[conn] = ConnectionContext(self._next_id(), conn, reliable, login, window=self.window)
        self.tables.contexts.insert(context.id, context)

    def remove_context(self, context: ConnectionContext) -> None:
        """Remove the context of a closed connection, whose subscriptions and transactions are removed already."""
        del self.contexts[context.conn]
        self.tables.contexts.remove(context.id)

    def remember_closed(self, context: ConnectionContext, reason: str, count: int) -> None:
        """Remember why a reliable connection was closed, and its input counter, for the latest ``count``
        connections."""
        conn = context.conn
        self.closed[conn] = (reason, context.in_seq)
        self._closed_ids[conn] = self._next_id()
        self.tables.closed.insert(self._closed_ids[conn], conn)
        if len(self.closed) > count:
            oldest = next(iter(self.closed))
            del self.closed[oldest]
            self.tables.closed.remove(self._closed_ids.pop(oldest))

    def add_subscription(self, context: ConnectionContext, name: str, queue: Queue, ack: str, prefetch: int) -> None:
        """Add a subscription, which takes its turn in its queue from now on."""
        subscription = Subscription(self._next_id(), context, name, queue, ack, prefetch)
        context.subscriptions[name] = subscription
        queue.attach(subscription)
        self.tables.subscriptions.insert(subscription.id, subscription)

    def update_subscription(self, subscription: Subscription) -> None:
        """Record a changed window of a subscription."""
        self.tables.subscriptions.update(subscription.id, subscription)

    def remove_subscription(self, subscription: Subscription) -> None:
        """Remove a subscription that has been detached from its queue."""
        del subscription.context.subscriptions[subscription.name]
        self.tables.subscriptions.remove(subscription.id)

    def add_transaction(self, context: ConnectionContext, name: str, xid: str) -> None:
        """Add an empty transaction; ``xid`` is empty unless it is a branch of a distributed transaction."""
        transaction = context.transactions[name] = Transaction(self._next_id(), context, name, context.login, xid)
        if xid:
            self.branches[transaction.key] = transaction
        self.tables.transactions.insert(transaction.id, transaction)

    def add_item(self, transaction: Transaction, kind: str, args: Mapping[str, Any]) -> None:
        """Append an item to a transaction."""
        item = TransactionItem(self._next_id(), transaction, kind, args)
        self.deferred += transaction.add(item)
        self.tables.items.insert(item.id, item)

    def assign(self, message: Message, branch: Transaction) -> None:
        """Assign a message, which no subscription holds any longer, to a branch whose commit acknowledges it."""
        message.branch = branch
        branch.taken[message.id] = message
        self.tables.deliveries.update(message.id, message)

    def prepare(self, branch: Transaction) -> None:
        """Mark a branch as prepared: it now belongs to its login, and the messages that it acknowledges are assigned to
        it."""
        self._leave(branch)
        branch.prepared = self._next_id()
        self.prepared[branch.key] = branch
        if self.trace is not None:
            self.trace.note("put", PREPARED, branch.xid, self.trace.by)
        for item in branch.items:
            if item.kind != "send":
                self.tables.items.remove(item.id)
        branch.items = [item for item in branch.items if item.kind == "send"]
        self.reserved += len(branch.items)
        self.tables.transactions.update(branch.id, branch)

    def _leave(self, transaction: Transaction) -> None:
        if transaction.context is not None:
            del transaction.context.transactions[transaction.name]
            transaction.context = None

    def remove_transaction(self, transaction: Transaction) -> None:
        """Remove a transaction that was committed or aborted, with its items."""
        self._leave(transaction)
        self.deferred -= transaction.size
        for item in transaction.items:
            self.tables.items.remove(item.id)
        if transaction.xid:
            del self.branches[transaction.key]
        if transaction.prepared:
            if self.trace is not None:
                self.trace.note("gone", PREPARED, transaction.xid, self.trace.by)
            del self.prepared[transaction.key]
            self.reserved -= len(transaction.items)
        self.tables.transactions.remove(transaction.id)
        # Each item refers to its transaction: bodies in such a reference cycle would stay until a garbage collection.
        transaction.items = []

    def remember_outcome(self, key: tuple[str, str], outcome: str, count: int) -> None:
        """Remember the outcome of a branch, for the latest ``count`` branches."""
        self.outcomes[key] = outcome
        self._outcome_ids[key] = self._next_id()
        self.tables.outcomes.insert(self._outcome_ids[key], key)
        if len(self.outcomes) > count:
            oldest = next(iter(self.outcomes))
            del self.outcomes[oldest]
            self.tables.outcomes.remove(self._outcome_ids.pop(oldest))

    # Contents of messages.

    def content(self, message: Message) -> tuple[dict[str, str], bytes]:
        """Return headers and body, from memory or from the store.

        The content of a stored queue message leaves memory on delivery, because it is rarely needed again.
        """
        shared = message.shared
        if shared is not None:
            return shared.content or self._read_content("shared", shared.id)
        content = message.content
        if content is None:
            return self._read_content("messages", message.id)
        if not self.tables.messages.is_unsaved(message.id):
            self._drop_content(message)
        return content

    def peek(self, message: Message) -> tuple[dict[str, str], bytes]:
        """Return headers and body as ``content`` does, but leave what memory holds unchanged."""
        shared = message.shared
        if shared is not None:
            return shared.content or self._read_content("shared", shared.id)
        return message.content or self._read_content("messages", message.id)

    def stored_names(self) -> dict[int, tuple[str, str]]:
        """Map the id of each stored message to (place, name), as the trace names them."""
        queues = {row[0]: Queue(*row) for row in read_rows(self.database, "queues")}
        contents = {identity: name_of(wire.decode(headers), body) for identity, headers, body
                    in read_rows(self.database, "shared", "id, headers, body")}
        rows = read_rows(self.database, "messages", "id, queue, shared, headers, body")
        return {identity: (place_of(queues[queue]),
                           contents[shared] if shared else name_of(wire.decode(headers), body))
                for identity, queue, shared, headers, body in rows}

    def _read_content(self, table: str, identity: int) -> tuple[dict[str, str], bytes]:
        row = self.database.execute(f"SELECT headers, body FROM {table} WHERE id = ?", (identity,)).fetchone()
        return wire.decode(row[0]), row[1]

    def _drop_content(self, item: Message | Shared) -> None:
        self.cached -= content_bytes(item.size, item.content)
        item.content = None

    def _next_id(self) -> int:
        number = self.counters.next_id
        self.counters.next_id += 1
        self.tables.counters.update(0, self.counters)
        return number

    def new_id(self) -> int:
        """Allocate an identifier for an object that is kept elsewhere."""
        return self._next_id()

    def _next_message(self) -> int:
        number = self.counters.next_message
        self.counters.next_message += 1
        self.tables.counters.update(0, self.counters)
        return number

    # From disk to memory.

    def _restore(self, on_progress: Callable[[], None] = no_progress) -> None:
        self.cached = 0
        """Approximate number of content bytes kept in memory."""
        self.counters = NextNumbers()
        for _, next_id, next_message in read_rows(self.database, "counters"):
            self.counters = NextNumbers(next_id, next_message)
        self.closed: dict[str, tuple[str, int]] = {}
        self._closed_ids: dict[str, int] = {}
        for identity, conn, reason, in_seq in read_rows(self.database, "closed"):
            self.closed[conn] = (reason, in_seq)
            self._closed_ids[conn] = identity
        queues = {row[0]: Queue(*row) for row in read_rows(self.database, "queues")}
        self.queues = {queue.name: queue for queue in queues.values() if queue.kind == PLAIN}
        self.durables = {queue.name: queue for queue in queues.values() if queue.kind == DURABLE}
        self.proxies = {queue.id: queue for queue in queues.values() if queue.kind == PROXY}
        self.routes = TopicRoutes()
        for queue in queues.values():
            if queue.kind in (DURABLE, TRANSIENT):
                self.routes.add(queue)
        contexts = self._restore_contexts()
        subscriptions = self._restore_subscriptions(queues, contexts)
        self._restore_messages(queues, subscriptions, self._restore_transactions(contexts), on_progress)

    def _restore_contexts(self) -> dict[int, ConnectionContext]:
        contexts: dict[int, ConnectionContext] = {}
        for identity, conn, reliable, login, *counters in read_rows(self.database, "contexts"):
            contexts[identity] = ConnectionContext(identity, conn, bool(reliable), login, *counters)
            contexts[identity].window = self.window
        self.contexts = {context.conn: context for context in contexts.values()}
        return contexts

    def _restore_subscriptions(self, queues: dict[int, Queue],
                               contexts: dict[int, ConnectionContext]) -> dict[int, Subscription]:
        subscriptions: dict[int, Subscription] = {}
        for identity, context, name, queue, ack, prefetch in read_rows(self.database, "subscriptions"):
            subscription = Subscription(identity, contexts[context], name, queues[queue], ack, prefetch)
            subscriptions[identity] = subscription
            subscription.context.subscriptions[name] = subscription
        return subscriptions

    def _restore_messages(self, queues: dict[int, Queue], subscriptions: dict[int, Subscription],
                          transactions: dict[int, Transaction], on_progress: Callable[[], None]) -> None:
        contents = {identity: Shared(identity, topic, size, None) for identity, topic, size
                    in read_rows(self.database, "shared", "id, topic, length(body)")}
        self.messages: dict[int, Message] = {}
        rows = read_rows(self.database, "messages", "id, queue, shared, length(body), sequence")
        for identity, queue, content, size, sequence in with_progress(rows, on_progress):
            message = self.messages[identity] = Message(identity, queues[queue], size, sequence=sequence)
            if content:
                shared = message.shared = contents[content]
                message.size = shared.size
                shared.copies += 1
        inflight = []
        for identity, subscription, out_seq, redeliveries, branch in read_rows(self.database, "deliveries"):
            message = self.messages[identity]
            message.redeliveries = redeliveries
            if subscription:
                inflight.append((out_seq, message, subscriptions[subscription]))
            elif branch:
                message.branch = transactions[branch]
                message.branch.taken[identity] = message
        # Per connection, deliveries are kept in the order of the output counter.
        for out_seq, message, holder in sorted(inflight, key=lambda entry: entry[0]):
            holder.hold(message, out_seq)
        restore_ready(with_progress(self.messages.values(), on_progress))
        for holder in subscriptions.values():
            holder.queue.attach(holder)
            if holder.queue.kind == TRANSIENT:
                holder.context.backlog += holder.queue.depth

    def _restore_transactions(self, contexts: dict[int, ConnectionContext]) -> dict[int, Transaction]:
        transactions: dict[int, Transaction] = {}
        for identity, context_id, *rest in read_rows(self.database, "transactions"):
            context = contexts.get(context_id)
            transaction = transactions[identity] = Transaction(identity, context, *rest)
            if context is not None:
                context.transactions[transaction.name] = transaction
        for identity, transaction_id, kind, args in read_rows(self.database, "items"):
            transaction = transactions[transaction_id]
            transaction.add(TransactionItem(identity, transaction, kind, wire.decode(args)))
        self.branches = {each.key: each for each in transactions.values() if each.xid}
        prepared = sorted((each for each in transactions.values() if each.prepared), key=lambda each: each.prepared)
        self.prepared = {each.key: each for each in prepared}
        self.reserved = sum(len(each.items) for each in prepared)
        self.deferred = sum(each.size for each in transactions.values())
        self.outcomes: dict[tuple[str, str], str] = {}
        self._outcome_ids: dict[tuple[str, str], int] = {}
        for identity, login, xid, outcome in read_rows(self.database, "outcomes"):
            self.outcomes[login, xid] = outcome
            self._outcome_ids[login, xid] = identity
        return transactions
