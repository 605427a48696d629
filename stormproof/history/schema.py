"""The one Arrow schema of a history, and the encoding of operations' values as columns.

This module depends on nothing else in Stormproof.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

SCHEMA_VERSION = 1

TYPE_CODES = {"invoke": 0, "ok": 1, "fail": 2, "info": 3}
TYPE_NAMES = ("invoke", "ok", "fail", "info")

NO_VALUE = -1
"""``value`` of an operation without a value; also ``key`` of an operation without an object."""
TEXT_VALUE = -2
"""``value`` of an operation whose value is neither an integer nor a pair: its JSON is in ``text``."""

PAIR_SHIFT = 32

HISTORY_SCHEMA = pa.schema(
    [
        pa.field("run", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("index", pa.int64(), nullable=False),  # row number, from 0, dense
        pa.field("time", pa.int64(), nullable=False),  # nanoseconds since the start of the run
        pa.field("process", pa.int32(), nullable=False),  # -1: the nemesis
        pa.field("type", pa.int8(), nullable=False),  # TYPE_CODES
        pa.field("f", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("key", pa.int32(), nullable=False),
        pa.field("value", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("node", pa.dictionary(pa.int32(), pa.string())),
        pa.field("error", pa.dictionary(pa.int32(), pa.string())),
    ]
)


def encode_value(value: Any) -> tuple[int, str | None]:
    """Return the ``value`` and ``text`` columns of an operation's value.

    A non-negative integer below 2**63 stands for itself; a pair (a, b) of non-negative integers below 2**31 is ``a <<
    32 | b``; ``None`` is NO_VALUE; everything else is TEXT_VALUE with its JSON in ``text``.
    """
    if value is None:
        return NO_VALUE, None
    if type(value) is int and 0 <= value < 1 << 63:
        return value, None
    if type(value) is tuple and len(value) == 2:
        a, b = value
        if type(a) is int and type(b) is int and 0 <= a < 1 << 31 and 0 <= b < 1 << 31:
            return a << PAIR_SHIFT | b, None
    return TEXT_VALUE, json.dumps(value, default=str)


def decode_pair(value: int) -> tuple[int, int]:
    """Return the pair that ``encode_value`` packed into one integer."""
    return value >> PAIR_SHIFT, value & ((1 << PAIR_SHIFT) - 1)
