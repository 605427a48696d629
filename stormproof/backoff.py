"""Pauses that grow while a system refuses: each attempt waits longer than the one before."""

from __future__ import annotations

import random

SHORTEST, LONGEST = 0.05, 2.0
"""Seconds: the pause after the second consecutive failure, and the longest one."""


class Backoff:
    """The pauses of one client after consecutive failures.

    The first failure causes no pause: most often the next attempt succeeds, at another node. After that each pause is
    twice as long as the one before. Each is shortened by a random part, up to half of it, so clients that failed
    together do not all return together.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._failures = 0

    def failed(self) -> float:
        """Count one more failure. Return the seconds from the failed attempt's beginning to the next attempt."""
        self._failures += 1
        if self._failures == 1:
            return 0.0
        longest: float = min(SHORTEST * 2.0 ** min(self._failures - 2, 30), LONGEST)
        return longest * self._rng.uniform(0.5, 1.0)

    def served(self) -> None:
        """Reset the pauses: the system has answered."""
        self._failures = 0
