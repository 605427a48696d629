"""The guarantees of one broker without replicas: confirmed data are on its disk, and last as long as the disk.

``where`` names sections of *HA Joram*, whose servers these are, or says ``ours``.
"""

from __future__ import annotations

from nodes.systems.reference.single_values import all_of, of_token, promises
from stormproof.contracts.backend import DISK_FAULTS
from stormproof.contracts.guarantee import ANY_FAULT, NOT_PROMISED, PROMISED, Guarantee

_DISK = ("disk",)
_DESTROYS = ("corrupt", "empty")
"""Kinds of disk faults after which a broker without replicas starts empty."""
_ONE_COPY = "there is one copy of what was confirmed: what its disk has lost is lost"
_ON_DISK = "confirmed when it is on disk"
_REACTED_AGAIN = "a message that was reacted to and not yet acknowledged is reacted to again"
_TOKEN_MOVES = "the token of a connection that is not reliable goes to another as soon as that is lost"
_BY_CLOCKS = "the broker gives up a silent client by its clock, which may run too fast"
_AT_MOST_ONCE, _DUPLICATE_OKAY = {"quality": "at-most-once"}, {"quality": "duplicate-okay"}

_LASTING = {
    "lost": _ON_DISK,
    "duplicated": "acknowledgements, and the numbers of frames that were taken, are on disk like messages",
    "depth": "what was consumed is deleted in the same transaction",
    "at-most-once": "acknowledged before the reaction, or with it in one transaction",
    "topic-lost": "durable subscriptions are kept like queues",
    "topic-duplicated": "acknowledgements of a subscription are kept like any other",
    "agreement": "one order of commands is what all subscribers see",
    "gaps": "a subscription has every message since it was made, in that order",
    "atomic": "a commit is one transaction on disk",
    "exactly-once": "taking and sending are one transaction",
    "prepared": "a prepared branch is on disk",
    "transfer-order": "the sends of a connection are taken in their order",
    "untold-duplicate": "acknowledgements are on disk like messages",
    "metadata": "principals, rights and objects are on disk like messages",
}
"""Guarantees that last as long as the disk does, with the reason."""

GUARANTEES: tuple[Guarantee, ...] = (
    Guarantee("lost", NOT_PROMISED, "1.2", "the client acknowledges a message before it reacts to it", ANY_FAULT,
              _AT_MOST_ONCE),
    *(Guarantee(name, NOT_PROMISED, "1.2", _REACTED_AGAIN, ANY_FAULT, _DUPLICATE_OKAY)
      for name in ("duplicated", "at-most-once")),
    *(Guarantee(name, PROMISED, "ours", why, _DISK, {"disk_kind": kind})
      for name, why in _LASTING.items() for kind in DISK_FAULTS if kind not in _DESTROYS),
    *(Guarantee(name, NOT_PROMISED, "ours", _ONE_COPY, _DISK) for name in _LASTING),
    *all_of(NOT_PROMISED, "ours", _ONE_COPY, _DISK),
    *of_token(NOT_PROMISED, "ours", _TOKEN_MOVES, ANY_FAULT, {"reliable": False}),
    *of_token(NOT_PROMISED, "ours", _BY_CLOCKS, ("clock",)),
    *promises("reads, writes and comparisons are commands in one order", "a token is with one consumer until it gives "
              "that back, or its connection has been gone for longer than it takes to notice", PROMISED),
    Guarantee("topic-phantom:older-than-subscription", NOT_PROMISED, "ours",
              "what was confirmed early and came undone is sent again, to those as well who subscribed meanwhile",
              _DISK),
    *(Guarantee(name, PROMISED, "ours", why) for name, why in _LASTING.items()),
    *(Guarantee(name, PROMISED, "ours", "what was aborted, or never sent, is never delivered")
      for name in ("phantom", "topic-phantom", "tx-phantom")),
    Guarantee("topic-order", PROMISED, "4.4", "the commands of a producer are taken in the order of their numbers"),
    Guarantee("recovery", PROMISED, "ours", "it serves again as soon as it has been started"),
)  # fmt: skip
