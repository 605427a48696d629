"""The guarantees of the design ``qpid`` in each of its modes (sections of *new-ha-design* in ``where``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodes.reference.designs.qpid.options import (
    COLD,
    LC5,
    LEVELS,
    MESSAGES,
    NONE,
    read_limitations,
    read_patterns,
)
from nodes.systems.reference.single_values import NAMES as SINGLE_VALUES
from nodes.systems.reference.single_values import promises
from stormproof.contracts.guarantee import ANY_FAULT, KNOWN_VIOLATION, NOT_PROMISED, PROMISED, Guarantee, Such

_SPLIT = ("partition", "pause", "packets", "clock")
"""Faults that separate brokers while each continues."""
_BY_HAND, _UNFENCED = {"manager": "none"}, {"manager": "keepalived"}
_DISK = ("disk",)
_MESSAGES = ("lost", "duplicated", "depth", "atomic", "exactly-once")
_TWICE_LED = ("lost", "duplicated", "atomic", "exactly-once", "metadata", *SINGLE_VALUES)
"""The guarantees that two primaries break; the final drain uses only one primary."""
_KEPT = (*_MESSAGES, "metadata", *SINGLE_VALUES)
_FORGETS = "a disk that forgets what it had confirmed is beyond what backups can mend"
_TWO_PRIMARIES = ("nobody ends the old primary before a person promotes another, and nobody notes whom it goes on "
                  "without: what it confirms meanwhile is lost")  # fmt: skip
_NO_QUORUM = "keepalived has no quorum and ends nobody: there is a primary on either side, and both confirm"
_NOTHING_STORED = ("without a store, the loss of all brokers is the loss of all messages; a broker without quorum "
                   "ends, too")
_NO_STORE = {"store": "none"}
_NOT_WRITTEN = "what machines that lost their power had not written yet is gone where nobody else has it"
_ASYNC = {"store": "async"}
_TOLD = "a broker whose disk says that it fails ends, or carries on in memory as a backup; the others have everything"
_DISKS_THAT_TELL = ("full", "write-error", "sync-error", "slow")
_LOSES_POWER = ("power", "crash")


_BY_CHOICE = "what is not replicated by choice is lost with the primary"
_LOST_BY_CHOICE = ("lost", "atomic", "exactly-once", *SINGLE_VALUES)


def lowest_level(options: Mapping[str, Any]) -> str:
    """Return the lowest level of any object without a level argument, by its name or by the default; ``messages`` if
    all brokers start from one store."""
    if options.get("standby") == COLD:
        return MESSAGES
    found = []
    if LC5 not in read_limitations(options.get("as_documented", "")):
        for pattern, level in read_patterns(options.get("patterns", "")):
            found.append(level)
            if pattern == "*":  # it matches all remaining names
                return max(found, key=LEVELS.index)
    return max((*found, str(options.get("replicate", MESSAGES))), key=LEVELS.index)


_NOT_ALL_MESSAGES = Such("by `replicate` and `patterns`, the messages of some queues are not replicated",
                         lambda options: lowest_level(options) != MESSAGES)
_NOT_ALL_OBJECTS = Such("by `replicate` and `patterns`, some objects are not replicated",
                        lambda options: lowest_level(options) == NONE)


def _documented(limitation: str) -> Mapping[str, Any]:
    return {"as_documented": limitation}


def _left(limitation: str, why: str, *names: str) -> tuple[Guarantee, ...]:
    """Return the violations of a limitation that is left as the document leaves it."""
    return tuple(Guarantee(name, KNOWN_VIOLATION, limitation, why, ANY_FAULT, _documented(limitation))
                 for name in names)


GUARANTEES: tuple[Guarantee, ...] = (
    *(Guarantee(name, NOT_PROMISED, "Selective replication", _BY_CHOICE, ANY_FAULT, such=_NOT_ALL_MESSAGES)
      for name in _LOST_BY_CHOICE),
    Guarantee("metadata", NOT_PROMISED, "Selective replication", _BY_CHOICE, ANY_FAULT, such=_NOT_ALL_OBJECTS),
    *_left("LM1", "a backup that is ahead of a new primary keeps what that never had, and passes over what it sends",
           "lost", "duplicated", "atomic", "exactly-once", *SINGLE_VALUES),
    *_left("LM2", "after a wrap-around of the sequence a backup is taken for further than it is",
           "lost", "duplicated", "atomic", "exactly-once", *SINGLE_VALUES),
    *_left("LM3", "a transaction's changes reach a backup queue by queue, and a failover may come between",
           "atomic", "exactly-once"),
    *_left("LM4", "an acknowledgement is confirmed before the backups have the dequeue",
           "duplicated", "exactly-once"),
    *_left("LM5", "a new primary confirms before the backups are there, and may be lost before they are",
           "lost", "duplicated", "atomic", "exactly-once", *SINGLE_VALUES),
    *_left("LM6a", "after the loss of all, a person who can't tell which store is the latest takes any",
           "lost", "duplicated", "atomic", "exactly-once", "metadata", *SINGLE_VALUES),
    *_left("LC2a", "a queue that was made on demand is not known after a failover until its client makes it again",
           "lost", "duplicated", "atomic", "exactly-once", *SINGLE_VALUES),
    *_left("LC2c", "a change of the configuration is confirmed before it has reached the backups", "metadata"),
    *_left("LC3", "what was deleted while a backup was away is there again when that becomes primary", "metadata"),
    *_left("LC4", "a backup keeps changes that the new primary never had", "metadata"),
    *_left("LC6", "a deletion between the query and the events is not told", "metadata"),
    *(Guarantee(name, KNOWN_VIOLATION, "Failover and Cluster Resource Managers", _TWO_PRIMARIES, _SPLIT, _BY_HAND)
      for name in _TWICE_LED),
    *(Guarantee(name, KNOWN_VIOLATION, "Failover and Cluster Resource Managers", _NO_QUORUM, _SPLIT, _UNFENCED)
      for name in _TWICE_LED),
    *(Guarantee(name, NOT_PROMISED, "Interaction with the store", _NOTHING_STORED, ANY_FAULT, _NO_STORE)
      for name in _KEPT),
    *(Guarantee(name, NOT_PROMISED, "LM4", _NOT_WRITTEN, _LOSES_POWER, _ASYNC) for name in _KEPT),
    *(Guarantee(name, PROMISED, "Inconsistent errors", _TOLD, _DISK, {"disk_kind": kind})
      for name in _KEPT for kind in _DISKS_THAT_TELL),
    *(Guarantee(name, NOT_PROMISED, "ours", _FORGETS, _DISK) for name in _KEPT),
    Guarantee("lost", PROMISED, "Replicating browsers", "a completed message is on every backup that may take over"),
    Guarantee("duplicated", PROMISED, "LM4", "an acknowledgement is confirmed when the backups have the dequeue"),
    Guarantee("redelivered-unconfirmed", NOT_PROMISED, "Enabling replication on the client", "at least once: what was "
              "not confirmed, a message or its ACK, may come twice"),
    Guarantee("phantom", PROMISED, "Replicating browsers", "backups hold what the primary was sent, and nothing else"),
    Guarantee("depth", PROMISED, "Replicating browsers", "what was dequeued at the primary is dequeued at its backups"),
    Guarantee("atomic", PROMISED, "LM3", "what belongs together is told to backups as one group"),
    Guarantee("exactly-once", PROMISED, "LM3, LM4", "taking and sending are one group of events"),
    Guarantee("tx-phantom", PROMISED, "ours", "what was aborted, or never committed, was never sent"),
    Guarantee("metadata", PROMISED, "LC2c, LC3, LC4, LC6", "a change is confirmed when the backups have it, and a "
              "snapshot replaces what they had"),
    *promises("a read waits for the completion of what it shows, and for the manager's permission",
              "a connection is not reliable: its token goes to another as soon as it is lost, and its client learns "
              "that later", NOT_PROMISED),
    Guarantee("recovery", PROMISED, "Failover", "when the faults are over, there is one primary and its backups are "
              "ready"),
)  # fmt: skip

COUNTS_ANEW = Guarantee(
    "redelivery", NOT_PROMISED, "Replicating browsers",
    "backups are told of enqueues and dequeues, not of deliveries: a new primary counts anew", ANY_FAULT)  # fmt: skip
"""Takes precedence over the design's other guarantees on redeliveries."""
