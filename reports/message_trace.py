"""The places of each message over time, from the nodes' logs of a traced run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path

from reports.folder import json_lines, mapping, number, sequence
from reports.replica_logs import Extent, LogPart, ReplicaLogEntry, contradiction, entry_of, log_at, logs_of
from stormproof.contracts.system import (
    GIVEN,
    GONE,
    HELD,
    LOGGED,
    PASSED,
    PUT,
    READ,
    STARTED,
    TOLD,
)
from stormproof.run_folder import MESSAGE_TRACE

UNNAMED = "?"
_START_S = 2.0
"""Seconds after a program's start within which it has reported all messages that it holds."""
_CLIPPED, _LOG, _STATE = "clipped", "log", "state"


@dataclass(frozen=True)
class Mark:
    """An event at ``time`` (seconds of the run): a message arrived at a place of a node (``put``), left it (``gone``),
    or another event that a trace reports (``what``)."""

    time: float
    node: str
    what: str
    place: str
    cause: str
    token: str


@dataclass(frozen=True)
class StateShown:
    """A node's report at ``time`` of its whole state up to log entry ``upto``, which it gave to a peer (``given``) or
    took from it; ``parts`` maps each part of the state to a text that identifies its content."""

    time: float
    node: str
    peer: str
    given: bool
    upto: int
    parts: Mapping[str, str]


@dataclass(frozen=True)
class QueueStay:
    """A stay of a message at ``place`` of a node: from ``start`` on, for the reason ``put``; until ``end``, for the
    reason ``gone``, or to the end of the run (``end`` is None). The tokens identify the commands that caused both."""

    node: str
    place: str
    start: float
    put: str
    put_token: str = ""
    end: float | None = None
    gone: str = ""
    gone_token: str = ""

    @property
    def logged(self) -> bool:
        """Return whether the message was only in a log, to be applied later."""
        return self.put == LOGGED

    def holds(self, time: float) -> bool:
        """Return whether the message is there at a time."""
        return self.start <= time and (self.end is None or self.end > time)

    @property
    def entry(self) -> ReplicaLogEntry | None:
        """The log entry that contained the message; None for any other place."""
        return entry_of(self.put_token) if self.logged else None


@dataclass(frozen=True)
class Trace:
    """The reports of all nodes: marks by message in order of time, and restarts by node.

    ``whole``: no part was cut off, and each message has a name; only then is the absence of a report meaningful.
    """

    marks: Mapping[str, tuple[Mark, ...]] = field(default_factory=dict)
    starts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    nodes: frozenset[str] = frozenset()
    whole: bool = False
    logs: Mapping[str, tuple[LogPart, ...]] = field(default_factory=dict)
    """By node the known parts of its log, in order of time."""
    states: tuple[StateShown, ...] = ()
    """The states that were given and taken, in order of time."""
    lines: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """By node the numbers of the log lines that contain these reports."""

    @property
    def exists(self) -> bool:
        """Return whether there is a trace."""
        return bool(self.nodes)

    def stays(self, message: str) -> list[QueueStay]:
        """Return the stays of the message, in order of arrival."""
        by_node: dict[str, list[Mark]] = defaultdict(list)
        for mark in self.marks.get(message, ()):
            by_node[mark.node].append(mark)
        found = [stay for node, marks in by_node.items() for stay in _stays(marks, self.starts.get(node, ()))]
        return sorted(found, key=lambda stay: (stay.start, stay.node))

    def given(self, message: str) -> list[Mark]:
        """Return the marks of the message's deliveries: time, node and connection."""
        return self.of(GIVEN, message)

    def of(self, what: str, message: str) -> list[Mark]:
        """Return the marks of one kind, in order of time."""
        return [mark for mark in self.marks.get(message, ()) if mark.what == what]

    def log_of(self, node: str, time: float) -> list[Extent]:
        """Return the known entries of a node's log at a time, in order of index."""
        return log_at(self.logs.get(node, ()), time)

    @cached_property
    def logs_contradict(self) -> bool:
        """Return whether any two logs ever contradicted each other."""
        shown = [log for parts in self.logs.values() for log in logs_of(parts)]
        return any(contradiction(log, other) is not None for log, other in combinations(shown, 2))

    def unlike(self, node: str) -> list[tuple[StateShown, tuple[str, ...]]]:
        """Return the states that a node took from a peer which had reported another state for the same entry, with the
        names of the parts in which they differ."""
        found = []
        for taken in self.states:
            if taken.node != node or taken.given:
                continue
            given = [each for each in self.states if each.given and (each.node, each.peer, each.upto) == (
                taken.peer, node, taken.upto)]  # fmt: skip
            differing = [tuple(name for name, text in taken.parts.items() if each.parts.get(name) != text)
                         for each in given]  # fmt: skip
            if differing and all(differing):
                found.append((taken, min(differing, key=len)))
        return found

    def names_like(self, message: str) -> bool:
        """Return whether the trace reports other messages of the same producer, so that it would have reported this
        one."""
        producer, slash, _ = message.rpartition("/")
        return bool(slash) and any(name.startswith(f"{producer}/") for name in self.marks)


def read_trace(run_dir: Path) -> Trace:
    """Return the trace of a run; an empty one where no trace can be read."""
    marks: dict[str, list[Mark]] = defaultdict(list)
    starts: dict[str, list[float]] = defaultdict(list)
    nodes: set[str] = set()
    logs: dict[str, list[LogPart]] = defaultdict(list)
    states: list[StateShown] = []
    lines: dict[str, set[int]] = defaultdict(set)
    whole = True
    for row in json_lines(run_dir / MESSAGE_TRACE):
        time, node, what, cause = number(row.get("time")), str(row.get("node")), row.get("what"), str(row.get("cause"))
        if time is None:
            continue
        nodes.add(node)
        lines[node].add(int(number(row.get("line")) or 0))
        index = number(row.get("index"))
        if what == _CLIPPED:
            whole = False
        elif what == _LOG and index is not None:
            logs[node].append(LogPart(time, int(index), str(row.get("epoch") or ""), bool(row.get("emptied"))))
        elif what == _STATE:
            upto, parts = int(number(row.get("upto")) or 0), mapping(row.get("parts"))
            states.append(StateShown(time, node, str(row.get("peer")), bool(row.get("given")), upto,
                                     {str(name): str(text) for name, text in parts.items()}))  # fmt: skip
        elif what == HELD and cause == STARTED:
            starts[node].append(time)
        elif what in (PUT, GONE, GIVEN, READ, TOLD, PASSED):
            mark = Mark(time, node, str(what), str(row.get("place")), cause, str(row.get("token") or ""))
            entry = entry_of(mark.token) if what == PUT and cause == LOGGED else None
            if entry is not None:
                logs[node].append(LogPart(time, *entry))
            for name in sequence(row.get("messages")):
                marks[str(name)].append(mark)
    whole = whole and not marks.pop(UNNAMED, None)
    return Trace({name: tuple(found) for name, found in marks.items()},
                 {node: tuple(sorted(times)) for node, times in starts.items()}, frozenset(nodes), whole,
                 {node: tuple(sorted(parts, key=_time)) for node, parts in logs.items()},
                 tuple(sorted(states, key=_time)),
                 {node: frozenset(numbers) for node, numbers in lines.items()})  # fmt: skip


def _time(part: LogPart | StateShown) -> float:
    return part.time


def _stays(marks: Sequence[Mark], starts: Sequence[float]) -> list[QueueStay]:
    """Return the stays at one node. After a start it reports again all messages that it holds; a message that is not
    reported again was not on disk."""
    open_stays: list[QueueStay] = []
    done: list[QueueStay] = []
    pending = list(starts)
    for mark in [*marks, None]:
        while pending and (mark is None or mark.time >= pending[0]):
            start = pending.pop(0)
            again = Counter(each.place for each in marks if each.what == PUT and each.cause == STARTED
                            and start <= each.time <= start + _START_S)  # fmt: skip
            done += _ended(open_stays, again, start)
        if mark is None:
            break
        if mark.what == PUT and not (mark.cause == STARTED and any(stay.place == mark.place for stay in open_stays)):
            open_stays.append(QueueStay(mark.node, mark.place, mark.time, mark.cause, mark.token))
        elif mark.what == GONE:
            mine = next((stay for stay in open_stays if stay.place == mark.place), None)
            if mine is not None:
                open_stays.remove(mine)
                done.append(replace(mine, end=mark.time, gone=mark.cause, gone_token=mark.token))
    return [*done, *open_stays]


def _ended(open_stays: list[QueueStay], again: Counter[str], start: float) -> Iterable[QueueStay]:
    ended = []
    for stay in list(open_stays):
        if stay.logged:  # log entries are not reported again
            continue
        if again[stay.place]:
            again[stay.place] -= 1
            continue
        open_stays.remove(stay)
        ended.append(replace(stay, end=start, gone=STARTED))
    return ended
