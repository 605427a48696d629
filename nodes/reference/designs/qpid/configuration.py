"""Queues, exchanges and bindings by name, with their arguments [Replicating configuration]."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nodes.reference import wire
from nodes.reference.designs.qpid.records import KeyedRows, rows_of
from nodes.reference.engine.topics import EXCHANGE_PREFIX, matches

QUEUE, EXCHANGE, BINDING = "queue", "exchange", "binding"
KINDS = (QUEUE, EXCHANGE, BINDING)
Key = tuple[str, str]
"""(kind, name); ``binding_name`` builds a binding's name."""


def binding_name(exchange: str, queue: str, key: str) -> str:
    """Return the name that identifies a binding."""
    return "\n".join((exchange, queue, key))


DIRECT, FANOUT, TOPIC = "direct", "fanout", "topic"
EXCHANGE_TYPES = (DIRECT, FANOUT, TOPIC)
REPLICATE, STORE_ERRORS = "qpid.replicate", "qpid.store_errors"
CREATED = "created"
"""Distinguishes a queue from an earlier one of the same name: the generation of primaries that created it, and the
number of the change.
"""


def is_object(value: Sequence[Any]) -> bool:
    """Tell whether the value is kind, name and arguments of a possible object."""
    if list(map(type, value)) != [str, str, dict] or not all(isinstance(each, str) for each in value[2].values()):
        return False
    kind, name, arguments = value
    if kind == EXCHANGE:
        return arguments.get("type") in EXCHANGE_TYPES
    if kind == BINDING:
        ends = [arguments.get(end) for end in ("exchange", "queue", "key")]
        return None not in ends and name == binding_name(*ends)
    return bool(kind == QUEUE)


class InvalidRequest(Exception):
    """A request that can't be carried out; the text is one line."""


class Configuration:
    """The objects that exist, in the broker's database; changed in an open transaction, at whose end ``records`` are
    written.

    ``number`` is the number of the last change known here; changes are numbered, and sent to others as events.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        """Load the objects; raises ConfigError when the database holds anything else."""
        self.database = database
        database.execute("CREATE TABLE IF NOT EXISTS qpid_objects (kind TEXT NOT NULL, name TEXT NOT NULL, "
                         "arguments BLOB NOT NULL, PRIMARY KEY (kind, name)) WITHOUT ROWID")
        self._objects: dict[Key, dict[str, Any]] = {
            (kind, name): wire.decode(arguments) for kind, name, arguments
            in rows_of(database, "qpid_objects", ("kind", "name", "arguments"), _is_row)
        }
        self.records: KeyedRows[Key] = KeyedRows(
            database, "DELETE FROM qpid_objects WHERE kind = ? AND name = ?",
            "INSERT INTO qpid_objects VALUES (?, ?, ?)",
            lambda key: [(*key, wire.encode(self._objects[key]))] if key in self._objects else (),
        )
        self.number = 0

    def __contains__(self, key: Key) -> bool:
        return key in self._objects

    def get(self, key: Key) -> Mapping[str, Any] | None:
        """Return the arguments of an object; None if it does not exist."""
        return self._objects.get(key)

    def items(self) -> Iterator[tuple[Key, Mapping[str, Any]]]:
        """Return every object with its arguments."""
        return iter(list(self._objects.items()))

    def put(self, kind: str, name: str, arguments: Mapping[str, Any]) -> None:
        """Add an object, or replace its arguments."""
        self._objects[kind, name] = dict(arguments)
        self.records.changed((kind, name))

    def remove(self, kind: str, name: str) -> None:
        """Remove an object."""
        self._objects.pop((kind, name), None)
        self.records.changed((kind, name))

    def bound(self, destination: str) -> Sequence[str] | None:
        """Return the queues that get a message for ``/exchange/NAME/KEY``; None if the exchange does not exist."""
        name, _, key = destination.removeprefix(EXCHANGE_PREFIX).partition("/")
        exchange = self.get((EXCHANGE, name))
        if exchange is None:
            return None
        selects = _SELECTS[exchange["type"]]
        queues = {binding["queue"]: None for (kind, _), binding in self._objects.items()
                  if kind == BINDING and binding["exchange"] == name and selects(binding["key"], key)}
        return list(queues)

    def bindings_of(self, kind: str, name: str) -> list[str]:
        """Return the names of a queue's or an exchange's bindings."""
        return [binding for (what, binding), arguments in self._objects.items()
                if what == BINDING and arguments[kind] == name]

    def clear(self) -> None:
        """Remove all objects."""
        for key in self._objects:
            self.records.changed(key)
        self._objects.clear()


def _is_row(kind: Any, name: Any, arguments: Any) -> bool:
    try:
        return isinstance(arguments, bytes) and is_object((kind, name, wire.decode(arguments)))
    except wire.WireError:
        return False


_SELECTS: Mapping[str, Callable[[str, str], bool]] = {
    DIRECT: lambda wanted, key: wanted == key, FANOUT: lambda wanted, key: True, TOPIC: matches,
}
