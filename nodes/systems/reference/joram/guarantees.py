"""The guarantees of the design ``joram`` in each of its modes (sections of *HA Joram* in ``where``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodes.systems.reference.single_values import all_of, of_token, promises
from stormproof.contracts.guarantee import ANY_FAULT, KNOWN_VIOLATION, NOT_PROMISED, PROMISED, Guarantee, Trial

_SPLIT = ("partition", "pause", "packets", "clock")
"""Faults that can split a group while each part continues."""
_UNSPECIFIED = {"partitions": "unspecified"}
_XA = {"transactions": "xa"}
_PLAIN_ASYNCHRONOUS = {"propagation": "asynchronous", "reliable": False}

_CLUSTERED = {"ha_servers": 2}
_ONCE = ({"quality": "at-most-once"}, {"quality": "exactly-once"})
_DUPLICATE_OKAY = {"quality": "duplicate-okay"}
_REACTED_AGAIN = "a message that was reacted to and not yet acknowledged is reacted to again"

GUARANTEES: tuple[Guarantee, ...] = (
    Guarantee(
        "lost",
        KNOWN_VIOLATION,
        "4.8",
        "both sides of a partition confirm, and the state of one is replaced",
        _SPLIT,
        _UNSPECIFIED,
    ),
    Guarantee(
        "lost",
        NOT_PROMISED,
        "2.2",
        "confirmed before the replicas have it, and the client keeps nothing to send again",
        ANY_FAULT,
        _PLAIN_ASYNCHRONOUS,
    ),
    Guarantee(
        "lost",
        NOT_PROMISED,
        "ours",
        "a disk that forgets what it had confirmed is beyond what replicas can mend",
        ("disk",),
    ),
    Guarantee(
        "lost",
        NOT_PROMISED,
        "1.2",
        "the client inside the broker acknowledges a message before it reacts to it",
        ANY_FAULT,
        {"quality": "at-most-once"},
    ),
    Guarantee(
        "lost",
        PROMISED,
        "2.2, 4.2.1",
        "confirmed when every replica that must have it has it on disk; with "
        "asynchronous propagation the reliable client sends again what was not safe",
    ),
    Guarantee(
        "duplicated",
        KNOWN_VIOLATION,
        "4.8",
        "what one side has acknowledged comes back with the other side's state",
        _SPLIT,
        _UNSPECIFIED,
    ),
    Guarantee(
        "duplicated",
        NOT_PROMISED,
        "ours",
        "the master's lease needs clocks whose rates differ by less than a fifth",
        ("clock",),
    ),
    Guarantee(
        "duplicated",
        NOT_PROMISED,
        "ours",
        "a disk that forgets what it had confirmed is beyond what replicas can mend",
        ("disk",),
    ),
    Guarantee("duplicated", NOT_PROMISED, "1.2", _REACTED_AGAIN, ANY_FAULT, _DUPLICATE_OKAY),
    Guarantee(
        "duplicated",
        PROMISED,
        "2.2, 5.1.6",
        "an acknowledgement is confirmed like a message, with asynchronous "
        "propagation too, and a frame that is sent again is recognised by its number",
    ),
    Guarantee("at-most-once", NOT_PROMISED, "1.2", _REACTED_AGAIN, ANY_FAULT, _DUPLICATE_OKAY),
    *(
        Guarantee(
            "at-most-once",
            KNOWN_VIOLATION,
            "4.8",
            "a message comes back when the sides meet, and is reacted to again",
            _SPLIT,
            {**_UNSPECIFIED, **mode},
        )
        for mode in _ONCE
    ),
    Guarantee(
        "at-most-once", PROMISED, "1.2", "acknowledged, and only then reacted to", mode={"quality": "at-most-once"}
    ),
    Guarantee(
        "at-most-once",
        PROMISED,
        "1.2",
        "acknowledgement and reaction are one transaction (XA)",
        mode={"quality": "exactly-once"},
    ),
    Guarantee("phantom", PROMISED, "2.2", "all replicas apply the same commands, or none does"),
    Guarantee("depth", KNOWN_VIOLATION, "4.8", "messages may come back when the sides meet", _SPLIT, _UNSPECIFIED),
    Guarantee("depth", NOT_PROMISED, "ours", "as for lost messages", ("disk",)),
    Guarantee("depth", PROMISED, "4.1", "all replicas have the same state, so what one has consumed no other has"),
    *(
        Guarantee(guarantee, KNOWN_VIOLATION, "4.8", why, _SPLIT, _UNSPECIFIED)
        for guarantee, why in (
            ("topic-lost", "what one side has stored for a subscription is replaced by the other side's state"),
            ("topic-duplicated", "a subscription's acknowledgements are taken back when the sides meet"),
            ("topic-order", "what a subscription has had may come back behind what came later"),
            ("agreement", "subscribers on different sides see what these published"),
            ("gaps", "a subscription goes on without what its side had stored for it"),
            ("atomic", "a commit of one side is taken back, after some of it was consumed"),
            ("exactly-once", "what was moved comes back, or is gone, with the state of the other side"),
        )
    ),
    Guarantee(
        "prepared",
        KNOWN_VIOLATION,
        "4.8",
        "a branch that was prepared is gone with its side's state",
        _SPLIT,
        {**_UNSPECIFIED, **_XA},
    ),
    *(
        Guarantee(guarantee, NOT_PROMISED, "2.2", why, ANY_FAULT, {"propagation": "asynchronous"})
        for guarantee, why in (
            (
                "topic-phantom:older-than-subscription",
                "what was confirmed early and came undone is sent again, to those as "
                "well who have subscribed meanwhile",
            ),
            (
                "gaps:missed-by-time",
                "what was confirmed early and came undone is sent again, behind what others have sent meanwhile",
            ),
        )
    ),
    Guarantee(
        "topic-lost",
        PROMISED,
        "1.2, 2.2",
        "durable subscriptions are replicated like queues, and transient ones end with their connection",
    ),
    Guarantee(
        "topic-duplicated", PROMISED, "2.2, 5.1.6", "acknowledgements of a subscription are confirmed like any other"
    ),
    Guarantee("topic-phantom", PROMISED, "2.2", "all replicas apply the same commands, or none does"),
    Guarantee(
        "topic-order",
        PROMISED,
        "6",
        "a producer's messages go through its element's log to the others, in one sequence for each pair of servers",
        mode=_CLUSTERED,
    ),
    Guarantee(
        "agreement",
        PROMISED,
        "6, 4.4",
        "subscriptions on one element see one order; the orders of two elements may differ",
        mode=_CLUSTERED,
    ),
    Guarantee(
        "gaps",
        PROMISED,
        "6, 4.4",
        "a subscription has what its own element was sent since it was made, in that order, and a producer's messages "
        "of the others",
        mode=_CLUSTERED,
    ),
    Guarantee(
        "topic-order", PROMISED, "4.4", "all replicas take the commands of a producer in the order of their numbers"
    ),
    Guarantee("agreement", PROMISED, "4.4", "one order of commands, on every replica, is what all subscribers see"),
    Guarantee("gaps", PROMISED, "1.2, 4.4", "a subscription has every message since it was made, in that order"),
    Guarantee(
        "atomic", PROMISED, "1.2, 2", "a commit is one command: all replicas apply the whole of it, or none does"
    ),
    Guarantee(
        "exactly-once", PROMISED, "1.2", "taking and sending are one transaction, which survives a failover prepared"
    ),
    Guarantee("tx-phantom", PROMISED, "2.2", "what was aborted, or never committed, was never sent"),
    Guarantee(
        "prepared",
        PROMISED,
        "1.2, 2.2",
        "PREPARE is confirmed like a message, and a prepared branch belongs to its login, on any master",
        mode=_XA,
    ),
    *all_of(KNOWN_VIOLATION, "4.8", "each side of a partition has a state of its own", _SPLIT, _UNSPECIFIED),
    *all_of(
        NOT_PROMISED,
        "2.2",
        "what was confirmed early, or shown, may come undone",
        ANY_FAULT,
        {"propagation": "asynchronous"},
    ),
    *all_of(NOT_PROMISED, "ours", "a disk that forgets is beyond what replicas can mend", ("disk",)),
    *all_of(
        NOT_PROMISED,
        "ours",
        "the master's lease, and a client's silence, need clocks whose rates differ by less than a fifth",
        ("clock",),
    ),
    *of_token(
        NOT_PROMISED,
        "5.1",
        "the token of a connection that is not reliable goes to another as soon as that is lost",
        ANY_FAULT,
        {"reliable": False},
    ),
    *promises(
        "reads, writes and comparisons are commands in one log",
        "a token is with one consumer, whose connection outlives its master",
        PROMISED,
    ),
    Guarantee("recovery", PROMISED, "4.5", "when the faults are over, the replicas agree on one master again"),
)

MODES: Mapping[str, Mapping[str, Any]] = {
    "ack all": {"ack": "all"},
    "ack majority": {"ack": "majority"},
    "asynchronous, reliable clients": {"propagation": "asynchronous"},
    "asynchronous, plain clients": {"propagation": "asynchronous", "reliable": False},
    "unspecified partitions": {"partitions": "unspecified"},
    "reaction, at most once": {"quality": "at-most-once"},
    "reaction, duplicate-okay": {"quality": "duplicate-okay"},
    "distributed transactions": _XA,
    "unspecified partitions, distributed transactions": {**_UNSPECIFIED, **_XA},
}
"""The modes that are compared, by their settings. A setting that is not listed has its default: a reaction happens
exactly once, and a transaction is not distributed."""

TRIAL = Trial(("queue", "topic", "transaction", "processing", "consume-last", "lock", "lease", "register"),
              "partition,pause,kill,power")
