"""Operations as spans of time: each invocation joined with its completion."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormproof.history.columns import HistoryColumns, Int64s
from stormproof.history.schema import NO_VALUE, PAIR_SHIFT, TEXT_VALUE, decode_pair
from stormproof.vocabulary import INVOKE, function_named, rank

OPEN_CODE = 4
"""``type`` of a span whose completion is not in the history."""
TYPE_WORDS = ("invoke", "ok", "fail", "info", "open")


@dataclass(frozen=True)
class Spans:
    """One entry per client operation, ordered by the time of its start.

    ``first`` and ``last`` are positions of its rows in the history (equal when it has only one row); times are
    nanoseconds; ``type`` is the completion's, or ``OPEN_CODE``.
    """

    first: Int64s
    last: Int64s
    start: Int64s
    end: Int64s
    process: Int64s
    type: Int64s
    f: Int64s
    key: Int64s
    value: Int64s
    node: Int64s
    error: Int64s

    def __len__(self) -> int:
        return len(self.first)

    def take(self, rows: Int64s) -> Spans:
        """Return the spans at these positions."""
        return Spans(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})


def pair_spans(history: HistoryColumns) -> Spans:
    """Return each client's operations: an invocation with its completion, where it has one.

    The nemesis is omitted. A completion without an invocation (a torn history) is a span by itself.
    """
    alone = history.partner < 0
    first = np.flatnonzero((history.process >= 0) & ((history.kind == INVOKE) | alone))
    last = np.where(alone[first], first, history.partner[first])
    is_open = alone[first] & (history.kind[first] == INVOKE)
    spans = Spans(
        first=first,
        last=last,
        start=history.time[first],
        end=history.time[last],
        process=history.process[first].astype(np.int64),
        type=np.where(is_open, OPEN_CODE, history.kind[last]).astype(np.int64),
        f=history.f.codes[first].astype(np.int64),
        key=_prefer(history.key, first, last, NO_VALUE),
        value=_prefer(history.value, first, last, NO_VALUE),
        node=_prefer(history.node.codes, first, last, -1),
        error=history.error.codes[last].astype(np.int64),
    )
    return spans.take(np.lexsort((spans.first, spans.start)))


def _prefer(column: NDArray[Any], first: Int64s, last: Int64s, none: int) -> Int64s:
    """Return the completion's entry where it has one, otherwise the invocation's."""
    return np.where(column[last] != none, column[last], column[first]).astype(np.int64)


def client_functions(history: HistoryColumns, spans: Spans) -> list[int]:
    """Return the codes of the functions that clients called: sends before takes before final readings, then by
    number."""
    names = history.f.names
    calls = np.bincount(spans.f, minlength=len(names))
    used = [code for code, n in enumerate(calls.tolist()) if n]
    return sorted(used, key=lambda code: (rank(names[code]), -calls[code], names[code]))


def pair_flags(history: HistoryColumns) -> tuple[bool, ...]:
    """Return, per function, whether its values are (producer, sequence) pairs: the vocabulary says so, or one of the
    values is too large for a plain integer. Producer 0's pairs look like plain integers."""
    high = np.zeros(len(history.f.names), dtype=np.int64)
    np.maximum.at(high, history.f.codes, history.value)
    names = zip(history.f.names, high, strict=True)
    return tuple(function_named(name).pair or bool(top >> PAIR_SHIFT > 0) for name, top in names)


def value_text(value: int, is_pair: bool, text: str | None) -> str:
    """Return a readable text of an encoded value: ``3/17``, ``5``, the stored text, or nothing."""
    if value == TEXT_VALUE:
        return text if text is not None else "?"
    if value == NO_VALUE:
        return ""
    if is_pair:
        producer, sequence = decode_pair(value)
        return f"{producer}/{sequence}"
    return str(value)


def parse_value(text: str) -> int | None:
    """Return the encoded value that ``3/17`` or ``17`` names; None for anything else."""
    head, slash, tail = text.partition("/")
    if not (head.isdecimal() and (tail.isdecimal() or not slash)) or len(text) > 21:
        return None
    return int(head) << PAIR_SHIFT | int(tail) if slash else int(head)


def spans_of_rows(spans: Spans, rows: Iterable[int], history: HistoryColumns) -> Int64s:
    """Return the positions of the spans that contain any of these row numbers, without repetition, in order of time."""
    wanted = np.asarray(sorted({row for row in rows if isinstance(row, int)}), dtype=np.int64)
    hit = np.isin(history.index[spans.first], wanted) | np.isin(history.index[spans.last], wanted)
    return np.flatnonzero(hit)


def spans_of_message(spans: Spans, key: int | None, value: int) -> Int64s:
    """Return the positions of the spans with this value (of this object, when one is named)."""
    hit = spans.value == value
    if key is not None and key >= 0:
        hit &= spans.key == key
    return np.flatnonzero(hit)
