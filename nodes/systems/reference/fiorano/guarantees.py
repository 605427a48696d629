"""The guarantees of the design ``fiorano`` in each of its modes (headings of the document in ``where``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodes.systems.reference.single_values import NAMES as SINGLE_VALUES
from nodes.systems.reference.single_values import of_token, promises
from stormproof.contracts.guarantee import ANY_FAULT, KNOWN_VIOLATION, NOT_PROMISED, PROMISED, Guarantee

_REPLICATED = "Working of Fiorano Replicated High Availability"
_LOCKING = "HA Locking Mechanism"
_CHANGE = "How does a Server State Change?"
_OBJECTS = "What are the objects that are replicated?"

_SHARED = "Working of Fiorano Shared High Availability"

_WITH_INTACT_DISKS: Mapping[str, tuple[str, str]] = {
    "lost": (_REPLICATED, "what is confirmed is on both servers' disks, or the other server can't serve before it has "
             "been synchronised"),
    "duplicated": (_OBJECTS, "acknowledgements are replicated, and confirmed, like messages"),
    "phantom": (_REPLICATED, "a repository is a copy of the active server's, and nothing else"),
    "depth": (_OBJECTS, "what was consumed at the active server is gone from the standby's repository"),
    "topic-lost": (_OBJECTS, "durable subscriptions and what waits for them are replicated"),
    "topic-duplicated": (_OBJECTS, "acknowledgements of a subscription are replicated like any other"),
    "topic-phantom": (_REPLICATED, "a repository is a copy of the active server's, and nothing else"),
    "topic-order": (_REPLICATED, "there is one server at a time, and one order of changes"),
    "agreement": (_REPLICATED, "there is one server at a time, and one order of changes"),
    "gaps": (_OBJECTS, "a subscription has every message since it was made, in that order"),
    "atomic": (_REPLICATED, "a commit is one change-set, which the standby writes in one transaction"),
    "exactly-once": (_REPLICATED, "taking and sending are one change-set"),
    "tx-phantom": (_REPLICATED, "what was aborted, or never committed, was never sent"),
    "metadata": (_OBJECTS, "a change of rights, principals or administered objects is replicated like a message"),
    "prepared": (_OBJECTS, "a prepared branch is replicated like a message"),
}  # fmt: skip
"""Guarantees that hold while the disks keep confirmed data: the document's heading, and the reason."""

_LASTING = (*_WITH_INTACT_DISKS, *SINGLE_VALUES)
_BREAKABLE = tuple(name for name in _LASTING if name not in ("phantom", "topic-phantom"))
"""The guarantees among these that two concurrent servers or an outdated repository can break. Neither can produce a
message that was never sent.
"""

_NO_LOCK: Mapping[str, Any] = {"lock": False}
_NO_FENCING: Mapping[str, Any] = {"fencing": False}
_WALL_CLOCK: Mapping[str, Any] = {"stamps": "wall-clock"}
_AS_DOCUMENTED: Mapping[str, Any] = {"mode": "shared", "as_documented": "database"}
_APART = ("partition", "packets", "pause", "kill", "stop", "crash", "power", "reboot", "clock", "gateway", "lockfile",
          "channel")
_BOTH_ALONE = "a link failure makes both servers STANDALONE"
_PLAIN_LOCK = ("a lock on a file says neither whether the other server has served since, nor stops a holder that was "
               "paused before it has looked again")
_UNAVAILABLE = ("unavailability of the shared database could lead to data loss and data corruption: what was confirmed "
                "meanwhile is in the active server's memory alone")
_FENCED = "the shared database refuses whoever does not hold its newest epoch, with the lock or without"
_WRONG_CLOCK = "a clock that was wrong makes an old repository the newer one"
_FORGETS = "a disk that forgets what it had confirmed, on the server that is the only one or the newer one"
_TOKEN_MOVES_AT_ONCE = "the token of a connection that is not reliable goes to another as soon as that is lost"
_BY_CLOCKS = "a server gives up a silent client by its clock, which may run too fast"

_DAMAGED: Mapping[str, Any] = {"mode": "shared", "shared_db_kind": "damage"}
_ONE_DATABASE = "there is just one database: what was in it when it was damaged is nowhere else"

GUARANTEES: tuple[Guarantee, ...] = (
    *(Guarantee(name, NOT_PROMISED, "ours", _FORGETS, ("disk",)) for name in _LASTING),
    Guarantee("recovery", NOT_PROMISED, "ours", "where no repository is whole, both servers wait for a person",
              ("disk",)),
    *(Guarantee(name, KNOWN_VIOLATION, _SHARED, _UNAVAILABLE, ANY_FAULT, _AS_DOCUMENTED)
      for name in (*_BREAKABLE, "recovery")),
    *(Guarantee(name, KNOWN_VIOLATION, "Determining which HA to use", _ONE_DATABASE, ("shared-db",), _DAMAGED)
      for name in _LASTING),
    *(Guarantee(name, KNOWN_VIOLATION, _LOCKING, _PLAIN_LOCK, _APART, _NO_FENCING) for name in _BREAKABLE),
    *(Guarantee(name, PROMISED, "ours", _FENCED, mode={"mode": "shared", **_NO_LOCK}) for name in _LASTING),
    *(Guarantee(name, KNOWN_VIOLATION, _LOCKING, _BOTH_ALONE, ANY_FAULT, _NO_LOCK) for name in _BREAKABLE),
    *(Guarantee(name, KNOWN_VIOLATION, _CHANGE, _WRONG_CLOCK, ("clock",), _WALL_CLOCK) for name in _BREAKABLE),
    *(Guarantee(name, PROMISED, where, why) for name, (where, why) in _WITH_INTACT_DISKS.items()),
    *of_token(NOT_PROMISED, "ours", _TOKEN_MOVES_AT_ONCE, ANY_FAULT, {"reliable": False}),
    *of_token(NOT_PROMISED, "ours", _BY_CLOCKS, ("clock",)),
    *promises("there is one server at a time, and one order of changes", "a token is with one consumer, whose "
              "connection outlives its server", PROMISED),
    Guarantee("recovery", PROMISED, _CHANGE, "when the faults are over, one server is ACTIVE and the other PASSIVE"),
)
