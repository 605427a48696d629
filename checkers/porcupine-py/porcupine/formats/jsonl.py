"""JSON lines: ``{"process": 0, "type": "invoke", "f": "write", "value": 1}``, and "key" for a kv model if you like."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from ..types import PorcupineError
from .room import Room, json_size
from .texts import lines_of


def _refuse(constant: str) -> Any:
    """NaN and the infinities, which Python would take, are no JSON; NaN does not even equal itself."""
    raise ValueError(f"{constant} is no value of JSON")


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is too large for a number")
    return number


def parse_json(text: str) -> Any:
    """The one value of a text. Raises ValueError for a text that is not JSON, or is nested too deeply."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_float)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def json_items(text: str, name: str, room: Room) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a text, one a line, with their lines. Raises PorcupineError for a line that is none."""
    for number, line in lines_of(text):
        if not line.strip():
            continue
        room.demand(json_size(line), number)
        try:
            item = parse_json(line)
        except ValueError as error:
            raise PorcupineError(f"{name}:{number}: not JSON: {error}") from None
        if not isinstance(item, dict):
            raise PorcupineError(f"{name}:{number}: an object is expected, not {line.strip()[:40]}")
        # Clojure's writers may leave a keyword its colon.
        yield number, {key.removeprefix(":"): value for key, value in item.items()}
