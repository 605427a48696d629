"""The messages between brokers of the design ``qpid`` over their links.

Positions of messages are pairs ``[epoch, sequence]``: the sequence has ``sequence_bits`` bits, and the epoch counts its
wrap-arounds. The epoch is always 0 if LM2 is left as documented.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

from nodes.reference.designs.qpid.configuration import is_object
from nodes.reference.engine.row_schema import are_headers
from nodes.reference.replication.handshake import LinkError
from nodes.reference.replication.messages import MAX_NUMBER, MessageCodec


class BrokerStatus(NamedTuple):
    """The sender's status: sent when a link is established, at each change, and as a heartbeat.

    ``state`` is one of ``states.py``; ``uuid`` identifies the clean store from which the cluster was started, if any.
    """

    state: str
    generation: int
    uuid: str


class Attach(NamedTuple):
    """A backup's request to browse all queues, with a list of its content.

    ``uuid`` is that of the clean store from which it was started, empty for none. For each queue whose messages it
    holds or held: name, creation mark, the generations (``[generation, position of its first message]``, oldest first;
    as ``positions.marked``), position of the last message, and the positions of held messages, as ``[first, count]``.
    """

    generation: int
    uuid: str
    queues: list[list[Any]]


class Refuse(NamedTuple):
    """The primary's refusal of a backup; the text says why."""

    reason: str


Event = list[Any]
"""The event's name, one of ``_SHAPES``, and its arguments."""


class EventGroup(NamedTuple):
    """A group of events, which take effect together, or a part of one that is followed by ``more``; ``number`` counts
    groups on this link from 1.

    Each event is a list: ``enqueue`` queue generation position headers body; ``dequeue`` queue position; ``reset``
    queue position generations (both as ``positions.marked``); ``create`` kind name arguments number; ``delete`` kind
    name number; ``snapshot`` number objects; ``caught-up``.
    """

    number: int
    generation: int
    events: list[Event]
    more: bool


class Completed(NamedTuple):
    """Confirms that the backup has applied and stored all groups up to this number; ``groups``: whole ones since the
    last.
    """

    number: int
    groups: int


class Shutdown(NamedTuple):
    """The orderly end of the whole cluster: everything was sent; the receiver marks its store clean with this
    identifier.
    """

    uuid: str


Message = BrokerStatus | Attach | Refuse | EventGroup | Completed | Shutdown
_CODEC = MessageCodec((BrokerStatus, Attach, Refuse, EventGroup, Completed, Shutdown))


def unpack(frame: Any) -> Message:
    """Decode the message in a link frame; raises LinkError if it is not a valid message."""
    return cast("Message", _CODEC.unpack(frame))


def pack(message: Message) -> bytes:
    """Encode a message as a link frame; raises WireError if it is too long."""
    return _CODEC.pack(message)


ENQUEUE, DEQUEUE, RESET, CREATE, DELETE = "enqueue", "dequeue", "reset", "create", "delete"
SNAPSHOT, CAUGHT_UP = "snapshot", "caught-up"
MAX_HELD = 1 << 22
"""Maximum number of messages that a backup may list, more than any broker holds."""


PART = 256 << 10
"""Default size of one part of a group, in bytes (approximate)."""
MAX_GROUP = 1 << 28
"""Maximum size in bytes (approximate) of a group that a backup accepts, which must hold all parts at once; a primary
never sends that much.
"""
_FEW_BYTES = 40


def size_of(events: list[Event]) -> int:
    """Return the approximate size in bytes of events in a frame."""
    return sum(map(_size, events))


def _size(event: Event) -> int:
    name = event[0]
    if name == ENQUEUE:
        headers = sum(len(key) + len(value) for key, value in event[4].items())
        return _FEW_BYTES + len(event[1]) + headers + len(event[5])
    return _FEW_BYTES + len(event[1]) if name == DEQUEUE else _weight(event)


def _weight(value: Any) -> int:
    if isinstance(value, str):
        return _FEW_BYTES + len(value)
    if isinstance(value, list):
        return _FEW_BYTES + sum(map(_weight, value))
    if isinstance(value, dict):
        return _FEW_BYTES + sum(_weight(key) + _weight(each) for key, each in value.items())
    return _FEW_BYTES


def parts_of(events: list[Event], most: int = PART) -> Iterator[tuple[list[Event], bool]]:
    """Split a group into parts of about ``most`` bytes, which fit into frames; yield each with whether more follow. An
    empty group is one part."""
    part: list[Event] = []
    size = 0
    for event in events:
        size += _size(event)
        if part and size > most:
            yield part, True
            part, size = [], _size(event)
        part.append(event)
    yield part, False


def check_events(events: list[Any]) -> None:
    """Check that each event has the arguments that its name requires, before any of them takes effect.

    Raises:
        LinkError: an event is malformed.
    """
    for event in events:
        if not (isinstance(event, list) and event and isinstance(event[0], str)):
            raise LinkError("an event is malformed")
        name, *parts = event
        shape = _SHAPES.get(name)
        fine = shape is not None and len(parts) == len(shape) and all(
            fits(part) for fits, part in zip(shape, parts, strict=True))
        if not fine or (name == CREATE and not is_object(parts[:3])):
            raise LinkError(f"an event {name[:20]!r} is malformed")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_bytes(value: Any) -> bool:
    return isinstance(value, bytes)


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_NUMBER


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))


def _are_pairs(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_pair, value))


def _is_arguments(value: Any) -> bool:
    return isinstance(value, dict)


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, list) and is_object(each) for each in value)


_SHAPES: dict[str, tuple[Callable[[Any], bool], ...]] = {
    ENQUEUE: (_is_text, _is_number, _is_pair, are_headers, _is_bytes), DEQUEUE: (_is_text, _is_pair),
    RESET: (_is_text, _is_pair, _are_pairs), CREATE: (_is_text, _is_text, _is_arguments, _is_number),
    DELETE: (_is_text, _is_text, _is_number), SNAPSHOT: (_is_number, _are_objects), CAUGHT_UP: (),
}  # fmt: skip


def check_attach(message: Attach) -> None:
    """Check the shape of the queues that a backup lists; raises LinkError if one is malformed."""
    for queue in message.queues:
        fine = isinstance(queue, list) and list(map(type, queue)) == [str, str, list, list, list]
        if not (fine and _is_pair(queue[3]) and _are_pairs(queue[2]) and _are_pairs(queue[4])):
            raise LinkError("what a backup tells of a queue is malformed")
    if sum(count for queue in message.queues for _, count in queue[4]) > MAX_HELD:
        raise LinkError(f"a backup tells of more than {MAX_HELD} messages")
