"""JSON lines: ``{"process": 0, "type": "invoke", "f": "write", "value": 1}``, and "key" for a kv model if you like."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ..types import PorcupineError
from .room import Room, json_size
from .rows import Row, with_key
from .texts import lines_of


def _refuse(constant: str) -> Any:
    """NaN and the infinities, which Python would take, are no JSON; NaN does not even equal itself."""
    raise ValueError(f"{constant} is no value of JSON")


def parse_json(text: str) -> Any:
    """The one value of a text. Raises ValueError for a text that is not JSON, or is nested too deeply."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def json_rows(text: str, name: str, room: Room) -> Iterator[Row]:
    """Rows of a text. Raises PorcupineError for a line that is not such an object."""
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
        missing = [field for field in ("process", "type", "f") if field not in item]
        if missing:
            raise PorcupineError(f'{name}:{number}: "{missing[0]}" is missing')
        if not isinstance(item["f"], str):
            raise PorcupineError(f'{name}:{number}: "f" must be a text')
        yield Row(number, item["process"], str(item["type"]), item["f"], with_key(item.get("key"), item.get("value")))
