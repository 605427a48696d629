"""The timers of one session: heart-beats that it sends, and the silence of its client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nodes import stomp
from nodes.reference.server.flow import Flow
from nodes.reference.server.output_buffer import OutputBuffer

_CLOCK_STEP_SECONDS = 0.001
"""Time by which a timer may end too early: sums of floating-point numbers are rounded, and so are clocks."""


class SessionTimers:
    """Named timers of a session."""

    def __init__(self, output: OutputBuffer, flow: Flow) -> None:
        self._output, self._flow = output, flow
        self._loop = asyncio.get_running_loop()
        self.running: dict[str, asyncio.TimerHandle] = {}

    def start(self, name: str, seconds: float, action: Callable[[], None]) -> None:
        """Call ``action`` after that time."""
        self.running[name] = self._loop.call_later(seconds, action)

    def stop(self, name: str) -> None:
        """Stop one timer, for good."""
        self.running.pop(name).cancel()

    def stop_all(self) -> None:
        """Stop all timers, because the session is over."""
        for timer in self.running.values():
            timer.cancel()

    def beat(self, interval: float) -> None:
        """Send a heart-beat when nothing else was sent for most of the interval."""
        left = self._output.last_write + interval * 0.75 - self._loop.time()
        if left <= _CLOCK_STEP_SECONDS:
            # Waiting output is sent to the client as soon as it takes it.
            if not self._output.is_over and self._output.waiting() == 0:
                self._output.add(stomp.EOL)
                self._output.flush()
                left = interval * 0.75
            else:
                left = interval * 0.25
        self.start("beat", left, lambda: self.beat(interval))

    def listen(self, name: str, interval: float, most: int, silent: Callable[[], None]) -> None:
        """Call ``silent`` after ``most`` intervals in which nothing was read.

        Intervals are counted instead of time, because this process may have been stopped: input that arrived in the
        meantime is read before the next count. Counting starts at the last read.
        """

        def count(heard: float, missed: int) -> None:
            wait = interval
            if self._flow.last_read != heard or not self._flow.reading:
                heard, missed = self._flow.last_read, 0
                late = self._loop.time() - heard
                wait -= late if late < interval else 0.0
            elif missed + 1 == most:
                silent()
                return
            else:
                missed += 1
            self.start(name, wait, lambda: count(heard, missed))

        count(0.0, 0)
