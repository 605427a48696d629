"""Livelock detection: nodes of a simulated run that send without end, so that simulated time hardly advances.

The loop compares its work with the elapsed time after each portion of work. Once the work is excessive, the loop
records for a while what happens next, so that the report can name the traffic.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from harness.sim.errors import SimulationError
from stormproof.text import size

CHUNK_BITS = 10
"""Work is counted in callbacks; this many sent bytes (as a power of two) count as one more."""
WORK_BETWEEN_CHECKS = 20_000
"""Work between two checks of the time."""
PER_SECOND, PER_SECOND_AND_RATE = 200_000, 200
"""Work allowed in one simulated second: a constant, plus an amount for each operation that clients perform in it.

A run with all faults does about two thousand in a second.
"""
IN_ALL, STEADY = 3_000_000, 30_000
"""Work allowed in a whole run: a constant, plus an amount for each simulated second and for the operations in it."""
LONGEST_SECONDS = 3600.0
"""Seconds by which a run may exceed three times its test's time limit; beyond that, its wait counts as endless."""
LOOKS, MOST_LOOKS = 4.0, 5
"""Detection of endless steps: the seconds of CPU time between two looks, and the number of looks.

A node's step normally takes some milliseconds. A step that lasts for that number of looks is assumed to be endless.
"""
WATCHED_WORK = 20_000
"""Work that is recorded callback by callback."""
_NODES_SHARE = 0.2
_SHOWN = 4
_TEXT = 60


class Livelock(SimulationError):
    """The nodes of a simulated run never finish; ``str`` describes their activity."""


class ActivityRecord:
    """A record of events in a run that does far too much work."""

    def __init__(self) -> None:
        self.links: Counter[tuple[str, str]] = Counter()
        self.sizes: Counter[tuple[str, str]] = Counter()
        self.last: dict[tuple[str, str], bytes] = {}
        self.callbacks: Counter[tuple[str, str]] = Counter()

    def sent(self, link: tuple[str, str], chunk: bytes) -> None:
        """Record a departing chunk of bytes."""
        self.links[link] += 1
        self.sizes[link] += len(chunk)
        self.last[link] = chunk[:_TEXT]

    def ran(self, owner: str, what: str) -> None:
        """Record a callback of a process, or of none."""
        self.callbacks[owner, what] += 1

    def by_nodes(self, harness: str) -> bool:
        """Return whether nodes take part in the activity."""
        nodes = sum(count for (owner, _), count in self.callbacks.items() if owner not in ("", harness))
        return nodes >= _NODES_SHARE * sum(self.callbacks.values())

    def told(self) -> str:
        """Describe the activity in words: the traffic of links, or else the callbacks of processes, by frequency."""
        if self.links:
            return "; ".join(f"{link[0]} -> {link[1]} {count:,} times, {size(self.sizes[link])}, last "
                             f"{self.last[link].decode(errors='replace')!r}"
                             for link, count in self.links.most_common(_SHOWN))  # fmt: skip
        return "; ".join(f"{owner or 'nobody'} runs {what} {count:,} times"
                         for (owner, what), count in self.callbacks.most_common(_SHOWN))  # fmt: skip


class WorkLimit:
    """Limits on a run's work and length.

    ``rate`` is the number of client operations in a second, ``time_limit`` the test's length in seconds.
    """

    def __init__(self, rate: float, time_limit: float = float("inf")) -> None:
        self.longest = 3 * time_limit + LONGEST_SECONDS
        self._burst = PER_SECOND + PER_SECOND_AND_RATE * rate
        self._steady = STEADY + PER_SECOND_AND_RATE * rate
        self._looks: deque[tuple[float, float]] = deque([(0.0, 0.0)])

    def exceeded(self, work: float, now: float) -> bool:
        """Return whether a run that has done ``work`` by ``now`` (simulated seconds) exceeds the limit."""
        self._looks.append((work, now))
        while self._looks[0][1] < now - 1:
            self._looks.popleft()
        return work - self._looks[0][0] > self._burst or work > IN_ALL + self._steady * now


def label(callback: Any) -> str:
    """Return a readable name of a callback: the coroutine of a task's step, or else the callback's name."""
    task: Any = getattr(callback, "__self__", callback)
    coroutine = task.get_coro() if hasattr(task, "get_coro") else None
    return str(getattr(coroutine or callback, "__qualname__", None) or type(callback).__name__)
