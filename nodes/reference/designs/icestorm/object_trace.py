"""A replica's part of the trace: its topics, subscriptions and links, and the events waiting for subscribers."""

from __future__ import annotations

from nodes.reference.api import MessageNotes
from nodes.reference.engine.trace import OBJECTS, UNNAMED


class ObjectTrace:
    """Traces additions to the database, and removals from it, since the last comparison."""

    def __init__(self, notes: MessageNotes | None) -> None:
        self._notes = notes
        self._known: set[str] = set()

    @property
    def exists(self) -> bool:
        """Tell whether tracing is on."""
        return self._notes is not None

    def compare(self, objects: set[str], reason: str) -> None:
        """Trace the changes since the last comparison; ``objects`` is the database's present content."""
        if self._notes is None:
            return
        for what, names in (("gone", self._known - objects), ("put", objects - self._known)):
            for name in sorted(names):
                self._notes.note(what, OBJECTS, name if name.isascii() and " " not in name else UNNAMED, reason)
        self._known = objects
        self._notes.tell()
