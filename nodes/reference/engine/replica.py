"""Copies of another broker's queues, kept from its tap's events: the same messages under the same numbers.

A copy has no consumers; it becomes an ordinary queue when its holder begins to serve.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from nodes.reference.engine.model import PLAIN, Message, Queue
from nodes.reference.engine.state import EngineState
from nodes.reference.engine.trace import COPY, COUNTED, DELETE, RESET, name_of, place_of


class QueueReplicas:
    """Applies the events of a ``QueueTap``, within ``Broker.transaction``; must be forgotten once the queues are
    served."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._held: dict[str, dict[int, Message]] = {}
        for message in state.messages.values():
            if message.queue.kind == PLAIN:
                self._held.setdefault(message.queue.name, {})[message.sequence] = message

    def forget(self) -> None:
        """Stop tracking the queues, which are served from now on and therefore change without this object."""
        self._held.clear()

    def position(self, queue: str) -> int:
        """Return the number of the last message that the queue has counted; 0 when the queue does not exist."""
        held = self._state.queues.get(queue)
        return held.enqueued if held is not None else 0

    def holds(self, queue: str) -> list[int]:
        """Return the numbers of the messages in a queue, ascending."""
        return sorted(self._held.get(queue, ()))

    def declare(self, name: str) -> Queue:
        """Return the queue of that name, creating it if necessary."""
        return self._state.queues.get(name) or self._state.add_queue(name)

    def enqueue(self, name: str, sequence: int, headers: dict[str, str], body: bytes) -> bool:
        """Append a message to a queue; return False when the queue's count is beyond it already."""
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
        """Remove a message; return False when the queue does not have it."""
        self._because(COPY)
        return self._remove(name, sequence)

    def _passed_over(self, queue: Queue, sequence: int, headers: dict[str, str], body: bytes) -> None:
        """Record in the trace a message whose number the queue has counted already, unless the queue holds it."""
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
        """Discard all messages beyond a position, from which the queue counts again; return their number."""
        queue = self.declare(name)
        self._because(RESET)
        beyond = [sequence for sequence in self._held.get(name, ()) if sequence > position]
        self._dequeue_all(name, beyond)
        queue.enqueued = position
        self._state.tables.queues.update(queue.id, queue)
        return len(beyond)

    def delete(self, name: str) -> None:
        """Remove a queue with its messages, if it exists."""
        queue = self._state.queues.get(name)
        if queue is not None:
            self._because(DELETE)
            self._dequeue_all(name, list(self._held.get(name, ())))
            self._held.pop(name, None)
            self._state.remove_queue(queue)

    def _dequeue_all(self, name: str, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            self._remove(name, sequence)
