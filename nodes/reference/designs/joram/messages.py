"""The messages between ``joram`` replicas, in addition to those that feed a log (``replication.messages``)."""

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


class ReplicaHeartbeat(NamedTuple):
    """Sent to every peer at regular intervals.

    ``claim``: the epoch in which the sender is master, or 0. ``following``: the epoch in which it follows the receiver,
    or 0. ``sent``: the sender's clock. ``echo``: the newest ``sent`` that it heard from the receiver as its master, or
    a negative number.
    """

    claim: int
    following: int
    promised: int
    last: int
    commit: int
    sent: float
    echo: float


class Reject(NamedTuple):
    """Rejects the receiver's epoch: the sender has promised a newer one."""

    promised: int


class PreVoteRequest(NamedTuple):
    """Asks whether the receiver would support the sender in this epoch; nothing is promised yet."""

    epoch: int
    first_start: bool


class PreVoteReply(NamedTuple):
    """The answer to a pre-vote request; ``refusal`` is empty for support."""

    epoch: int
    promised: int
    refusal: str


class Propose(NamedTuple):
    """Asks for a promise to reject epochs older than this one."""

    epoch: int
    first_start: bool


class PrepareReply(NamedTuple):
    """Confirms that the promise is on disk, with the sender's log position."""

    epoch: int
    last_epoch: int
    last: int
    applied_epoch: int
    applied: int


class Fetch(NamedTuple):
    """Asks the peer with the most complete log to feed the proposer, which is at this position."""

    epoch: int
    last_epoch: int
    last: int
    applied_epoch: int
    applied: int


class Leave(NamedTuple):
    """Announces that the sender stops in good order; its peers need not wait until they suspect it."""


class GroupMembers(NamedTuple):
    """The group's members by the sender's log: the receiver may have missed that the group has grown."""

    members: list[Any]


Message = (
    FeedMessage | ReplicaHeartbeat | Reject | PreVoteRequest | PreVoteReply | Propose | PrepareReply | Fetch | Leave
    | GroupMembers
)
_CODEC = MessageCodec((
    ReplicaHeartbeat, LogPosition, Append, Ack, Reject, PreVoteRequest, PreVoteReply, Propose, PrepareReply, Fetch,
    StateBegin, StateChunk, StateEnd, StateAck, Leave, GroupMembers,
))


def pack(message: Message) -> bytes:
    """Encode a message as a link frame; raises ``wire.WireError`` as ``MessageCodec.pack`` does."""
    return _CODEC.pack(message)


def unpack(frame: Any) -> Message:
    """Decode the message in a decoded frame; raises ``LinkError`` as ``MessageCodec.unpack`` does."""
    return cast("Message", _CODEC.unpack(frame))
