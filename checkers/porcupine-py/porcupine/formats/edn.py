"""EDN, as Jepsen, Knossos and Porcupine's kv tests write histories: maps, one after another or in one vector or list.

Values without a Python type become ``values.Typed``: keywords, symbols, characters, ratios, decimals, floats without a
fraction, tagged values. ``#_`` and ``;`` are honoured; regexes, namespaced maps and ``##NaN``, which Clojure adds, are
read. See https://github.com/edn-format/edn.
"""

from __future__ import annotations

import functools
import json
import math
import re
import sys
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

from ..types import PorcupineError
from ..values import CHARACTER, DECIMAL, DOUBLE, KEYWORD, RATIO, REGEX, SYMBOL, TAGGED, Typed, freeze, name_of
from .memory import COLLECTION_BYTES, MAX_DEPTH, MAX_HISTORY, MemoryMeter

_TOKEN = re.compile(
    r"""(?P<space>[\s,]+|;[^\n]*)|(?P<text>"(?:[^"\\]+|\\.)*+")|(?P<regex>\#"(?:[^"\\]+|\\.)*+")"""
    r"""|(?P<open>\#\{|[\[({])|(?P<close>[\])}])|(?P<discard>\#_)|(?P<special>\#\#[A-Za-z-]+)"""
    r"""|(?P<namespace>\#::?[^\s,\[\](){}"]*)|(?P<tag>\#'?[A-Za-z][^\s,\[\](){}"]*)"""
    r"""|(?P<atom>\\.[^\s,\[\](){}"]*|[^\s,\[\](){}";#\\][^\s,\[\](){}";\\]*)""",
    re.DOTALL,
)
_CLOSING = {"[": "]", "(": ")", "{": "}", "#{": "}"}
_CONSTANTS = {"nil": None, "true": True, "false": False}
_SPECIAL = {"##NaN": math.nan, "##Inf": math.inf, "##-Inf": -math.inf}
_INTEGER = re.compile(r"[+-]?(0|[1-9]\d*)N?")
_FLOAT = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?M?")
_RATIO = re.compile(r"([+-]?\d+)/(\d+)")
_LIKE_A_NUMBER = re.compile(r"[+-]?\d")
_MOST_WITHIN = MAX_DEPTH + 3  # a row's value is nested in the row; one of exactly this depth is judged with the others


class _Tokens:
    """Tokens of a text, with their lines."""

    def __init__(self, text: str, name: str, line: int, meter: MemoryMeter) -> None:
        self.text, self.name, self.at, self.line = text, name, 0, line
        self.meter, self.spent, self.depth = meter, 0, 0
        self.kind, self.token, self.token_line = "", "", line
        self.advance()

    def fail(self, what: str) -> PorcupineError:
        return PorcupineError(f"{self.name}:{self.token_line}: {what}")

    def advance(self) -> None:
        """Advance to the next token; kind "" at the end."""
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
        """Read the value at the current token, and advance past it."""
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
        if kind == "discard":
            self.advance()
            self.value()
            return self.value()
        if kind == "tag":
            self.advance()
            return Typed(TAGGED, (token[1:], self.value()))
        if kind == "namespace":
            return self.namespaced()
        if kind == "open":
            return self.collection()
        line = self.token_line
        self.spend(2 * sys.getsizeof(token), line)
        self.advance()
        if kind == "text":
            return self.text_of(token)
        if kind == "regex":
            return Typed(REGEX, token[2:-1])
        try:
            return _special(token) if kind == "special" else _atom(token)
        except ValueError as error:
            # Python limits the number of digits that it converts to an integer.
            raise PorcupineError(f"{self.name}:{line}: {error}") from None

    def skip_discarded(self) -> None:
        """Skip values that are marked to be ignored."""
        while self.kind == "discard":
            self.advance()
            self.whole()

    def whole(self) -> Any:
        """Read a value that is not nested in another, as ``value`` does."""
        self.spent = 0
        return self.value()

    def spend(self, size: int, line: int) -> None:
        """Count the memory of the value that is being read."""
        self.spent += size
        if self.spent > self.meter.left:
            self.meter.demand(self.spent, line)

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
        if begun == "#{":
            return frozenset(self.different(items, "a set holds", line))
        if begun != "{":
            return items
        if len(items) % 2:
            raise PorcupineError(f"{self.name}:{line}: a map with a key that has no value")
        return dict(zip(self.different(items[::2], "a map has the key", line), items[1::2], strict=True))

    def different(self, items: list[Any], what: str, line: int) -> list[Any]:
        """Return values in the form in which they are compared; all must differ."""
        try:
            frozen = [freeze(item) for item in items]
            if len(set(frozen)) == len(frozen):
                return frozen
        except PorcupineError as error:
            raise PorcupineError(f"{self.name}:{line}: {error}") from None
        twice = next(each for place, each in enumerate(frozen) if each in frozen[:place])
        raise PorcupineError(f"{self.name}:{line}: {what} {_short(twice)} twice")

    def namespaced(self) -> Any:
        """Read a map whose prefix is the namespace of its keys: ``#:user{:id 1}`` is ``{:user/id 1}``."""
        prefix, line = self.token[1:].strip(":"), self.token_line
        self.advance()
        if self.kind != "open" or self.token != "{":
            raise PorcupineError(f"{self.name}:{line}: a map is expected after #:{prefix}")
        return {_qualified(prefix, key): value for key, value in self.collection().items()}

    def text_of(self, token: str) -> str:
        try:
            return str(json.loads(token, strict=False))
        except ValueError:
            raise self.fail(f"bad escape in {token[:40]}") from None


def _qualified(prefix: str, key: Any) -> Any:
    if not isinstance(key, Typed) or key.kind not in (KEYWORD, SYMBOL) or not prefix:
        return key
    if "/" in key.value:
        return Typed(key.kind, key.value.removeprefix("_/"))
    return Typed(key.kind, f"{prefix}/{key.value}")


@functools.lru_cache(maxsize=4096)
def _keyword(name: str) -> Typed:
    return Typed(KEYWORD, name)


def _special(token: str) -> float:
    if token not in _SPECIAL:
        raise ValueError(f"unknown {token}")
    return _SPECIAL[token]


def _atom(token: str) -> Any:
    if token in _CONSTANTS:
        return _CONSTANTS[token]
    if token[0] == ":":
        if token == ":":
            raise ValueError("a colon without a name")
        return _keyword(token[1:])
    if token[0] == "\\":
        return Typed(CHARACTER, token[1:])
    if not _LIKE_A_NUMBER.match(token):
        return Typed(SYMBOL, token)
    if _INTEGER.fullmatch(token):
        return int(token.rstrip("N"))
    if _FLOAT.fullmatch(token) and not token.lstrip("+-").isdigit():
        return _decimal(token) if token[-1] == "M" else _float(token)
    ratio = _RATIO.fullmatch(token)
    if ratio is None or not int(ratio[2]):
        raise ValueError(f"not a number: {_short(token)}")
    number = Fraction(int(ratio[1]), int(ratio[2]))
    return number.numerator if number.denominator == 1 else Typed(RATIO, number)


def _decimal(token: str) -> Typed:
    number = Decimal(token.rstrip("M"))
    if abs(number.adjusted()) > 1000:
        raise ValueError(f"a number too large or too small to compare: {_short(token)}")
    return Typed(DECIMAL, number)


def _float(token: str) -> Any:
    number = float(token)
    if math.isinf(number):
        raise ValueError(f"a number too large for a float: {_short(token)}")
    # A float with a fraction cannot be confused with an integer.
    return Typed(DOUBLE, number) if number.is_integer() else number


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."


def parse_edn(text: str, name: str = "EDN", line: int = 1, meter: MemoryMeter | None = None) -> Any:
    """Return the one value of a text. Raises PorcupineError with ``name`` and line."""
    tokens = _Tokens(text, name, line, meter or MemoryMeter(MAX_HISTORY, name))
    value = tokens.whole()
    if tokens.kind:
        raise tokens.fail(f"unexpected {tokens.token!r}")
    return value


def edn_items(text: str, name: str, meter: MemoryMeter) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the maps of a text, one after another or in one vector or list, with their lines. Their keys are texts.

    A tag before a map is ignored. Raises PorcupineError with ``name`` and line.
    """
    tokens = _Tokens(text, name, 1, meter)
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
        if isinstance(item, Typed) and item.kind == TAGGED:
            item = item.value[1]
        if not isinstance(item, dict):
            raise PorcupineError(f"{name}:{line}: a map is expected, not {_short(item)}")
        fields = {name_of(key) or repr(key): value for key, value in item.items()}
        if len(fields) < len(item):
            raise PorcupineError(f"{name}:{line}: a map has a key twice, as a keyword and as a text")
        yield line, fields
    tokens.advance()
    tokens.skip_discarded()
    if tokens.kind:
        raise tokens.fail(f"unexpected {tokens.token!r} after the history")
