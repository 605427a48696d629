"""What replicas say to each other: named tuples, each sent as one link frame: a code of one byte, then the fields.

Fields that are all numbers are laid out one after the other (8 bytes each, big-endian; a bool is one byte); so are the
entries of an ``Append``, each behind its epoch and its length. The fields of other messages are a ``wire`` list.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, get_origin, get_type_hints

from nodes.reference import wire
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


class Roster(NamedTuple):
    """Who belongs to the group, by the sender's log: the receiver may have missed that it has grown."""

    members: list[Any]


Message = (
    Heartbeat | Standing | Append | Ack | Reject | Canvass | Opinion | Propose | Promise | Fetch | StateBegin
    | StateChunk | StateEnd | StateAck | Leave | Roster
)
_CLASSES: tuple[type[Message], ...] = (
    Heartbeat, Standing, Append, Ack, Reject, Canvass, Opinion, Propose, Promise, Fetch, StateBegin, StateChunk,
    StateEnd, StateAck, Leave, Roster,
)
_CODES = {cls: code for code, cls in enumerate(_CLASSES)}
_HINTS = {cls: tuple(get_type_hints(cls).values()) for cls in _CLASSES}
_TYPES = {cls: tuple(get_origin(hint) or hint for hint in hints) for cls, hints in _HINTS.items()}
_LETTERS: dict[Any, str] = {int: "q", float: "d", bool: "?"}
_LAYOUTS = tuple(
    struct.Struct(">B" + "".join(map(_LETTERS.__getitem__, hints))) if set(hints) <= _LETTERS.keys() else None
    for hints in _HINTS.values()
)
"""For each code, how a message of nothing but numbers is laid out, as nearly all messages are."""
_APPEND = _CODES[Append]
_APPEND_HEAD = struct.Struct(">Bqqqqd")
_ENTRY_HEAD = struct.Struct(">qI")


def position_of(message: Standing | Promise | Fetch) -> Position:
    """How far the sender's log goes."""
    return Position(LogId(message.last_epoch, message.last), LogId(message.applied_epoch, message.applied))


def pack(message: Message) -> bytes:
    """The link frame of a message.

    Raises:
        wire.WireError: a number has more than 64 bits, or the frame is too long.
    """
    code = _CODES[type(message)]
    layout = _LAYOUTS[code]
    try:
        if layout is not None:
            return encode_frame(layout.pack(code, *message))
        if type(message) is Append:
            *head, entries = message
            parts = [_APPEND_HEAD.pack(code, *head)]
            for epoch, entry in entries:
                parts += _ENTRY_HEAD.pack(epoch, len(entry)), entry
            return encode_frame(b"".join(parts))
    except struct.error as error:
        raise wire.WireError(f"{message} can't be packed: {error}") from error
    return encode_frame(bytes([code]) + wire.encode(list(message)))


def unpack(frame: Any) -> Message:
    """The message in a decoded frame.

    Raises:
        LinkError: the frame is none of the messages, or a field has the wrong type.
    """
    if type(frame) is not bytes or not frame or frame[0] >= len(_CLASSES):
        raise LinkError("a frame is no message")
    code = frame[0]
    layout = _LAYOUTS[code]
    if layout is not None:
        if len(frame) != layout.size:
            raise LinkError(f"a frame with code {code} is malformed")
        return _CLASSES[code](*layout.unpack(frame)[1:])
    if code == _APPEND:
        return _unpack_append(frame)
    try:
        values = wire.decode(frame[1:])
    except wire.WireError as error:
        raise LinkError(f"a frame with code {code} is malformed: {error}") from error
    if not isinstance(values, list) or tuple(map(type, values)) != _TYPES[_CLASSES[code]]:
        raise LinkError(f"a frame with code {code} is malformed")
    return _CLASSES[code](*values)


def _unpack_append(frame: bytes) -> Append:
    position, end = _APPEND_HEAD.size, len(frame)
    if position > end:
        raise LinkError("a frame with entries is malformed")
    entries: list[list[Any]] = []
    while position < end:
        begin = position + _ENTRY_HEAD.size
        if begin > end:
            raise LinkError("an entry is malformed")
        epoch, size = _ENTRY_HEAD.unpack_from(frame, position)
        position = begin + size
        if position > end:
            raise LinkError("an entry is malformed")
        entries.append([epoch, frame[begin:position]])
    _, epoch, prev, prev_epoch, commit, sent = _APPEND_HEAD.unpack_from(frame)
    return Append(epoch, prev, prev_epoch, commit, sent, entries)
