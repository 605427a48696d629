"""Files of histories, whatever wrote them."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Collection
from pathlib import Path

from ..models import CompiledModel
from ..types import Operation, PorcupineError
from .edn import edn_rows
from .jsonl import json_rows
from .logs import log_rows
from .rows import DID_NOT_HAPPEN, DID_NOT_MATCH, FAILED_CAS, History, Reading, operations_of

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
) -> list[Operation]:
    """Operations of a file, for a model; times are line numbers' order. Gzip is accepted; the format is told from the
    content.

    ``failed_cas``: what a ``cas`` that ends ``fail`` means, "did-not-happen" or "did-not-match"; by default what it
    means in the format. ``pass_over``: names of processes that are no clients, besides "nemesis". Raises
    PorcupineError, with file and line, for anything that is not a history of the model's operations.
    """
    return load_history(path, model, format, failed_cas=failed_cas, pass_over=pass_over).operations


def load_history(
    path: str | Path,
    model: CompiledModel,
    format: str | None = None,
    *,
    failed_cas: str | None = None,
    pass_over: Collection[str] = (),
) -> History:
    """As ``read_history``, with the number of lines that were passed over."""
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise PorcupineError(f'unknown format "{format}"; known: {", ".join(FORMATS)}')
    if failed_cas is not None and failed_cas not in FAILED_CAS:
        raise PorcupineError(f'a failed cas means {" or ".join(FAILED_CAS)}, not "{failed_cas}"')
    data = _bytes(path)
    if format == "parquet" or (format is None and data[:4] == b"PAR1"):
        from .parquet import parquet_rows

        reading = Reading(failed_cas or DID_NOT_HAPPEN, pass_over)
        return operations_of(parquet_rows(path, data), model, str(path), reading)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise PorcupineError(f"{path}:{line}: not UTF-8 text") from None
    format = format or _sniff(text, path)
    reader = {"jsonl": json_rows, "jepsen-log": log_rows}.get(format, edn_rows)
    reading = Reading(failed_cas or (DID_NOT_MATCH if format in OBSERVED else DID_NOT_HAPPEN), pass_over)
    return operations_of(reader(text, str(path)), model, str(path), reading)


def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except OSError as error:
        reason = error.strerror or str(error)
        raise PorcupineError(f"{path}: {reason}") from None
    except (EOFError, zlib.error) as error:
        raise PorcupineError(f"{path}: damaged gzip: {error}") from None
    except ValueError as error:
        raise PorcupineError(f"{path}: {error}") from None


def _sniff(text: str, path: Path) -> str:
    for number, line in enumerate(text.splitlines(), 1):
        start = line.strip()
        if not start or start.startswith(";"):
            continue
        if start.startswith("{") and start[1:].lstrip()[:1] in ('"', "}"):
            return "jsonl"
        if start[0] in "{[(#":
            return "edn"
        if "jepsen" in start:
            return "jepsen-log"
        raise PorcupineError(f"{path}:{number}: neither JSON lines, EDN nor a Jepsen log: {start[:40]!r}")
    return "edn"  # nothing but blanks and comments: a history without operations


__all__ = ["FAILED_CAS", "FORMATS", "History", "load_history", "read_history"]
