"""A simulated machine's clocks."""

from __future__ import annotations

import random
from datetime import UTC, datetime

from harness.sim.loop import SimLoop

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
"""The time of day at which every simulation begins."""
_EPOCH_SECONDS = EPOCH.timestamp()

DRIFT = 200e-6
"""The largest deviation of a healthy clock's rate from 1."""


class MachineClock:
    """A monotonic clock, ``offset + simulated time * rate``, and a time of day, which can jump.

    A healthy machine's monotonic clock runs at a slightly wrong rate, too; its time of day is exact, as if a time
    service corrected it.
    """

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.offset = rng.uniform(10.0, 1e5)
        self._rng = rng
        self._loop = loop
        self._usual = self.rate = 1.0 + rng.uniform(-DRIFT, DRIFT)
        self._wrong = 0.0
        self._wrong_since = 0.0
        self._gain = 0.0

    def time_of_day(self) -> float:
        """Return the seconds since 1970 by this machine's clock."""
        now = self._loop.now
        return _EPOCH_SECONDS + now + self._wrong + (now - self._wrong_since) * self._gain

    def set(self, offset: float, rate: float) -> None:
        """Make the time of day ``offset`` seconds wrong from now on, and run both clocks at ``rate`` times their usual
        speed."""
        now = self._loop.now
        self._wrong, self._wrong_since, self._gain = offset, now, rate - 1.0
        self.offset += now * (self.rate - self._usual * rate)
        self.rate = self._usual * rate

    def restart(self) -> None:
        """Restart the clock as a boot does: the monotonic clock begins at another value."""
        self.offset = self._rng.uniform(10.0, 1e5) - self._loop.now * self.rate
