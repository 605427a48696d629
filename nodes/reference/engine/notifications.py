"""The engine's local queue of notifications (HA Joram, 4.4).

The document's engine owns two queues. The external queue holds the input from the HA channel; here that is the ordered
commands, which a design hands to the engine one at a time. The local queue holds the notifications that agents
(connections, destinations, subscriptions) send to each other while they react. It is drained before the next command is
applied; therefore replicas that agree on the order of the commands agree on every reaction.
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
        """Post a reaction, to run after all earlier ones. A reaction can't refuse: the caller checks first."""
        self._waiting.append((reaction, args))

    def drain(self) -> None:
        """Run all waiting reactions, and those that they post."""
        waiting = self._waiting
        while waiting:
            reaction, args = waiting.popleft()
            reaction(*args)
