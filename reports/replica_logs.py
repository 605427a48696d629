"""Logs of replicas, as traces tell: of which epoch their entries are, and whether two logs contradict each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Entry(NamedTuple):
    """One entry of a replicated log; ``epoch`` is that in which it was given its place."""

    number: int
    epoch: str


@dataclass(frozen=True)
class LogPart:
    """At ``time`` the log of a node was given its entry ``index``, of ``epoch``, behind which it ended then; without an
    epoch it ended before that. ``emptied``: what it held is contained in the state."""

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
    """What is known of a log at a time, in order of index; ``parts`` in order of time."""
    found: list[Extent] = []
    for part in parts:
        if part.time > time:
            break
        _add(part, found)
    return found


def logs_of(parts: Iterable[LogPart]) -> list[list[Extent]]:
    """What was in a log in the course of a run: each time before entries were removed, and at last."""
    told: list[list[Extent]] = []
    found: list[Extent] = []
    for part in parts:
        if found and (part.emptied or found[-1].last >= part.index):
            told.append(list(found))
        _add(part, found)
    return [*told, found]


def _add(part: LogPart, log: list[Extent]) -> None:
    """Bring what is known of a log up to date."""
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
    """The last entries, up to an index if one is given, that two logs have of different epochs although they have a
    later one in common: in sound logs one that is common makes all before it equal, since whoever opened its epoch
    placed it behind them (Ongaro and Ousterhout, *Log Matching*). None if there are none."""
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


def entry_of(token: str) -> Entry | None:
    """The entry that the token of a mark names."""
    index, _, epoch = token.partition(" ")
    return Entry(int(index), epoch) if index.isdecimal() and epoch else None
