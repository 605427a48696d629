"""Queues as somebody else's tap told of them: a copy that holds the same messages under the same numbers.

Nobody consumes from such a copy; it becomes an ordinary queue when its holder begins to serve.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from nodes.reference.engine.model import PLAIN, Message, Queue
from nodes.reference.engine.state import State
from nodes.reference.engine.trace import COPY, COUNTED, DELETE, RESET, name_of, place_of


class QueueReplicas:
    """Applies what a ``QueueTap`` was told, within ``Broker.transaction``; forget it once queues are served."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._held: dict[str, dict[int, Message]] = {}
        for message in state.messages.values():
            if message.queue.kind == PLAIN:
                self._held.setdefault(message.queue.name, {})[message.sequence] = message

    def forget(self) -> None:
        """The queues are served from now on, by whoever takes messages out of them."""
        self._held.clear()

    def position(self, queue: str) -> int:
        """Number of the last message that the queue was told of; 0 when there is no such queue."""
        held = self._state.queues.get(queue)
        return held.enqueued if held is not None else 0

    def holds(self, queue: str) -> list[int]:
        """The numbers of the messages in a queue, ascending."""
        return sorted(self._held.get(queue, ()))

    def declare(self, name: str) -> Queue:
        """The queue of that name, which is made if it is not there."""
        return self._state.queues.get(name) or self._state.add_queue(name)

    def enqueue(self, name: str, sequence: int, headers: dict[str, str], body: bytes) -> bool:
        """Add a message at the end of a queue; False when the queue's count is beyond it already."""
        queue = self.declare(name)
        if sequence <= queue.enqueued:
            self._passed_over(queue, sequence, headers, body)
            return False
        queue.enqueued = sequence - 1
        self._because(COPY)
        message = self._state.add_message(queue, headers, body)
        self._held.setdefault(name, {})[sequence] = message
        return True

    def dequeue(self, name: str, sequence: int) -> bool:
        """Remove a message; False when it is not there."""
        self._because(COPY)
        return self._remove(name, sequence)

    def _passed_over(self, queue: Queue, sequence: int, headers: dict[str, str], body: bytes) -> None:
        """Tell the trace of a message whose number the queue has counted already, unless it is there."""
        trace = self._state.trace
        if trace is None:
            return
        there, name = self._held.get(queue.name, {}).get(sequence), name_of(headers, body)
        kept = "" if there is None else name_of(*self._state.peek(there))
        if kept != name:
            trace.note("passed", place_of(queue), name, f"{COUNTED} {sequence} {queue.enqueued} {kept}".rstrip())

    def _because(self, reason: str) -> None:
        if self._state.trace is not None:
            self._state.trace.by = reason

    def _remove(self, name: str, sequence: int) -> bool:
        message = self._held.get(name, {}).pop(sequence, None)
        if message is None:
            return False
        queue = message.queue
        if message.redeliveries:
            queue.returned = [entry for entry in queue.returned if entry[1] is not message]
            heapq.heapify(queue.returned)
        else:
            queue.fresh.remove(message)
        queue.depth -= 1
        self._state.remove_message(message)
        return True

    def reset(self, name: str, position: int) -> int:
        """Discard all messages beyond a position, from which the queue counts again; how many that were."""
        queue = self.declare(name)
        self._because(RESET)
        beyond = [sequence for sequence in self._held.get(name, ()) if sequence > position]
        self._dequeue_all(name, beyond)
        queue.enqueued = position
        self._state.queue_table.update(queue.id, queue)
        return len(beyond)

    def delete(self, name: str) -> None:
        """Remove a queue with what is in it, if it is there."""
        queue = self._state.queues.get(name)
        if queue is not None:
            self._because(DELETE)
            self._dequeue_all(name, list(self._held.get(name, ())))
            self._held.pop(name, None)
            self._state.remove_queue(queue)

    def _dequeue_all(self, name: str, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            self._remove(name, sequence)
