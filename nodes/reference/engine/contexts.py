"""The connection contexts of clients: opened, resumed, and closed."""

from __future__ import annotations

from nodes.reference.api import Closed, Command, Deliver, Effect, Opened, Refused
from nodes.reference.engine.destinations import Destinations
from nodes.reference.engine.limits import Limits
from nodes.reference.engine.model import AUTO, ConnectionContext
from nodes.reference.engine.security import DENIED, Security
from nodes.reference.engine.state import EngineState
from nodes.reference.engine.threads import PREFIX, thread_of
from nodes.reference.engine.transactions import Transactions


class Contexts:
    """The part of the engine that handles connection contexts."""

    def __init__(self, state: EngineState, limits: Limits, destinations: Destinations, transactions: Transactions,
                 security: Security) -> None:
        self._state, self._limits, self._security = state, limits, security
        self._destinations, self._transactions = destinations, transactions

    def received_by(self, conn: str) -> int | None:
        """Return the final input counter of a closed connection; None when it is not remembered."""
        return self._state.closed.get(conn, ("", None))[1]

    def open(self, command: Command, effects: list[Effect]) -> None:
        """Open a new context, or resume one; add the effects."""
        conn, args = command.conn, command.args
        context = self._state.contexts.get(conn)
        if args.get("resume"):
            if context is None or not context.reliable or context.login != args["login"]:
                reason, got = self._state.closed.get(conn, ("unknown", None))
                effects.append(Closed(conn, reason, got, opening=True))
                return
            self._resume(context, int(args.get("received", 0)), effects)
            return
        if context is not None:
            effects.append(Refused(conn, None, "the connection id is in use", opening=True))
            return
        if args.get("collocated"):
            self._clean_up_after(thread_of(conn), effects)
        if not args.get("collocated") and not self._security.may_open(args["login"], args.get("principal", 0)):
            effects.append(Refused(conn, None, DENIED, opening=True))
        elif len(self._state.contexts) >= self._limits.max_contexts:
            effects.append(Refused(conn, None, "too many connections", opening=True))
        else:
            self._state.add_context(conn, bool(args["reliable"]), str(args["login"]))
            effects.append(Opened(conn, 0))

    def _clean_up_after(self, thread: str, effects: list[Effect]) -> None:
        """Close contexts that a collocated client's earlier connections left and that no client will resume (HA Joram,
        5.2)."""
        for conn in [conn for conn in self._state.contexts if conn.startswith(f"{PREFIX}{thread}:")]:
            self.close(self._state.contexts[conn], "failover")
            effects.append(Closed(conn, "failover"))

    def _resume(self, context: ConnectionContext, received: int, effects: list[Effect]) -> None:
        effects.append(Opened(context.conn, context.in_seq))
        self.note_received(context, received)
        effects.extend(self.pending_output(context.conn, received))

    def note_received(self, context: ConnectionContext, received: int) -> None:
        """Settle the output of a reliable connection that its client reports as received."""
        if not context.reliable or not context.received < received <= context.out_seq:
            return
        context.received = received
        self._state.tables.contexts.update(context.id, context)
        for subscription in context.subscriptions.values():
            if subscription.ack == AUTO:
                for message in [m for m in subscription.unacked.values() if m.out_seq <= received]:
                    self._destinations.consume(message)

    def pending_output(self, conn: str, received: int) -> list[Deliver]:
        """Return the output of a reliable connection that its client has not reported as received, oldest first."""
        context = self._state.contexts.get(conn)
        if context is None:
            return []
        seen = max(received, context.received)
        return [self._destinations.delivery(message) for out_seq, message in context.inflight.items() if out_seq > seen]

    def close(self, context: ConnectionContext, reason: str) -> None:
        """Close a context: end its subscriptions and transactions, and remember why."""
        for subscription in list(context.subscriptions.values()):
            self._destinations.end_subscription(subscription)
        self._transactions.close(context)
        self._state.remove_context(context)
        if context.reliable:
            self._state.remember_closed(context, reason, self._limits.max_closed)
