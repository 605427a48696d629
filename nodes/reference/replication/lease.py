"""The lease of a leader: the time for which it may act alone after a majority has last heard it.

A follower that hears its leader supports no other leader for a detection time-out. A leader that stops acting a little
earlier than that, counted from the time when it *sent* a message that a majority echoed, never acts at the same time as
a newer one (Gray and Cheriton 1989; Ongaro's dissertation, 6.4.1).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from nodes.reference.replication.quorum import majority


def kth_newest(stamps: Mapping[str, float], now: float, replicas: int) -> float:
    """Return the newest time by which a majority (including the master itself, at ``now``) had heard the master.

    ``stamps`` holds, for each peer, the time when the master sent the newest message that the peer has echoed.
    """
    ordered = sorted([now, *stamps.values()], reverse=True)
    need = majority(replicas)
    return ordered[need - 1] if len(ordered) >= need else float("-inf")


class Lease:
    """A leader's record of its followers' echoes: for each peer, the time when it sent the newest echoed message."""

    def __init__(self) -> None:
        self._echoes: dict[str, float] = {}
        self._counted: Collection[str] | None = None
        """The group for which ``_majority_heard`` is valid, until a new echo arrives."""
        self._majority_heard = float("-inf")

    def heard(self, peer: str, echo: float) -> bool:
        """Record that the peer had heard a message sent at ``echo``; return True if that is newer than the last
        record."""
        newer = echo > self._echoes.get(peer, float("-inf"))
        if newer:
            self._echoes[peer] = echo
            self._counted = None
        return newer

    def heard_within(self, peer: str, seconds: float, now: float) -> bool:
        """Return whether the peer has heard a message that was sent less than this number of seconds ago."""
        return self._echoes.get(peer, float("-inf")) > now - seconds

    def holds(self, seconds: float, now: float, group: Collection[str], floor: float = float("-inf")) -> bool:
        """Return whether a majority of ``group`` heard this leader within the last ``seconds``.

        ``floor`` is a time at which a majority counts as having heard it. The method is called much more often than
        echoes arrive, so its result is cached by the identity of ``group``: a changed group has to be another object.
        """
        if group is not self._counted:
            # The leader always hears itself, which counts as later than all that peers have echoed.
            echoes = {name: sent for name, sent in self._echoes.items() if name in group}
            self._majority_heard = kth_newest(echoes, float("inf"), len(group))
            self._counted = group
        heard = self._majority_heard
        return (heard if heard > floor else floor) + seconds >= now
