"""Reactions of queues, topics and subscriptions: messages arrive, are delivered, consumed and given back.

Nothing has been changed when a ``CommandError`` is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from nodes.reference.api import Command, Deliver, Effect
from nodes.reference.engine.clustered import Clustered
from nodes.reference.engine.limits import Limits
from nodes.reference.engine.model import (
    ACK_MODES,
    AUTO,
    DURABLE,
    PROXY,
    PULLED,
    QUEUE_PREFIX,
    TRANSIENT,
    ConnectionContext,
    Message,
    Queue,
    Shared,
    Subscription,
    Transaction,
    content_bytes,
)
from nodes.reference.engine.notifications import LocalQueue
from nodes.reference.engine.proxies import Proxies, is_agent
from nodes.reference.engine.server_queues import MOVED, WANTED, ServerQueues
from nodes.reference.engine.state import EngineState
from nodes.reference.engine.topics import EXCHANGE_PREFIX, TOPIC_PREFIX


class CommandError(Exception):
    """A client's command can't be carried out; nothing has been changed."""


class Exchanges(Protocol):
    """The routing of exchanges, in designs that have them."""

    def bound(self, destination: str) -> Sequence[str] | None:
        """Return the queues that get a message for ``/exchange/NAME/KEY``; None when the exchange does not exist."""
        ...


class Destinations:
    """The part of the engine that handles destinations.

    ``too_slow`` is a reaction that is posted to the local queue for a connection whose transient subscriptions hold
    more messages than their limit.
    """

    def __init__(self, state: EngineState, server_queues: ServerQueues, clustered: Clustered, proxies: Proxies,
                 limits: Limits, local: LocalQueue, too_slow: Callable[[ConnectionContext, str], None]) -> None:
        self._state = state
        self._server_queues = server_queues
        self._clustered = clustered
        self._proxies = proxies
        self._limits = limits
        self._local = local
        self._too_slow = too_slow
        self._touched: dict[int, Queue] = {}
        self._slow: ConnectionContext | None = None
        self.exchanges: Exchanges | None = None

    # Arrival.

    def check_room(self, sends: Iterable[Mapping[str, Any]]) -> None:
        """Check that these messages can be sent to their destinations.

        Raises:
            CommandError: a limit would be exceeded.
        """
        count = len(self._server_queues)
        size = 0
        fresh: dict[str, None] = {}
        for args in sends:
            server, destination = self._server_queues.route(args["destination"])
            if server is not None:
                if not self._server_queues.knows(server):
                    raise CommandError(f"there is no server {server} in the configuration")
                count += 1
                continue
            if destination.startswith(TOPIC_PREFIX):
                count += len(self._clustered.others(destination))
                count += len(self._state.routes.to(destination.removeprefix(TOPIC_PREFIX)))
                continue
            if destination.startswith(EXCHANGE_PREFIX):
                queues = self._bound(destination)  # each queue keeps its own copy
                count += len(queues)
                size += len(queues) * content_bytes(len(args["body"]), (args["headers"], args["body"]))
                continue
            count += not destination.startswith(WANTED)
            name = destination.removeprefix(WANTED).removeprefix(MOVED).removeprefix(QUEUE_PREFIX)
            if name not in self._state.queues:
                fresh[name] = None
        if count - len(self._server_queues) > self._limits.max_fanout:
            raise CommandError(f"a command may bring {self._limits.max_fanout} messages into being")
        if size > self._limits.max_fanout_bytes:
            raise CommandError(f"a command may bring {self._limits.max_fanout_bytes} bytes to the queues of exchanges")
        if len(self._state.messages) + self._state.reserved + count > self._limits.max_messages:
            raise CommandError(f"the broker already holds its limit of {self._limits.max_messages} messages")
        if fresh:
            self._check_queues(len(fresh))

    def fanout(self, destination: str) -> int:
        """Return the number of subscriptions or bound queues that a message to this destination would reach now."""
        if destination.startswith(EXCHANGE_PREFIX) and self.exchanges is not None:
            return len(self.exchanges.bound(destination) or ())
        if not destination.startswith(TOPIC_PREFIX):
            return 0
        return len(self._state.routes.to(destination.removeprefix(TOPIC_PREFIX)))

    def send(self, args: Mapping[str, Any]) -> None:
        """Post a message to its destination, which must have room for it (``check_room``)."""
        server, destination = self._server_queues.route(args["destination"])
        if server is not None:
            self._local.post(self._server_queues.send, server, destination, args["headers"], args["body"])
        elif destination.startswith(TOPIC_PREFIX):
            self._local.post(self._publish, destination.removeprefix(TOPIC_PREFIX), args)
            if "server" not in args:  # An element has forwarded its message to all others already.
                for other in self._clustered.others(destination):
                    self._local.post(self._server_queues.send, other, destination, args["headers"], args["body"])
        elif destination.startswith(EXCHANGE_PREFIX):
            for name in self._bound(destination):
                self._local.post(self._enqueue, self._queue(name), args)
        elif destination.startswith(MOVED):
            self._local.post(self._moved_here, self._queue(destination.removeprefix(MOVED)), args)
        elif destination.startswith(WANTED):
            self._local.post(self._wanted, self._queue(destination.removeprefix(WANTED)), args)
        else:
            self._local.post(self._enqueue, self._queue(destination), args)

    def _bound(self, destination: str) -> Sequence[str]:
        """Return the queues that an exchange routes to; raises CommandError when the exchange does not exist."""
        queues = self.exchanges.bound(destination) if self.exchanges is not None else None
        if queues is None:
            raise CommandError(f"there is no exchange {destination.removeprefix(EXCHANGE_PREFIX).partition('/')[0]}")
        return queues

    def declare(self, name: str) -> None:
        """Create a queue unless it exists; raises CommandError when there are too many queues."""
        self._queue(name)

    def delete(self, name: str) -> None:
        """Remove a queue with all its messages; its consumers get nothing further."""
        queue = self._state.queues[name]
        for subscription in list(queue.subscriptions.values()):
            self.end_subscription(subscription)
        for message in queue.waiting():
            self._state.remove_message(message)
        self._touched.pop(queue.id, None)
        self._state.remove_queue(queue)

    def last_value_queue(self, name: str) -> Queue:
        """Return the queue of that name, with room for one message; raises CommandError beyond a limit."""
        if len(self._state.messages) + self._state.reserved + 1 > self._limits.max_messages:
            raise CommandError(f"the broker already holds its limit of {self._limits.max_messages} messages")
        return self._queue(name)

    def reserve(self, destination: str) -> None:
        """Create the destination's queue now if needed, so that a later send needs no new queue."""
        server, destination = self._server_queues.route(destination)
        if server is None and destination.startswith(QUEUE_PREFIX):
            self._queue(destination)

    def _enqueue(self, queue: Queue, args: Mapping[str, Any]) -> None:
        self.enqueue(queue, args["headers"], args["body"])

    def enqueue(self, queue: Queue, headers: Mapping[str, str], body: bytes) -> None:
        """Append a message to a queue."""
        self._state.add_message(queue, dict(headers), body)
        self._touched[queue.id] = queue

    def _moved_here(self, queue: Queue, args: Mapping[str, Any]) -> None:
        self._clustered.came(queue, args["server"])
        self._enqueue(queue, args)

    def _wanted(self, queue: Queue, args: Mapping[str, Any]) -> None:
        self._clustered.wanted(queue, args["server"], int(args["body"]))
        self._touched[queue.id] = queue

    def _publish(self, topic: str, args: Mapping[str, Any]) -> None:
        queues = self._state.routes.to(topic)
        if queues:
            shared = self._state.new_shared(topic, dict(args["headers"]), args["body"])
            for queue in queues:
                self._local.post(self._enqueue_copy, queue, shared)

    def _enqueue_copy(self, queue: Queue, shared: Shared) -> None:
        self._state.add_copy(queue, shared)
        self._touched[queue.id] = queue
        if queue.kind != TRANSIENT:
            return
        most, most_of_all = self._limits.max_backlog, self._limits.max_connection_backlog
        for subscription in queue.subscriptions.values():
            context, name = subscription.context, subscription.name
            context.backlog += 1
            if queue.depth <= most and context.backlog <= most_of_all:
                continue
            # Ending a connection is expensive, so each command ends at most one; later messages trigger the others'
            # end.
            if self._slow not in (None, context):
                continue
            self._slow = context
            reason = f"the subscriptions to topics hold more than {most_of_all} messages"
            if queue.depth > most:
                reason = f"subscription {name} holds more than {most} messages"
            self._local.post(self._too_slow, context, reason)

    def _queue(self, destination: str) -> Queue:
        name = destination.removeprefix(QUEUE_PREFIX)
        queue = self._state.queues.get(name)
        if queue is None:
            self._check_queues(1)
            queue = self._state.add_queue(name)
        return queue

    def _check_queues(self, fresh: int) -> None:
        held = len(self._state.queues) + len(self._state.routes) + len(self._state.proxies)
        if held + fresh > self._limits.max_queues:
            raise CommandError(f"the broker already has its limit of {self._limits.max_queues} queues")

    def deploy(self, destination: str, identity: int) -> None:
        """Create a queue with a reserved identifier, unless the name exists."""
        name = destination.removeprefix(QUEUE_PREFIX)
        if name not in self._state.queues:
            self._state.add_queue(name, identity)

    # Acknowledgement.

    def finish(self, kind: str, messages: list[Message]) -> None:
        """Carry out an ``ack`` or ``nack`` of delivered messages."""
        for message in messages:
            if kind == "ack":
                self.consume(message)
            else:
                self.give_back(message)

    def consume(self, message: Message) -> None:
        """Consume a message that was delivered or assigned to a branch: it has reached its consumer for good."""
        if message.subscription is not None and message.subscription.ack == AUTO:
            context = message.subscription.context
            context.settled = max(context.settled, message.out_seq)
        self._take_back(message)
        message.queue.depth -= 1
        if message.queue.kind == TRANSIENT:
            for subscription in message.queue.subscriptions.values():
                subscription.context.backlog -= 1
        elif message.queue.kind == PROXY:
            self._proxies.settle(message, "ack")
        self._state.remove_message(message)

    def assign(self, message: Message, branch: Transaction) -> None:
        """Assign a delivered message to a prepared branch until the branch ends."""
        self._take_back(message)
        message.out_seq = 0
        self._state.assign(message, branch)

    def give_back(self, message: Message) -> None:
        """Return a delivered or assigned message to its queue, ahead of all that were never delivered.

        For a proxy's message, its queue is on the other server."""
        self._take_back(message)
        if message.queue.kind == PROXY:
            message.queue.depth -= 1
            self._proxies.settle(message, "nack")
            self._state.remove_message(message)
            return
        message.redeliveries += 1
        message.out_seq = 0
        message.queue.requeue(message)
        self._state.tables.deliveries.update(message.id, message)

    def _take_back(self, message: Message) -> None:
        if message.branch is not None:
            del message.branch.taken[message.id]
            message.branch = None
            self._touched[message.queue.id] = message.queue
            return
        subscription = message.subscription
        if subscription is None:
            raise ValueError(f"message {message.id} is not in flight")
        was_full = subscription.context.full
        subscription.release(message)
        if subscription.ack == PULLED:
            self._let_pull(subscription, -1)
        if subscription.id in message.queue.subscriptions:
            message.queue.update_room(subscription)
        self._touched[message.queue.id] = message.queue
        if was_full and not subscription.context.full:
            self._update_rooms(subscription.context)

    def _update_rooms(self, context: ConnectionContext) -> None:
        """Update all subscriptions of a connection that has become full or is no longer full."""
        for each in context.subscriptions.values():
            if each.id in each.queue.subscriptions:  # otherwise it is being ended
                each.queue.update_room(each)
                if not context.full:
                    self._touched[each.queue.id] = each.queue

    # Subscriptions.

    def subscribe(self, context: ConnectionContext, args: Mapping[str, Any]) -> None:
        """Add a consumer of a queue, or of the topics that a pattern selects, on this or another server.

        Raises:
            CommandError: the connection can't have it, or a limit would be exceeded.
        """
        if args["id"] in context.subscriptions:
            raise CommandError(f"subscription {args['id']} exists already")
        if len(context.subscriptions) >= self._limits.max_subscriptions:
            raise CommandError(f"a connection may have {self._limits.max_subscriptions} subscriptions")
        if args["ack"] not in (*ACK_MODES, PULLED):
            raise CommandError(f"ack mode {args['ack']} is none of {', '.join(ACK_MODES)}")
        server, destination = self._server_queues.route(args["destination"])
        durable, prefetch = args.get("durable"), max(1, min(int(args["prefetch"]), self._limits.max_prefetch))
        if server is not None:
            if not self._server_queues.knows(server):
                raise CommandError(f"there is no server {server} in the configuration")
            self._check_queues(1)
            queue = self._proxies.open(context, server, destination, prefetch, durable)
        elif destination.startswith(TOPIC_PREFIX):
            queue = self._topic_queue(context, destination.removeprefix(TOPIC_PREFIX), durable)
        else:
            queue = self._queue(destination)
        if args["ack"] == PULLED:
            prefetch = 0
        self._state.add_subscription(context, args["id"], queue, args["ack"], prefetch)
        self._touched[queue.id] = queue

    def pull(self, context: ConnectionContext, command: Command) -> None:
        """Request one message for a pulled subscription, to be delivered when one is available."""
        subscription = context.subscriptions.get(command.args["id"])
        if subscription is None or subscription.ack != PULLED:
            raise CommandError(f"there is no pulled subscription {command.args['id']}")
        self._let_pull(subscription, 1)
        self._touched[subscription.queue.id] = subscription.queue

    def _let_pull(self, subscription: Subscription, count: int) -> None:
        subscription.prefetch += count
        self._state.update_subscription(subscription)
        if subscription.id in subscription.queue.subscriptions:
            subscription.queue.update_room(subscription)

    def _topic_queue(self, context: ConnectionContext, pattern: str, durable: str | None) -> Queue:
        if durable is None:
            self._check_queues(1)
            return self._state.add_topic_queue(TRANSIENT, "", pattern)
        name = _durable_name(context, durable)
        queue = self._state.durables.get(name)
        if queue is None:
            self._check_queues(1)
        elif queue.subscriptions:
            raise CommandError(f"durable subscription {durable} is in use")
        elif queue.pattern == pattern:
            return queue
        else:
            # As in JMS: a different pattern makes a different subscription, which starts empty.
            self._drop(queue)
        return self._state.add_topic_queue(DURABLE, name, pattern)

    def unsubscribe(self, context: ConnectionContext, command: Command) -> None:
        """End delivery to a subscription; a durable subscription remains unless ``durable`` names it."""
        name, durable = command.args.get("id"), command.args.get("durable")
        subscription = context.subscriptions.get(str(name))
        elsewhere = subscription is not None and subscription.queue.kind == PROXY
        if durable is not None and not elsewhere:
            self._delete_durable(context, name, durable)
            return
        if subscription is None:
            raise CommandError(f"there is no subscription {name}")
        if durable is not None and subscription.queue.name != durable:
            raise CommandError(f"subscription {name} is not that of durable subscription {durable}")
        self.end_subscription(subscription, delete=durable is not None)

    def _delete_durable(self, context: ConnectionContext, name: str | None, durable: str) -> None:
        queue = self._state.durables.get(_durable_name(context, durable))
        if queue is None:
            raise CommandError(f"there is no durable subscription {durable}")
        consumer = next(iter(queue.subscriptions.values()), None)
        if consumer is not None and consumer.context is not context:
            raise CommandError(f"durable subscription {durable} is in use")
        if name is not None and context.subscriptions.get(name) is not consumer:
            raise CommandError(f"subscription {name} is not that of durable subscription {durable}")
        if consumer is not None:
            self.end_subscription(consumer)
        self._drop(queue)

    def leave(self, agent: ConnectionContext, durable: str | None) -> None:
        """End the agent of a proxy on another server; ``durable`` names a durable subscription to delete with it."""
        for subscription in list(agent.subscriptions.values()):
            self.end_subscription(subscription)
        queue = self._state.durables.get(_durable_name(agent, durable)) if durable is not None else None
        if queue is not None and not queue.subscriptions:
            self._drop(queue)
        self._state.remove_context(agent)

    def end_subscription(self, subscription: Subscription, delete: bool = False) -> None:
        """End a subscription and give its unacknowledged messages back; remove a transient or a proxy subscription
        entirely.

        ``delete`` also deletes the durable subscription behind a proxy.
        """
        queue = subscription.queue
        queue.detach(subscription)
        if queue.kind in (TRANSIENT, PROXY):
            if queue.kind == PROXY:
                self._proxies.end(queue, delete)
            else:
                subscription.context.backlog -= queue.depth
            self._discard_unacked(subscription)
            self._state.remove_subscription(subscription)
            self._drop(queue)
            return
        for message in list(subscription.unacked.values()):
            self.give_back(message)
        self._state.remove_subscription(subscription)

    def _discard_unacked(self, subscription: Subscription) -> None:
        """Discard a subscription's unacknowledged messages, which no other consumer will ever get."""
        context = subscription.context
        was_full = context.full
        discarded = subscription.release_all()
        for message in discarded:
            self._state.remove_message(message)
        subscription.queue.depth -= len(discarded)
        if was_full and not context.full:
            self._update_rooms(context)

    def _drop(self, queue: Queue) -> None:
        self._state.remove_topic_queue(queue)

    # Delivery.

    def dispatch(self, effects: list[Effect]) -> None:
        """Deliver all deliverable messages of the queues touched since the last call."""
        for queue in self._touched.values():
            if queue.ready():
                self._state.tables.queues.update(queue.id, queue)
            while queue.ready():
                message, subscription = queue.next_delivery()
                context = subscription.context
                context.out_seq += 1
                subscription.hold(message, context.out_seq)
                queue.update_room(subscription)
                if context.full:
                    self._update_rooms(context)
                if message.redeliveries:
                    self._state.tables.deliveries.update(message.id, message)
                else:
                    self._state.tables.deliveries.insert(message.id, message)
                self._state.tables.contexts.update(context.id, context)
                delivery = self.delivery(message)
                if is_agent(context.conn):
                    self._proxies.forward(delivery)
                else:
                    effects.append(delivery)
            self._clustered.balance(queue)
        self._touched.clear()
        self._slow = None

    def delivery(self, message: Message) -> Deliver:
        """Return the effect that delivers a message in flight to its client."""
        subscription, shared = message.subscription, message.shared
        if subscription is None:
            raise ValueError(f"message {message.id} is not in flight")
        if message.queue.kind == PROXY:
            return self._proxies.delivery(message, subscription)
        headers, body = self._state.content(message)
        context = subscription.context
        # On a reliable connection, the client's report of what it received settles `auto` deliveries.
        auto = subscription.ack == AUTO and not context.reliable
        if shared is None:
            destination, identity = QUEUE_PREFIX + message.queue.name, message.id
        else:
            destination, identity = TOPIC_PREFIX + shared.topic, shared.id
        return Deliver(context.conn, message.out_seq, subscription.name, destination, message.ack_id, str(identity),
                       message.redeliveries, headers, body, auto)


def _durable_name(context: ConnectionContext, durable: str) -> str:
    return f"{DURABLE}:{context.login}:{durable}"
