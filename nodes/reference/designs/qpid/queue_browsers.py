"""One browser for each queue, none of which knows of the others: LM3 as the document leaves it.

What a transaction did to several queues reaches the backup queue by queue. Each browser hands over its queue's next
events when the backup has answered the ones before, so that a busy queue is further behind than a quiet one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from nodes.reference.designs.qpid.configuration import QUEUE
from nodes.reference.designs.qpid.messages import CREATE, DELETE

Event = list[Any]


class QueueBrowsers:
    """The browsers of one backup, from the time on when it has caught up with what was there.

    ``send`` hands over one group of events; the backup answers groups in the order in which they were handed over, and
    before these as many as ``before`` that others have sent.
    """

    def __init__(self, send: Callable[[list[Event]], None], before: int) -> None:
        self._send, self._before = send, before
        self._queues: dict[str, deque[tuple[int, list[Event]]]] = {}
        """Queue -> its groups, numbered; the first is under way."""
        self._sent: deque[str] = deque()
        self._number = 0

    def tell(self, number: int, events: Sequence[Event]) -> None:
        """These events belong together, under this number."""
        self._number = number
        parts: dict[str, list[Event]] = {}
        for event in events:
            parts.setdefault(_queue_of(event), []).append(event)
        for queue, part in parts.items():
            waiting = self._queues.setdefault(queue, deque())
            waiting.append((number, part))
            if len(waiting) == 1:
                self._hand_over(queue)

    def answered(self, groups: int) -> int:
        """The backup has so many more groups; the number up to which it has everything that was told here."""
        earlier = min(groups, self._before)
        self._before -= earlier
        for _ in range(min(groups - earlier, len(self._sent))):
            queue = self._sent.popleft()
            waiting = self._queues[queue]
            waiting.popleft()
            if waiting:
                self._hand_over(queue)
            else:
                del self._queues[queue]
        return min((waiting[0][0] - 1 for waiting in self._queues.values()), default=self._number)

    def _hand_over(self, queue: str) -> None:
        self._sent.append(queue)
        self._send(self._queues[queue][0][1])


def _queue_of(event: Event) -> str:
    """The queue that an event is about; empty for what is of no queue."""
    if event[0] in (CREATE, DELETE):
        return str(event[2]) if event[1] == QUEUE else ""
    return str(event[1])
