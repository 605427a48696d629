"""Last-value queues: the newest message of each key replaces the one before, and reading does not consume.

Modelled on Qpid's last-value queues (``qpid.last_value_queue_key``), with conditional writes as in etcd, ZooKeeper and
others. A queue numbers its messages (``QueueTap``), so the number of a key's newest message is its *version*: it is
never reused, and grows with every write. A replacement enqueues one message and dequeues another, so replication needs
to know only these two operations.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from nodes.reference.engine.model import Message, Queue
from nodes.reference.engine.state import EngineState
from nodes.reference.engine.value_names import KEY, LAST_VALUE, LAST_VALUE_PREFIX, REFUSED, VALUE, VERSION


def queue_of(destination: str) -> str:
    """Return the name of the queue that keeps the values of a last-value destination."""
    return LAST_VALUE + destination.removeprefix(LAST_VALUE_PREFIX)


class LastValues:
    """Reads and writes existing last-value queues; indexes the messages by queue and key, the newest last.

    There is one message for each key, except in a copy of a queue that was interrupted between the two steps of a
    replacement; the next write removes the older messages.
    """

    def __init__(self, state: EngineState) -> None:
        self.state = state
        self.known: dict[int, dict[str, list[Message]]] = {}
        """Id of a queue -> key -> its messages."""

    def forget(self) -> None:
        """Forget the index, because others have changed the queues, or will change them."""
        self.known.clear()

    def removed(self, queue: Queue) -> None:
        """Forget the values of a removed queue."""
        self.known.pop(queue.id, None)

    def put(self, queue: Queue, args: Mapping[str, Any]) -> dict[str, str]:
        """Replace the value of a key if its version is the expected one; return the receipt's headers."""
        key, expected = str(args["key"]), args.get("expected")
        held = self._of(queue).setdefault(key, [])
        version = self._version(held)
        if expected is not None and expected != version:
            if not held:
                del self._of(queue)[key]
            return {VERSION: str(version), REFUSED: "true"}
        message = self.state.add_message(queue, {**args["headers"], KEY: key}, args["body"])
        for older in held:
            queue.fresh.remove(older)
            queue.depth -= 1
            self.state.remove_message(older)
        held.clear()
        held.append(message)
        return {VERSION: str(self._version(held))}

    def read(self, queue: Queue | None, key: str) -> dict[str, str]:
        """Return the version of a key, and its value in base64 if it has one."""
        held = self._of(queue).get(key) if queue is not None else None
        if not held:
            return {VERSION: "0"}
        _, body = self.state.content(held[-1])
        return {VERSION: str(self._version(held)), VALUE: base64.b64encode(body).decode()}

    def _version(self, held: list[Message]) -> int:
        return held[-1].sequence if held else 0

    def _of(self, queue: Queue) -> dict[str, list[Message]]:
        known = self.known.get(queue.id)
        if known is None:
            known = self.known[queue.id] = {}
            for message in sorted(queue.waiting(), key=lambda each: each.sequence):
                headers, _ = self.state.content(message)
                known.setdefault(headers.get(KEY, ""), []).append(message)
        return known
