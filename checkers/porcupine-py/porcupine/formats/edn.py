"""EDN, as Jepsen, Knossos and Porcupine's kv tests write histories: maps, one after another or in one vector or list.

Keywords become texts without the colon, tags are ignored, ``#_`` and ``;`` are honoured. See https://github.com/edn-format/edn.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

from ..types import PorcupineError
from .room import COLLECTION_BYTES, MAX_DEPTH, MAX_HISTORY, Room
from .rows import Row, with_key

_TOKEN = re.compile(
    r"""(?P<space>[\s,]+|;[^\n]*)|(?P<text>"(?:[^"\\]+|\\.)*+")|(?P<open>\#\{|[\[({])|(?P<close>[\])}])"""
    r"""|(?P<discard>\#_)|(?P<tag>\#[A-Za-z][^\s,\[\](){}"]*)|(?P<atom>\\.[^\s,\[\](){}"]*|[^\s,\[\](){}";#\\]+)""",
    re.DOTALL,
)
_CLOSING = {"[": "]", "(": ")", "{": "}", "#{": "}"}
_CONSTANTS = {"nil": None, "true": True, "false": False}
_INTEGER = re.compile(r"[+-]?\d+N?")
_MOST_WITHIN = MAX_DEPTH + 3  # a row's value is within the row; one that is exactly as deep is judged with the others
_FLOAT = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?M?")


class _Tokens:
    """Tokens of a text, with their lines."""

    def __init__(self, text: str, name: str, line: int, room: Room) -> None:
        self.text, self.name, self.at, self.line = text, name, 0, line
        self.room, self.spent, self.depth = room, 0, 0
        self.kind, self.token, self.token_line = "", "", line
        self.advance()

    def fail(self, what: str) -> PorcupineError:
        return PorcupineError(f"{self.name}:{self.token_line}: {what}")

    def advance(self) -> None:
        """Go to the next token; kind "" at the end."""
        while self.at < len(self.text):
            found = _TOKEN.match(self.text, self.at)
            self.token_line = self.line
            if found is None:
                raise self.fail(f"not EDN: {self.text[self.at : self.at + 20].splitlines()[0]!r}")
            self.at = found.end()
            self.line += found.group().count("\n")
            if found.lastgroup != "space":
                self.kind, self.token = found.lastgroup or "", found.group()
                return
        self.kind, self.token, self.token_line = "", "", self.line

    def value(self) -> Any:
        """The value at the current token, which it goes past."""
        self.depth += 1
        if self.depth > _MOST_WITHIN:
            raise self.fail("nested too deeply")
        try:
            return self._value()
        finally:
            self.depth -= 1

    def _value(self) -> Any:
        kind, token = self.kind, self.token
        if kind == "":
            raise self.fail("the file ends within a value")
        if kind == "close":
            raise self.fail(f"unexpected {token!r}")
        if kind in ("discard", "tag"):
            self.advance()
            dropped = self.value()
            return self.value() if kind == "discard" else dropped
        if kind == "open":
            return self.collection()
        line = self.token_line
        self.spend(2 * sys.getsizeof(token), line)
        self.advance()
        if kind == "text":
            return self.text_of(token)
        try:
            return _atom(token)
        except ValueError as error:
            # Python bounds how many digits it makes an integer of.
            raise PorcupineError(f"{self.name}:{line}: {error}") from None

    def skip_discarded(self) -> None:
        """Go past values that are marked to be ignored."""
        while self.kind == "discard":
            self.advance()
            self.whole()

    def whole(self) -> Any:
        """As ``value``, of a value that is not within another."""
        self.spent = 0
        return self.value()

    def spend(self, size: int, line: int) -> None:
        """Count what the value takes that is being read."""
        self.spent += size
        if self.spent > self.room.left:
            self.room.demand(self.spent, line)

    def collection(self) -> Any:
        begun, line = self.token, self.token_line
        self.spend(2 * COLLECTION_BYTES, line)
        self.advance()
        items = []
        while self.token != _CLOSING[begun] or self.kind != "close":
            if self.kind == "":
                raise PorcupineError(f"{self.name}:{line}: {begun!r} is never closed")
            if self.kind == "discard":
                self.advance()
                self.value()
                continue
            items.append(self.value())
        self.advance()
        if begun != "{":
            return frozenset(map(_hashable, items)) if begun == "#{" else items
        if len(items) % 2:
            raise PorcupineError(f"{self.name}:{line}: a map with a key that has no value")
        return {_hashable(k): v for k, v in zip(items[::2], items[1::2], strict=True)}

    def text_of(self, token: str) -> str:
        try:
            return str(json.loads(token, strict=False))
        except ValueError:
            raise self.fail(f"bad escape in {token[:40]}") from None


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        return tuple((k, _hashable(v)) for k, v in value.items())
    return value


def _atom(token: str) -> Any:
    if token in _CONSTANTS:
        return _CONSTANTS[token]
    if token[0] == ":":
        return token[1:]
    if _INTEGER.fullmatch(token):
        return int(token.rstrip("N"))
    if _FLOAT.fullmatch(token):
        return float(token.rstrip("M"))
    return token


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."


def parse_edn(text: str, name: str = "EDN", line: int = 1, room: Room | None = None) -> Any:
    """The one value of a text. Raises PorcupineError with ``name`` and line."""
    tokens = _Tokens(text, name, line, room or Room(MAX_HISTORY, name))
    value = tokens.whole()
    if tokens.kind:
        raise tokens.fail(f"unexpected {tokens.token!r}")
    return value


def edn_rows(text: str, name: str, room: Room) -> Iterator[Row]:
    """Rows of a text: maps, or one vector or list of maps."""
    tokens = _Tokens(text, name, 1, room)
    tokens.skip_discarded()
    within = tokens.token if tokens.kind == "open" and tokens.token in "[(" else ""
    begun = tokens.token_line
    if within:
        tokens.advance()
    while True:
        tokens.skip_discarded()
        if within and tokens.kind == "close" and tokens.token == _CLOSING[within]:
            break
        if tokens.kind == "":
            if within:
                raise PorcupineError(f"{name}:{begun}: {within!r} is never closed; the file is not complete")
            return
        line = tokens.token_line
        item = tokens.whole()
        if not isinstance(item, dict):
            raise PorcupineError(f"{name}:{line}: a map is expected, not {_short(item)}")
        missing = [field for field in ("process", "type", "f") if field not in item]
        if missing:
            raise PorcupineError(f"{name}:{line}: :{missing[0]} is missing")
        yield Row(
            line, item["process"], str(item["type"]), str(item["f"]), with_key(item.get("key"), item.get("value"))
        )
    tokens.advance()
    tokens.skip_discarded()
    if tokens.kind:
        raise tokens.fail(f"unexpected {tokens.token!r} after the history")
