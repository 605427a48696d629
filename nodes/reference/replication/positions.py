"""The extent of a replica's log, and the way to bring it up to date."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class LogId(NamedTuple):
    """The place of an entry, and so the completeness of a log that ends there: greater is more complete."""

    epoch: int
    idx: int


NOTHING = LogId(0, 0)


class Position(NamedTuple):
    """The last entry of a replica's log, and the last one applied."""

    last: LogId
    applied: LogId


class Feed(NamedTuple):
    """The way to bring a replica up to date: entries from ``start``, after the whole state if ``state``."""

    start: int
    state: bool


def plan_feed(position: Position, epoch_at: Callable[[int], int | None]) -> Feed:
    """Return how a source feeds a replica that is at ``position``.

    Args:
        epoch_at: epoch of the source's entry at an index; None where it has no entry or dropped it.
    """
    for point in (position.last, position.applied):
        if epoch_at(point.idx) == point.epoch:
            return Feed(point.idx + 1, state=False)
    return Feed(0, state=True)
