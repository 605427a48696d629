"""Values of histories: their types, and the form in which two of them are equal exactly if their format says so.

Python's equality is not that of JSON or EDN: it holds ``True == 1``, and has no keywords. ``freeze`` gives a value the
form that models compare. In it ``true`` is not 1, ``:a`` is not ``"a"``, ``1/2`` is neither ``"1/2"`` nor 0.5. JSON's 1
and 1.0 are one number. EDN's are two, so the EDN reader gives a float without a fraction the type ``Typed``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from .types import PorcupineError

KEYWORD, SYMBOL, CHARACTER, REGEX, TAGGED = "keyword", "symbol", "character", "regex", "tagged"
RATIO, DECIMAL, DOUBLE, BOOLEAN, MAP = "ratio", "decimal", "double", "boolean", "map"
_NUMBERS = frozenset({RATIO, DECIMAL, DOUBLE})


@dataclass(frozen=True, slots=True, repr=False)
class Typed:
    """A value of a type that Python lacks or confuses with another. It equals only a value of the same ``kind``.

    ``value`` is a text for a keyword (without the colon), symbol, character or regex; a Fraction, Decimal or float for
    a number; ``(tag, value)`` for a tagged value. Only ``freeze`` creates booleans and maps (a frozenset of pairs).
    """

    kind: str
    value: Any

    def __repr__(self) -> str:
        if self.kind == TAGGED:
            return f"#{self.value[0]} {self.value[1]!r}"
        if self.kind == MAP:
            return "{" + ", ".join(sorted(f"{key!r}: {value!r}" for key, value in self.value)) + "}"
        if self.kind in _FORMS:
            return _FORMS[self.kind].format(self.value)
        return str(self.value)

    def __lt__(self, other: Any) -> bool:
        return _ordered(self, other, operator.lt)

    def __gt__(self, other: Any) -> bool:
        return _ordered(self, other, operator.gt)


_FORMS = {KEYWORD: ":{}", CHARACTER: "\\{}", REGEX: '#"{}"', DECIMAL: "{}M"}


def _ordered(one: Typed, other: Any, how: Callable[[Any, Any], bool]) -> bool:
    if one.kind in _NUMBERS:
        number = number_of(other)
        if number is not None:
            return how(Fraction(one.value), number)
    elif isinstance(other, Typed) and other.kind == one.kind and isinstance(one.value, str):
        return how(one.value, other.value)
    return NotImplemented  # type: ignore[no-any-return]


def number_of(value: Any) -> int | float | Fraction | None:
    """Return the number that a value represents, or None."""
    if isinstance(value, Typed):
        return Fraction(value.value) if value.kind in _NUMBERS else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def name_of(value: Any) -> str | None:
    """Return the name of a text, keyword or symbol, without a keyword's colon; None for any other value.

    A keyword that passed through JSON is a text that still has its colon.
    """
    if isinstance(value, Typed) and value.kind in (KEYWORD, SYMBOL):
        return str(value.value)
    return value.removeprefix(":") if isinstance(value, str) else None


def as_json(value: Any) -> Any:
    """Convert a value from EDN to JSON's types: keywords and symbols are texts, numbers are Python's."""
    if isinstance(value, Typed):
        if value.kind == TAGGED:
            return as_json(value.value[1])
        return float(value.value) if value.kind in _NUMBERS else value.value
    if isinstance(value, list | tuple):
        return type(value)(as_json(each) for each in value)
    if isinstance(value, dict):
        return {as_json(key): as_json(each) for key, each in value.items()}
    return value


FROZEN = frozenset({int, str, bytes, type(None)})
"""Types whose values ``freeze`` returns unchanged."""
_TRUTH = {True: Typed(BOOLEAN, True), False: Typed(BOOLEAN, False)}


def freeze(value: Any) -> Any:
    """Return a hashable form of a value from JSON, EDN or Python; two forms are equal exactly if the values are.

    Lists become tuples, sets frozensets, mappings and booleans ``Typed``. Freezing twice has no further effect. Raises
    PorcupineError for NaN, which equals nothing, itself included: no verdict could rest on it.
    """
    kind = type(value)
    if kind in FROZEN:
        return value
    if kind is bool or isinstance(value, np.bool_):
        return _TRUTH[bool(value)]
    if isinstance(value, list | tuple):
        return tuple(freeze(v) for v in value)
    if isinstance(value, set | frozenset):
        return frozenset(freeze(v) for v in value)
    if isinstance(value, dict):
        return Typed(MAP, frozenset((freeze(k), freeze(v)) for k, v in value.items()))
    if isinstance(value, Typed):
        return Typed(TAGGED, freeze(value.value)) if value.kind == TAGGED else value
    if isinstance(value, float | Decimal) and value != value:
        raise PorcupineError("NaN equals nothing, itself included: no verdict can rest on it")
    return value
