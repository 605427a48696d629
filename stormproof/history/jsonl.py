"""Histories as JSON lines, for other tools and for tests written by hand.

The first line may be ``{"schema": 1, "run": id}``. Every other line is one row: ``type``, ``f`` and ``process``, and,
if they apply, ``time``, ``key``, ``value`` (an integer, or [a, b] for a pair), ``text`` (the JSON text of a value that
is neither), ``node``, ``error``. ``index`` is written for the convenience of readers and must be the row's number.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from stormproof.errors import HistoryError
from stormproof.history.read_limits import read_small
from stormproof.history.schema import (
    HISTORY_SCHEMA,
    NO_VALUE,
    PAIR_SHIFT,
    SCHEMA_VERSION,
    TEXT_VALUE,
    TYPE_CODES,
    TYPE_NAMES,
    decode_pair,
    encode_value,
)

_LARGEST = 1 << 31


def export_jsonl(table: pa.Table, file: TextIO) -> None:
    """Write a history; ``import_jsonl`` restores the same rows."""
    runs = table.column("run").unique().to_pylist()
    if len(runs) > 1:
        raise HistoryError(f"one history a file: this table holds {len(runs)} runs")
    file.write(json.dumps({"schema": SCHEMA_VERSION, "run": runs[0] if runs else ""}) + "\n")
    for batch in table.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            file.write(json.dumps(_exported(row), separators=(",", ":")) + "\n")


def import_jsonl(path: Path) -> pa.Table:
    """Read a history as a table of HISTORY_SCHEMA; without a first line the run is named after the file.

    Raises:
        HistoryError: a line does not hold a row; the message names it.
    """
    run = path.stem
    rows: list[dict[str, Any]] = []
    for number, data in _objects(path):
        if not rows and "schema" in data:
            if data["schema"] != SCHEMA_VERSION:
                raise HistoryError(f"{path}:{number}: schema version {data['schema']}, known is {SCHEMA_VERSION}")
            run = data.get("run", run)
            if not _is_text(run):
                raise HistoryError(f"{path}:{number}: run: a text is expected, not {_shown(run)}")
            continue
        wrong = _wrong(data, len(rows))
        if wrong:
            raise HistoryError(f"{path}:{number}: {wrong}")
        rows.append(_imported(data, len(rows)))
    columns = {name: [row[name] for row in rows] for name in HISTORY_SCHEMA.names if name != "run"}
    columns["run"] = [run] * len(rows)
    arrays = [
        pa.array(columns[field.name], field.type.value_type).dictionary_encode().cast(field.type)
        if pa.types.is_dictionary(field.type)
        else pa.array(columns[field.name], field.type)
        for field in HISTORY_SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=HISTORY_SCHEMA)


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        for number, line in enumerate(io.BytesIO(read_small(path)), 1):
            if not line.strip():
                continue
            try:
                data = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise HistoryError(f"{path}:{number}: not JSON: {error}") from error
            if not isinstance(data, dict):
                raise HistoryError(f"{path}:{number}: not a JSON object")
            yield number, data
    except OSError as error:
        raise HistoryError(f"can't read {path}: {error.strerror}") from error


def _exported(row: Mapping[str, Any]) -> dict[str, Any]:
    data = {"index": row["index"], "time": row["time"], "process": row["process"]}
    data |= {"type": TYPE_NAMES[row["type"]], "f": row["f"]}
    if row["key"] != -1:
        data["key"] = row["key"]
    value = row["value"]
    if value == TEXT_VALUE:
        data["text"] = row["text"]
    elif value != NO_VALUE:
        pair = decode_pair(value)
        data["value"] = list(pair) if value >> PAIR_SHIFT and max(pair) < _LARGEST else value
    return data | {name: row[name] for name in ("node", "error") if row[name] is not None}


def _is_whole(value: object, least: int, bits: int) -> bool:
    return type(value) is int and least <= value < 1 << bits


def _is_text(value: object) -> bool:
    """Return whether a value is a text that UTF-8 can encode, without unpaired surrogates."""
    return isinstance(value, str) and not any("\ud800" <= each <= "\udfff" for each in value)


def _is_text_or_null(value: object) -> bool:
    return value is None or _is_text(value)


_FIELDS: Mapping[str, tuple[bool, Callable[[Any], bool], str]] = {
    "process": (True, lambda value: _is_whole(value, -1, 31), "a whole number from 0, or -1 for the nemesis"),
    "type": (True, lambda value: isinstance(value, str) and value in TYPE_CODES, f"one of {', '.join(TYPE_NAMES)}"),
    "f": (True, _is_text, "a text"),
    "time": (False, lambda value: _is_whole(value, 0, 63), "a whole number of nanoseconds from 0"),
    "key": (False, lambda value: _is_whole(value, -1, 31), "a whole number from 0"),
    "text": (False, _is_text, "a text"),
    "node": (False, _is_text_or_null, "a text"),
    "error": (False, _is_text_or_null, "a text"),
}
"""Field of a row -> whether it is required, whether a value fits, and the expected value in words."""


def _wrong(data: Mapping[str, Any], index: int) -> str:
    """Return the first wrong field with the expected value; empty if all fields fit."""
    if data.get("index", index) != index:
        return f"index: {index} is expected, the number of the row, not {_shown(data['index'])}"
    for name, (needed, fits, expected) in _FIELDS.items():
        if name not in data:
            if needed:
                return f"{name}: {expected} is expected, and it is missing"
        elif not fits(data[name]):
            return f"{name}: {expected} is expected, not {_shown(data[name])}"
    return ""


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _imported(data: Mapping[str, Any], index: int) -> dict[str, Any]:
    value = data.get("value")
    number: int
    text: str | None
    if "text" in data:
        number, text = TEXT_VALUE, str(data["text"])
    elif isinstance(value, list) and len(value) == 2:
        number, text = encode_value(tuple(value))
    else:
        number, text = encode_value(value)
    return {
        "index": index,
        "time": data.get("time", index),
        "process": data["process"],
        "type": TYPE_CODES[data["type"]],
        "f": data["f"],
        "key": data.get("key", -1),
        "value": number,
        "text": text,
        "node": data.get("node"),
        "error": data.get("error"),
    }
