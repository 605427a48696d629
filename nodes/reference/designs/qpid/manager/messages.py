"""The messages between managers over their links.

A *ballot* numbers a coordinator's time in office. A *term* numbers the decision on the primary: it is the ballot in
which the decision was made. A later coordinator keeps a decision, under its own ballot (Lamport, *The Part-Time
Parliament*; *Paxos Made Simple*).
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from nodes.reference.replication.messages import MessageCodec


class Beat(NamedTuple):
    """A heartbeat, sent at ``sent`` by the sender's clock, with its node's report (``Report``).

    From the coordinator (``ballot`` above 0) it carries the decision: ``primary`` in ``term`` (0: there is none yet).
    ``cleared``: every lease of earlier terms is over, so that node may take over. ``bootstrap``: it need not be ready
    for that. ``lacking`` are the backups without which earlier primaries have continued. ``note``: the note that the
    primary requests, from its own manager (``Note``).
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
    """The answer to a heartbeat, with the sender's record on disk.

    ``promised``: the highest ballot that it supports. ``ballot``, ``term``, ``primary``: the newest decision that it
    has accepted. ``age``: seconds since it last answered the primary of an earlier term as such. ``promoted``: the last
    term in which its own broker was promoted; ``finished``: the last term that is definitely over for its broker.
    ``note``: the latest note that it has stored.
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


class VoteRequest(NamedTuple):
    """A candidate's request for a vote; unless ``sure`` it only asks whether it would get one, changing nothing."""

    ballot: int
    sure: bool


class Vote(NamedTuple):
    """The answer to a request: whether the vote is granted, and the newest decision that the voter has accepted."""

    asked: int
    sure: bool
    granted: bool
    promised: int
    ballot: int
    term: int
    primary: str


Message = Beat | Echo | VoteRequest | Vote
_CODEC = MessageCodec((Beat, Echo, VoteRequest, Vote))


def pack(message: Message) -> bytes:
    """Encode a message as a link frame."""
    return _CODEC.pack(message)


def unpack(frame: Any) -> Message:
    """Decode the message in a link frame; raises LinkError if it is not a valid message."""
    return cast("Message", _CODEC.unpack(frame))
