"""Logs of replicas, from traces: the epochs of their entries, and contradictions between two logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class ReplicaLogEntry(NamedTuple):
    """One entry of a replicated log; ``epoch`` is the epoch in which its index was assigned."""

    number: int
    epoch: str


@dataclass(frozen=True)
class LogPart:
    """A change of a node's log at ``time``: the log received entry ``index``, of ``epoch``, and ended after it; without
    an epoch the log ended before that index. ``emptied``: the state contains the log's former entries."""

    time: float
    index: int
    epoch: str
    emptied: bool = False


class Extent(NamedTuple):
    """Entries of one epoch that are known to be in a log: the first and the last index."""

    first: int
    last: int
    epoch: str


def log_at(parts: Iterable[LogPart], time: float) -> list[Extent]:
    """Return the known entries of a log at a time, in order of index; ``parts`` are in order of time."""
    found: list[Extent] = []
    for part in parts:
        if part.time > time:
            break
        _add(part, found)
    return found


def logs_of(parts: Iterable[LogPart]) -> list[list[Extent]]:
    """Return the contents of a log during a run: before each removal of entries, and at the end."""
    told: list[list[Extent]] = []
    found: list[Extent] = []
    for part in parts:
        if found and (part.emptied or found[-1].last >= part.index):
            told.append(list(found))
        _add(part, found)
    return [*told, found]


def _add(part: LogPart, log: list[Extent]) -> None:
    """Update the known entries of a log."""
    while log and (part.emptied or log[-1].first >= part.index):
        log.pop()
    if log and log[-1].epoch == part.epoch:
        log[-1] = log[-1]._replace(last=part.index)
        return
    if log:
        log[-1] = log[-1]._replace(last=part.index - 1)
    if part.epoch:
        log.append(Extent(part.index, part.index, part.epoch))


def contradiction(log: Sequence[Extent], other: Sequence[Extent], upto: int | None = None
                  ) -> tuple[Extent, Extent] | None:  # fmt: skip
    """Return the last entries, up to an index if one is given, that two logs have of different epochs although they
    share a later entry; None if there are none. In correct logs a shared entry implies that all entries before it are
    equal, since the leader that opened its epoch placed it after them (Ongaro and Ousterhout, *Log Matching*)."""
    common = max((end for first, end, _ in _overlaps(log, other, True)), default=0)
    ours = [(first, end, epochs) for first, end, epochs in _overlaps(log, other, False)
            if end < common and (upto is None or first <= upto)]  # fmt: skip
    if not ours:
        return None
    first, end, (mine, theirs) = max(ours)
    return Extent(first, end, mine), Extent(first, end, theirs)


def _overlaps(log: Sequence[Extent], other: Sequence[Extent], same: bool
              ) -> Iterator[tuple[int, int, tuple[str, str]]]:  # fmt: skip
    for mine in log:
        for theirs in other:
            first, end = max(mine.first, theirs.first), min(mine.last, theirs.last)
            if first <= end and (mine.epoch == theirs.epoch) == same:
                yield first, end, (mine.epoch, theirs.epoch)


def entry_of(token: str) -> ReplicaLogEntry | None:
    """Return the entry that the token of a mark names."""
    index, _, epoch = token.partition(" ")
    return ReplicaLogEntry(int(index), epoch) if index.isdecimal() and epoch else None
