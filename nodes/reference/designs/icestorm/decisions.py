"""What a replica decides, as pure functions: majorities, full participation, which database is the most recent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

INACTIVE, ELECTION, REORGANIZATION, NORMAL = "inactive", "election", "reorganization", "normal"
"""The states of a replica."""
EPOCH_STEP = 64
"""Epochs are a round and the id of the coordinator that opened it, so no two coordinators have the same."""


class Stamp(NamedTuple):
    """What is recorded upon each change of the database: the epoch of the group that made it, and a count within it.

    With the option ``stamp=wall-clock`` the time of day (seconds) decides instead; it is 0 otherwise.
    """

    epoch: int
    counter: int
    wall: float = 0.0

    def age(self) -> tuple[float, int, int]:
        """What stamps are compared by: the most recent has the greatest."""
        return (self.wall, self.epoch, self.counter)


def majority(replicas: int) -> int:
    """The fewest replicas that are more than half of all."""
    return replicas // 2 + 1


def next_epoch(newest: int, ident: int) -> int:
    """An epoch of the replica ``ident`` that is newer than ``newest``."""
    return (newest // EPOCH_STEP + 1) * EPOCH_STEP + ident


def round_of(epoch: int) -> int:
    """The round of an epoch, for people."""
    return epoch // EPOCH_STEP


def may_replicate(group: int, replicas: int, max_seen: int, needed: int) -> bool:
    """Whether a group of that size may begin: with every replica, or with ``needed`` when all have been seen before.

    ``max_seen`` is the size of the largest group that any of its members has been in since its process started. While
    it is below the number of replicas, nobody knows whether an absent one holds something more recent.
    """
    return group == replicas or (group >= needed and max_seen >= replicas)


def most_recent(stamps: Mapping[str, Stamp], oldest: bool = False) -> str:
    """Whose database is the most recent (by mistake, the oldest); the first of those that are equally so."""
    return (min if oldest else max)(stamps, key=lambda name: stamps[name].age())


def follows(before: tuple[str, str, str], after: tuple[str, str, str], name: str) -> bool:
    """Whether a replica of that name may go from one (state, coordinator, group) to another.

    As the paper's procedures have it: whoever recovers has a group of its own, which nobody else is in; only a group
    that is formed is left for an election; a group is reorganized, and then formed, whose election it was.
    """
    (former, *was), (state, *now) = before, after
    if state == INACTIVE and now[0] == name and was[1] != now[1]:
        return True
    if state == ELECTION:
        return former in (INACTIVE, NORMAL) and was[1] != now[1]
    return was == now and former == (ELECTION if state == REORGANIZATION else REORGANIZATION)


def merge_delay(ident: int, highest: int, replicas: int, timeout: float) -> float:
    """How long a coordinator waits before it invites others, in seconds.

    The longer the higher the highest priority among them is, so that coordinators that found each other don't all begin
    at once and the highest comes first (Garcia-Molina 1982, invitation algorithm, procedure Check). A ``timeout``
    at least, since the highest looks around no more often.
    """
    return timeout * (1 + (highest - ident) / replicas) if highest > ident else 0.0
