"""A subscriber that lets deliveries fail, as often as it is told, and takes the event then."""

from __future__ import annotations

from collections.abc import Callable

from nodes.stomp import Frame
from workloads.reference.pushed_events import PushedEvents


class FailingSubscriber:
    """Listens at ``host:port`` for events that replicas push.

    ``failing`` is how many attempts in a row fail, before the next event is acknowledged; None: all do. ``attempts``
    counts those since an event was taken last, ``taken`` are the bodies of those events.
    """

    def __init__(self, host: str, port: int, failing: int | None) -> None:
        self.endpoint = f"{host}:{port}"
        self.failing = failing
        self.attempts = 0
        self.taken: list[bytes] = []
        self._address = host, port
        self._pushed = PushedEvents(self._take)

    async def open(self) -> None:
        """Begin to listen; raises OSError."""
        await self._pushed.open(*self._address)

    def has_taken(self, count: int) -> Callable[[], bool]:
        """Whether it has taken so many events, whenever that is asked."""
        return lambda: len(self.taken) == count

    def close(self) -> None:
        """Listen no longer."""
        self._pushed.close()

    async def _take(self, event: Frame) -> bool:
        self.attempts += 1
        if self.failing is None or self.attempts <= self.failing:
            return False
        self.attempts = 0
        self.taken.append(event.body)
        return True
