"""A replica's decisions as pure functions: majorities, full participation, the choice of the most recent database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

INACTIVE, ELECTION, REORGANIZATION, NORMAL = "inactive", "election", "reorganization", "normal"
"""The states of a replica."""
EPOCH_STEP = 64
"""An epoch is a round combined with the id of the coordinator that opened it, so no two coordinators share an epoch."""


class Stamp(NamedTuple):
    """The stamp recorded with each change of the database: the epoch of the group that made it, and a count within it.

    With the option ``stamp=wall-clock`` the time of day (seconds) decides instead; it is 0 otherwise.
    """

    epoch: int
    counter: int
    wall: float = 0.0

    def age(self) -> tuple[float, int, int]:
        """Return the sort key of a stamp: the most recent stamp has the greatest key."""
        return (self.wall, self.epoch, self.counter)


def majority(replicas: int) -> int:
    """Return the smallest majority of this number of replicas."""
    return replicas // 2 + 1


def next_epoch(newest: int, ident: int) -> int:
    """Return an epoch of the replica ``ident`` that is newer than ``newest``."""
    return (newest // EPOCH_STEP + 1) * EPOCH_STEP + ident


def round_of(epoch: int) -> int:
    """Return the round of an epoch, for display."""
    return epoch // EPOCH_STEP


def may_replicate(group: int, replicas: int, max_seen: int, needed: int) -> bool:
    """Tell whether a group of that size may begin: with every replica, or with ``needed`` if all have been seen before.

    ``max_seen`` is the size of the largest group that any of its members has been in since its process started. While
    it is below the number of replicas, an absent replica may hold a more recent database.
    """
    return group == replicas or (group >= needed and max_seen >= replicas)


def most_recent(stamps: Mapping[str, Stamp]) -> str:
    """Return the replica with the most recent database; of equal ones, the first."""
    return max(stamps, key=lambda name: stamps[name].age())


def follows(before: tuple[str, str, str], after: tuple[str, str, str], name: str) -> bool:
    """Tell whether a replica of that name may go from one (state, coordinator, group) to another.

    The paper's procedures allow three kinds of steps. A recovering replica forms a new group of which it is the only
    member. A replica leaves a group for an election only if that group is formed. A group is reorganized, and then
    formed, only after its own election.
    """
    (former, *was), (state, *now) = before, after
    if state == INACTIVE and now[0] == name and was[1] != now[1]:
        return True
    if state == ELECTION:
        return former in (INACTIVE, NORMAL) and was[1] != now[1]
    return was == now and former == (ELECTION if state == REORGANIZATION else REORGANIZATION)


def merge_delay(ident: int, highest: int, replicas: int, timeout: float) -> float:
    """Return the seconds that a coordinator waits before it invites others.

    The delay grows with the highest priority among them, so that coordinators that found each other don't all begin at
    once and the highest is the first (Garcia-Molina 1982, invitation algorithm, procedure Check). It is at least one
    ``timeout``, since the highest checks for others only at that interval.
    """
    return timeout * (1 + (highest - ident) / replicas) if highest > ident else 0.0
