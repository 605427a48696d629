"""When a broker sends heart-beats, however its clock rounds."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from nodes.reference.server.session_timers import SessionTimers


class Clock:
    """The part of an event loop that a timer needs; it is exact where floating-point numbers are."""

    def __init__(self, start: float) -> None:
        self.now = start
        self.due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        self.due.append((self.now + seconds, action))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now, action = self.due.pop(0)
            action()


class Output:
    """What a session sends, with the times."""

    def __init__(self, clock: Clock, waiting: int = 0) -> None:
        self._clock, self._waiting = clock, waiting
        self.last_write = clock.now
        self.is_over = False
        self.times: list[float] = [clock.now]

    def add(self, frame: bytes) -> None:
        assert frame == b"\n"

    def flush(self) -> None:
        self.last_write = self._clock.now
        self.times.append(self._clock.now)

    def waiting(self) -> int:
        return self._waiting


def beating(start: float, interval: float, waiting: int = 0) -> tuple[Clock, Output]:
    clock = Clock(start)
    output = Output(clock, waiting)
    timers: Any = SessionTimers.__new__(SessionTimers)
    vars(timers).update(_loop=clock, _output=output, running={})
    timers.beat(interval)
    return clock, output


@pytest.mark.parametrize("interval", [0.1, 0.3, 1.0, 3.0])
def test_a_beat_is_never_a_whole_interval_late_by_rounding(interval: float) -> None:
    rng = random.Random(5)
    for _ in range(200):
        clock, output = beating(rng.uniform(0, 1e6), interval)
        clock.run(40)
        gaps = [later - earlier for earlier, later in zip(output.times, output.times[1:], strict=False)]
        assert len(gaps) > 30
        assert max(gaps) < 0.8 * interval


def test_what_is_sent_meanwhile_puts_it_off_and_what_waits_is_enough() -> None:
    clock, output = beating(991.0987, 0.4)
    clock.run(1)
    clock.now += 0.2
    output.flush()
    clock.run(1)
    assert output.times[-1] == pytest.approx(clock.now - 0.1), "a beat was due, and something had been sent"
    clock.run(1)
    assert output.times[-1] == clock.now == pytest.approx(output.times[-2] + 0.3)
    clock, output = beating(5.0, 0.4, waiting=7)
    clock.run(20)
    assert output.times == [5.0], "a client that takes nothing is sent nothing more"
    assert clock.now == pytest.approx(5.3 + 19 * 0.1)
