"""The checker's own reader of what the reference broker's programs send each other: frames of a length and an encoded
value. It shares no code with the broker, whose encoder it would otherwise have to trust.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

_HEAD = struct.Struct(">I")
_DOUBLE = struct.Struct(">d")
_NONE, _FALSE, _TRUE, _INT, _FLOAT, _STR, _BYTES, _LIST, _DICT = range(9)
_HELLO = "stormproof-"
"""The beginning of the protocol's name, which is first in the first frame where peers introduce themselves."""
_ADDED = b"RECEIPT\nreceipt-id:add "
_RECEIPT = re.compile(rb"(?:^|[\0\n])RECEIPT\nreceipt-id:(?!add )([^\n]*)\n")
_SAID = re.compile(rb"(CONNECTED)\n(.*?)\n\n(.*?)\0", re.DOTALL)
_ERROR = re.compile(rb"(?:^|\0\n*)(ERROR)\n(.*?)\n\n(.*?)\0", re.DOTALL)
_RESUMED = re.compile(rb"\nx-received:[1-9]")


class Added(NamedTuple):
    """The receipt by which a broker confirms to an administrator that a node is added to its group."""

    name: str


class AnsweredAgain(NamedTuple):
    """A receipt that a client got before on the same connection."""

    receipt: str


class Said(NamedTuple):
    """A CONNECTED or ERROR frame for a client; ``greeted``: the headers of the connection's CONNECTED before, if any.

    Of data that follows an ERROR, ``command`` is empty.
    """

    command: str
    headers: Mapping[str, str]
    body: bytes
    greeted: Mapping[str, str] | None


class LinkReader:
    """Reads one direction of a connection. The proof of the secret that follows an introduction is left out: its bytes
    are random, and may look like those of any message.

    The connection of a client begins with a letter or a line feed. It has no frames; CONNECTED, ERROR, the receipts
    that come twice on it are read, and of an administrator's, ``Added``.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._receipts: set[bytes] | None = None
        """The receipts of a client's connection so far; None on a connection of programs."""
        self._resumed = self._over = False
        self._greeted: Mapping[str, str] | None = None
        self._introduced = self._proven = False

    def feed(self, data: bytes) -> list[Any]:
        """Return the values of the frames that these bytes complete."""
        if self._receipts is not None:
            if self._over or b"ERROR\n" in data:
                return self._last(data)
            if b"RECEIPT" not in data:
                return []
            return _of_administrator(data) or ([] if self._resumed else self._repeated(data, self._receipts))
        rest = self._rest + data
        if rest[0]:  # no frame is as long as that
            self._receipts = set()
            # Frames of an earlier connection are confirmed here, and again when they are sent again.
            self._resumed = _RESUMED.search(rest) is not None
            if greeting := _SAID.match(rest):
                said = _said(greeting, None)
                self._greeted = said.headers
                return [said, *self._last(rest)]
            return self._last(rest)
        found, at = [], 0
        while len(rest) - at >= _HEAD.size:
            begin = at + _HEAD.size
            end = begin + int(_HEAD.unpack_from(rest, at)[0])
            if end > len(rest):
                break
            value, used = _value(rest, begin)
            if used != end:
                raise ValueError(f"a frame of {end - begin} bytes holds a value of {used - begin}")
            at = end
            if self._introduced and not self._proven:
                self._proven = True
                continue
            self._introduced = self._introduced or _is_hello(value)
            found.append(value)
        self._rest = rest[at:]
        return found

    def _last(self, data: bytes) -> list[Any]:
        """Return an ERROR that these bytes hold, and what follows one."""
        if self._over:
            return [Said("", {}, data, self._greeted)]
        found = _ERROR.search(data)
        if found is None:
            return []
        self._over = True
        more = data[found.end() :]
        return [_said(found, self._greeted), *([Said("", {}, more, self._greeted)] if more else [])]

    @staticmethod
    def _repeated(data: bytes, known: set[bytes]) -> list[AnsweredAgain]:
        found = []
        for receipt in _RECEIPT.findall(data):
            if receipt in known:
                found.append(AnsweredAgain(receipt.decode(errors="replace")))
            known.add(receipt)
        return found


def _said(found: re.Match[bytes], greeted: Mapping[str, str] | None) -> Said:
    command, head, body = found.groups()
    lines = [line.partition(":") for line in head.decode().split("\n")]
    texts = [(_plain(name), _plain(text)) for name, _, text in lines]
    return Said(command.decode(), dict(texts), body, greeted)


def _plain(text: str) -> str:
    """Return a header's name or text without its escapes."""
    return re.sub(r"\\(.)", lambda escape: {"n": "\n", "r": "\r", "c": ":"}.get(escape[1], escape[1]), text)


def _of_administrator(data: bytes) -> list[Any]:
    return [Added(data[len(_ADDED) : data.index(b"\n", len(_ADDED))].decode())] if data.startswith(_ADDED) else []


def _is_hello(value: Any) -> bool:
    return type(value) is list and bool(value) and type(value[0]) is str and value[0].startswith(_HELLO)


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Read a varint: seven bits a byte, the lowest first."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _number(data, at)
    return data[at : at + size], at + size


def _value(data: bytes, at: int) -> tuple[Any, int]:
    tag, at = data[at], at + 1
    if tag in (_NONE, _FALSE, _TRUE):
        return (None, False, True)[tag], at
    if tag == _INT:
        number, at = _number(data, at)
        return (number >> 1) ^ -(number & 1), at
    if tag == _FLOAT:
        return _DOUBLE.unpack_from(data, at)[0], at + _DOUBLE.size
    if tag in (_STR, _BYTES):
        content, at = _bytes(data, at)
        return content if tag == _BYTES else content.decode(), at
    count, at = _number(data, at)
    if tag == _LIST:
        items = []
        for _ in range(count):
            item, at = _value(data, at)
            items.append(item)
        return items, at
    if tag != _DICT:
        raise ValueError(f"a frame has the tag {tag}")
    mapping = {}
    for _ in range(count):
        key, at = _bytes(data, at)
        mapping[key.decode()], at = _value(data, at)
    return mapping, at


def decoded(data: bytes) -> Any:
    """Return the value that an encoding holds; raises ValueError if something follows it."""
    value, used = _value(data, 0)
    if used != len(data):
        raise ValueError(f"{len(data)} bytes hold a value of {used}")
    return value


def first_items(data: bytes, number: int) -> list[Any]:
    """Return the first values of an encoded list, without reading the others; fewer if it has fewer."""
    if data[:1] != bytes([_LIST]):
        raise ValueError(f"{data[:20]!r} is not an encoded list")
    count, at = _number(data, 1)
    found = []
    for _ in range(min(number, count)):
        item, at = _value(data, at)
        found.append(item)
    return found
