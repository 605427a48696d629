"""Events in the logs of reference brokers, and states of a broker and its group that a run reached, read from them.

A test that never met a state says nothing about it. Designs declare their states next to their code. Reading the logs
after the run costs the run nothing, changes nothing in it, and works on every backend.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodes.systems.reference.log_phrases import PRESENT
from stormproof.node_logs import STAMPED

_TEXT = re.compile(r"(?:[A-Z]+ )?(\S.*)")
_FIRST_FIELD = re.compile(r" (?=\w+=)")
_FIELD = re.compile(r'(?<!\w)(\w+)=("(?:[^"\\]|\\.)*"|\S*)')
_MAX_LINE_BYTES = 8 << 10
"""Maximum number of characters of an event that are read: a broker may log anything, and unclosed quotes cost quadratic
time.
"""

BOOT = "started"
"""The event that every broker logs when it is up."""


@dataclass(frozen=True, slots=True)
class EventLine:
    """One event of a node's log; ``time`` is the time of day as text, which sorts; ``row`` is the number of the log's
    line.
    """

    time: str
    node: str
    event: str
    fields: Mapping[str, str]
    row: int


class NodeLogs:
    """The events that all nodes logged, in the order of time (as far as their clocks agree)."""

    def __init__(self, lines: Iterable[EventLine]) -> None:
        self.lines = sorted(lines, key=lambda line: line.time)
        self._by_event: dict[str, list[EventLine]] = {}
        for line in self.lines:
            self._by_event.setdefault(line.event, []).append(line)

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> NodeLogs:
        """Parse the text of each node's log; lines that are not events (a traceback, say) are skipped."""
        return cls(line for node, text in texts.items() for line in events(node, text))

    def of(self, event: str) -> Sequence[EventLine]:
        """Return all lines of one event."""
        return self._by_event.get(event, ())

    def nodes(self) -> list[str]:
        """Return every node that logged something."""
        return list(dict.fromkeys(line.node for line in self.lines))


def events(node: str, text: str) -> Iterator[EventLine]:
    """Yield the events in the text of a node's log, in its order."""
    for row, line in enumerate(text.splitlines()):
        stamped = STAMPED.fullmatch(line)
        told = _TEXT.fullmatch(stamped[3] or "") if stamped else None
        if stamped is None or told is None:
            continue
        event, fields = _event(told[1])
        yield EventLine(stamped[2], node, event, fields, row)


def event_of(text: str) -> EventLine:
    """Parse the event in a line without its time; it has no node."""
    match = _TEXT.fullmatch(text)
    event, fields = _event(match[1]) if match else (text, {})
    return EventLine("", "", event, fields, 0)


def _event(text: str) -> tuple[str, dict[str, str]]:
    event, *rest = _FIRST_FIELD.split(text[:_MAX_LINE_BYTES], maxsplit=1)
    return PRESENT.get(event, event), dict(_fields(rest[0])) if rest else {}


def _fields(text: str) -> Iterator[tuple[str, str]]:
    for name, value in _FIELD.findall(text):
        yield name, _plain(value)


def _plain(value: str) -> str:
    """Return a field's value without its quotes; one that was cut off stays unchanged."""
    if not value.startswith('"'):
        return value
    try:
        return str(json.loads(value))
    except ValueError:
        return value


Count = Callable[[NodeLogs], int]


@dataclass(frozen=True)
class State:
    """A state or transition of interest; ``count`` returns how often a run reached it."""

    name: str
    summary: str
    count: Count


def logged(event: str, **fields: Any) -> Count:
    """Return a count of an event in the logs; ``fields`` are values, or predicates on values."""

    def matches(line: EventLine) -> bool:
        for name, wanted in fields.items():
            value = line.fields.get(name)
            if value is None or not (wanted(value) if callable(wanted) else value == wanted):
                return False
        return True

    return lambda logs: sum(map(matches, logs.of(event)))


def during(begin: str, inner: str, *ends: str) -> Count:
    """Return a count of ``inner`` logged by a node after ``begin`` and before the first of ``ends`` or its restart."""

    def count(logs: NodeLogs) -> int:
        found = 0
        inside: set[str] = set()
        for line in logs.lines:
            if line.event == begin:
                inside.add(line.node)
            elif line.event in ends or line.event == BOOT:
                inside.discard(line.node)
            elif line.event == inner:
                found += line.node in inside
        return found

    return count


def broken_off(begin: str, end: str) -> Count:
    """Return a count of a node that had logged ``begin`` and logged it again, or restarted, without ``end``."""

    def count(logs: NodeLogs) -> int:
        found = 0
        inside: set[str] = set()
        for line in logs.lines:
            if line.event in (begin, BOOT):
                found += line.node in inside
            if line.event == begin:
                inside.add(line.node)
            elif line.event in (end, BOOT):
                inside.discard(line.node)
        return found

    return count


def resumed(elsewhere: bool) -> Count:
    """Return a count of clients resuming their connection; ``elsewhere``: on another node than before."""

    def count(logs: NodeLogs) -> int:
        found = 0
        places: dict[str, str] = {}
        for line in logs.of("client connected"):
            conn = line.fields.get("conn", "")
            before = places.get(conn)
            found += before is not None and (before != line.node) == elsewhere
            places[conn] = line.node
        return found

    return count


def moved(event: str) -> Count:
    """Return a count of a node logging an event that another node had logged last."""
    return lambda logs: sum(before.node != after.node for before, after in itertools.pairwise(logs.of(event)))


def reached(states: Iterable[State], texts: Mapping[str, str]) -> dict[str, int]:
    """Count how often each state was reached, given the text of each node's log."""
    logs = NodeLogs.parse(texts)
    return {state.name: state.count(logs) for state in states}


BROKER_STATES = (
    State("connection-resumed", "a client resumed its connection on the same node", resumed(elsewhere=False)),
    State("connection-taken-over", "a client reconnected before its old connection had ended",
          logged("client ended", reason="the connection was taken over")),
    State("idle-connection-closed", "a detached connection expired and was closed",
          logged("idle connection closed")),
    State("duplicate-discarded", "a repeated command of a client was discarded", logged("duplicate discarded")),
    State("client-silent", "a client without heart-beats was disconnected",
          logged("client ended", reason="no heart-beat from the client")),
)  # fmt: skip
"""States of every design."""
