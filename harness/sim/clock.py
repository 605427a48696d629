"""A simulated machine's clocks."""

from __future__ import annotations

import random
from datetime import UTC, datetime

from harness.sim.loop import SimLoop

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
"""The time of day at which every simulation begins."""
_EPOCH_SECONDS = EPOCH.timestamp()

DRIFT = 200e-6
"""Greatest difference of a healthy clock's rate from the right one."""


class MachineClock:
    """A monotonic clock, ``offset + simulated time * rate``, and a time of day, which can jump.

    A healthy clock's rate is a little wrong all the same; its time of day is kept right by whoever keeps such things.
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
        """Seconds since 1970, as this machine has it."""
        now = self._loop.now
        return _EPOCH_SECONDS + now + self._wrong + (now - self._wrong_since) * self._gain

    def set(self, offset: float, rate: float) -> None:
        """From now on the time of day is ``offset`` seconds wrong, and both clocks run ``rate`` times too fast."""
        now = self._loop.now
        self._wrong, self._wrong_since, self._gain = offset, now, rate - 1.0
        self.offset += now * (self.rate - self._usual * rate)
        self.rate = self._usual * rate

    def restart(self) -> None:
        """The machine boots: its monotonic clock begins somewhere else."""
        self.offset = self._rng.uniform(10.0, 1e5) - self._loop.now * self.rate
