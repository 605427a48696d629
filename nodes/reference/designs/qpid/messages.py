"""What brokers of the design ``qpid`` say to each other over their links.

Positions of messages are pairs ``[epoch, sequence]``: the sequence as wide as ``sequence_bits``, and how often it has
wrapped around; without the epoch where LM2 is left as documented (then it is always 0).
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from nodes.reference.replication.links import LinkError
from nodes.reference.replication.messages import MessageCodec


class Hello(NamedTuple):
    """How things stand at the sender: sent when a link comes up, at each change, and as a sign of life.

    ``state`` is one of ``states.py``; ``uuid`` is that of the store which the cluster was started from, if any.
    """

    state: str
    generation: int
    uuid: str


class Attach(NamedTuple):
    """A backup asks to browse all queues, and tells what it holds.

    ``uuid`` is that of the clean store that it was started from, empty for none. For each queue that it holds
    messages of, or has had: name, when it was created, the generations (``[generation, position of its first
    message]``, oldest first), position of the last message, and the positions that are held, as ``[first, count]``.
    """

    generation: int
    uuid: str
    queues: list[list[Any]]


class Refuse(NamedTuple):
    """The primary does not take this backup; the text says why."""

    reason: str


class Events(NamedTuple):
    """One group of events, which take effect together; ``number`` counts groups on this link from 1.

    Each event is a list: ``enqueue`` queue generation position headers body; ``dequeue`` queue position; ``reset``
    queue position generations; ``create`` kind name arguments number; ``delete`` kind name number; ``snapshot`` number
    objects; ``caught-up``.
    """

    number: int
    generation: int
    events: list[list[Any]]


class Completed(NamedTuple):
    """All groups up to this number are applied and stored at the backup, so many of them since it last said so."""

    number: int
    groups: int


class Shutdown(NamedTuple):
    """Orderly end of the whole cluster: what was sent is complete; mark the store as clean with this identifier."""

    uuid: str


Message = Hello | Attach | Refuse | Events | Completed | Shutdown
_CODEC = MessageCodec((Hello, Attach, Refuse, Events, Completed, Shutdown))


def unpack(frame: Any) -> Message:
    """The message in a link frame; raises LinkError when it is none."""
    return cast("Message", _CODEC.unpack(frame))


def pack(message: Message) -> bytes:
    """The link frame of a message; raises WireError when it is too long."""
    return _CODEC.pack(message)


ENQUEUE, DEQUEUE, RESET, CREATE, DELETE = "enqueue", "dequeue", "reset", "create", "delete"
SNAPSHOT, CAUGHT_UP = "snapshot", "caught-up"
MAX_HELD = 1 << 22
"""Messages that a backup may say it holds, more than any broker does."""
_SHAPES: dict[str, tuple[type, ...]] = {
    ENQUEUE: (str, int, list, dict, bytes), DEQUEUE: (str, list), RESET: (str, list, list),
    CREATE: (str, str, dict, int), DELETE: (str, str, int), SNAPSHOT: (int, list), CAUGHT_UP: (),
}  # fmt: skip


def check_events(events: list[Any]) -> None:
    """See that each event has the parts that its name asks for, before any of them takes effect.

    Raises:
        LinkError: one has not.
    """
    for event in events:
        if not (isinstance(event, list) and event and isinstance(event[0], str)):
            raise LinkError("an event is malformed")
        name, *parts = event
        if tuple(map(type, parts)) != _SHAPES.get(name):
            raise LinkError(f"an event {name[:20]!r} is malformed")
        if not all(map(_well_formed, (part for part in parts if isinstance(part, (list, dict))))):
            raise LinkError(f"an event {name[:20]!r} is malformed")


def _well_formed(part: list[Any] | dict[str, Any]) -> bool:
    """Whether a position, a list of generations or of objects, or headers or arguments, hold what they should."""
    if isinstance(part, dict):
        return all(isinstance(value, str) for value in part.values())
    if all(type(each) is int for each in part):
        return len(part) in (0, 2)
    return all(
        isinstance(each, list) and list(map(type, each)) in ([int, int], [str, str, dict])
        and (len(each) == 2 or _well_formed(each[2])) for each in part
    )


def check_attach(message: Attach) -> None:
    """See that the queues that a backup tells of have the parts that they should; raises LinkError."""
    for queue in message.queues:
        fine = isinstance(queue, list) and list(map(type, queue)) == [str, str, list, list, list]
        if not fine or not _pair(queue[3]) or not all(_pair(each) for part in (queue[2], queue[4]) for each in part):
            raise LinkError("what a backup tells of a queue is malformed")
    if sum(count for queue in message.queues for _, count in queue[4]) > MAX_HELD:
        raise LinkError(f"a backup tells of more than {MAX_HELD} messages")


def _pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(each) is int and each >= 0 for each in value)
