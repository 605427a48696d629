"""The resource that a lock guards: a counter that its holder reads, works on, and writes back.

It is independent of the brokers and never fails, so each lost update proves that two clients held the lock. It can
fence off former holders: it refuses a token that is older than one that it has seen (Kleppmann, *How to do distributed
locking*, 2016; the generation numbers of Burrows' Chubby, 2006).
"""

from __future__ import annotations

FENCED = "the token is older than one that was seen"
"""The error of an update that the guarded resource has refused."""


class Fenced(Exception):
    """The token is too old: nothing was read or written."""


class Guarded:
    """A counter with blind writes; ``writes`` counts them. Any integer is a token; None means no token."""

    def __init__(self) -> None:
        self._count = 0
        self._newest: int | None = None
        self.writes = 0

    def read(self, token: int | None = None) -> int:
        """Return the counter; later accesses with older tokens are refused.

        Raises:
            Fenced: the token is older than one that was seen.
        """
        self._demand(token)
        return self._count

    def write(self, count: int, token: int | None = None) -> int:
        """Set the counter; return the number of writes so far.

        Raises:
            Fenced: as for ``read``.
        """
        self._demand(token)
        self._count = count
        self.writes += 1
        return self.writes

    def _demand(self, token: int | None) -> None:
        if token is None:
            return
        if self._newest is not None and token < self._newest:
            raise Fenced(FENCED)
        self._newest = token
