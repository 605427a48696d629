"""The messages between the two servers over the HA channel."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from nodes.reference.designs.fiorano.states import REPLICATED_STATES, SHARED_STATES
from nodes.reference.replication.handshake import LinkError
from nodes.reference.replication.messages import MessageCodec


class ServerStatus(NamedTuple):
    """The sender's status: sent when the channel is established, at each change of state, and as a heartbeat.

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
    """The start of synchronisation ``sync``: the messages that follow build a new repository, from ``counter`` on."""

    sync: int
    epoch: int
    counter: int


class Page(NamedTuple):
    """Rows of one table in their state after all changes sent before."""

    sync: int
    table: str
    rows: list[Any]


class ChangeSet(NamedTuple):
    """One change-set: the changes of one commit, with the lock's epoch; ``counter`` numbers the change-sets.

    Each of ``tables`` is ``[table, rows, keys of deleted rows]``.
    """

    sync: int
    epoch: int
    counter: int
    changed: float
    tables: list[Any]


class Complete(NamedTuple):
    """The end of a synchronisation: with this message the standby has everything up to ``counter``."""

    sync: int
    epoch: int
    counter: int


class StoredUpTo(NamedTuple):
    """Acknowledges that the standby has all change-sets up to ``counter`` on disk; ``frames``: messages newly
    acknowledged.

    ``whole``: its repository is complete.
    """

    sync: int
    counter: int
    frames: int
    whole: bool


Message = ServerStatus | Begin | Page | ChangeSet | Complete | StoredUpTo
_STATES = frozenset((*REPLICATED_STATES, *SHARED_STATES))
_CODEC = MessageCodec((ServerStatus, Begin, Page, ChangeSet, Complete, StoredUpTo))


def unpack(frame: Any) -> Message:
    """Decode the message in a link frame; raises LinkError if it is not a valid message."""
    message = cast("Message", _CODEC.unpack(frame))
    if isinstance(message, ServerStatus) and not {message.state, message.before} <= _STATES:
        raise LinkError("the other server is in a state that there is not")
    return message


def pack(message: Message) -> bytes:
    """Encode a message as a link frame; raises WireError if it is too long."""
    return _CODEC.pack(message)


def check_tables(tables: list[Any]) -> None:
    """Check the shape of a change-set's tables; raises LinkError if it is malformed."""
    for each in tables:
        fine = isinstance(each, list) and list(map(type, each)) == [str, list, list]
        if not fine or not all(type(key) is int for key in each[2]):
            raise LinkError("a change-set is malformed")
