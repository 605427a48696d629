"""Whether a simulated run goes on for ever: nodes that send to and fro so much that its time hardly moves.

A loop tells after each portion of work; when it was too much for the time that has passed, what happens next is watched
for a while, so that it can be told what went to and fro.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from harness.sim.errors import SimulationError
from stormproof.text import size

CHUNK_BITS = 10
"""Work is counted in callbacks; so many bytes (as a power of two) that are sent count as one more."""
PORTION = 20_000
"""Work between two looks at the time."""
PER_SECOND, PER_SECOND_AND_RATE = 200_000, 200
"""Work that one simulated second may have: so much, and so much for each operation that clients do in it. A run with
all faults has about two thousand in a second."""
IN_ALL, STEADY = 3_000_000, 30_000
"""Work that a whole run may have: so much, and so much (with that for operations) for each simulated second."""
LONGEST = 3600.0
"""Seconds by which a run may outlast three times its test's time limit: whatever it waits for does not come."""
LOOKS, MOST_LOOKS = 4.0, 5
"""Seconds of computing between two looks whether a run goes on, and looks after which a step of a node, which takes
some thousandths of a second, is taken for one without end."""
WATCHED = 20_000
"""Work that is looked at callback by callback."""
_NODES_SHARE = 0.2
_SHOWN = 4
_TEXT = 60


class Livelock(SimulationError):
    """The nodes of a simulated run are never done: ``str`` says what they do."""


class Watch:
    """What happens in a run that does far too much."""

    def __init__(self) -> None:
        self.links: Counter[tuple[str, str]] = Counter()
        self.sizes: Counter[tuple[str, str]] = Counter()
        self.last: dict[tuple[str, str], bytes] = {}
        self.callbacks: Counter[tuple[str, str]] = Counter()

    def sent(self, link: tuple[str, str], chunk: bytes) -> None:
        """A chunk of bytes departs."""
        self.links[link] += 1
        self.sizes[link] += len(chunk)
        self.last[link] = chunk[:_TEXT]

    def ran(self, owner: str, what: str) -> None:
        """A callback of a process (or of nobody) runs."""
        self.callbacks[owner, what] += 1

    def by_nodes(self, harness: str) -> bool:
        """Whether nodes have a part in it."""
        nodes = sum(count for (owner, _), count in self.callbacks.items() if owner not in ("", harness))
        return nodes >= _NODES_SHARE * sum(self.callbacks.values())

    def told(self) -> str:
        """In words: what went to and fro, or who runs what, the most frequent first."""
        if self.links:
            return "; ".join(f"{link[0]} -> {link[1]} {count:,} times, {size(self.sizes[link])}, last "
                             f"{self.last[link].decode(errors='replace')!r}"
                             for link, count in self.links.most_common(_SHOWN))  # fmt: skip
        return "; ".join(f"{owner or 'nobody'} runs {what} {count:,} times"
                         for (owner, what), count in self.callbacks.most_common(_SHOWN))  # fmt: skip


class Limit:
    """How much a run may do, and how long it may last. ``rate`` is how many operations clients do in a second,
    ``time_limit`` for how many seconds."""

    def __init__(self, rate: float, time_limit: float = float("inf")) -> None:
        self.longest = 3 * time_limit + LONGEST
        self._burst = PER_SECOND + PER_SECOND_AND_RATE * rate
        self._steady = STEADY + PER_SECOND_AND_RATE * rate
        self._looks: deque[tuple[float, float]] = deque([(0.0, 0.0)])

    def exceeded(self, work: float, now: float) -> bool:
        """Whether a run is beyond it that has done so much by ``now`` (simulated seconds)."""
        self._looks.append((work, now))
        while self._looks[0][1] < now - 1:
            self._looks.popleft()
        return work - self._looks[0][0] > self._burst or work > IN_ALL + self._steady * now


def label(callback: Any) -> str:
    """A callback as a person knows it: the coroutine of a task's step, else its name."""
    task: Any = getattr(callback, "__self__", callback)
    coroutine = task.get_coro() if hasattr(task, "get_coro") else None
    return str(getattr(coroutine or callback, "__qualname__", None) or type(callback).__name__)
