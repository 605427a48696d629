"""The lives of a run's messages, in the form in which its page holds them: as text for the messages of anomalies, and
as marks of the trace for all, so that any message can be found."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reports.message_life import LifeEvent, death_of, life_of
from reports.narrative import Narrator, ShownAnomaly, ShownOperation
from reports.run_facts import Facts
from reports.spans import parse_value
from stormproof.contracts.system import GONE, PUT

MAX_MARKS = 300_000
"""Upper bound of the trace marks that a page holds: about three bytes each."""
_TICKS = 1e4
"""Ticks in a second: columns of 32 bits then hold more than a day."""


@dataclass
class Lives:
    """``told``: message -> its events. Without a narrator the run has no history from which to take them."""

    facts: Facts
    narrator: Narrator | None
    told: dict[str, list[LifeEvent]] = field(default_factory=dict)
    _all: list[ShownOperation] | None = None

    def operations(self) -> Sequence[ShownOperation]:
        """Return all client operations of the run; they are read once, at the first call."""
        if self._all is None:
            count = len(self.narrator.spans) if self.narrator is not None else 0
            self._all = [self.narrator.operation(at, False) for at in range(count)] if self.narrator is not None else []
        return self._all

    def tell(self, anomalies: Sequence[ShownAnomaly]) -> None:
        """Compose the life of each anomaly's message, once."""
        for anomaly in anomalies:
            if parse_value(anomaly.value) is not None and anomaly.value not in self.told:
                events = life_of(anomaly.value, anomaly.operations, self.facts)
                if events:
                    self.told[anomaly.value] = events

    def death(self, anomaly: ShownAnomaly) -> float | None:
        """Return the time at which the last node lost an anomaly's message; None where the trace does not show it."""
        return death_of(self.facts.trace.stays(anomaly.value)) if anomaly.value in self.told else None

    def deaths(self) -> list[float]:
        """Return the times of all composed lives at which a message was lost."""
        found = (death_of(self.facts.trace.stays(message)) for message in self.told)
        return sorted({time for time in found if time is not None})

    def data(self) -> dict[str, Any]:
        """Return the lives for the page's script: message -> [seconds, kind, source, targets, text]."""
        return {message: [[round(e.time, 6), e.kind, e.source, list(e.targets), e.text] for e in events]
                for message, events in self.told.items()}  # fmt: skip

    def trace_data(self) -> dict[str, Any] | None:
        """Return the trace for the page's script: all marks as compressed 32-bit columns, with the names that they
        number; messages beyond the limit are omitted, and ``left_off`` counts them."""
        trace = self.facts.trace
        if not trace.exists:
            return None
        names = {"messages": {}, "nodes": {}, "places": {}, "causes": {}}  # type: dict[str, dict[str, int]]
        rows: list[tuple[int, int, int, int, int, int]] = []
        left_off = 0
        for message, told in trace.marks.items():
            marks = [mark for mark in told if mark.what in (PUT, GONE)]
            if len(rows) + len(marks) > MAX_MARKS:
                left_off += 1
                continue
            for mark in marks:
                rows.append((
                    _number(names["messages"], message), round(mark.time * _TICKS), _number(names["nodes"], mark.node),
                    int(mark.what == PUT), _number(names["places"], mark.place), _number(names["causes"], mark.cause),
                ))  # fmt: skip
        table = np.asarray(rows, dtype="<i4").reshape(len(rows), 6).T
        table[1, 1:] -= table[1, :-1].copy()  # differences of times compress better
        return {
            **{name: list(found) for name, found in names.items()}, "count": len(rows), "left_off": left_off,
            "columns": ["message", "time", "node", "put", "place", "cause"],
            "block": base64.b64encode(zlib.compress(np.ascontiguousarray(table).tobytes(), 9)).decode(),
            "starts": {node: list(times) for node, times in trace.starts.items()},
        }  # fmt: skip


def _number(table: dict[str, int], name: str) -> int:
    return table.setdefault(name, len(table))
