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

from nodes.reference.bugs.flags import CAS_UNCHECKED, REPLACED_VALUE_KEPT, VERSIONS_RESTART
from nodes.reference.engine.model import Message, Queue
from nodes.reference.engine.state import State
from nodes.reference.engine.value_names import KEY, LAST_VALUE, LAST_VALUE_PREFIX, REFUSED, VALUE, VERSION


def queue_of(destination: str) -> str:
    """Return the name of the queue that keeps the values of a last-value destination."""
    return LAST_VALUE + destination.removeprefix(LAST_VALUE_PREFIX)


class LastValues:
    """Reads and writes existing last-value queues; indexes the messages by queue and key, the newest last.

    There is one message for each key, except in a copy of a queue that was interrupted between the two steps of a
    replacement; the next write removes the older messages.
    """

    def __init__(self, state: State, bugs: frozenset[str]) -> None:
        self._state, self._bugs = state, bugs
        self._known: dict[int, dict[str, list[Message]]] = {}
        self._counted_from: dict[int, int] = {}

    def forget(self) -> None:
        """Forget the index, because others have changed the queues, or will change them."""
        self._known.clear()

    def removed(self, queue: Queue) -> None:
        """Forget the values of a removed queue."""
        self._known.pop(queue.id, None)

    def put(self, queue: Queue, args: Mapping[str, Any]) -> dict[str, str]:
        """Replace the value of a key if its version is the expected one; return the receipt's headers."""
        key, expected = str(args["key"]), args.get("expected")
        held = self._of(queue).setdefault(key, [])
        version = self._version(held)
        if expected is not None and expected != version and CAS_UNCHECKED not in self._bugs:
            if not held:
                del self._of(queue)[key]
            return {VERSION: str(version), REFUSED: "true"}
        message = self._state.add_message(queue, {**args["headers"], KEY: key}, args["body"])
        if REPLACED_VALUE_KEPT not in self._bugs:
            for older in held:
                queue.fresh.remove(older)
                queue.depth -= 1
                self._state.remove_message(older)
            held.clear()
        held.append(message)
        return {VERSION: str(self._version(held))}

    def read(self, queue: Queue | None, key: str) -> dict[str, str]:
        """Return the version of a key, and its value in base64 if it has one."""
        held = self._of(queue).get(key) if queue is not None else None
        if not held:
            return {VERSION: "0"}
        _, body = self._state.content(held[-1])
        return {VERSION: str(self._version(held)), VALUE: base64.b64encode(body).decode()}

    def _version(self, held: list[Message]) -> int:
        if not held:
            return 0
        newest = held[-1]
        return newest.sequence - self._counted_from.get(newest.queue.id, 0)

    def miscounted(self) -> str:
        """Describe indexed messages that differ from a queue's, keys without a value, or removed queues; empty if
        none."""
        if gone := self._known.keys() - {queue.id for queue in self._state.all_queues()}:
            return f"values of queues that are gone: {len(gone)} are known"
        for queue in self._state.all_queues():
            known = self._known.get(queue.id)
            if known is None:
                continue
            here = sum(map(len, known.values()))
            if here != len(there := {message.id for message in queue.waiting()}) or any(
                    message.id not in there for held in known.values() for message in held):
                return f"values of {queue.name}: {here} are known, and {len(there)} are there, or others"
            if not all(known.values()):
                return f"keys of {queue.name}: {len(known)} are known, and not all of them have a value"
        return ""

    def _of(self, queue: Queue) -> dict[str, list[Message]]:
        known = self._known.get(queue.id)
        if known is None:
            known = self._known[queue.id] = {}
            for message in sorted(queue.waiting(), key=lambda each: each.sequence):
                headers, _ = self._state.content(message)
                held = known.setdefault(headers.get(KEY, ""), [])
                if REPLACED_VALUE_KEPT in self._bugs:
                    held.insert(0, message)
                else:
                    held.append(message)
            if VERSIONS_RESTART in self._bugs and queue.fresh:
                self._counted_from[queue.id] = min(message.sequence for message in queue.fresh) - 1
        return known
