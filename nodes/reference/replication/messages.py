"""The messages by which replicas keep a shared log equal, and their layout in link frames.

A message is a named tuple, sent as one link frame: a code of one byte, then the fields. Fields that are all numbers are
laid out one after the other (8 bytes each, big-endian; a bool is one byte); so are the entries of an ``Append``, each
preceded by its epoch and its length. The fields of other messages are a ``wire`` list.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, get_origin, get_type_hints

from nodes.reference import wire
from nodes.reference.replication.handshake import LinkError, encode_frame
from nodes.reference.replication.positions import LogId, Position


class LogPosition(NamedTuple):
    """The extent of a replica's log, sent when it begins to follow a master or its log does not match the master's."""

    epoch: int
    last_epoch: int
    last: int
    applied_epoch: int
    applied: int


class Append(NamedTuple):
    """Entries that follow the entry (prev_epoch, prev): a list of [epoch, entry]. ``commit`` is the index up to which
    the source's log is committed."""

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


class StateBegin(NamedTuple):
    """The whole state follows, in chunks."""

    epoch: int


class StateChunk(NamedTuple):
    """Chunk ``number`` (from 0) of the state: encoded rows of the engine."""

    epoch: int
    number: int
    rows: bytes


class StateEnd(NamedTuple):
    """The end of the state, sent in ``chunks`` chunks: the state after entry (upto_epoch, upto), with its view and
    group."""

    epoch: int
    upto: int
    upto_epoch: int
    view: list[Any]
    group: list[Any]
    chunks: int


class StateAck(NamedTuple):
    """The number of chunks that have arrived."""

    epoch: int
    chunks: int


FeedMessage = LogPosition | Append | Ack | StateBegin | StateChunk | StateEnd | StateAck
"""The messages for feeding a follower; a design has further messages."""


class TellsPosition(Protocol):
    """A message with the extent of its sender's log."""

    @property
    def last_epoch(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def applied_epoch(self) -> int: ...
    @property
    def applied(self) -> int: ...


def position_of(message: TellsPosition) -> Position:
    """Return the extent of the sender's log."""
    return Position(LogId(message.last_epoch, message.last), LogId(message.applied_epoch, message.applied))


MAX_NUMBER = 1 << 62
"""Upper limit of all epochs and indices: values derived from them, such as the next epoch, still fit into 64 bits."""
_LETTERS: dict[Any, str] = {int: "q", float: "d", bool: "?"}
_APPEND_HEAD = struct.Struct(">Bqqqqd")
_ENTRY_HEAD = struct.Struct(">qI")


class MessageCodec:
    """Link frames of a design's messages; ``classes`` are named tuples, each identified by its index among them."""

    def __init__(self, classes: Sequence[type[tuple[Any, ...]]]) -> None:
        self._classes = tuple(classes)
        self._codes = {cls: code for code, cls in enumerate(classes)}
        hints = [tuple(get_type_hints(cls).values()) for cls in classes]
        self._types = [tuple(get_origin(hint) or hint for hint in each) for each in hints]
        self._layouts = [
            struct.Struct(">B" + "".join(map(_LETTERS.__getitem__, each))) if set(each) <= _LETTERS.keys() else None
            for each in hints
        ]
        """For each code, the layout of a message that consists of numbers only, as nearly all messages do."""

    def pack(self, message: tuple[Any, ...]) -> bytes:
        """Encode a message as a link frame.

        Raises:
            wire.WireError: a number has more than 64 bits, or the frame is too long.
        """
        code = self._codes[type(message)]
        layout = self._layouts[code]
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

    def unpack(self, frame: Any) -> tuple[Any, ...]:
        """Decode the message in a frame.

        Raises:
            LinkError: the frame is none of the messages, or a field has the wrong type.
        """
        if type(frame) is not bytes or not frame or frame[0] >= len(self._classes):
            raise LinkError("a frame is no message")
        code = frame[0]
        cls, layout = self._classes[code], self._layouts[code]
        if layout is not None:
            if len(frame) != layout.size:
                raise LinkError(f"a frame with code {code} is malformed")
            numbers = layout.unpack(frame)[1:]
            _check_numbers(code, numbers)
            return cls(*numbers)
        if cls is Append:
            return _unpack_append(frame)
        try:
            values = wire.decode(frame[1:])
        except wire.WireError as error:
            raise LinkError(f"a frame with code {code} is malformed: {error}") from error
        if not isinstance(values, list) or tuple(map(type, values)) != self._types[code]:
            raise LinkError(f"a frame with code {code} is malformed")
        _check_numbers(code, [value for value in values if type(value) in (int, float)])
        return cls(*values)


def _check_numbers(code: int, numbers: Sequence[float]) -> None:
    """Raise LinkError for a value that can't be an epoch, index or time; the sum detects NaN."""
    total = sum(numbers)
    if numbers and (min(numbers) < -1 or max(numbers) > MAX_NUMBER or total != total):
        raise LinkError(f"a frame with code {code} holds a number that can't be")


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
    code, epoch, prev, prev_epoch, commit, sent = _APPEND_HEAD.unpack_from(frame)
    _check_numbers(code, (epoch, prev, prev_epoch, commit, sent))
    if prev < 0 or any(not 0 < of <= epoch for of, _ in entries):
        raise LinkError("an entry is of an epoch that can't be")
    return Append(epoch, prev, prev_epoch, commit, sent, entries)
