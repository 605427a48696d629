"""Parquet files in Stormproof's schema of a history. Needs pyarrow (the extra ``arrow``).

Columns: run, index, time, process (-1: nemesis), type (0 invoke, 1 ok, 2 fail, 3 info), f, key (-1: none), value (-1:
none, -2: JSON in ``text``, a pair (a, b) of integers packed as a << 32 | b), text. One run per file. A file may lack
index, time or both; ``order.in_order`` defines the order then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..types import PorcupineError
from .jsonl import parse_json
from .memory import ROW_BYTES, MemoryMeter, json_size
from .order import Row
from .rows import NEMESIS, TYPES, with_key

NO_PROCESS, NO_VALUE, TEXT_VALUE, PAIR_SHIFT = -1, -1, -2, 32
NEEDED = ("run", "process", "type", "f", "key", "value", "text")
ORDER = ("index", "time")
TEXTS = frozenset({"run", "f", "text"})
_BATCH_ROWS = 65_536
_FOOTER_LIMITS = {"thrift_string_size_limit": 16 << 20, "thrift_container_size_limit": 20_000}
"""The reader allocates lists of a footer by the length that the footer claims."""
_CELLS_BYTES = 256
"""Memory of the cells of a row as Python's numbers, without their texts."""
PAIRS = frozenset({"cas"})
"""Functions whose value is a pair even if it would fit a small integer."""


def parquet_rows(path: Path, data: bytearray, meter: MemoryMeter) -> Iterator[Row]:
    """Yield the rows of a file, in the file's order; a row's line is its number from 1."""
    columns = _columns(path, data, meter)
    runs = set(columns["run"])
    if len(runs) > 1:
        raise PorcupineError(f"{path}: holds {len(runs)} runs; give files of one run each")
    for line, (index, time) in enumerate(zip(columns["index"], columns["time"], strict=True)):
        code, f, key = columns["type"][line], columns["f"][line], columns["key"][line]
        if not isinstance(code, int) or not 0 <= code < len(TYPES):
            raise PorcupineError(f"{path}:{line + 1}: type is {code!r}, not 0 to 3")
        value = _value(f, columns["value"][line], columns["text"][line], path, line + 1, meter)
        keyed = with_key(key if key is not None and key >= 0 else None, value)
        process = columns["process"][line]
        process = NEMESIS if process == NO_PROCESS else process
        yield Row(line + 1, process, TYPES[code], str(f), keyed, index, time)


def _columns(path: Path, data: bytearray, meter: MemoryMeter) -> dict[str, list[Any]]:
    """Decode the needed columns, some rows at a time: the sizes in a file's footer may be false.

    Texts are read with dictionaries: written out, a small file could hold any amount of them.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise PorcupineError(f"{path}: Parquet needs pyarrow: pip install 'porcupine-py[arrow]'") from None
    columns: dict[str, list[Any]] = {name: [] for name in (*NEEDED, *ORDER)}
    try:
        footer = pq.ParquetFile(pa.BufferReader(data), **_FOOTER_LIMITS).metadata
        groups = (footer.row_group(number) for number in range(footer.num_row_groups))
        meter.demand(max(0, footer.num_rows) * ROW_BYTES + sum(max(0, group.total_byte_size) for group in groups))
        file = pq.ParquetFile(pa.BufferReader(data), read_dictionary=list(TEXTS), **_FOOTER_LIMITS)
        _demand_schema(path, file.schema_arrow, pa)
        there = [*NEEDED, *(name for name in ORDER if name in file.schema_arrow.names)]
        for batch in file.iter_batches(_BATCH_ROWS, columns=there, use_threads=False):
            meter.take(batch.nbytes + batch.num_rows * _CELLS_BYTES)
            for name in columns:
                if name not in there:
                    columns[name] += [None] * batch.num_rows
                    continue
                column = batch.column(batch.schema.get_field_index(name))
                columns[name] += _texts(column, meter) if name in TEXTS else column.to_pylist()
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise PorcupineError(f"{path}: not a Parquet file that can be read: {reason}") from None
    return columns


def _texts(column: Any, meter: MemoryMeter) -> list[str | None]:
    """Return the texts of a column; those of a dictionary are created once each."""
    if not hasattr(column, "dictionary"):  # it holds nothing but nulls
        return list(column.to_pylist())
    column.validate(full=True)  # a damaged file may point beyond its dictionary
    meter.demand(column.dictionary.nbytes)
    known = column.dictionary.to_pylist()
    meter.take(sum(map(sys.getsizeof, known)))
    return [None if code is None else known[code] for code in column.indices.to_pylist()]


def _demand_schema(path: Path, schema: Any, pa: Any) -> None:
    for name in (*NEEDED, *ORDER):
        place = schema.get_field_index(name)
        if place < 0 and name not in schema.names and name in ORDER:
            continue
        if place < 0:
            raise PorcupineError(f'{path}: column "{name}" is missing, or there are several')
        kind = schema.field(place).type
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        texts = pa.types.is_string(plain) or pa.types.is_large_string(plain)
        if not (pa.types.is_null(kind) or (texts if name in TEXTS else pa.types.is_integer(kind))):
            wanted = "texts" if name in TEXTS else "integers"
            raise PorcupineError(f'{path}: column "{name}" holds {kind}, not {wanted}')


def _value(f: str, value: Any, text: str | None, path: Path, line: int, meter: MemoryMeter) -> Any:
    if value is None or value == NO_VALUE:
        return None
    if value == TEXT_VALUE:
        meter.demand(json_size(text or ""), line)
        try:
            return parse_json(text or "")
        except ValueError:
            raise PorcupineError(f"{path}:{line}: text is not JSON: {(text or '')[:40]!r}") from None
    if f in PAIRS or value >> PAIR_SHIFT:
        return value >> PAIR_SHIFT, value & ((1 << PAIR_SHIFT) - 1)
    return value
