"""JSON lines: ``{"process": 0, "type": "invoke", "f": "write", "value": 1}``, and "key" for a kv model if you like."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ..types import PorcupineError
from .rows import Row, with_key


def json_rows(text: str, name: str) -> Iterator[Row]:
    """Rows of a text. Raises PorcupineError for a line that is not such an object."""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
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
