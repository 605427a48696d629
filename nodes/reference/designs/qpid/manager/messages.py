"""What managers say to each other over their links.

A *ballot* numbers a coordinator's time in office, a *term* the decision who is primary: the ballot in which it was
made. A later coordinator keeps a decision, under its own ballot (Lamport, *The Part-Time Parliament*; *Paxos Made
Simple*).
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from nodes.reference.replication.messages import MessageCodec


class Beat(NamedTuple):
    """A heartbeat, sent at ``sent`` by the sender's clock, and what its node reports (``Report``).

    From the coordinator (``ballot`` above 0) it carries the decision: ``primary`` in ``term`` (0: there is none yet).
    ``cleared``: every lease of earlier terms is over, so that node may take over; ``bootstrap``: nobody has to be ready
    for that, and ``lacking`` are the backups that earlier primaries went on without. ``note``: what the primary wants
    to have noted, from its own manager (``Note``).
    """

    sent: float
    ballot: int
    term: int
    primary: str
    cleared: bool
    bootstrap: bool
    lacking: list[Any]
    note: list[Any]
    report: dict[str, Any]


class Echo(NamedTuple):
    """The answer to a heartbeat, with what the sender has on disk.

    ``promised``: the highest ballot that it supports. ``ballot``, ``term``, ``primary``: the newest decision that it
    has accepted. ``age``: seconds since it last answered the primary of an earlier term as such. ``promoted``: the last
    term in which its own broker was promoted, ``finished``: the last one in which that is over for good. ``note``: the
    latest that it has taken.
    """

    sent: float
    promised: int
    ballot: int
    term: int
    primary: str
    age: float
    promoted: int
    finished: int
    note: list[Any]


class Ask(NamedTuple):
    """A candidate asks for a vote; unless ``sure`` only whether it would get one, which changes nothing."""

    ballot: int
    sure: bool


class Vote(NamedTuple):
    """The answer: whether it is granted, and the newest decision that the voter has accepted."""

    asked: int
    sure: bool
    granted: bool
    promised: int
    ballot: int
    term: int
    primary: str


Message = Beat | Echo | Ask | Vote
_CODEC = MessageCodec((Beat, Echo, Ask, Vote))


def pack(message: Message) -> bytes:
    """The link frame of a message."""
    return _CODEC.pack(message)


def unpack(frame: Any) -> Message:
    """The message in a link frame; raises LinkError when it is none."""
    return cast("Message", _CODEC.unpack(frame))
