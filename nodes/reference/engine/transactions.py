"""Transactions: sends and acknowledgements that wait, and take effect together.

A transaction that is begun with an XID is a branch of a distributed one (XA). After its preparation it belongs to the
login instead of the connection: only its COMMIT or ABORT ends it, on any connection and node.
"""

from __future__ import annotations

from nodes.reference.api import Command
from nodes.reference.engine.destinations import CommandError, Destinations
from nodes.reference.engine.limits import Limits
from nodes.reference.engine.model import PROXY, ConnectionContext, Message, Transaction, TransactionItem, content_size
from nodes.reference.engine.state import EngineState

COMMITTED, ABORTED = "committed", "aborted"


class Transactions:
    """The part of the engine that handles transactions."""

    def __init__(self, state: EngineState, limits: Limits, destinations: Destinations) -> None:
        self._state = state
        self._limits = limits
        self._destinations = destinations

    def begin(self, context: ConnectionContext, command: Command) -> None:
        """Begin a transaction of this connection."""
        name = command.args["tx"]
        if name in context.transactions:
            raise CommandError(f"transaction {name} has begun already")
        if len(context.transactions) >= self._limits.max_transactions:
            raise CommandError(f"a connection may have {self._limits.max_transactions} transactions")
        xid = command.args.get("xid", "")
        if xid:
            self._check_new(context.login, xid)
        self._state.add_transaction(context, name, xid)

    def _check_new(self, login: str, xid: str) -> None:
        if (login, xid) in self._state.branches:
            raise CommandError(f"XID {xid} has begun already")
        if (login, xid) in self._state.outcomes:
            raise CommandError(f"XID {xid} was {self._state.outcomes[login, xid]}; a new branch needs a new XID")

    def defer(self, context: ConnectionContext, command: Command) -> None:
        """Defer a send, ack or nack until its transaction ends."""
        transaction = self._transaction(context, command.args["tx"])
        if len(transaction.items) >= self._limits.max_transaction_items:
            raise CommandError(f"a transaction may have {self._limits.max_transaction_items} items")
        self._check_size(context, content_size(command.args))
        names = ("id",) if command.kind != "send" else ("destination", "headers", "body")
        self._state.add_item(transaction, command.kind, {name: command.args[name] for name in names})

    def _check_size(self, context: ConnectionContext, size: int) -> None:
        """Check that a connection's transactions may grow by this size.

        When all open transactions together have reached their limit, those below their equal share of it may still
        grow.
        """
        limits, state = self._limits, self._state
        own = size + sum(each.size for each in context.transactions.values())
        if own > limits.max_transaction_bytes:
            raise CommandError("a transaction, or all that a connection has open, may hold "
                               f"{limits.max_transaction_bytes} bytes")
        share = limits.max_open_bytes // (len(state.contexts) + len(state.prepared))
        if size and state.deferred + size > limits.max_open_bytes and own > share:
            raise CommandError(f"the broker's open transactions hold their limit of {limits.max_open_bytes} bytes")

    def prepare(self, context: ConnectionContext, command: Command) -> None:
        """Make sure that a branch can be committed in any case, and detach it from its connection.

        Its ``nack`` items take effect at once, because both outcomes include them.
        """
        branch = self._transaction(context, command.args["tx"])
        if not branch.xid:
            raise CommandError(f"transaction {branch.name} was begun without an XID")
        if len(self._state.prepared) >= self._limits.max_prepared:
            raise CommandError(f"the broker already has its limit of {self._limits.max_prepared} prepared transactions")
        plan = self._plan(context, branch.items)
        if any(message.queue.kind == PROXY for _, messages in plan for message in messages):
            raise CommandError("a message of another server can't be acknowledged in a distributed transaction")
        for item, messages in plan:
            if item.kind == "send":
                self._destinations.reserve(item.args["destination"])
            elif item.kind == "ack":
                for message in messages:
                    self._destinations.assign(message, branch)
            else:
                self._destinations.finish(item.kind, messages)
        self._state.prepare(branch)

    def commit(self, context: ConnectionContext, command: Command) -> None:
        """Commit a transaction of this connection, or a prepared branch of this login."""
        if "xid" in command.args:
            branch = self._prepared(context.login, command.args["xid"], COMMITTED)
            if branch is not None:
                self._end_prepared(branch, COMMITTED)
            return
        transaction = self._transaction(context, command.args["tx"])
        plan = self._plan(context, transaction.items)
        self._end(transaction, COMMITTED)
        for item, messages in plan:
            if item.kind == "send":
                self._destinations.send(item.args)
            else:
                self._destinations.finish(item.kind, messages)

    def abort(self, context: ConnectionContext, command: Command) -> None:
        """Abort a transaction of this connection, or a prepared branch of this login."""
        if "xid" in command.args:
            branch = self._prepared(context.login, command.args["xid"], ABORTED)
            if branch is not None:
                self._end_prepared(branch, ABORTED)
            return
        self._end(self._transaction(context, command.args["tx"]), ABORTED)

    def recover(self, login: str) -> list[str]:
        """Return the XIDs of the login's prepared branches, in the order of their preparation."""
        return [xid for owner, xid in self._state.prepared if owner == login]

    def close(self, context: ConnectionContext) -> None:
        """Abort the transactions of a closed connection."""
        for transaction in list(context.transactions.values()):
            self._state.remove_transaction(transaction)

    def _prepared(self, login: str, xid: str, outcome: str) -> Transaction | None:
        """Return the branch to be ended; None when it has already ended with this outcome."""
        branch = self._state.prepared.get((login, xid))
        if branch is not None:
            return branch
        ended = self._state.outcomes.get((login, xid))
        if ended == outcome:
            return None
        if ended is not None:
            raise CommandError(f"XID {xid} was {ended}")
        if (login, xid) in self._state.branches:
            raise CommandError(f"XID {xid} is not prepared")
        raise CommandError(f"there is no XID {xid}")

    def _end_prepared(self, branch: Transaction, outcome: str) -> None:
        items = branch.items
        self._end(branch, outcome)
        # Use the order in which a restarted broker has them, because it determines which queue is served first.
        for message in sorted(branch.taken.values(), key=lambda each: each.id):
            if outcome == COMMITTED:
                self._destinations.consume(message)
            else:
                self._destinations.give_back(message)
        if outcome == COMMITTED:
            for item in items:
                self._destinations.send(item.args)

    def _end(self, transaction: Transaction, outcome: str) -> None:
        self._state.remove_transaction(transaction)
        if transaction.xid:
            self._state.remember_outcome(transaction.key, outcome, self._limits.max_outcomes)

    def _transaction(self, context: ConnectionContext, name: str) -> Transaction:
        transaction = context.transactions.get(name)
        if transaction is None:
            raise CommandError(f"there is no transaction {name}")
        return transaction

    def _plan(self, context: ConnectionContext,
              items: list[TransactionItem]) -> list[tuple[TransactionItem, list[Message]]]:
        """Determine the messages of each item; raises CommandError, before any change, if an item can't be carried
        out."""
        plan: list[tuple[TransactionItem, list[Message]]] = []
        taken: set[int] = set()
        for item in items:
            if item.kind == "send":
                plan.append((item, []))
                continue
            message = context.find(item.args["id"])
            if message is None or message.id in taken:
                raise CommandError(f"no message awaits an acknowledgement with id {item.args['id']}")
            messages = [m for m in context.covered(message) if m.id not in taken]
            taken.update(m.id for m in messages)
            plan.append((item, messages))
        self._destinations.check_room(item.args for item in items if item.kind == "send")
        return plan
