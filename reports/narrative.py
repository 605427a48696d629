"""The story of an anomaly's message: its operations and their meaning, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reports.folder import mapping, sequence
from reports.pack import shorten
from reports.spans import (
    OPEN_CODE,
    TYPE_WORDS,
    Spans,
    pair_flags,
    parse_value,
    spans_of_message,
    spans_of_rows,
    value_text,
)
from stormproof.history.columns import HistoryColumns
from stormproof.history.ledger import FaultWindow
from stormproof.text import listed
from stormproof.vocabulary import OBJECT, SENDS, SUBSCRIPTION, TAKES, TOPIC, Verb, function_named

MAX_OPERATIONS = 40
"""Upper bound of the operations shown with one anomaly."""
MAX_ANOMALIES = 50
"""Upper bound of the anomalies shown of one check."""

_SHOWN_ELSEWHERE = frozenset({"faults", "picture"})
"""Details that the story names or the check links to."""


@dataclass(frozen=True)
class ShownOperation:
    """One operation as a row of a table. Times are seconds of the run; ``span`` is its position in the spans.

    ``proof`` means that the check named it; the others carry the same message.
    """

    span: int
    rows: str
    start: float
    end: float | None
    process: int
    node: str
    type: str
    f: str
    key: int
    value: str
    error: str
    faults: tuple[str, ...]
    proof: bool

    @property
    def sends(self) -> bool:
        """Return whether it sends a message to a destination."""
        return self.function.does == SENDS

    @property
    def takes(self) -> bool:
        """Return whether it took a message, or may have."""
        return self.function.does == TAKES and self.type in ("ok", "info")

    @property
    def function(self) -> Verb:
        """The meaning of its function."""
        return function_named(self.f)

    @property
    def latency_ms(self) -> float | None:
        """The time from invocation to completion in milliseconds, None when there is no completion."""
        return None if self.end is None else (self.end - self.start) * 1000


@dataclass(frozen=True)
class ShownAnomaly:
    """One anomaly with its evidence; ``ident`` names it within the page."""

    ident: str
    check: str
    kind: str
    key: int | None
    value: str
    detail: tuple[tuple[str, str], ...]
    operations: tuple[ShownOperation, ...]
    left_off: int
    story: tuple[str, ...]
    noun: str

    @property
    def title(self) -> str:
        """A readable title."""
        if named := dict(self.detail).get(OBJECT):
            return f"{self.kind}: {named}"
        where = f" on {self.noun} {self.key}" if self.key is not None and self.key >= 0 else ""
        where = where or next((f" for subscription {text}" for name, text in self.detail if name == "subscription"), "")
        if self.value:
            return f"{self.kind}: message {self.value}{where}"
        return f"{self.kind}: {self.detail[0][1]}{where}" if self.detail else f"{self.kind}{where}"

    @property
    def window(self) -> tuple[float, float] | None:
        """The time from the first to the last of its operations, in seconds of the run."""
        if not self.operations:
            return None
        times = [op.start for op in self.operations] + [op.end for op in self.operations if op.end is not None]
        return min(times), max(times)


@dataclass(frozen=True)
class Narrator:
    """Turns rows of a history into operations and stories."""

    history: HistoryColumns
    spans: Spans
    faults: Sequence[FaultWindow]
    pairs: tuple[bool, ...]
    noun: str

    @classmethod
    def of(cls, history: HistoryColumns, spans: Spans, faults: Sequence[FaultWindow], noun: str) -> Narrator:
        """Return a narrator for one run; ``noun`` is the kind of object that a key numbers: ``queue``."""
        return cls(history, spans, faults, pair_flags(history), noun)

    def operation(self, at: int, proof: bool) -> ShownOperation:
        """Return the span at this position as a row of a table."""
        spans, history = self.spans, self.history
        first, last = int(spans.first[at]), int(spans.last[at])
        code, f = int(spans.type[at]), int(spans.f[at])
        is_open = code == OPEN_CODE
        start, end = int(spans.start[at]), int(spans.end[at])
        text = history.texts.get(last, history.texts.get(first))
        rows = (int(history.index[first]), int(history.index[last]))
        return ShownOperation(
            span=at,
            rows=str(rows[0]) if rows[0] == rows[1] else f"{rows[0]}, {rows[1]}",
            start=start / 1e9,
            end=None if is_open else end / 1e9,
            process=int(spans.process[at]),
            node=_name(history.node.names, int(spans.node[at])),
            type=TYPE_WORDS[code],
            f=_name(history.f.names, f),
            key=int(spans.key[at]),
            value=shorten(value_text(int(spans.value[at]), self.pairs[f], text)),
            error=shorten(_name(history.error.names, int(spans.error[at]))),
            faults=tuple(fault_name(w) for w in self.faults if _during(w, start, end)),
            proof=proof,
        )

    def anomaly(self, ident: str, check: str, data: Mapping[str, Any]) -> ShownAnomaly:
        """Return one entry of a check's anomalies, with its operations and those of the same message."""
        key = data.get("key") if isinstance(data.get("key"), int) else None
        value = str(data.get("value") if data.get("value") is not None else "")
        proof = spans_of_rows(self.spans, sequence(data.get("ops")), self.history)
        encoded = parse_value(value)
        same = np.empty(0, np.int64) if encoded is None else spans_of_message(self.spans, key, encoded)
        together = np.union1d(proof, same)
        shown = together if len(together) <= MAX_OPERATIONS else proof[:MAX_OPERATIONS]
        named = set(proof.tolist())
        operations = tuple(self.operation(int(at), int(at) in named) for at in shown)
        return ShownAnomaly(
            ident=ident,
            check=check,
            kind=str(data.get("kind") or check),
            key=key,
            value=shorten(value),
            detail=flat(
                {k: v for k, v in mapping(data.get("detail")).items() if k not in _SHOWN_ELSEWHERE}
            ),
            operations=operations,
            left_off=len(together) - len(shown),
            story=tuple(narrate(operations, encoded is not None, value)),
            noun=self.noun,
        )


def narrate(operations: Iterable[ShownOperation], is_message: bool, about: str = "") -> list[str]:
    """Return sentences about a message's operations, in order of time; a sentence about another message than ``about``
    names that message."""
    told = list(operations)
    sentences = [_sentence(op, f" message {op.value}" if about and op.value != about else "") for op in told]
    sends = any(op.sends for op in told)
    taken = any(op.takes for op in told)
    if is_message and sends and not taken:
        sentences.append("No operation of this run delivered it.")
    if is_message and taken and not sends:
        sentences.append("No operation of this run sent it.")
    return sentences


def _sentence(op: ShownOperation, which: str) -> str:
    where = f"process {op.process}" + (f" through {op.node}" if op.node else "")
    during = f", during {' and '.join(op.faults)}" if op.faults else ""
    reason = f" ({op.error})" if op.error else ""
    after = f" after {op.latency_ms:,.1f} ms" if op.latency_ms is not None else ""
    if op.sends:
        outcome = {
            "ok": "it was aborted, as intended" if op.f == "abort" else f"the receipt came{after}",
            "info": f"no receipt came{reason}: it may or may not have been accepted",
            "fail": f"it had no effect{reason}" if op.function.transaction else f"it was refused{reason}",
        }.get(op.type, "its outcome is not in the history")
        return f"{op.start:.3f} s: {_sent(op, which)} by {where}{during}; {outcome}."
    if op.takes and op.end is not None:
        outcome = "the receipt of its ACK came" if op.type == "ok" else f"its ACK was never confirmed{reason}"
        how = " in the final drain" if op.function.final else ""
        of = f" for subscription {op.key}" if op.function.noun == SUBSCRIPTION else ""
        return f"{op.end:.3f} s: delivered{which} to {where}{of}{how}{during}; {outcome}."
    what = op.function.sentence.format(key=op.key, value=op.value) or op.f
    return f"{op.start:.3f} s: {what} by {where}{during}: {op.type}{reason}."


def _sent(op: ShownOperation, which: str) -> str:
    """Return the action of a sending operation, without its outcome."""
    if op.function.noun == TOPIC:
        return f"published{which} to topic {op.key}"
    if op.function.moves:
        return f"moved{which} from queue {op.key} to queue {op.key + 1} in one transaction"
    if op.function.transaction:
        queues = [str(queue) for queue in range(op.key.bit_length()) if op.key >> queue & 1]
        return f"sent{which} to queues {listed(queues)} in one transaction"
    return f"sent{which}"


def flat(data: Mapping[str, Any], prefix: str = "") -> tuple[tuple[str, str], ...]:
    """Return a nested mapping as (name, text) pairs: innermost mappings in one text, the names above joined by
    slashes."""
    pairs: list[tuple[str, str]] = []
    for name, value in data.items():
        label = f"{prefix}{name}".replace("_", " ")
        if isinstance(value, Mapping) and not any(isinstance(v, Mapping) for v in value.values()):
            mark = "; " if any(isinstance(v, list | tuple) for v in value.values()) else ", "
            pairs.append((label, shorten(mark.join(f"{k} {_item(v)}" for k, v in value.items())) or "—"))
        elif isinstance(value, Mapping):
            pairs.extend(flat(value, f"{label} / "))
        else:
            pairs.append((label, shorten(_item(value))))
    return tuple(pairs)


def _item(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    return str(value) if type(value) is int else plain(value)  # no thousands separators: it may be a process id


def plain(value: Any) -> str:
    """Return a readable value: no quotes, thousands separated, yes and no."""
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def fault_name(fault: FaultWindow) -> str:
    """Return the readable name of this fault: ``partition master #2``."""
    return f"{fault.fault} {fault.kind} #{fault.id}" if fault.kind else f"{fault.fault} #{fault.id}"


def _during(fault: FaultWindow, start: int, end: int) -> bool:
    return fault.start <= end and (fault.end is None or fault.end >= start)


def _name(names: Sequence[str], code: int) -> str:
    return names[code] if code >= 0 else ""
