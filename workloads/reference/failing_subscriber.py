"""A subscriber that lets a given number of deliveries fail, and takes the event then."""

from __future__ import annotations

from collections.abc import Callable

from nodes.stomp import Frame
from workloads.reference.pushed_events import PushedEvents


class FailingSubscriber:
    """A listener at ``host:port`` for events that replicas push.

    ``failing`` is the number of consecutive attempts that fail before an event is acknowledged; None: all fail.
    ``attempts`` counts the attempts since the last acknowledged event, ``taken`` are the bodies of the acknowledged
    events.
    """

    def __init__(self, host: str, port: int, failing: int | None) -> None:
        self.endpoint = f"{host}:{port}"
        self.failing = failing
        self.attempts = 0
        self.taken: list[bytes] = []
        self._address = host, port
        self._pushed = PushedEvents(self._take)

    async def open(self) -> None:
        """Start to listen; raises OSError."""
        await self._pushed.open(*self._address)

    def has_taken(self, count: int) -> Callable[[], bool]:
        """Return a function that tells whether exactly ``count`` events have been taken."""
        return lambda: len(self.taken) == count

    def close(self) -> None:
        """Stop listening."""
        self._pushed.close()

    async def _take(self, event: Frame) -> bool:
        self.attempts += 1
        if self.failing is None or self.attempts <= self.failing:
            return False
        self.attempts = 0
        self.taken.append(event.body)
        return True
