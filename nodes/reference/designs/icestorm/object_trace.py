"""What a replica tells the trace: which topics, subscriptions and links it has, and which events wait for whom."""

from __future__ import annotations

from nodes.reference.api import MessageNotes
from nodes.reference.engine.trace import OBJECTS, UNNAMED


class ObjectTrace:
    """Tells what came into the database, and what left it, since the last look."""

    def __init__(self, notes: MessageNotes | None) -> None:
        self._notes = notes
        self._known: set[str] = set()

    @property
    def exists(self) -> bool:
        """Whether anybody asked."""
        return self._notes is not None

    def compare(self, objects: set[str], reason: str) -> None:
        """The database holds these now."""
        if self._notes is None:
            return
        for what, names in (("gone", self._known - objects), ("put", objects - self._known)):
            for name in sorted(names):
                self._notes.note(what, OBJECTS, name if name.isascii() and " " not in name else UNNAMED, reason)
        self._known = objects
        self._notes.tell()
