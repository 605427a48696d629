"""What the two servers say to each other over the HA channel."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from nodes.reference.designs.fiorano.states import REPLICATED_STATES, SHARED_STATES
from nodes.reference.replication.links import LinkError
from nodes.reference.replication.messages import MessageCodec


class Hello(NamedTuple):
    """How things stand at the sender: sent when the channel comes up, at each change of state, and as a heartbeat.

    ``state`` and ``before`` are its present and previous state; the rest is its profile and its stamp
    (``repository.Stamp``).
    """

    state: str
    before: str
    primary: bool
    whole: bool
    epoch: int
    counter: int
    changed: float
    asked: int


class Begin(NamedTuple):
    """A synchronisation begins: what follows makes a new repository, from ``counter`` on; ``sync`` is its number."""

    sync: int
    epoch: int
    counter: int


class Page(NamedTuple):
    """Rows of one table as they are after the changes that were sent before."""

    sync: int
    table: str
    rows: list[Any]


class Changes(NamedTuple):
    """One change-set: what was committed together, with the lock's epoch; ``counter`` numbers them.

    Each of ``tables`` is ``[table, rows, keys of rows that are gone]``.
    """

    sync: int
    epoch: int
    counter: int
    changed: float
    tables: list[Any]


class Complete(NamedTuple):
    """The synchronisation is complete: with this the standby has all up to ``counter``."""

    sync: int
    epoch: int
    counter: int


class Stored(NamedTuple):
    """The standby has on disk all change-sets up to ``counter``; ``frames``: so many more of what it was sent.

    ``whole``: its repository is complete.
    """

    sync: int
    counter: int
    frames: int
    whole: bool


Message = Hello | Begin | Page | Changes | Complete | Stored
_STATES = frozenset((*REPLICATED_STATES, *SHARED_STATES))
_CODEC = MessageCodec((Hello, Begin, Page, Changes, Complete, Stored))


def unpack(frame: Any) -> Message:
    """The message in a link frame; raises LinkError when it is none."""
    message = cast("Message", _CODEC.unpack(frame))
    if isinstance(message, Hello) and not {message.state, message.before} <= _STATES:
        raise LinkError("the other server is in a state that there is not")
    return message


def pack(message: Message) -> bytes:
    """The link frame of a message; raises WireError when it is too long."""
    return _CODEC.pack(message)


def check_tables(tables: list[Any]) -> None:
    """Raises LinkError unless these are the tables of a change-set, as far as their shape goes."""
    for each in tables:
        fine = isinstance(each, list) and list(map(type, each)) == [str, list, list]
        if not fine or not all(type(key) is int for key in each[2]):
            raise LinkError("a change-set is malformed")
