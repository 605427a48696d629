"""Independent browsers, one for each queue: LM3 as the document leaves it.

The changes of a transaction to several queues reach the backup queue by queue. Each browser sends its queue's next
events when the backup has answered the previous ones, so that a busy queue lags further than a quiet one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from nodes.reference.designs.qpid.configuration import QUEUE
from nodes.reference.designs.qpid.messages import CREATE, DELETE

Event = list[Any]


class QueueBrowsers:
    """The browsers of one backup, from the time at which it has caught up.

    ``send`` sends one group of events. The backup answers groups in the order in which they were sent; the first
    ``before`` answers belong to groups that others have sent.
    """

    def __init__(self, send: Callable[[list[Event]], None], before: int) -> None:
        self._send, self._before = send, before
        self._queues: dict[str, deque[tuple[int, list[Event]]]] = {}
        """Queue -> its numbered groups; the first is in flight."""
        self._sent: deque[str] = deque()
        self._number = 0

    def tell(self, number: int, events: Sequence[Event]) -> None:
        """Queue events that belong together under this number."""
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
        """Note that the backup has ``groups`` more groups; return the number up to which it has everything."""
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
    """Return the queue of an event; empty for an event of no queue."""
    if event[0] in (CREATE, DELETE):
        return str(event[2]) if event[1] == QUEUE else ""
    return str(event[1])
