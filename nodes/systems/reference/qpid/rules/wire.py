"""What a Qpid broker has told its primary, read from the wire by the checker, and compared with the broker's disk."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from nodes.systems.reference.rules.disks import DiskWatcher
from nodes.systems.reference.wire_reader import decoded

_GROUP, _COMPLETED = 3, 4
"""The first bytes of a group of events, and of a backup's word that it has stored all groups up to a number."""
_NUMBERS = struct.Struct(">Bqq")
_ENQUEUE, _DEQUEUE, _RESET, _DELETE, _SNAPSHOT = "enqueue", "dequeue", "reset", "delete", "snapshot"
_OF_A_QUEUE = (_RESET, _DELETE, _SNAPSHOT)
_WORDS_A_LOOK = 25
"""One of this number of a backup's words is compared with its disk."""
_REMEMBERED = 200


class Enqueued(NamedTuple):
    """A message that a backup was sent: the group's number, and the body."""

    group: int
    body: bytes


def completed(frame: Any) -> int | None:
    """Return the number up to which a backup says that it has stored all groups; None for another frame."""
    if type(frame) is not bytes or not frame or frame[0] != _COMPLETED or len(frame) != _NUMBERS.size:
        return None
    return int(_NUMBERS.unpack(frame)[1])


class CompletedIsStored(DiskWatcher):
    """Tracks the latest messages that each backup was sent and has to keep, by queue and position, and how often it has
    said that it has stored something."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, dict[tuple[str, str], Enqueued]] = {}
        self._words: dict[str, int] = {}

    def sent(self, node: str, peer: str, frame: Any) -> str:
        """Check, when a backup says that it has stored a group, that its messages are on the backup's disk."""
        if type(frame) is not bytes or not frame:
            return ""
        if frame[0] == _GROUP:
            self._send(peer, decoded(frame[1:]))
            return ""
        number = completed(frame)
        if not number:
            return ""
        self._words[node] = self._words.get(node, 0) + 1
        if self._words[node] % _WORDS_A_LOOK:
            return ""
        known = self._kept.get(node, {})
        due = {each.body for each in known.values() if each.group <= number and each.body}
        if not due or (rows := self.rows(node, "messages")) is None:
            return ""
        there = {column for row in rows for column in row if isinstance(column, bytes)}
        if not (lacking := sorted(due - there)):
            return ""
        return (f"it says that it has stored group {number}, and on its disk {len(lacking)} messages are not, as "
                f"{lacking[0][:40]!r}")

    def _send(self, peer: str, group: Any) -> None:
        number, _, events, _ = group
        kept = self._kept.setdefault(peer, {})
        for name, *parts in events:
            if name == _ENQUEUE and number:
                kept[str(parts[0]), repr(parts[2])] = Enqueued(number, parts[4])
            elif name == _DEQUEUE:
                kept.pop((str(parts[0]), repr(parts[1])), None)
            elif name in _OF_A_QUEUE:
                kept.clear()
        while len(kept) > _REMEMBERED:
            del kept[next(iter(kept))]

    def ended(self, node: str) -> None:
        """Forget what an ended broker was sent: it is sent what it lacks when it attaches again."""
        self._kept.pop(node, None)
