"""The deterministic state machine: commands in, effects out, state in SQLite.

Two engines that apply the same commands in the same order hold the same state, to the byte, whether or not
one of them was restarted or loaded from a snapshot in between. Client mistakes are effects, not exceptions.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from nodes.reference.api import Closed, Command, Deliver, Done, Effect, Opened, Refused
from nodes.reference.bugs import CLOSE_DROPS_UNACKED, NO_DUPLICATE_FILTER, REQUEUED_TWICE, STATE_BEHIND_LOG
from nodes.reference.contexts import (
    ACK_MODES,
    AUTO,
    Context,
    Item,
    Subscription,
    Transaction,
    content_size,
)
from nodes.reference.limits import Limits
from nodes.reference.queues import Message, Queue
from nodes.reference.state import State

QUEUE_PREFIX = "/queue/"
CLOSED_REMEMBERED = 1_000


class _Mistake(Exception):
    """A client's command can't be carried out; nothing has been changed."""


class StoreEngine:
    """The Engine over one SQLite database; restores what the database holds when it is made."""

    def __init__(self, database: sqlite3.Connection, limits: Limits | None = None,
                 bugs: frozenset[str] = frozenset()) -> None:
        self._bugs = bugs
        self._limits = limits if limits is not None else Limits()
        self._state = State(database, self._limits.message_cache)
        self._touched: dict[int, Queue] = {}
        self._handlers = {
            "send": self._send, "subscribe": self._subscribe, "unsubscribe": self._unsubscribe,
            "ack": self._settle, "nack": self._settle, "begin": self._begin, "commit": self._commit,
            "abort": self._abort, "received": self._nothing, "close": self._close_by_client,
        }

    # What designs and sessions ask.

    def apply(self, command: Command) -> list[Effect]:
        """Apply one command inside ``Broker.transaction``; never raises for a client's mistake.

        Raises:
            ValueError: the kind is not one of the engine's.
        """
        if command.kind == "open":
            return self._open(command)
        if command.kind not in self._handlers:
            raise ValueError(f"the engine knows no command {command.kind!r}")
        conn, receipt = command.conn, command.args.get("receipt")
        context = self._state.contexts.get(conn)
        if context is None:
            if command.kind == "close" and receipt is None:
                return [Closed(conn, str(command.args.get("reason", "")))]
            return [Refused(conn, receipt, "connection closed")]
        effects: list[Effect] = []
        try:
            done = self._apply_to(context, command)
        except _Mistake as mistake:
            effects.append(Refused(conn, receipt, str(mistake)))
            self._close(context, "error")
        else:
            if conn in self._state.contexts or receipt is not None:
                effects.append(done)
            if conn not in self._state.contexts:
                effects.append(Closed(conn, str(command.args.get("reason", ""))))
        self._dispatch(effects)
        return effects

    def flush(self) -> None:
        """Write what has changed to the store; ``Broker.transaction`` calls it before the commit."""
        if STATE_BEHIND_LOG not in self._bugs:
            self._state.flush()

    def pending_output(self, conn: str, received: int) -> list[Deliver]:
        """Output of a reliable connection beyond what the client says it received, oldest first."""
        context = self._state.contexts.get(conn)
        if context is None:
            return []
        seen = max(received, context.received)
        return [self._delivery(message) for out_seq, message in context.inflight.items() if out_seq > seen]

    def connections(self) -> Mapping[str, bool]:
        """Every connection context, in order of opening -> whether it is reliable."""
        return {conn: context.reliable for conn, context in self._state.contexts.items()}

    def knows(self, conn: str) -> bool:
        """Whether a context of that id is open, or was and is still remembered."""
        return conn in self._state.contexts or conn in self._state.closed

    def depths(self) -> dict[str, int]:
        """Queue name -> messages in it, delivered-but-unacknowledged ones included."""
        return {queue.name: queue.depth for queue in self._state.queues.values()}

    def dump(self) -> Iterable[list[Any]]:
        """The whole state as encodable rows; take them all before the next command is applied."""
        self._state.flush()
        return self._state.rows()

    def load(self, rows: Iterable[list[Any]]) -> None:
        """Replace the whole state by dumped rows, inside ``Broker.transaction``.

        Raises:
            ValueError: the rows are not a dump.
        """
        self._touched.clear()
        self._state.replace(rows)

    # Connections.

    def _open(self, command: Command) -> list[Effect]:
        conn, args = command.conn, command.args
        context = self._state.contexts.get(conn)
        if args.get("resume"):
            if context is None or not context.reliable or context.login != args["login"]:
                return [Closed(conn, *self._state.closed.get(conn, ("unknown", None)))]
            return self._resume(context, int(args.get("received", 0)))
        if context is not None:
            return [Refused(conn, None, "the connection id is in use")]
        if len(self._state.contexts) >= self._limits.max_contexts:
            return [Refused(conn, None, "too many connections")]
        self._state.add_context(conn, bool(args["reliable"]), str(args["login"]))
        return [Opened(conn, 0)]

    def _resume(self, context: Context, received: int) -> list[Effect]:
        effects: list[Effect] = [Opened(context.conn, context.in_seq)]
        self._note_received(context, received)
        effects.extend(self.pending_output(context.conn, received))
        self._dispatch(effects)
        return effects

    def _apply_to(self, context: Context, command: Command) -> Done:
        seq, args = command.seq, command.args
        received = args.get("received")
        if received is not None:
            self._note_received(context, received)
        if seq:
            if seq <= context.in_seq and NO_DUPLICATE_FILTER not in self._bugs:
                return Done(context.conn, seq, args.get("receipt"), duplicate=True)
            if seq > context.in_seq + 1:
                raise _Mistake("gap")
            context.in_seq = max(context.in_seq, seq)
            self._state.context_table.update(context.id, context)
        self._handlers[command.kind](context, command)
        return Done(context.conn, seq, args.get("receipt"))

    def _note_received(self, context: Context, received: int) -> None:
        if not context.reliable or not context.received < received <= context.out_seq:
            return
        context.received = received
        self._state.context_table.update(context.id, context)
        for subscription in context.subscriptions.values():
            if subscription.ack == AUTO:
                for message in [m for m in subscription.unacked.values() if m.out_seq <= received]:
                    self._consume(message)

    def _close_by_client(self, context: Context, command: Command) -> None:
        self._close(context, str(command.args.get("reason", "")))

    def _close(self, context: Context, reason: str) -> None:
        for subscription in list(context.subscriptions.values()):
            self._end_subscription(subscription)
        for transaction in list(context.transactions.values()):
            self._state.remove_transaction(transaction)
        self._state.remove_context(context)
        if context.reliable:
            self._state.remember_closed(context, reason, CLOSED_REMEMBERED)

    def _nothing(self, context: Context, command: Command) -> None:
        """The counter that rides on every command is all there is."""

    # Messages.

    def _send(self, context: Context, command: Command) -> None:
        args = command.args
        if args.get("tx") is not None:
            self._defer(context, command)
            return
        self._check_capacity(1)
        self._enqueue(args)

    def _check_capacity(self, count: int) -> None:
        if len(self._state.messages) + count > self._limits.max_messages:
            raise _Mistake(f"the broker already holds its limit of {self._limits.max_messages} messages")

    def _enqueue(self, args: Mapping[str, Any]) -> None:
        queue = self._queue(args["destination"])
        self._state.add_message(queue, dict(args["headers"]), args["body"])
        self._touched[queue.id] = queue

    def _queue(self, destination: str) -> Queue:
        name = destination.removeprefix(QUEUE_PREFIX)
        queue = self._state.queues.get(name)
        if queue is None:
            if len(self._state.queues) >= self._limits.max_queues:
                raise _Mistake(f"the broker already has its limit of {self._limits.max_queues} queues")
            queue = self._state.add_queue(name)
        return queue

    def _settle(self, context: Context, command: Command) -> None:
        args = command.args
        message = context.find(args["id"])
        if message is None:
            # The broker's own acknowledgements may cross with UNSUBSCRIBE: no mistake of the client's.
            if args.get("auto"):
                return
            raise _Mistake(f"no message awaits an acknowledgement with id {args['id']}")
        if args.get("tx") is not None:
            self._defer(context, command)
            return
        self._finish(command.kind, context.covered(message))

    def _finish(self, kind: str, messages: list[Message]) -> None:
        for message in messages:
            if kind == "ack":
                self._consume(message)
            else:
                self._return(message)

    def _consume(self, message: Message) -> None:
        self._take_back(message)
        message.queue.depth -= 1
        self._state.remove_message(message)

    def _return(self, message: Message) -> None:
        self._take_back(message)
        message.redeliveries += 1
        message.out_seq = 0
        message.queue.requeue(message)
        self._state.delivery_table.update(message.id, message)

    def _take_back(self, message: Message) -> None:
        subscription = message.subscription
        if subscription is None:
            raise ValueError(f"message {message.id} is not in flight")
        subscription.release(message)
        if subscription.id in message.queue.subscriptions:
            message.queue.update_room(subscription)
        self._touched[message.queue.id] = message.queue

    # Subscriptions and their turn.

    def _subscribe(self, context: Context, command: Command) -> None:
        args = command.args
        if args["id"] in context.subscriptions:
            raise _Mistake(f"subscription {args['id']} exists already")
        if len(context.subscriptions) >= self._limits.max_subscriptions:
            raise _Mistake(f"a connection may have {self._limits.max_subscriptions} subscriptions")
        if args["ack"] not in ACK_MODES:
            raise _Mistake(f"ack mode {args['ack']} is none of {', '.join(ACK_MODES)}")
        queue = self._queue(args["destination"])
        prefetch = max(1, min(int(args["prefetch"]), self._limits.max_prefetch))
        self._state.add_subscription(context, args["id"], queue, args["ack"], prefetch)
        self._touched[queue.id] = queue

    def _unsubscribe(self, context: Context, command: Command) -> None:
        subscription = context.subscriptions.get(command.args["id"])
        if subscription is None:
            raise _Mistake(f"there is no subscription {command.args['id']}")
        self._end_subscription(subscription)

    def _end_subscription(self, subscription: Subscription) -> None:
        subscription.queue.detach(subscription)
        for message in list(subscription.unacked.values()):
            if CLOSE_DROPS_UNACKED in self._bugs:
                self._consume(message)
                continue
            self._return(message)
            if REQUEUED_TWICE in self._bugs:
                self._enqueue({"destination": QUEUE_PREFIX + message.queue.name,
                               **dict(zip(("headers", "body"), self._state.content(message), strict=True))})
        self._state.remove_subscription(subscription)

    def _dispatch(self, effects: list[Effect]) -> None:
        for queue in self._touched.values():
            if queue.ready():
                self._state.queue_table.update(queue.id, queue)
            while queue.ready():
                message, subscription = queue.take()
                context = subscription.context
                context.out_seq += 1
                subscription.hold(message, context.out_seq)
                queue.update_room(subscription)
                if message.redeliveries:
                    self._state.delivery_table.update(message.id, message)
                else:
                    self._state.delivery_table.insert(message.id, message)
                self._state.context_table.update(context.id, context)
                effects.append(self._delivery(message))
        self._touched.clear()

    def _delivery(self, message: Message) -> Deliver:
        subscription = message.subscription
        if subscription is None:
            raise ValueError(f"message {message.id} is not in flight")
        headers, body = self._state.content(message)
        context = subscription.context
        # On a reliable connection the client reports what it received, which is what settles `auto` there.
        auto = subscription.ack == AUTO and not context.reliable
        return Deliver(context.conn, message.out_seq, subscription.name, QUEUE_PREFIX + message.queue.name,
                       message.ack_id, str(message.id), message.redeliveries, headers, body, auto)

    # Transactions.

    def _begin(self, context: Context, command: Command) -> None:
        name = command.args["tx"]
        if name in context.transactions:
            raise _Mistake(f"transaction {name} has begun already")
        if len(context.transactions) >= self._limits.max_transactions:
            raise _Mistake(f"a connection may have {self._limits.max_transactions} transactions")
        self._state.add_transaction(context, name)

    def _transaction(self, context: Context, name: str) -> Transaction:
        transaction = context.transactions.get(name)
        if transaction is None:
            raise _Mistake(f"there is no transaction {name}")
        return transaction

    def _defer(self, context: Context, command: Command) -> None:
        transaction = self._transaction(context, command.args["tx"])
        if len(transaction.items) >= self._limits.max_transaction_items:
            raise _Mistake(f"a transaction may have {self._limits.max_transaction_items} items")
        if transaction.size + content_size(command.args) > self._limits.max_transaction_bytes:
            raise _Mistake(f"a transaction may hold {self._limits.max_transaction_bytes} bytes")
        names = ("id",) if command.kind != "send" else ("destination", "headers", "body")
        self._state.add_item(transaction, command.kind, {name: command.args[name] for name in names})

    def _commit(self, context: Context, command: Command) -> None:
        transaction = self._transaction(context, command.args["tx"])
        plan = self._plan(context, transaction.items)
        self._state.remove_transaction(transaction)
        for item, messages in plan:
            if item.kind == "send":
                self._enqueue(item.args)
            else:
                self._finish(item.kind, messages)

    def _plan(self, context: Context, items: list[Item]) -> list[tuple[Item, list[Message]]]:
        """What each item will do; raises _Mistake, before anything is done, if one of them can't."""
        plan: list[tuple[Item, list[Message]]] = []
        taken: set[int] = set()
        names: dict[str, None] = {}
        for item in items:
            if item.kind == "send":
                names[item.args["destination"].removeprefix(QUEUE_PREFIX)] = None
                plan.append((item, []))
                continue
            message = context.find(item.args["id"])
            if message is None or message.id in taken:
                raise _Mistake(f"no message awaits an acknowledgement with id {item.args['id']}")
            messages = [m for m in context.covered(message) if m.id not in taken]
            taken.update(m.id for m in messages)
            plan.append((item, messages))
        self._check_capacity(sum(item.kind == "send" for item in items))
        fresh = sum(name not in self._state.queues for name in names)
        if len(self._state.queues) + fresh > self._limits.max_queues:
            raise _Mistake(f"the broker already has its limit of {self._limits.max_queues} queues")
        return plan

    def _abort(self, context: Context, command: Command) -> None:
        self._state.remove_transaction(self._transaction(context, command.args["tx"]))


