"""What the design ``joram`` promises in each of its modes (sections of *HA Joram* in ``where``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodes.reference.promises import ANY_FAULT, GAP, KEPT, OPEN, Promise

_SPLIT = ("partition", "pause", "packets", "clock")
"""Faults by which a group can fall apart while each part goes on."""
_UNSPECIFIED = {"partitions": "unspecified"}
_PLAIN_ASYNCHRONOUS = {"propagation": "asynchronous", "reliable": False}

_ONCE = ({"quality": "at-most-once"}, {"quality": "exactly-once"})
_DUPLICATE_OKAY = {"quality": "duplicate-okay"}
_AGAIN = "a message that was reacted to and not yet acknowledged is reacted to again"

PROMISES: tuple[Promise, ...] = (
    Promise("lost", GAP, "4.8", "both sides of a partition confirm, and the state of one is replaced",
            _SPLIT, _UNSPECIFIED),
    Promise("lost", OPEN, "2.2", "confirmed before the replicas have it, and the client keeps nothing to send again",
            ANY_FAULT, _PLAIN_ASYNCHRONOUS),
    Promise("lost", OPEN, "ours", "a disk that forgets what it had confirmed is beyond what replicas can mend",
            ("disk",)),
    Promise("lost", OPEN, "1.2", "the client inside the broker acknowledges a message before it reacts to it",
            ANY_FAULT, {"quality": "at-most-once"}),
    Promise("lost", KEPT, "2.2, 4.2.1", "confirmed when every replica that must have it has it on disk; with "
            "asynchronous propagation the reliable client sends again what was not safe"),
    Promise("duplicated", GAP, "4.8", "what one side has acknowledged comes back with the other side's state",
            _SPLIT, _UNSPECIFIED),
    Promise("duplicated", OPEN, "ours", "the master's lease needs clocks whose rates differ by less than a fifth",
            ("clock",)),
    Promise("duplicated", OPEN, "ours", "a disk that forgets what it had confirmed is beyond what replicas can mend",
            ("disk",)),
    Promise("duplicated", OPEN, "1.2", _AGAIN, ANY_FAULT, _DUPLICATE_OKAY),
    Promise("duplicated", KEPT, "2.2, 5.1.6", "an acknowledgement is confirmed like a message, with asynchronous "
            "propagation too, and a frame that is sent again is recognised by its number"),
    Promise("at-most-once", OPEN, "1.2", _AGAIN, ANY_FAULT, _DUPLICATE_OKAY),
    *(Promise("at-most-once", GAP, "4.8", "a message comes back when the sides meet, and is reacted to again",
              _SPLIT, {**_UNSPECIFIED, **mode}) for mode in _ONCE),
    Promise("at-most-once", KEPT, "1.2", "acknowledged, and only then reacted to", mode={"quality": "at-most-once"}),
    Promise("at-most-once", KEPT, "1.2", "acknowledgement and reaction are one transaction (XA)",
            mode={"quality": "exactly-once"}),
    Promise("phantom", KEPT, "2.2", "all replicas apply the same commands, or none does"),
    Promise("depth", GAP, "4.8", "messages may come back when the sides meet", _SPLIT, _UNSPECIFIED),
    Promise("depth", OPEN, "ours", "as for lost messages", ("disk",)),
    Promise("depth", KEPT, "4.1", "all replicas have the same state, so what one has consumed no other has"),
    Promise("recovery", KEPT, "4.5", "when the faults are over, the replicas agree on one master again"),
)

MODES: Mapping[str, Mapping[str, Any]] = {
    "ack all": {"ack": "all"},
    "ack majority": {"ack": "majority"},
    "asynchronous, reliable clients": {"propagation": "asynchronous"},
    "asynchronous, plain clients": {"propagation": "asynchronous", "reliable": False},
    "unspecified partitions": {"partitions": "unspecified"},
}
"""The modes that are compared, by the settings that differ from the defaults."""
