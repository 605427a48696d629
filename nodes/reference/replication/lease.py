"""The lease of a leader: for how long it may act on its own, after a majority has last heard it.

A follower that hears its leader supports no other for a detection time-out. A leader that stops acting a little earlier
than that, counted from what it *sent* and a majority echoed, never acts beside a newer one (Gray and Cheriton 1989;
Ongaro's dissertation, 6.4.1).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from nodes.reference.replication.quorum import majority


def kth_newest(stamps: Mapping[str, float], now: float, replicas: int) -> float:
    """The newest time by which a majority (the master itself, at ``now``, included) had heard the master.

    ``stamps`` holds, for each peer, when the master sent the newest message that the peer has echoed.
    """
    ordered = sorted([now, *stamps.values()], reverse=True)
    need = majority(replicas)
    return ordered[need - 1] if len(ordered) >= need else float("-inf")


class Lease:
    """What a leader knows of who has heard it: for each peer, when it sent the newest message that the peer echoed."""

    def __init__(self) -> None:
        self._echoes: dict[str, float] = {}
        self._counted: Collection[str] | None = None
        """The group of which it is known when a majority heard the leader, as long as no new echo comes."""
        self._majority_heard = float("-inf")

    def heard(self, peer: str, echo: float) -> bool:
        """The peer had heard what was sent at ``echo``; True if that is newer than what was known."""
        newer = echo > self._echoes.get(peer, float("-inf"))
        if newer:
            self._echoes[peer] = echo
            self._counted = None
        return newer

    def heard_within(self, peer: str, seconds: float, now: float) -> bool:
        """Whether the peer has heard something that was sent less than so many seconds ago."""
        return self._echoes.get(peer, float("-inf")) > now - seconds

    def holds(self, seconds: float, now: float, group: Collection[str], floor: float = float("-inf")) -> bool:
        """Whether a majority of ``group`` heard this leader within so many seconds; ``floor``: as if it had then.

        Asked much more often than anything is heard. A group that has changed has to be another object.
        """
        if group is not self._counted:
            # The leader hears itself at any time: that is in the future of all that peers have echoed.
            echoes = {name: sent for name, sent in self._echoes.items() if name in group}
            self._majority_heard = kth_newest(echoes, float("inf"), len(group))
            self._counted = group
        heard = self._majority_heard
        return (heard if heard > floor else floor) + seconds >= now
