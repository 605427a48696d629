"""Checks of the form of commands and stored rows that another replica sent.

A replica applies the contents of its log unchecked, so input from a link is checked before it gets there. These rules
cover only forms and references: a peer that knows the group's secret and sends well-formed data is trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nodes.reference import wire
from nodes.reference.engine.model import ACK_MODES, DURABLE, PLAIN, PROXY, PULLED, TRANSIENT
from nodes.reference.engine.security import is_row
from nodes.reference.engine.server_queues import MOVED, PROXY_PREFIX, WANTED, split
from nodes.reference.engine.store import COLUMNS

MAX_NUMBER = 1 << 53
"""Above every number that is counted here; larger ones would leave no room to count on within 64 bits."""
_MAX_SERVER = 99_999
_MAX_SEQUENCE = 1 << 47

Rule = Callable[[Any], bool]


class ShapeError(ValueError):
    """The data is not a valid command or row of a replica; the text gives the reason."""


def _text(value: Any) -> bool:
    return type(value) is str


def _flag(value: Any) -> bool:
    return type(value) is bool


def _number(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_NUMBER


def _server(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX_SERVER


def _sequence(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MAX_SEQUENCE


def _reserved(value: Any) -> bool:
    return type(value) is int and -MAX_NUMBER <= value < 0


def _blob(value: Any) -> bool:
    return type(value) is bytes


def are_headers(value: Any) -> bool:
    """Return whether a message can have these headers: texts that can be sent to a client."""
    return type(value) is dict and all(type(each) is str and "\0" not in name + each for name, each in value.items())


def _destination(value: Any) -> bool:
    return type(value) is str and not split(value)[1].startswith((WANTED, MOVED, PROXY_PREFIX))


def _or_none(rule: Rule) -> Rule:
    return lambda value: value is None or rule(value)


def _is_said(value: Any) -> bool:
    """Return whether these can be the arguments of a request about security: texts, and the hash of a passcode."""
    return type(value) is dict and all(type(each) in (str, bytes, int) for each in value.values())


_MESSAGE: Mapping[str, Rule] = {"destination": _destination, "headers": are_headers, "body": _blob}
_ID: Mapping[str, Rule] = {"id": _text}
_TX: Mapping[str, Rule] = {"tx": _text}
_NEEDED: Mapping[str, Mapping[str, Rule]] = {
    "open": {"login": _text, "reliable": _flag}, "close": {}, "send": _MESSAGE,
    "put": {**_MESSAGE, "key": _text}, "read": {"destination": _destination, "key": _text},
    "subscribe": {**_ID, "destination": _destination, "ack": (*ACK_MODES, PULLED).__contains__, "prefetch": _number},
    "pull": _ID, "unsubscribe": {}, "ack": _ID, "nack": _ID, "begin": _TX, "prepare": _TX, "commit": {}, "abort": {},
    "recover": {}, "received": {}, "deploy": {"destination": _destination, "id": _reserved},
    "deployment": {"phase": _number, "note": _text}, "forwarded": {"server": _server, "sequence": _sequence},
    "meet": {"server": _server, "first": _sequence},
    "security": {"request": _text, "said": _is_said},
    "external": {"server": _server, "sequence": _sequence, "destination": _text, "headers": are_headers, "body": _blob},
}
"""Every kind of command that reaches the engine, with its required arguments."""
_ALLOWED: Mapping[str, Rule] = {
    "receipt": _or_none(_text), "received": _or_none(_number), "reason": _text, "durable": _or_none(_text), "id": _text,
    "tx": _text, "xid": _text, "resume": _flag, "moved": _flag, "collocated": _flag, "auto": _flag,
    "principal": _number, "expected": _number,
}
"""Arguments that any command may have."""
_ENDS = ("commit", "abort")


def check_command(kind: Any, conn: Any, seq: Any, args: Any) -> None:
    """Raise ShapeError unless these are the parts of a command that the engine can apply."""
    needed = _NEEDED.get(kind) if type(kind) is str else None
    if needed is None or type(conn) is not str or not _number(seq) or type(args) is not dict:
        raise ShapeError(f"no command: {kind!r:.40}")
    for name, rule in needed.items():
        if not rule(args.get(name)):
            raise ShapeError(f"{kind}: {name} is {args.get(name)!r:.40}")
    for name, value in args.items():
        if name not in needed and not _ALLOWED.get(name, _none)(value):
            raise ShapeError(f"{kind}: {name} is {value!r:.40}")
    if (kind in _ENDS and not {"tx", "xid"} & args.keys()) or (
            kind == "unsubscribe" and "id" not in args and args.get("durable") is None):
        raise ShapeError(f"{kind}: it does not say of what")
    if kind == "external" and not _is_external(args["destination"], args["body"]):
        raise ShapeError(f"{kind}: destination is {args['destination']!r:.40}")


def _none(value: Any) -> bool:
    return False


def _is_external(destination: str, body: bytes) -> bool:
    """Return whether a message of another server can be meant for this one."""
    if not destination.startswith("/") or split(destination)[0] is not None:
        return False
    return not destination.startswith(WANTED) or (body.isdigit() and len(body) <= 9)


_TYPES: Mapping[str, type] = {"INTEGER": int, "TEXT": str, "BLOB": bytes}
_ROW_TYPES = {table: tuple(_TYPES[column.split()[1]] for column in columns) for table, columns in COLUMNS.items()}
_KINDS = (PLAIN, DURABLE, TRANSIENT, PROXY)


def check_row(row: Any) -> None:
    """Raise ShapeError unless it is ``[table, id, column...]``, or ``[table, id]`` for a deleted row."""
    types = _ROW_TYPES.get(row[0]) if type(row) is list and len(row) > 1 and type(row[0]) is str else None
    if types is None or type(row[1]) is not int:
        raise ShapeError("a row fits no table")
    if len(row) == 2:
        return
    table, columns = row[0], row[1:]
    if tuple(map(type, columns)) != types or any(type(each) is int and abs(each) >= 1 << 62 for each in columns):
        raise ShapeError(f"a row of {table} has other columns")
    checked = _CONTENTS.get(table)
    try:
        right = checked is None or checked(columns)
    except (wire.WireError, ShapeError):
        right = False
    if not right:
        raise ShapeError(f"a row of {table} holds what can't be there")


def _item(columns: list[Any]) -> bool:
    _, _, kind, args = columns
    if kind not in ("send", "ack", "nack"):
        return False
    check_command(kind, "", 0, wire.decode(args))
    return True


def _content(shared: int, headers: bytes) -> bool:
    return bool(shared) or are_headers(wire.decode(headers))


_CONTENTS: Mapping[str, Callable[[list[Any]], bool]] = {
    "counters": lambda c: 0 < c[1] <= MAX_NUMBER and 0 < c[2] <= MAX_NUMBER,
    "queues": lambda c: c[2] in _KINDS and _number(c[4]) and _number(c[5]),
    "contexts": lambda c: all(map(_number, c[4:])),
    "subscriptions": lambda c: (c[4] in ACK_MODES or c[4] == PULLED) and (c[4] != PULLED) <= c[5] <= MAX_NUMBER,
    "shared": lambda c: _content(0, c[2]),
    "messages": lambda c: _content(c[2], c[3]) and _number(c[5]),
    "deliveries": lambda c: _number(c[2]) and _number(c[3]),
    "transactions": lambda c: _number(c[5]),
    "items": _item,
    "servers": lambda c: _server(c[0]) and c[2] <= c[1] and all(map(_sequence, c[1:])),
    "outgoing": lambda c: _server(c[1]) and _sequence(c[2]) and c[0] == c[1] << 47 | c[2] and _content(0, c[4]),
    "deployment": lambda c: _number(c[1]),
    "outcomes": lambda c: c[3] in ("committed", "aborted"),
    "closed": lambda c: _number(c[3]),
    "security": lambda c: is_row(c[1], c[2], wire.decode(c[3])),
}
"""Further rules for a row's columns, of which the first is its key."""

_REFERENCES: tuple[tuple[str, int, str, bool], ...] = (
    ("subscriptions", 1, "contexts", False), ("subscriptions", 3, "queues", False), ("messages", 1, "queues", False),
    ("messages", 2, "shared", True), ("deliveries", 0, "messages", False), ("deliveries", 1, "subscriptions", True),
    ("deliveries", 4, "transactions", True), ("transactions", 1, "contexts", True),
    ("items", 1, "transactions", False), ("outgoing", 1, "servers", False),
)
"""(table, column, table that the column refers to, whether it may be 0 for none)."""
_UNIQUE: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("contexts", (1,)), ("queues", (2, 1)), ("subscriptions", (1, 2)), ("closed", (1,)), ("outcomes", (1, 2)),
    ("security", (1, 2)),
)


def check_state(tables: Mapping[str, Mapping[int, list[Any]]]) -> None:
    """Raise ShapeError unless checked rows (table -> key -> row, table first) form a consistent state."""
    for table, column, other, optional in _REFERENCES:
        known = tables.get(other, {})
        for row in tables.get(table, {}).values():
            key = row[1 + column]
            if key not in known and not (optional and key == 0):
                raise ShapeError(f"a row of {table} names a row of {other} that is not there")
    for table, columns in _UNIQUE:
        rows = [row for row in tables.get(table, {}).values() if table != "queues" or row[3] not in (TRANSIENT, PROXY)]
        if len({tuple(row[1 + column] for column in columns) for row in rows}) < len(rows):
            raise ShapeError(f"two rows of {table} are of the same thing")
    _check_deliveries(tables)
    _check_outgoing(tables)
    _check_counters(tables)


def _check_deliveries(tables: Mapping[str, Mapping[int, list[Any]]]) -> None:
    """Check that a message is delivered once, by a subscription of its queue, with a unique output number per
    connection."""
    subscriptions, messages = tables.get("subscriptions", {}), tables.get("messages", {})
    seen: set[tuple[int, int]] = set()
    for _, key, subscription, out_seq, *_ in tables.get("deliveries", {}).values():
        if subscription:
            place = (subscriptions[subscription][2], out_seq)
            if place in seen or messages[key][2] != subscriptions[subscription][4]:
                raise ShapeError("a message is delivered by nobody's subscription")
            seen.add(place)


def _check_outgoing(tables: Mapping[str, Mapping[int, list[Any]]]) -> None:
    """Check that all messages that were sent to each server and not acknowledged are there."""
    waiting: dict[int, list[int]] = {}
    for row in tables.get("outgoing", {}).values():
        waiting.setdefault(row[2], []).append(row[3])
    for server, sent, acked, _ in (row[1:] for row in tables.get("servers", {}).values()):
        found = waiting.get(server, [])
        if len(found) != sent - acked or not all(acked < sequence <= sent for sequence in found):
            raise ShapeError("a message for another server is missing")


def _check_counters(tables: Mapping[str, Mapping[int, list[Any]]]) -> None:
    """Check that the next numbers to be assigned are unused."""
    row = tables.get("counters", {}).get(0)
    numbers = row[2:] if row else [1, 1]
    for next_number, names in zip(numbers, (_NUMBERED, ("messages", "shared")), strict=True):
        if any(key >= next_number for name in names for key in tables.get(name, {})):
            raise ShapeError("a row has a number that was not given yet")


_NUMBERED = ("queues", "contexts", "subscriptions", "transactions", "items", "shares", "outcomes", "closed", "security")
