"""Transactions: sends and acknowledgements that wait, and take effect together."""

from __future__ import annotations

from nodes.reference.api import Command
from nodes.reference.contexts import Context, Item, Transaction, content_size
from nodes.reference.destinations import Destinations, Mistake
from nodes.reference.limits import Limits
from nodes.reference.queues import Message
from nodes.reference.state import State


class Transactions:
    """The transactions' side of the engine."""

    def __init__(self, state: State, limits: Limits, destinations: Destinations) -> None:
        self._state = state
        self._limits = limits
        self._destinations = destinations

    def begin(self, context: Context, command: Command) -> None:
        """A new transaction of this connection."""
        name = command.args["tx"]
        if name in context.transactions:
            raise Mistake(f"transaction {name} has begun already")
        if len(context.transactions) >= self._limits.max_transactions:
            raise Mistake(f"a connection may have {self._limits.max_transactions} transactions")
        self._state.add_transaction(context, name)

    def defer(self, context: Context, command: Command) -> None:
        """Let a send, ack or nack wait for its transaction's end."""
        transaction = self._transaction(context, command.args["tx"])
        if len(transaction.items) >= self._limits.max_transaction_items:
            raise Mistake(f"a transaction may have {self._limits.max_transaction_items} items")
        if transaction.size + content_size(command.args) > self._limits.max_transaction_bytes:
            raise Mistake(f"a transaction may hold {self._limits.max_transaction_bytes} bytes")
        names = ("id",) if command.kind != "send" else ("destination", "headers", "body")
        self._state.add_item(transaction, command.kind, {name: command.args[name] for name in names})

    def commit(self, context: Context, command: Command) -> None:
        """Carry out a transaction."""
        transaction = self._transaction(context, command.args["tx"])
        plan = self._plan(context, transaction.items)
        self._state.remove_transaction(transaction)
        for item, messages in plan:
            if item.kind == "send":
                self._destinations.send(item.args)
            else:
                self._destinations.finish(item.kind, messages)

    def abort(self, context: Context, command: Command) -> None:
        """Forget a transaction."""
        self._state.remove_transaction(self._transaction(context, command.args["tx"]))

    def close(self, context: Context) -> None:
        """The connection is gone: its transactions are aborted."""
        for transaction in list(context.transactions.values()):
            self._state.remove_transaction(transaction)

    def _transaction(self, context: Context, name: str) -> Transaction:
        transaction = context.transactions.get(name)
        if transaction is None:
            raise Mistake(f"there is no transaction {name}")
        return transaction

    def _plan(self, context: Context, items: list[Item]) -> list[tuple[Item, list[Message]]]:
        """What each item will do; raises Mistake, before anything is done, if one of them can't."""
        plan: list[tuple[Item, list[Message]]] = []
        taken: set[int] = set()
        for item in items:
            if item.kind == "send":
                plan.append((item, []))
                continue
            message = context.find(item.args["id"])
            if message is None or message.id in taken:
                raise Mistake(f"no message awaits an acknowledgement with id {item.args['id']}")
            messages = [m for m in context.covered(message) if m.id not in taken]
            taken.update(m.id for m in messages)
            plan.append((item, messages))
        self._destinations.check_room(item.args["destination"] for item in items if item.kind == "send")
        return plan
