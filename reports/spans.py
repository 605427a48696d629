"""Operations as spans of time: each invocation joined with its completion."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from harness.history.schema import NO_VALUE, PAIR_SHIFT, TEXT_VALUE, decode_pair
from reports.folder import History, Ints

INVOKE_CODE = 0
OPEN_CODE = 4
"""``type`` of a span whose completion is not in the history."""
TYPE_WORDS = ("invoke", "ok", "fail", "info", "open")

PAIR_FUNCTIONS = frozenset({
    "enqueue", "dequeue", "drain", "publish", "receive", "commit", "abort", "move", "finish", "recover", "rollback",
})
"""Functions whose values are (producer, sequence) pairs; producer 0's pairs look like plain integers."""

FUNCTION_ORDER = (
    "enqueue", "publish", "send", "write", "commit", "abort", "move", "finish", "dequeue", "receive", "read", "drain",
    "depth",
)
"""Order, and with it colour, of functions that are known here."""


@dataclass(frozen=True)
class Spans:
    """One entry per client operation, ordered by the time it began.

    ``first`` and ``last`` are positions of its rows in the history (equal when it has one row only);
    times are nanoseconds; ``type`` is the completion's, or ``OPEN_CODE``.
    """

    first: Ints
    last: Ints
    start: Ints
    end: Ints
    process: Ints
    type: Ints
    f: Ints
    key: Ints
    value: Ints
    node: Ints
    error: Ints

    def __len__(self) -> int:
        return len(self.first)

    def take(self, rows: Ints) -> Spans:
        """The spans at these positions."""
        return Spans(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})


def pair_spans(history: History) -> Spans:
    """Join each client's invocation with the completion that follows it in the same process.

    The nemesis is left out. A completion without an invocation (a torn history) stands alone.
    """
    order = np.lexsort((history.index, history.process))
    order = order[history.process[order] >= 0]
    process, kind = history.process[order], history.type[order]
    is_invoke = kind == INVOKE_CODE
    follows = np.zeros(len(order), dtype=bool)  # row is the completion of the row before it
    follows[1:] = (process[1:] == process[:-1]) & is_invoke[:-1] & ~is_invoke[1:]
    first = order[~follows]
    completed = np.append(follows[1:], False)[~follows]
    last = first.copy()
    last[completed] = order[follows]
    value = _prefer(history.value, first, last, NO_VALUE)
    spans = Spans(
        first=first,
        last=last,
        start=history.time[first],
        end=history.time[last],
        process=history.process[first],
        type=np.where(completed | (history.type[first] != INVOKE_CODE), history.type[last], OPEN_CODE),
        f=history.f[first],
        key=_prefer(history.key, first, last, NO_VALUE),
        value=value,
        node=_prefer(history.node, first, last, -1),
        error=history.error[last],
    )
    return spans.take(np.lexsort((spans.first, spans.start)))


def _prefer(column: Ints, first: Ints, last: Ints, none: int) -> Ints:
    """The completion's entry where it has one, otherwise the invocation's."""
    chosen: Ints = np.where(column[last] != none, column[last], column[first])
    return chosen


def client_functions(history: History, spans: Spans) -> list[int]:
    """Codes of the functions that clients called: sends before takes before final readings, then by number."""
    calls = np.bincount(spans.f, minlength=len(history.f_names))
    ranks = {name: rank for rank, name in enumerate(FUNCTION_ORDER)}
    used = [code for code, n in enumerate(calls.tolist()) if n]
    return sorted(
        used,
        key=lambda code: (ranks.get(history.f_names[code], len(ranks)), -calls[code], history.f_names[code]),
    )


def pair_flags(history: History) -> tuple[bool, ...]:
    """Per function, whether its values are pairs: known ones, and those with a value no small integer has."""
    high = np.zeros(len(history.f_names), dtype=np.int64)
    np.maximum.at(high, history.f, history.value)
    return tuple(
        name in PAIR_FUNCTIONS or bool(top >> PAIR_SHIFT > 0) for name, top in zip(history.f_names, high, strict=True)
    )


def value_text(value: int, is_pair: bool, text: str | None) -> str:
    """An encoded value as people write it: ``3/17``, ``5``, the stored text, or nothing."""
    if value == TEXT_VALUE:
        return text if text is not None else "?"
    if value == NO_VALUE:
        return ""
    if is_pair:
        producer, sequence = decode_pair(value)
        return f"{producer}/{sequence}"
    return str(value)


def parse_value(text: str) -> int | None:
    """The encoded value that ``3/17`` or ``17`` names; None for anything else."""
    head, slash, tail = text.partition("/")
    if not (head.isdecimal() and (tail.isdecimal() or not slash)) or len(text) > 21:
        return None
    return int(head) << PAIR_SHIFT | int(tail) if slash else int(head)


def spans_of_rows(spans: Spans, rows: Iterable[int], history: History) -> Ints:
    """Positions of the spans that hold any of these row numbers, without repetition, in order of time."""
    wanted = np.asarray(sorted({row for row in rows if isinstance(row, int)}), dtype=np.int64)
    hit = np.isin(history.index[spans.first], wanted) | np.isin(history.index[spans.last], wanted)
    return np.flatnonzero(hit)


def spans_of_message(spans: Spans, key: int | None, value: int) -> Ints:
    """Positions of the spans that carry this value (of this object, when one is named)."""
    hit = spans.value == value
    if key is not None and key >= 0:
        hit &= spans.key == key
    return np.flatnonzero(hit)
