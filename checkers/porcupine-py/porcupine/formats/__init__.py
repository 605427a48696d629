"""Files of histories, whatever wrote them."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

from ..models import CompiledModel
from ..types import Operation, PorcupineError
from .edn import edn_rows
from .jsonl import json_rows
from .logs import log_rows
from .room import MAX_HISTORY, Room
from .rows import DID_NOT_HAPPEN, DID_NOT_MATCH, FAILED_CAS, History, Reading, operations_of
from .texts import first_line

_PIECE = 1 << 20
FORMATS = ("jsonl", "edn", "porcupine-kv", "jepsen-log", "parquet")
"""Names for ``read_history``. EDN reads Jepsen's and Knossos' histories; Porcupine's kv files are EDN, a map per
line."""
OBSERVED = ("jepsen-log",)
"""Formats in which a ``cas`` that fails compared and did not match; in all others it did not happen."""


def read_history(
    path: str | Path,
    model: CompiledModel,
    format: str | None = None,
    *,
    failed_cas: str | None = None,
    pass_over: Collection[str] = (),
    max_history: int = MAX_HISTORY,
) -> list[Operation]:
    """Operations of a file, for a model; times are line numbers' order. Gzip is accepted; the format is told from the
    content.

    ``failed_cas``: what a ``cas`` that ends ``fail`` means, "did-not-happen" or "did-not-match"; by default what it
    means in the format. ``pass_over``: names of processes that are no clients, besides "nemesis". ``max_history``:
    bytes that reading it may take; a file that would take more is refused before it does. Raises PorcupineError, with
    file and line, for anything that is not a history of the model's operations.
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
    """As ``read_history``, with the number of lines that were passed over."""
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise PorcupineError(f'unknown format "{format}"; known: {", ".join(FORMATS)}')
    if failed_cas is not None and failed_cas not in FAILED_CAS:
        raise PorcupineError(f'a failed cas means {" or ".join(FAILED_CAS)}, not "{failed_cas}"')
    room = Room(max_history, str(path))
    data = _bytes(path, room)
    if format == "parquet" or (format is None and data[:4] == b"PAR1"):
        from .parquet import parquet_rows

        reading = Reading(failed_cas or DID_NOT_HAPPEN, pass_over)
        return operations_of(parquet_rows(path, data, room), model, str(path), reading, room)
    text = _text(path, data, room)
    room.give_back(len(data))
    del data
    format = format or _sniff(text, path)
    reader = {"jsonl": json_rows, "jepsen-log": log_rows}.get(format, edn_rows)
    reading = Reading(failed_cas or (DID_NOT_MATCH if format in OBSERVED else DID_NOT_HAPPEN), pass_over)
    return operations_of(reader(text, str(path), room), model, str(path), reading, room)


def _bytes(path: Path, room: Room) -> bytearray:
    """The content of a file, unpacked."""
    try:
        with path.open("rb") as file:
            data = _whole(file, room)
        if data[:2] != b"\x1f\x8b":
            return data
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
            unpacked = _whole(packed, room)
        room.give_back(len(data))
        return unpacked
    except OSError as error:
        reason = error.strerror or str(error)
        raise PorcupineError(f"{path}: {reason}") from None
    except (EOFError, zlib.error) as error:
        raise PorcupineError(f"{path}: damaged gzip: {error}") from None
    except ValueError as error:
        raise PorcupineError(f"{path}: {error}") from None


def _whole(file: BinaryIO | gzip.GzipFile, room: Room) -> bytearray:
    data = bytearray()
    while piece := file.read(_PIECE):
        room.take(len(piece))
        data += piece
    return data


def _text(path: Path, data: bytearray, room: Room) -> str:
    # A character above 65535 makes Python give four bytes to each.
    room.take(len(data) * (1 if data.isascii() else 4))
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise PorcupineError(f"{path}:{line}: not UTF-8 text") from None


def _sniff(text: str, path: Path) -> str:
    number, line = first_line(text)
    start = line[:200]
    if not number:
        return "edn"  # nothing but blanks and comments: a history without operations
    if start.startswith("{") and start[1:].lstrip()[:1] in ('"', "}"):
        return "jsonl"
    if start[0] in "{[(#":
        return "edn"
    if "jepsen" in line:
        return "jepsen-log"
    raise PorcupineError(f"{path}:{number}: neither JSON lines, EDN nor a Jepsen log: {start[:40]!r}")


__all__ = ["FAILED_CAS", "FORMATS", "MAX_HISTORY", "History", "load_history", "read_history"]
