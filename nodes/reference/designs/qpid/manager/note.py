"""Which backups lack something that their primary has confirmed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from nodes.reference.replication.links import LinkError

MOST_NAMES = 64
_LONGEST = 300


class Note(NamedTuple):
    """What the primary of ``term`` had noted, before it confirmed anything without them: the ``version`` of its list,
    and the names of the backups that it may go on without. Later notes replace earlier ones."""

    term: int = 0
    version: int = 0
    names: tuple[str, ...] = ()

    @property
    def order(self) -> tuple[int, int]:
        """Notes are ordered by this."""
        return self.term, self.version

    def encoded(self) -> list[Any]:
        """As it is sent, and stored."""
        return [self.term, self.version, list(self.names)]


def decoded_note(value: Any) -> Note:
    """What was sent; raises LinkError when it is no note."""
    if not (isinstance(value, list) and list(map(type, value)) == [int, int, list] and is_list_of_names(value[2])):
        raise LinkError("a note is malformed")
    return Note(value[0], value[1], tuple(value[2]))


def is_list_of_names(value: Any) -> bool:
    """Whether it is a list of not too many texts, which are not too long."""
    return isinstance(value, list) and len(value) <= MOST_NAMES and all(
        isinstance(name, str) and len(name) <= _LONGEST for name in value)


def latest(notes: Iterable[Note]) -> Note:
    """The one that counts."""
    return max(notes, key=lambda note: note.order)
