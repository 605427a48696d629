"""The record of backups that lack data which their primary has confirmed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from nodes.reference.replication.handshake import LinkError

MOST_NAMES = 64
_LONGEST = 300


class Note(NamedTuple):
    """A note that the primary of ``term`` requested before it confirmed anything without the named backups: the
    ``version`` of its list, and their names. Later notes replace earlier ones."""

    term: int = 0
    version: int = 0
    names: tuple[str, ...] = ()

    @property
    def order(self) -> tuple[int, int]:
        """The sort key of notes."""
        return self.term, self.version

    def encoded(self) -> list[Any]:
        """Encode the note for messages and for the store."""
        return [self.term, self.version, list(self.names)]


def decoded_note(value: Any) -> Note:
    """Decode a note; raises LinkError if it is malformed."""
    if not (isinstance(value, list) and list(map(type, value)) == [int, int, list] and is_list_of_names(value[2])):
        raise LinkError("a note is malformed")
    return Note(value[0], value[1], tuple(value[2]))


def is_list_of_names(value: Any) -> bool:
    """Tell whether the value is a list of texts within the limits of number and length."""
    return isinstance(value, list) and len(value) <= MOST_NAMES and all(
        isinstance(name, str) and len(name) <= _LONGEST for name in value)


def latest(notes: Iterable[Note]) -> Note:
    """Return the latest note, which is the one in force."""
    return max(notes, key=lambda note: note.order)
