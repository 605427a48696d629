"""A time-out for a connection on which no data arrives."""

from __future__ import annotations

import asyncio
from typing import Self


class SilenceWatch:
    """A time-out that expires after some seconds without received data.

    It checks the time at intervals: rescheduling the time-out at every read would cost a timer for each.
    """

    def __init__(self, limit: asyncio.Timeout, seconds: float) -> None:
        self._limit, self._seconds = limit, seconds
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        self.heard()
        self._timer = self._loop.call_at(self._last + self._seconds, self._look)
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def heard(self) -> None:
        """Record that data was received now."""
        self._last = self._loop.time()

    def _look(self) -> None:
        due = self._last + self._seconds
        if due <= self._loop.time():
            self._limit.reschedule(due)
        else:
            self._timer = self._loop.call_at(due, self._look)
