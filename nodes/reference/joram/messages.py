"""What replicas say to each other: named tuples, each sent as one link frame ``[code, field...]``."""

from __future__ import annotations

from typing import Any, NamedTuple, get_origin, get_type_hints

from nodes.reference.joram.decisions import LogId, Position
from nodes.reference.links import LinkError, encode_frame


class Heartbeat(NamedTuple):
    """Sent to every peer all the time.

    ``claim``: the epoch in which the sender is master, or 0. ``following``: the epoch in which it follows the
    receiver, or 0. ``sent``: the sender's clock. ``echo``: the newest ``sent`` that it heard from the receiver
    as its master, or a negative number.
    """

    claim: int
    following: int
    promised: int
    last: int
    commit: int
    sent: float
    echo: float


class Standing(NamedTuple):
    """A replica that begins to follow a master (or has lost the thread) tells how far its log goes."""

    epoch: int
    last_epoch: int
    last: int
    applied_epoch: int
    applied: int


class Append(NamedTuple):
    """Entries that follow the entry (prev_epoch, prev): a list of [epoch, entry]. ``commit`` is the index up to
    which the source's log is committed."""

    epoch: int
    prev: int
    prev_epoch: int
    commit: int
    sent: float
    entries: list[list[Any]]


class Ack(NamedTuple):
    """Everything up to ``match`` is on disk here and equal to the source's log."""

    epoch: int
    match: int
    echo: float


class Reject(NamedTuple):
    """Your epoch is over: I have promised a newer one."""

    promised: int


class Canvass(NamedTuple):
    """Would you support me in this epoch? Nothing is promised yet."""

    epoch: int
    first_start: bool


class Opinion(NamedTuple):
    """The answer to a canvass; ``refusal`` is empty when it is yes."""

    epoch: int
    promised: int
    refusal: str


class Propose(NamedTuple):
    """Promise to reject older epochs than this one."""

    epoch: int
    first_start: bool


class Promise(NamedTuple):
    """Promised, and on disk; and how far my log goes."""

    epoch: int
    last_epoch: int
    last: int
    applied_epoch: int
    applied: int


class Fetch(NamedTuple):
    """A proposer asks the peer with the most complete log to be fed; it is at this position."""

    epoch: int
    last_epoch: int
    last: int
    applied_epoch: int
    applied: int


class StateBegin(NamedTuple):
    """The whole state follows, in chunks."""

    epoch: int


class StateChunk(NamedTuple):
    """Chunk ``number`` (from 0) of the state: encoded rows of the engine."""

    epoch: int
    number: int
    rows: bytes


class StateEnd(NamedTuple):
    """That was all: the state after entry (upto_epoch, upto), with its view and group, in so many chunks."""

    epoch: int
    upto: int
    upto_epoch: int
    view: list[Any]
    group: list[Any]
    chunks: int


class StateAck(NamedTuple):
    """So many chunks have arrived."""

    epoch: int
    chunks: int


class Leave(NamedTuple):
    """The sender stops in good order; don't wait until it is suspected."""


Message = (
    Heartbeat | Standing | Append | Ack | Reject | Canvass | Opinion | Propose | Promise | Fetch | StateBegin
    | StateChunk | StateEnd | StateAck | Leave
)
_CLASSES: tuple[type[Message], ...] = (
    Heartbeat, Standing, Append, Ack, Reject, Canvass, Opinion, Propose, Promise, Fetch, StateBegin, StateChunk,
    StateEnd, StateAck, Leave,
)
_CODES = {cls: code for code, cls in enumerate(_CLASSES)}
_TYPES = tuple(
    tuple(get_origin(hint) or hint for hint in get_type_hints(cls).values()) for cls in _CLASSES
)


def position_of(message: Standing | Promise | Fetch) -> Position:
    """How far the sender's log goes."""
    return Position(LogId(message.last_epoch, message.last), LogId(message.applied_epoch, message.applied))


def pack(message: Message) -> bytes:
    """The link frame of a message."""
    return encode_frame([_CODES[type(message)], *message])


def unpack(frame: Any) -> Message:
    """The message in a decoded frame.

    Raises:
        LinkError: the frame is none of the messages, or a field has the wrong type.
    """
    if not isinstance(frame, list) or not frame or type(frame[0]) is not int:
        raise LinkError("a frame is no message")
    code, *values = frame
    if not 0 <= code < len(_CLASSES) or tuple(map(type, values)) != _TYPES[code]:
        raise LinkError(f"a frame with code {code} is malformed")
    if code == _CODES[Append] and not all(_is_entry(item) for item in values[-1]):
        raise LinkError("an entry is malformed")
    return _CLASSES[code](*values)


def _is_entry(item: Any) -> bool:
    return isinstance(item, list) and len(item) == 2 and type(item[0]) is int and type(item[1]) is bytes
