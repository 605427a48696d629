"""The state of the lock: a lease with an epoch, granted only to a server that is up to date.

A server that holds the lock continues alone with its own repository. It may do so only if no other server has served
since that repository was up to date. Its request for the lock therefore names the epoch in which it was up to date: if
the gateway's epoch has grown since, another server held the lock.
"""

from __future__ import annotations

from typing import NamedTuple

MARGIN = 1.25
"""The gateway's lease exceeds the holder's by this factor, which is the tolerated difference in their clocks' rates."""
ANY = -1
"""A value of ``low``: accept any epoch, as with a plain lock on a file."""


ALONE = -1
"""A value of ``other``: the other server gives no information."""


class LockRecord(NamedTuple):
    """The content of the lock file: the epoch, and its present or last holder (empty: none)."""

    epoch: int = 0
    holder: str = ""


class Take(NamedTuple):
    """A request for the lock.

    ``low`` is the epoch in which the requester was up to date. A later epoch is acceptable in two cases. The requester
    itself may have been granted it without learning of it (up to ``own``). Or the other server was granted it, but has
    said that it does not know of it (up to ``other``; ALONE if the requester is not in touch with that server). ``new``
    is the epoch that the requester proposes.
    """

    low: int
    own: int
    other: int
    new: int


def is_up_to_date(record: LockRecord, name: str, take: Take) -> bool:
    """Tell whether a server that was up to date in epoch ``take.low`` still is, according to the lock's record."""
    if take.low in (ANY, record.epoch):
        return True
    if take.low > record.epoch:  # the lock file was lost: two servers that are in touch may begin a new one
        return take.other != ALONE
    return record.epoch <= (take.own if record.holder == name else take.other)


class Grants:
    """The lock. Times are the gateway's monotonic seconds; ``record`` mirrors the lock file."""

    def __init__(self, record: LockRecord, lease: float, now: float) -> None:
        self.record = record
        self._lease = lease
        # The holder from before the gateway's restart may still believe that it holds the lock.
        self.holder_until = now + lease * MARGIN
        """The time until which the last holder may believe that it holds the lock."""
        self._former = ""

    @property
    def last(self) -> LockRecord:
        """The newest epoch and its holder, even if the file that recorded them is gone."""
        return LockRecord(self.record.epoch, self.record.holder or self._former)

    def is_taken(self, name: str, now: float) -> bool:
        """Tell whether a server other than ``name`` may believe that it holds the lock."""
        return now < self.holder_until and self.record.holder != name

    def fits(self, name: str, take: Take) -> bool:
        """Tell whether no other server can have served between ``take.low`` and now, and the proposed epoch is new."""
        if take.new <= self.record.epoch:
            return self.record == (take.new, name)  # the answer was lost
        return is_up_to_date(self.last, name, take)

    def grant(self, name: str, epoch: int, now: float) -> None:
        """Give the lock to this server from now on; the caller has already written it to the file."""
        self.record = LockRecord(epoch, name)
        self.holder_until = now + self._lease * MARGIN

    def renew(self, name: str, epoch: int, now: float) -> bool:
        """Renew the lease if this server still holds the lock in this epoch; return whether it does."""
        if self.record != (epoch, name):
            return False
        self.holder_until = now + self._lease * MARGIN
        return True

    def release(self, name: str, epoch: int, now: float) -> None:
        """Release the holder's lock, so that other servers need not wait until its lease ends."""
        if self.record == (epoch, name):
            self.holder_until = now

    def lose(self, now: float) -> None:
        """Drop the holder because the lock file is gone; it may believe for a while that it still holds the lock."""
        self._former = self.record.holder or self._former
        self.record = LockRecord(self.record.epoch)
        self.holder_until = max(self.holder_until, now + self._lease * MARGIN)
