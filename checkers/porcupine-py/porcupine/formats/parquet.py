"""Parquet files in Stormproof's schema of a history. Needs pyarrow (the extra ``arrow``).

Columns: run, index, time, process (-1: nemesis), type (0 invoke, 1 ok, 2 fail, 3 info), f, key (-1: none), value (-1:
none, -2: JSON in ``text``, a pair (a, b) of integers packed as a << 32 | b), text. One run per file.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..types import PorcupineError
from .jsonl import parse_json
from .rows import NEMESIS, TYPES, Row, with_key

NO_PROCESS, NO_VALUE, TEXT_VALUE, PAIR_SHIFT = -1, -1, -2, 32
NEEDED = ("run", "index", "process", "type", "f", "key", "value", "text")
PAIRS = frozenset({"cas"})
"""Functions whose value is a pair even if it would fit a small integer."""


def parquet_rows(path: Path, data: bytes) -> Iterator[Row]:
    """Rows of a file, in order of ``index``; a row's line is its number from 1."""
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise PorcupineError(f"{path}: Parquet needs pyarrow: pip install 'porcupine-py[arrow]'") from None
    try:
        table = pq.read_table(io.BytesIO(data))
    except (OSError, ValueError) as error:
        raise PorcupineError(f"{path}: not a Parquet file that can be read: {str(error).splitlines()[0]}") from None
    missing = [name for name in NEEDED if name not in table.column_names]
    if missing:
        raise PorcupineError(f'{path}: column "{missing[0]}" is missing')
    columns = {name: table.column(name).to_pylist() for name in NEEDED}
    if len(set(columns["run"])) > 1:
        raise PorcupineError(f"{path}: holds {len(set(columns['run']))} runs; give files of one run each")
    index = columns["index"]
    for line in sorted(range(len(index)), key=index.__getitem__):
        code, f, key = columns["type"][line], columns["f"][line], columns["key"][line]
        if not isinstance(code, int) or not 0 <= code < len(TYPES):
            raise PorcupineError(f"{path}:{line + 1}: type is {code!r}, not 0 to 3")
        value = _value(f, columns["value"][line], columns["text"][line], path, line + 1)
        keyed = with_key(key if key is not None and key >= 0 else None, value)
        process = columns["process"][line]
        yield Row(line + 1, NEMESIS if process == NO_PROCESS else process, TYPES[code], str(f), keyed)


def _value(f: str, value: Any, text: str | None, path: Path, line: int) -> Any:
    if value is None or value == NO_VALUE:
        return None
    if value == TEXT_VALUE:
        try:
            return parse_json(text or "")
        except ValueError:
            raise PorcupineError(f"{path}:{line}: text is not JSON: {text!r}") from None
    if f in PAIRS or value >> PAIR_SHIFT:
        return value >> PAIR_SHIFT, value & ((1 << PAIR_SHIFT) - 1)
    return value
