"""What replicas of ``joram`` say to each other, on top of what feeding a log needs (``replication.messages``)."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from nodes.reference.replication.messages import (
    Ack,
    Append,
    FeedMessage,
    LogPosition,
    MessageCodec,
    StateAck,
    StateBegin,
    StateChunk,
    StateEnd,
)


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


class Reject(NamedTuple):
    """Your epoch is over: I have promised a newer one."""

    promised: int


class PreVoteRequest(NamedTuple):
    """Would you support me in this epoch? Nothing is promised yet."""

    epoch: int
    first_start: bool


class PreVoteReply(NamedTuple):
    """The answer to a pre-vote request; ``refusal`` is empty when it is yes."""

    epoch: int
    promised: int
    refusal: str


class Propose(NamedTuple):
    """PrepareReply to reject older epochs than this one."""

    epoch: int
    first_start: bool


class PrepareReply(NamedTuple):
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


class Leave(NamedTuple):
    """The sender stops in good order; don't wait until it is suspected."""


class Membership(NamedTuple):
    """Who belongs to the group, by the sender's log: the receiver may have missed that it has grown."""

    members: list[Any]


Message = (
    FeedMessage | Heartbeat | Reject | PreVoteRequest | PreVoteReply | Propose | PrepareReply | Fetch | Leave
    | Membership
)
_CODEC = MessageCodec((
    Heartbeat, LogPosition, Append, Ack, Reject, PreVoteRequest, PreVoteReply, Propose, PrepareReply, Fetch, StateBegin,
    StateChunk, StateEnd, StateAck, Leave, Membership,
))


def pack(message: Message) -> bytes:
    """The link frame of a message; raises ``wire.WireError`` as ``MessageCodec.pack`` does."""
    return _CODEC.pack(message)


def unpack(frame: Any) -> Message:
    """The message in a decoded frame; raises ``LinkError`` as ``MessageCodec.unpack`` does."""
    return cast("Message", _CODEC.unpack(frame))
