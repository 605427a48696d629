"""Who holds the lock: a lease with an epoch, given only to somebody who knows how far the epochs have come.

A server goes on alone with what it has, so it may only do that when nobody else has served since it was up to date. It
asks for the lock with the epoch in which it was: if the gateway's has moved on since, somebody else had it.
"""

from __future__ import annotations

from typing import NamedTuple

from nodes.reference.bugs import STALE_STANDBY_SERVES, TWO_HOLDERS

MARGIN = 1.25
"""The gateway's lease is longer than the holder's by this factor: so much may the rates of their clocks differ."""
ANY = -1
"""As ``low``: whatever the epoch is, as with a plain lock on a file."""


ALONE = -1
"""As ``other``: nobody speaks for the other server."""


class Record(NamedTuple):
    """What the lock file says: the epoch, and who holds it, or held it last (nobody: empty)."""

    epoch: int = 0
    holder: str = ""


class Take(NamedTuple):
    """A request for the lock.

    ``low`` is the epoch in which the asker was up to date. A later one is as good if the asker itself may have been
    granted it without knowing (up to ``own``), or the other server, which has said that it knows nothing of it
    (up to ``other``; ALONE where the asker is not in touch with it). ``new`` is the epoch that the asker proposes.
    """

    low: int
    own: int
    other: int
    new: int


def is_up_to_date(record: Record, name: str, take: Take) -> bool:
    """Whether a server that was up to date in the epoch ``take.low`` still is, as far as the lock's record tells."""
    if take.low in (ANY, record.epoch):
        return True
    if take.low > record.epoch:  # the lock file was lost: two servers that are in touch may begin a new one
        return take.other != ALONE
    return record.epoch <= (take.own if record.holder == name else take.other)


class Grants:
    """The lock. Times are the gateway's monotonic seconds; ``record`` is what the lock file says."""

    def __init__(self, record: Record, lease: float, now: float, bugs: frozenset[str] = frozenset()) -> None:
        self.record = record
        self._bugs = bugs
        self._lease = lease
        # Whoever held it when the gateway went away may still believe so.
        self._until = now + lease * MARGIN
        self._former = ""

    @property
    def last(self) -> Record:
        """The newest epoch, and who was granted it, also where the file that said so is gone."""
        return Record(self.record.epoch, self.record.holder or self._former)

    @property
    def holder_until(self) -> float:
        """Until when the last holder may believe that it holds the lock."""
        return self._until

    def is_taken(self, name: str, now: float) -> bool:
        """Whether somebody other than ``name`` may believe that it holds the lock."""
        return now < self._until and self.record.holder != name and TWO_HOLDERS not in self._bugs

    def fits(self, name: str, take: Take) -> bool:
        """Whether nobody can have served between ``take.low`` and now; and the proposal is an epoch that is new."""
        if take.new <= self.record.epoch:
            return self.record == (take.new, name)  # the answer was lost
        if not self._bugs.isdisjoint((STALE_STANDBY_SERVES, TWO_HOLDERS)):
            return True
        return is_up_to_date(self.last, name, take)

    def grant(self, name: str, epoch: int, now: float) -> None:
        """The lock is that server's from now on; what the file says has been written."""
        self.record = Record(epoch, name)
        self._until = now + self._lease * MARGIN

    def renew(self, name: str, epoch: int, now: float) -> bool:
        """Whether the holder of that epoch still is it; its lease begins anew."""
        if TWO_HOLDERS in self._bugs:
            return True
        if self.record != (epoch, name):
            return False
        self._until = now + self._lease * MARGIN
        return True

    def release(self, name: str, epoch: int, now: float) -> None:
        """The holder has let go: nobody needs to wait for its lease."""
        if self.record == (epoch, name):
            self._until = now

    def lose(self, now: float) -> None:
        """The lock file is gone: nobody holds the lock, but whoever did may believe so for a while."""
        self._former = self.record.holder or self._former
        self.record = Record(self.record.epoch)
        self._until = max(self._until, now + self._lease * MARGIN)
