"""Questions to a broker's guards: does it pass what replicas send each other, and refuse what none may send?

The rows that a broker holds must pass. The checker has its own sample of a row of each table, and spoils these rows one
at a time: they must be refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nodes.reference import wire
from nodes.reference.engine.row_schema import ShapeError, check_row, check_state
from nodes.systems.reference.wire_reader import decoded

Tables = Mapping[str, Mapping[int, list[Any]]]

_ABSENT = 1 << 50
"""A key that no row has."""
_HUGE = 1 << 62
_NEXT = 100
"""The next number that the sample gives."""
_EMPTY, _NONE = b"\x08\x00", b"\x00"
"""The encodings of an empty mapping, and of None."""
_PRINCIPAL = b"\x07\x03\x06\x10%b\x06\x20%b\x03\x80\x40" % (b"s" * 16, b"v" * 32)
"""The encoding of a salt, a hash, and 4096."""
_SAMPLE: Sequence[list[Any]] = (
    ["counters", 0, _NEXT, _NEXT], ["queues", 1, "q", "queue", "", 0, 2], ["contexts", 2, "c", 1, "guest", 0, 1, 0],
    ["subscriptions", 3, 2, "s", 1, "client", 1], ["subscriptions", 15, 2, "idle", 1, "auto", 1],
    ["shared", 4, "t", _EMPTY, b"x"],
    ["messages", 5, 1, 4, b"", b"", 1], ["messages", 6, 1, 0, _EMPTY, b"x", 2], ["deliveries", 6, 3, 1, 0, 0],
    ["transactions", 7, 2, "t", "guest", "", 0], ["items", 8, 7, "ack", b"\x08\x01\x02id\x05\x036-1"],
    ["servers", 0, 2, 1, 5], ["outgoing", 2, 0, 2, "/queue/q", _EMPTY, b""], ["shares", 9, "q", 1, 0, 0],
    ["deployment", 0, 1, ""], ["outcomes", 10, "guest", "x", "committed"], ["closed", 11, "d", "idle", 0],
    ["security", 12, "principal", "alice", _PRINCIPAL], ["security", 13, "grant", "alice consume /queue/q", _NONE],
    ["security", 14, "object", "o", b"\x08\x01\x01a\x05\x01b"],
)
"""One row of each kind; together they are a state."""
_NUMBERED = ("queues", "contexts", "subscriptions", "shared", "messages", "transactions", "items", "shares", "outcomes",
             "closed", "security")
_DEPTH = 32
"""The depth to which values may be nested."""


def _nested(depth: int) -> list[Any]:
    return [_nested(depth - 1)] if depth > 1 else []


_VALUES: Sequence[Any] = (
    None, True, False, 0, 63, 64, -1, 127, 128, 300, -300, (1 << 63) - 1, -(1 << 63), 1.5, "", "x" * 127, "é" * 100,
    b"", b"x" * 127, b"x" * 128, [], [1, -1, 64, 300, "a", [None, True, 0.5]], {}, {"a": "b", "c": {"d": [b"e"]}},
    ["x"] * 200, _nested(_DEPTH),
)
"""Values that have an encoding."""
_NO_VALUES: Sequence[Any] = (1 << 63, -(1 << 63) - 1, {1: 2}, object(), "\ud800", {"a": {1}}, _nested(_DEPTH + 1))
"""Values that have none."""
_NO_ENCODINGS: Sequence[bytes] = (
    b"", b"\x09", b"\x07\x01" * _DEPTH + b"\x07\x00", b"\x07\xff\xff\xff\x7f", b"\x05\x01\xff",
    b"\x03" + b"\xff" * 10 + b"\x01", b"\x08\x02\x01a\x00\x01a\x00",
)
"""An unknown tag, a list that is too deep, or cut short, a text that is none, a long number, a key that comes twice."""
_NO_ROWS: Sequence[Any] = ([], ["queues"], {}, ["nothing", 1], [1, 1], ["queues", "1"])
_NUMBERS: Mapping[str, Sequence[int]] = {
    "counters": (1, 2), "queues": (4, 5), "contexts": (4, 5, 6), "subscriptions": (5,), "messages": (5,),
    "deliveries": (2, 3), "transactions": (5,), "servers": (0, 2, 3), "outgoing": (1, 2), "deployment": (1,),
    "closed": (3,),
}
"""Table -> columns, by their place, that count something, which is never below zero."""
_WORDS: Mapping[str, Sequence[int]] = {"queues": (2,), "subscriptions": (4,), "items": (2,), "outcomes": (3,),
                                       "security": (1,)}
"""Table -> columns that hold one of a few words."""
_ENCODED: Mapping[str, Sequence[int]] = {"shared": (2,), "items": (3,), "outgoing": (4,), "security": (3,)}
"""Table -> columns that hold an encoded value."""
_REFERENCES: Mapping[str, Sequence[tuple[int, bool]]] = {
    "subscriptions": ((1, False), (3, False)), "messages": ((1, False), (2, True)),
    "deliveries": ((0, False), (1, True), (4, True)), "transactions": ((1, True),), "items": ((1, False),),
}
"""Table -> columns that name a row of another table, and whether they may name none."""
_UNIQUE: Mapping[str, Sequence[int]] = {"contexts": (1,), "subscriptions": (1, 2), "closed": (1,), "outcomes": (1, 2),
                                        "security": (1, 2)}
"""Table -> columns that no two rows may share."""


def misjudged(rows: Sequence[list[Any]]) -> str:
    """Describe how the guards refuse the rows that a broker holds; empty if they do not."""
    tables: dict[str, dict[int, list[Any]]] = {}
    for row in rows:
        for sent in (row, row[:2]):  # the row itself, and the report of its deletion
            if reason := _refused(check_row, sent):
                return f"a row of {row[0]} is refused as it is or when it is deleted: {reason}"
        tables.setdefault(row[0], {})[row[1]] = row
    reason = _refused(check_state, tables)
    return f"the state is refused as it is: {reason}" if reason else ""


def misjudged_sample() -> str:
    """Describe how the guards misjudge a sample of each row, as it is or when it is spoilt; empty if they do not."""
    if wrong := misjudged(_SAMPLE) or _miscoded():
        return wrong
    tables: dict[str, dict[int, list[Any]]] = {}
    for row in _SAMPLE:
        tables.setdefault(row[0], {})[row[1]] = row
    for row in _SAMPLE:
        for spoilt, how in _spoilt(row):
            if not _refused(check_row, spoilt):
                return f"a row of {row[0]} is accepted {how}"
        for table, changed, how in _inconsistent(row):
            if not _refused(check_state, {**tables, table: {**tables[table], **changed}}):
                return f"a state is accepted in which a row of {row[0]} {how}"
    if not _refused(check_state, {**tables, "outgoing": {}}):
        return "a state is accepted that lacks a message for another server"
    return next((f"{row!r} is accepted as a row" for row in _NO_ROWS if not _refused(check_row, row)), "")


def _miscoded() -> str:
    """Describe a value, or bytes, that the encoding takes or refuses wrongly; empty if there is none."""
    for value in _VALUES:
        data = wire.encode(value)
        if decoded(data) != value or wire.decode(data) != value:
            return f"{value!r:.60} is encoded as what is not {value!r:.60}"
        if not all(map(_undecodable, (data + b"\0", data[:-1]))):
            return f"the encoding of {value!r:.60} is decoded with a byte more, or without its last one"
    for value in _NO_VALUES:
        with contextlib.suppress(wire.WireError):
            wire.encode(value)
            return f"{value!r:.60} is encoded"
    return next((f"{data!r:.60} is decoded" for data in _NO_ENCODINGS if not _undecodable(data)), "")


def _undecodable(data: bytes) -> bool:
    try:
        wire.decode(data)
    except wire.WireError:
        return True
    return False


def _refused(guard: Callable[[Any], object], content: Any) -> str:
    """Return the reason why a guard refuses rows; empty if it does not."""
    try:
        guard(content)
    except ShapeError as error:
        return str(error)
    except Exception:  # the guard fails, so it does not refuse
        return ""
    return ""


def _spoilt(row: list[Any]) -> Iterator[tuple[list[Any], str]]:
    """Yield a row with one thing that can't be there, and what that is."""
    table = row[0]
    yield row[:-1], "without its last column"
    yield [*row, 0], "with one column more"
    for place in range(1, len(row)):
        name, value = f"column {place - 1}", row[place]
        yield _with(row, place, 0 if type(value) is not int else "0"), f"with a {name} of another type"
        if type(value) is int:
            yield _with(row, place, _HUGE), f"with a {name} of {_HUGE}"
    for columns, wrong, how in ((_NUMBERS, -1, "of -1"), (_WORDS, "nothing", "of an unknown word"),
                                (_ENCODED, b"\xff", "that is no encoded value")):
        for column in columns.get(table, ()):
            yield _with(row, 1 + column, wrong), f"with a column {column} {how}"
    if table == "messages" and not row[3]:
        yield _with(row, 4, b"\xff"), "with headers that are no encoded value"
    if table == "security":
        yield _with(row, 3, "a name"), "with a name that has a blank"
        yield _with(row, 4, b"\x02"), "with a content of another kind"


def _inconsistent(row: list[Any]) -> Iterator[tuple[str, dict[int, list[Any]], str]]:
    """Yield a table, rows of it that do not fit the others, and the mistake in them."""
    table, key = row[:2]
    for column, optional in _REFERENCES.get(table, ()):
        yield table, {key: _with(row, 1 + column, _ABSENT)}, f"names by its column {column} what is not there"
        if not optional:
            yield table, {key: _with(row, 1 + column, 0)}, f"names by its column {column} nothing"
    if table == "outgoing":
        yield table, {(9 << 47) + 1: [table, (9 << 47) + 1, 9, 1, *row[4:]]}, "names by its server what is not there"
    if table in _UNIQUE:
        yield table, {-1: _with(row, 1, -1)}, "is there twice"
    if table in _NUMBERED:
        yield table, {_NEXT: _with(row, 1, _NEXT)}, "has a number that was not given yet"


def _with(row: list[Any], place: int, value: Any) -> list[Any]:
    return [*row[:place], value, *row[place + 1 :]]
