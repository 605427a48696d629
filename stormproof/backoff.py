"""Pauses that grow while a system refuses: each attempt comes later than the one before."""

from __future__ import annotations

import random

SHORTEST, LONGEST = 0.05, 2.0
"""Seconds: the pause after the second failure in a row, and the longest one."""


class Backoff:
    """The pauses of one client after failures in a row.

    The first failure costs nothing: most often the next attempt succeeds, at another node. After that each pause is
    twice as long as the one before. Each is shortened by a random part, up to half of it, so that clients that failed
    together do not all return together.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._failures = 0

    def failed(self) -> float:
        """Count one more failure. Returns the seconds from its beginning to the next attempt."""
        self._failures += 1
        if self._failures == 1:
            return 0.0
        longest: float = min(SHORTEST * 2.0 ** min(self._failures - 2, 30), LONGEST)
        return longest * self._rng.uniform(0.5, 1.0)

    def served(self) -> None:
        """Begin again: the system answered."""
        self._failures = 0
