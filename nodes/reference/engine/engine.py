"""The deterministic state machine: commands in, effects out, state in SQLite.

Two engines that apply the same commands in the same order hold the same state, to the byte, whether or not
one of them was restarted or loaded from a snapshot in between. Client mistakes are effects, not exceptions.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from nodes.reference.api import GAP, Closed, Command, Config, Deliver, Done, Effect, Refused
from nodes.reference.engine.clustered import Clustered
from nodes.reference.engine.contexts import Contexts
from nodes.reference.engine.destinations import CommandError, Destinations, Exchanges
from nodes.reference.engine.last_values import LastValues, queue_of
from nodes.reference.engine.limits import Limits
from nodes.reference.engine.model import PLAIN, PROXY, QUEUE_PREFIX, ConnectionContext, Message, Queue
from nodes.reference.engine.notifications import LocalQueue
from nodes.reference.engine.proxies import Proxies, ProxyRequests, is_agent
from nodes.reference.engine.queue_observer import Enqueued, QueueTap
from nodes.reference.engine.replica import QueueReplicas
from nodes.reference.engine.security import CONSUME, DENIED, PRODUCE, Security
from nodes.reference.engine.server_queues import PROXY_PREFIX, ServerQueues
from nodes.reference.engine.state import EngineState
from nodes.reference.engine.store import Changes, Records, create_tables, no_progress
from nodes.reference.engine.threads import is_collocated
from nodes.reference.engine.topics import TOPIC_PREFIX
from nodes.reference.engine.trace import MessageTrace
from nodes.reference.engine.transactions import Transactions
from nodes.reference.engine.value_names import REFUSED


class StoreEngine:
    """The Engine over one SQLite database; its constructor restores the state from the database.

    ``local`` is the local queue of notifications, empty between commands. A caller that keeps a copy of the same rows
    elsewhere sets ``changes``, which then records the rows of each flush.
    """

    def __init__(self, database: sqlite3.Connection, limits: Limits | None = None,
                 config: Config | None = None) -> None:
        self.changes: Changes | None = None
        self.database = database
        self.limits = limits if limits is not None else Limits()
        create_tables(database)
        self.state = EngineState(database, self.limits.message_cache, self.limits.max_window)
        self.local = LocalQueue()
        self.server_queues = ServerQueues(database, config)
        clustered = config.clustered if config is not None else {}
        self.clustered = Clustered(database, self.state, self.server_queues, clustered)
        self._proxies = Proxies(self.state, self.server_queues)
        self._destinations = Destinations(self.state, self.server_queues, self.clustered, self._proxies,
                                          self.limits, self.local, self._too_slow)
        self._proxy_requests = ProxyRequests(
            self.state, self.limits, self._proxies, subscribe=self._subscribe_agent,
            leave=self._destinations.leave, finish=self._destinations.finish, enqueue=self._destinations.enqueue,
            refused=self._too_slow)
        self.last_values = LastValues(self.state)
        secured = config is not None and bool(config.options.get("security"))
        administrator = config.login if config is not None else ""
        self.security = Security(database, secured, administrator, self.state.new_id, self.limits.answer_page)
        self._answer: dict[str, str] = {}
        self._reduced: str | None = None
        transactions = self._transactions = Transactions(self.state, self.limits, self._destinations)
        self._contexts = Contexts(self.state, self.limits, self._destinations, transactions, self.security)
        self._records: list[Records] = []
        self._effects: list[Effect] = []
        self.message_trace: MessageTrace | None = None
        destinations = self._destinations
        self._handlers = {
            "send": self._send, "subscribe": self._subscribe, "unsubscribe": destinations.unsubscribe,
            "ack": self._settle, "nack": self._settle, "begin": transactions.begin, "commit": self._commit,
            "abort": transactions.abort, "prepare": self._prepare, "recover": self._nothing,
            "pull": destinations.pull, "put": self._put, "read": self._nothing,
            "received": self._nothing, "close": self._close_by_client, "security": self._secure,
        }
        self._without_client = {"external": self._external, "deploy": self._deploy, **self.server_queues.handlers}

    # Called by designs and sessions.

    def apply(self, command: Command) -> list[Effect]:
        """Apply one command inside ``Broker.transaction``; a client's mistake raises no exception.

        Raises:
            ValueError: the engine has no command of this kind.
        """
        if self.message_trace is not None:
            self.message_trace.applies(command)
        if command.kind == "open":
            effects = self._effects = []
            self._contexts.open(command, effects)
            return self._react(effects)
        if command.kind in self._without_client:
            return self._apply_without_client(command)
        if command.kind not in self._handlers:
            raise ValueError(f"the engine knows no command {command.kind!r}")
        conn, receipt = command.conn, command.args.get("receipt")
        context = self.state.contexts.get(conn)
        if context is None:
            received = self._contexts.received_by(conn)
            if command.kind == "close" and receipt is None:
                return [Closed(conn, str(command.args.get("reason", "")), received)]
            return [Refused(conn, receipt, "connection closed", received)]
        effects = self._effects = []
        try:
            done = self._apply_to(context, command)
        except CommandError as mistake:
            effects.append(Refused(conn, receipt, str(mistake), context.in_seq if context.reliable else None))
            self._contexts.close(context, GAP if str(mistake) == GAP else "error")
        else:
            if conn in self.state.contexts or receipt is not None:
                effects.append(done)
            if conn not in self.state.contexts:
                effects.append(Closed(conn, str(command.args.get("reason", "")), self._contexts.received_by(conn)))
            if self._reduced is not None:
                self._withdraw(self._reduced)
        return self._react(effects)

    def _react(self, effects: list[Effect]) -> list[Effect]:
        """Run the reactions of the agents after a command has been applied."""
        self.local.drain()
        self._destinations.dispatch(effects)
        effects += self.server_queues.effects()
        if self.message_trace is not None:
            self.message_trace.given(effects)
            self.message_trace.tell()
        self._effects = []  # They belong to the caller; a large list would otherwise be kept until the next command.
        return effects

    def flush(self) -> None:
        """Write the changes to the store; ``Broker.transaction`` calls it before the commit."""
        self.state.flush(self.changes)
        self.server_queues.flush(self.changes)
        self.clustered.flush(self.changes)
        self.security.flush(self.changes)
        for records in self._records:
            records.write()
            records.saved()
        if self.message_trace is not None:
            self.message_trace.tell()

    def write(self) -> None:
        """Write the changed queues, messages and records, and keep the changes until ``saved`` is called.

        For a store that may fail: changes that were not saved are written again the next time.
        """
        self.state.write(self.changes)
        for records in self._records:
            records.write()
        if self.message_trace is not None:
            self.message_trace.tell()

    def saved(self) -> None:
        """Note that the written changes are in the store."""
        self.state.saved()
        for records in self._records:
            records.saved()

    @property
    def overflows(self) -> bool:
        """Whether changes that could not be saved take more memory than is allowed."""
        return self.state.overflows

    def store_with(self, records: Records) -> None:
        """Write these records whenever the engine's own state is written."""
        self._records.append(records)

    def tap(self, tap: QueueTap | None) -> None:
        """Report every message that is enqueued or dequeued from now on to ``tap``; None ends the reports."""
        self.state.tap = tap

    def trace(self, trace: MessageTrace) -> None:
        """Report the current messages to ``trace``, and every later arrival and removal."""
        self.message_trace = trace
        self.state.use_trace(trace)
        self.server_queues.use_trace(trace)

    def trace_copies(self, reason: str) -> None:
        """Report the stored messages to the trace after others have written to this engine's store, before it is
        loaded."""
        if self.message_trace is not None:
            self.message_trace.compare(self.state.stored_names(), reason)

    def browse(self, queue: str) -> Iterator[Enqueued]:
        """Iterate over the messages that a queue holds now, in order, delivered ones included.

        Messages that are removed during the iteration are skipped. ``queue`` is a name as in ``depths``, so it can be
        that of a durable subscription. The tap reports messages that arrive later.
        """
        held = self.state.queues.get(queue) or self.state.durables.get(queue)
        messages = [message for message in self.state.messages.values() if message.queue is held]
        return self._contents(messages)

    def browse_beyond(self, beyond: Mapping[str, int]) -> Iterator[tuple[str, Iterator[Enqueued]]]:
        """Yield, for each of these queues, the messages with numbers above the given one, as ``browse`` does."""
        found: dict[str, list[Message]] = {name: [] for name in beyond}
        for message in self.state.messages.values():
            queue = message.queue
            if queue.kind == PLAIN and queue.name in found and message.sequence > beyond[queue.name]:
                found[queue.name].append(message)
        return ((name, self._contents(messages)) for name, messages in found.items())

    def _contents(self, messages: Iterable[Message]) -> Iterator[Enqueued]:
        for message in messages:
            if message.id in self.state.messages:
                queue = message.queue
                yield Enqueued(queue.kind, queue.name, message.sequence, *self.state.content(message))

    def use_exchanges(self, exchanges: Exchanges) -> None:
        """Enable sending to exchanges."""
        self._destinations.exchanges = exchanges

    def declare_queue(self, name: str) -> None:
        """Create a queue if it does not exist, inside ``Broker.transaction``; raises CommandError beyond the limit."""
        self._destinations.declare(name)

    def delete_queue(self, name: str) -> None:
        """Remove an existing queue with all its messages, inside ``Broker.transaction``."""
        self.last_values.removed(self.state.queues[name])
        self._destinations.delete(name)

    def replicas(self) -> QueueReplicas:
        """Return the queues as copies of another broker's queues; to be used only until this broker serves."""
        self.last_values.forget()
        return QueueReplicas(self.state)

    def positions(self) -> dict[str, int]:
        """Map the name of each queue to the number of the last message enqueued in it."""
        return {name: queue.enqueued for name, queue in self.state.queues.items()}

    def held(self) -> dict[str, set[int]]:
        """Map the name of each queue to the numbers of its messages, delivered ones included."""
        found: dict[str, set[int]] = {name: set() for name in self.state.queues}
        for message in self.state.messages.values():
            if message.queue.kind == PLAIN:
                found[message.queue.name].add(message.sequence)
        return found

    def content(self, message: Message) -> tuple[Mapping[str, str], bytes]:
        """Return headers and body of a message that a tap has received."""
        return self.state.content(message)

    def value(self, args: Mapping[str, Any]) -> dict[str, str]:
        """Return the receipt's headers for a READ, which changes nothing: a repeated READ gets the value at that
        time."""
        return self.last_values.read(self.state.queues.get(queue_of(args["destination"])), args["key"])

    def weight(self, command: Command) -> int:
        """Return the approximate work of a command: itself, and the messages that it creates or gives back."""
        args, context = command.args, self.state.contexts.get(command.conn)
        if command.kind == "send" and "tx" not in args:
            return 1 + self._destinations.fanout(args["destination"])
        if command.kind == "commit" and context is not None and "tx" in args:
            transaction = context.transactions.get(args["tx"])
            items = transaction.items if transaction is not None else []
            return 1 + sum(1 + self._destinations.fanout(item.args["destination"]) for item in items
                           if item.kind == "send")
        if command.kind == "nack" and context is not None:
            return 1 + context.most_covered(args["id"])
        return 1

    def pending_output(self, conn: str, received: int) -> list[Deliver]:
        """Return the output of a reliable connection that its client has not reported as received, oldest first."""
        return self._contexts.pending_output(conn, received)

    def connections(self) -> Mapping[str, bool]:
        """Map every client's connection context, in order of opening, to whether it is reliable."""
        return {conn: context.reliable for conn, context in self.state.contexts.items() if not is_agent(conn)}

    def knows(self, conn: str) -> bool:
        """Return whether a context of that id is open, or was closed and is still remembered."""
        return conn in self.state.contexts or conn in self.state.closed

    def depths(self) -> dict[str, int]:
        """Map the name of each queue and durable subscription to its number of messages, delivered unacknowledged ones
        included.

        Messages that wait for another server are counted under ``/server/N/queue/NAME``.
        """
        queues = (*self.state.queues.values(), *self.state.durables.values())
        return {queue.name: queue.depth for queue in queues} | self.server_queues.depths()

    def dump(self) -> Iterable[list[Any]]:
        """Iterate over the whole state as encodable rows; consume all of them before the next command is applied."""
        self.state.flush(self.changes)
        self.server_queues.flush(self.changes)
        self.clustered.flush(self.changes)
        self.security.flush(self.changes)
        return self.state.rows()

    def load(self, rows: Iterable[list[Any]], on_progress: Callable[[], None] = no_progress) -> None:
        """Replace the whole state by dumped rows, inside ``Broker.transaction``, calling ``on_progress`` often.

        Raises:
            ValueError: the rows are not a dump.
        """
        self.last_values.forget()
        self.state.replace(rows, on_progress)
        self.server_queues.restore()
        self.clustered.restore()
        self.security.restore()

    def reload(self, on_progress: Callable[[], None] = no_progress) -> None:
        """Reload the whole state from the database after others have written to it, calling ``on_progress`` often."""
        self.last_values.forget()
        self.state.reload(on_progress)
        self.server_queues.restore()
        self.clustered.restore()
        self.security.restore()

    # Commands without a client.

    def _apply_without_client(self, command: Command) -> list[Effect]:
        effects = self._effects = []
        self._without_client[command.kind](command.args)
        return self._react(effects)

    def _external(self, args: Mapping[str, Any]) -> None:
        """Take a message of another server (HA Joram, 4.2.1); a message that was taken before is discarded."""
        server, sequence = args["server"], args["sequence"]
        if not self.server_queues.awaits(server, sequence):
            return
        if args["destination"].startswith(PROXY_PREFIX):
            self._take_for_proxies(args)
            return
        try:
            self._destinations.check_room((args,))
        except CommandError as mistake:
            self.server_queues.decline(server, str(mistake))
            return
        self._destinations.send(args)
        self.server_queues.took(server, sequence)

    def _take_for_proxies(self, args: Mapping[str, Any]) -> None:
        if self._proxy_requests.is_full(args):
            limit = self.limits.max_messages
            self.server_queues.decline(args["server"], f"the broker already holds its limit of {limit} messages")
            return
        self._proxy_requests.take(args)
        self.server_queues.took(args["server"], args["sequence"])

    def _subscribe_agent(self, agent: ConnectionContext, args: Mapping[str, Any]) -> str | None:
        """Subscribe on behalf of a proxy on another server; return the error, or None on success."""
        try:
            self._destinations.subscribe(agent, args)
        except CommandError as mistake:
            return str(mistake)
        return None

    def _deploy(self, args: Mapping[str, Any]) -> None:
        """Create a destination for a service, with a reserved identifier (HA Joram, 4.6.1)."""
        self._destinations.deploy(args["destination"], args["id"])

    # Connections.

    def _apply_to(self, context: ConnectionContext, command: Command) -> Done:
        seq, args = command.seq, command.args
        received = args.get("received")
        if received is not None:
            self._contexts.note_received(context, received)
        if seq:
            if seq <= context.in_seq:
                return self._done(context, command, duplicate=True)
            if seq > context.in_seq + 1:
                raise CommandError(GAP)
            context.in_seq = max(context.in_seq, seq)
            self.state.tables.contexts.update(context.id, context)
        self._handlers[command.kind](context, command)
        return self._done(context, command)

    def _done(self, context: ConnectionContext, command: Command, duplicate: bool = False) -> Done:
        receipt = command.args.get("receipt")
        if command.kind == "recover":
            headers = {"x-xids": " ".join(self._transactions.recover(context.login))}
            return Done(context.conn, command.seq, receipt, duplicate, headers)
        if command.kind == "read":
            self._demand(context, CONSUME, command.args["destination"])
            found = self.value(command.args)
            if self.message_trace is not None:
                self.message_trace.read(queue_of(command.args["destination"]), found)
            return Done(context.conn, command.seq, receipt, duplicate, found)
        if command.kind == "security" or (command.kind == "put" and not duplicate):
            return Done(context.conn, command.seq, receipt, duplicate, self._answer)
        return Done(context.conn, command.seq, receipt, duplicate)

    def _close_by_client(self, context: ConnectionContext, command: Command) -> None:
        self._contexts.close(context, str(command.args.get("reason", "")))

    def _too_slow(self, context: ConnectionContext, reason: str) -> None:
        """End a connection that does not take its messages: losing them silently would be worse."""
        if self.state.contexts.get(context.conn) is not context:
            return
        if is_agent(context.conn):
            self._proxies.refuse(context.conn, reason)
        else:
            received = context.in_seq if context.reliable else None
            self._effects.append(Refused(context.conn, None, reason, received))
        self._contexts.close(context, "error")

    def _nothing(self, context: ConnectionContext, command: Command) -> None:
        """Do nothing: the command only carries the receive counter, or its receipt carries the answer."""

    # Rights.

    def _secure(self, context: ConnectionContext, command: Command) -> None:
        """Carry out a request about principals, rights and objects; the receipt carries the answer."""
        if context.reliable:
            raise CommandError("requests about security need a connection that is not reliable")
        outcome = self.security.request(context.login, command.args["request"], command.args["said"])
        self._answer, self._reduced = outcome.headers, outcome.reduced

    def _demand(self, context: ConnectionContext, right: str, destination: str) -> None:
        if self.security.enabled and not is_collocated(context.conn) and not self.security.permits(
                context.login, right, destination):
            raise CommandError(f"{DENIED}: {right} {destination}")

    def _withdraw(self, login: str) -> None:
        """Close the connections that use a right which this login has lost, so that their clients learn of it."""
        self._reduced = None
        gone = self.security.principal(login) is None
        for context in [each for each in self.state.contexts.values() if each.login == login]:
            if is_agent(context.conn):
                continue  # The server that the client is connected to checks the rights.
            names = [_named(subscription.queue) for subscription in context.subscriptions.values()]
            if gone or not all(self.security.permits(login, CONSUME, name) for name in names):
                received = context.in_seq if context.reliable else None
                self._effects.append(Refused(context.conn, None, DENIED, received))
                self._contexts.close(context, "error")

    def _commit(self, context: ConnectionContext, command: Command) -> None:
        self._demand_sends(context, command)
        self._transactions.commit(context, command)

    def _prepare(self, context: ConnectionContext, command: Command) -> None:
        self._demand_sends(context, command)
        self._transactions.prepare(context, command)

    def _demand_sends(self, context: ConnectionContext, command: Command) -> None:
        """Check the rights for a transaction's sends at COMMIT, too; for a branch, at PREPARE and never afterwards."""
        transaction = context.transactions.get(command.args.get("tx", "")) if self.security.enabled else None
        for item in transaction.items if transaction is not None else ():
            if item.kind == "send":
                self._demand(context, PRODUCE, item.args["destination"])

    # Messages.

    def _put(self, context: ConnectionContext, command: Command) -> None:
        """Set a new value for a key of a last-value queue."""
        destination = command.args["destination"]
        self._demand(context, PRODUCE, destination)
        name = queue_of(destination)
        if command.args.get("expected") and name not in self.state.queues:  # a refused write creates no queue
            self._answer = {**self.last_values.read(None, ""), REFUSED: "true"}
            return
        self._answer = self.last_values.put(self._destinations.last_value_queue(name), command.args)

    def _send(self, context: ConnectionContext, command: Command) -> None:
        self._demand(context, PRODUCE, command.args["destination"])
        if command.args.get("tx") is not None:
            self._transactions.defer(context, command)
            return
        self._destinations.check_room((command.args,))
        self._destinations.send(command.args)

    def _settle(self, context: ConnectionContext, command: Command) -> None:
        args = command.args
        message = context.find(args["id"])
        if message is None:
            # The broker's automatic acknowledgements may cross with UNSUBSCRIBE: that is not the client's mistake.
            if args.get("auto"):
                return
            raise CommandError(f"no message awaits an acknowledgement with id {args['id']}")
        if args.get("tx") is not None:
            self._transactions.defer(context, command)
            return
        covered = context.covered(message)
        self._destinations.finish(command.kind, covered)

    def _subscribe(self, context: ConnectionContext, command: Command) -> None:
        self._demand(context, CONSUME, command.args["destination"])
        self._destinations.subscribe(context, command.args)


def _named(queue: Queue) -> str:
    """Return the destination of a subscription's queue, as a client named it."""
    if queue.kind == PROXY:
        return queue.pattern
    return f"{QUEUE_PREFIX}{queue.name}" if queue.kind == PLAIN else f"{TOPIC_PREFIX}{queue.pattern}"
