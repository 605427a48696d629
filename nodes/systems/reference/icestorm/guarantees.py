"""The guarantees of the design ``icestorm`` (headings of *Highly Available IceStorm* in ``where``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stormproof.contracts.guarantee import ANY_FAULT, KNOWN_VIOLATION, NOT_PROMISED, PROMISED, Guarantee, Trial

_DISK = ("disk",)
_DISCARDED = {"offline_events": "discarded"}

_METADATA: tuple[Guarantee, ...] = (
    Guarantee(
        "metadata",
        NOT_PROMISED,
        "ours",
        "a replica that is cut off answers from its own database, which may be old",
        ANY_FAULT,
        {"reads": "local"},
    ),
    Guarantee(
        "metadata",
        KNOWN_VIOLATION,
        "Replication Algorithm",
        "a change that no majority has, or a clock that is wrong, makes an old database the most recent",
        ANY_FAULT,
        {"stamp": "wall-clock"},
    ),
    Guarantee(
        "metadata",
        NOT_PROMISED,
        "ours",
        "a disk that forgets what it had confirmed is beyond what replicas can mend",
        _DISK,
    ),
    Guarantee(
        "metadata",
        PROMISED,
        "Replication Algorithm",
        "a change is confirmed when a majority has it on disk, and no group replicates without one of those",
    ),
)
GUARANTEES: tuple[Guarantee, ...] = (
    *_METADATA,
    # A client that has topics to itself notices every violation that clients sharing topics notice.
    *(replace(each, name="dialogue") for each in _METADATA),
    Guarantee(
        "elections",
        KNOWN_VIOLATION,
        "Replication Algorithm",
        "a coordinator that is cut off stays normal until a change is tried",
        ("partition", "packets"),
        {"step_down": "on-write"},
    ),
    Guarantee(
        "elections", PROMISED, "Replication Algorithm, Replica States", "majority, full participation at full start"
    ),
    Guarantee(
        "event-lost",
        KNOWN_VIOLATION,
        "Subscriber Considerations",
        "what comes while a subscriber can't be reached is discarded, though the subscriber stays",
        ANY_FAULT,
        _DISCARDED,
    ),
    Guarantee(
        "event-lost",
        NOT_PROMISED,
        "Subscriber Considerations",
        "a subscriber is removed after one failed delivery",
        ANY_FAULT,
        {"retry_count": 0, "owed": "promised"},
    ),
    Guarantee(
        "event-lost",
        PROMISED,
        "Subscriber Considerations",
        "while the replica's process lives and the subscriber is not removed",
    ),
    Guarantee(
        "event-order",
        NOT_PROMISED,
        "Publisher Considerations",
        "subscriber and publisher are not suitably configured",
        mode={"reliability": "unordered"},
    ),
    Guarantee(
        "event-order",
        KNOWN_VIOLATION,
        "Publisher Considerations",
        "an event that was given up may still arrive, after those that were sent in its stead",
        ANY_FAULT,
        _DISCARDED,
    ),
    Guarantee(
        "event-order",
        PROMISED,
        "Publisher Considerations",
        "while the publisher stays on one replica, for `ordered` subscribers",
    ),
    Guarantee("topic-phantom", PROMISED, "Subscriber Considerations", "replicas deliver what was published"),
    Guarantee("recovery", PROMISED, "Replication Algorithm", "coordinators look for others until all are in one group"),
)

_ICESTORM_3_7 = {"reads": "local", "step_down": "on-write", **_DISCARDED}

MODES: Mapping[str, Mapping[str, Any]] = {
    "as documented, counted stamps": {},
    "stamps of the time of day": {"stamp": "wall-clock"},
    "local reads": {"reads": "local"},
    "stepping down on a write": {"step_down": "on-write"},
    "offline events discarded": _DISCARDED,
    "as IceStorm 3.7": _ICESTORM_3_7,
    "unordered subscribers": {"reliability": "unordered"},
    "subscribers without retries": {"retry_count": 0},
}
"""The modes that are compared, by their settings that differ from the defaults."""

# Wrong clocks show the difference between kinds of stamps; a minority must be cut off for longer than it may take to
# stop.
TRIAL = Trial(
    ("subscriptions", "events"),
    "partition,pause,kill,clock",
    {"fault_duration": "4", "master_timeout": "2", "response_timeout": "0.2"},
)
