"""Readers of history files from any program."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from ..models import CompiledModel
from ..types import Operation, PorcupineError
from ..values import Typed, freeze, name_of
from .edn import edn_items, parse_edn
from .jsonl import json_items, parse_json
from .logs import log_items, of_2015
from .memory import MAX_HISTORY, MemoryMeter
from .order import Row, in_order
from .rows import DID_NOT_HAPPEN, DID_NOT_MATCH, FAILED_CAS, History, Reading, is_nemesis, operations_of, row_of
from .texts import first_line, lines_of

_PIECE = 1 << 20
FORMATS = ("jsonl", "edn", "porcupine-kv", "jepsen-log", "parquet")
"""Names for ``read_history``. EDN reads Jepsen's and Knossos' histories; Porcupine's kv files are EDN, a map per line.
"""
LOG, PARQUET = "jepsen-log", "parquet"
EDN_FORMATS = ("edn", "porcupine-kv", LOG)
"""Formats whose values are EDN's; those of the others are JSON's."""
_MARK = "\ufeff"
"""The byte order mark with which some programs begin a text."""


def read_history(
    path: str | Path,
    model: CompiledModel,
    format: str | None = None,
    *,
    failed_cas: str | None = None,
    pass_over: Collection[str] = (),
    max_history: int = MAX_HISTORY,
) -> list[Operation]:
    """Read the operations of a file, for a model; times are line numbers' order. Gzip is accepted.

    By default the format is recognised by the content. ``failed_cas``: the meaning of a ``cas`` that ends ``fail``,
    "did-not-happen" or "did-not-match"; by default its meaning in the format. ``pass_over``: names of processes other
    than clients, in addition to "nemesis". ``max_history``: bytes that reading it may take; a file that would take more
    is refused before it does. Raises PorcupineError, with file and line, for anything that is not a history of the
    model's operations.
    """
    return load_history(
        path, model, format, failed_cas=failed_cas, pass_over=pass_over, max_history=max_history
    ).operations


def load_history(
    path: str | Path,
    model: CompiledModel,
    format: str | None = None,
    *,
    failed_cas: str | None = None,
    pass_over: Collection[str] = (),
    max_history: int = MAX_HISTORY,
) -> History:
    """Read a file as ``read_history`` does, and return the number of skipped lines as well."""
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise PorcupineError(f'unknown format "{format}"; known: {", ".join(FORMATS)}')
    if failed_cas is not None and failed_cas not in FAILED_CAS:
        raise PorcupineError(f'a failed cas means {" or ".join(FAILED_CAS)}, not "{failed_cas}"')
    meter = MemoryMeter(max_history, str(path))
    data = _bytes(path, meter)
    if format == PARQUET or (format is None and data[:4] == b"PAR1"):
        from .parquet import parquet_rows

        reading = Reading(failed_cas or DID_NOT_HAPPEN, pass_over)
        found = operations_of(parquet_rows(path, data, meter), model, str(path), reading, meter)
        return replace(found, format=PARQUET, first_passed_over=f"row {found.first_passed_over}")
    text = _text(path, data, meter)
    meter.give_back(len(data))
    del data
    format = format or format_of(text, str(path))
    rows = (
        number if item is None else row_of(item, str(path), number)
        for number, item in items_of(text, str(path), format, meter)
    )
    observed = format == LOG and of_2015(text)
    reading = Reading(failed_cas or (DID_NOT_MATCH if observed else DID_NOT_HAPPEN), pass_over)
    found = operations_of(rows, model, str(path), reading, meter)
    return replace(found, format=format, first_passed_over=_quoted(text, found.first_passed_over))


def items_of(
    text: str, name: str, format: str | None = None, meter: MemoryMeter | None = None
) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield the rows of a text (JSON lines, EDN or a Jepsen log) as maps with texts as keys, each with its line.

    Yields None for a line of a log without an operation. A byte order mark is skipped; ``format`` is recognised by the
    content by default. Values keep their types: values of EDN without a Python type are ``Typed``. ``freeze`` returns
    the form to compare. Raises PorcupineError, with ``name`` and line, for a text that can't be read.
    """
    text = text.removeprefix(_MARK)
    meter = meter or MemoryMeter(MAX_HISTORY, name)
    reader: Any = {"jsonl": json_items, LOG: log_items}.get(format or format_of(text, name), edn_items)
    yield from reader(text, name, meter)


def _quoted(text: str, number: str) -> str:
    """Quote a line of a text, truncated, with its number."""
    line = next((line for at, line in lines_of(text) if str(at) == number), "").strip()
    return f"line {number}: {line if len(line) <= 100 else line[:100] + '...'}" if number else ""


def _bytes(path: Path, meter: MemoryMeter) -> bytearray:
    """Return the content of a file, unpacked."""
    try:
        with path.open("rb") as file:
            data = _whole(file, meter)
        if data[:2] != b"\x1f\x8b":
            return data
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
            unpacked = _whole(packed, meter)
        meter.give_back(len(data))
        return unpacked
    except OSError as error:
        reason = error.strerror or str(error)
        raise PorcupineError(f"{path}: {reason}") from None
    except (EOFError, zlib.error) as error:
        raise PorcupineError(f"{path}: damaged gzip: {error}") from None
    except ValueError as error:
        raise PorcupineError(f"{path}: {error}") from None


def _whole(file: BinaryIO | gzip.GzipFile, meter: MemoryMeter) -> bytearray:
    data = bytearray()
    while piece := file.read(_PIECE):
        meter.take(len(piece))
        data += piece
    return data


def _text(path: Path, data: bytearray, meter: MemoryMeter) -> str:
    # A character above 65535 makes Python use four bytes for each.
    meter.take(len(data) * (1 if data.isascii() else 4))
    try:
        return data.decode().removeprefix(_MARK)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise PorcupineError(f"{path}:{line}: not UTF-8 text") from None


def format_of(text: str, name: str) -> str:
    """Recognise the format of a text by its first line. Raises PorcupineError if it is none of ``FORMATS``."""
    number, line = first_line(text.removeprefix(_MARK))
    start = line[:200]
    if not number:
        return "edn"  # only blanks and comments: a history without operations
    if start.startswith("{") and start[1:].lstrip()[:1] in ('"', "}"):
        return "jsonl"
    if start[0] in "{[(#":
        return "edn"
    if "jepsen" in line:
        return LOG
    raise PorcupineError(f"{name}:{number}: neither JSON lines, EDN nor a Jepsen log: {start[:40]!r}")


__all__ = [
    "EDN_FORMATS",
    "FAILED_CAS",
    "FORMATS",
    "LOG",
    "MAX_HISTORY",
    "History",
    "Row",
    "Typed",
    "format_of",
    "freeze",
    "in_order",
    "is_nemesis",
    "items_of",
    "load_history",
    "name_of",
    "of_2015",
    "parse_edn",
    "parse_json",
    "read_history",
    "row_of",
]
