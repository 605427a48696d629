"""The engine's local queue of notifications (HA Joram, 4.4).

The document's engine owns two queues. The external queue holds what comes from the HA channel; here that is the
ordered commands, which a design hands to the engine one at a time. The local queue holds what agents (connections,
destinations, subscriptions) send to each other while they react. It is emptied before the next command is looked at,
which is why replicas that agree on the order of the commands agree on every reaction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

Reaction = Callable[..., None]


class LocalQueue:
    """Notifications between agents, first in, first out. A notification is the reaction it causes, with arguments."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Reaction, tuple[Any, ...]]] = deque()

    def post(self, reaction: Reaction, *args: Any) -> None:
        """Let an agent react after everything that was posted before. A reaction can't refuse: check first."""
        self._waiting.append((reaction, args))

    def drain(self) -> None:
        """React to all that waits, and to what these reactions post."""
        waiting = self._waiting
        while waiting:
            reaction, args = waiting.popleft()
            reaction(*args)
