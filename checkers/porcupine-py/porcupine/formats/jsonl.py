"""JSON lines: ``{"process": 0, "type": "invoke", "f": "write", "value": 1}``, and optionally "key" for a kv model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from ..types import PorcupineError
from .memory import MemoryMeter, json_size
from .texts import lines_of


def _refuse(constant: str) -> Any:
    """Reject NaN and the infinities, which Python would accept: JSON does not have them, and NaN does not even equal
    itself.
    """
    raise ValueError(f"{constant} is not a JSON value")


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is too large for a number")
    return number


def parse_json(text: str) -> Any:
    """Return the one value of a text. Raises ValueError for a text that is not JSON, or is nested too deeply."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_float)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def json_items(text: str, name: str, meter: MemoryMeter) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a text, one per line, with their lines. Raises PorcupineError for a line that is not an
    object.
    """
    for number, line in lines_of(text):
        if not line.strip():
            continue
        meter.demand(json_size(line), number)
        try:
            item = parse_json(line)
        except ValueError as error:
            raise PorcupineError(f"{name}:{number}: not JSON: {error}") from None
        if not isinstance(item, dict):
            raise PorcupineError(f"{name}:{number}: an object is expected, not {line.strip()[:40]}")
        # Clojure's writers may keep a keyword's colon.
        yield number, {key.removeprefix(":"): value for key, value in item.items()}
