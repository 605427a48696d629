"""Packs operations and other data into a page: small, and inert for any content."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import numpy as np

from reports.spans import OPEN_CODE, Spans, client_functions, pair_flags
from stormproof.history.columns import HistoryColumns, Int64s
from stormproof.history.schema import TEXT_VALUE
from stormproof.vocabulary import SENDS, function_named

MAX_SPANS = 250_000
MAX_TEXT = 300
MAX_TEXTS = 5_000

COLUMNS = ("start", "duration", "process", "f", "type", "key", "high", "low", "node", "error", "text", "first", "last")
"""Order of the 32-bit columns in the packed block; ``start`` holds differences."""

NANOS_PER_TICK = 1000

_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def inert_json(data: Any) -> str:
    """Return JSON that is safe between script tags: it can neither end the element nor open a comment in it."""
    text = json.dumps(data, separators=(",", ":"), default=str, allow_nan=False)
    for char, escape in _ESCAPES.items():
        text = text.replace(char, escape)
    return text


def shorten(text: str, limit: int = MAX_TEXT) -> str:
    """Return the text, cut at ``limit`` characters, without lone surrogates (they have no UTF-8 form)."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def choose_spans(spans: Spans, keep: Int64s, limit: int = MAX_SPANS) -> Int64s:
    """Return the positions of the spans that a page holds: all, or every k-th in addition to those that must be
    kept."""
    if len(spans) <= limit:
        return np.arange(len(spans))
    step = -(-len(spans) // limit)
    return np.union1d(np.arange(0, len(spans), step), keep)


def pack_spans(history: HistoryColumns, spans: Spans, chosen: Int64s) -> dict[str, Any]:
    """Return the chosen spans as one compressed block of 32-bit columns, and the tables that its codes refer to."""
    part = spans.take(chosen)
    ticks = part.start // NANOS_PER_TICK
    duration = np.where(part.type == OPEN_CODE, -1, (part.end - part.start) // NANOS_PER_TICK)
    text, texts = _texts(history, part)
    plain = part.value >= 0
    functions = client_functions(history, spans)
    rank = np.full(len(history.f.names), -1, dtype=np.int64)
    rank[functions] = np.arange(len(functions))
    pairs = pair_flags(history)
    columns = {
        "start": np.diff(ticks, prepend=0),
        "duration": duration,
        "process": part.process,
        "f": rank[part.f],
        "type": part.type,
        "key": part.key,
        "high": np.where(plain, part.value >> 32, part.value),
        "low": np.where(plain, part.value & 0xFFFFFFFF, 0),
        "node": part.node,
        "error": part.error,
        "text": text,
        "first": history.index[part.first],
        "last": history.index[part.last],
    }
    block = b"".join(_int32(columns[name]) for name in COLUMNS)
    return {
        "count": len(part),
        "total": len(spans),
        "columns": list(COLUMNS),
        "block": base64.b64encode(zlib.compress(block, 6)).decode("ascii"),
        "f": [shorten(history.f.names[code]) for code in functions],
        "sends": [function_named(history.f.names[code]).does == SENDS for code in functions],
        "pairs": [pairs[code] for code in functions],
        "nodes": [shorten(name) for name in history.node.names],
        "errors": [shorten(name) for name in history.error.names],
        "texts": texts,
    }


def _int32(column: Int64s) -> bytes:
    low, high = -(1 << 31), (1 << 32) - 1
    return np.clip(column, low, high).astype(np.int64).astype(np.uint32).astype("<u4").tobytes()


def _texts(history: HistoryColumns, part: Spans) -> tuple[Int64s, list[str]]:
    codes = np.full(len(part), -1, dtype=np.int64)
    texts: list[str] = []
    for at in np.flatnonzero(part.value == TEXT_VALUE)[:MAX_TEXTS].tolist():
        row = int(part.last[at]) if int(part.last[at]) in history.texts else int(part.first[at])
        codes[at] = len(texts)
        texts.append(shorten(str(history.texts.get(row) or "")))
    return codes, texts
