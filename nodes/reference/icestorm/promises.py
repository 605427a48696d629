"""What the design ``icestorm`` promises (headings of *Highly Available IceStorm* in ``where``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodes.reference.promises import ANY_FAULT, GAP, KEPT, OPEN, Promise, Trial

_DISK = ("disk",)
_DISCARDED = {"offline_events": "discarded"}

PROMISES: tuple[Promise, ...] = (
    Promise("metadata", OPEN, "ours", "a replica that is cut off answers from its own database, which may be old",
            ANY_FAULT, {"reads": "local"}),
    Promise("metadata", GAP, "Replication Algorithm", "a change that no majority has, or a clock that is wrong, makes "
            "an old database the most recent", ANY_FAULT, {"stamp": "wall-clock"}),
    Promise("metadata", OPEN, "ours", "a disk that forgets what it had confirmed is beyond what replicas can mend",
            _DISK),
    Promise("metadata", KEPT, "Replication Algorithm", "a change is confirmed when a majority has it on disk, and no "
            "group replicates without one of those"),
    Promise("elections", GAP, "Replication Algorithm", "a coordinator that is cut off stays normal until a change is "
            "tried", ("partition", "packets"), {"step_down": "on-write"}),
    Promise("elections", KEPT, "Replication Algorithm, Replica States", "majority, full participation at full start"),
    Promise("event-lost", GAP, "Subscriber Considerations", "what comes while a subscriber can't be reached is "
            "discarded, though the subscriber stays", ANY_FAULT, _DISCARDED),
    Promise("event-lost", OPEN, "Subscriber Considerations", "a subscriber is removed after one failed delivery",
            ANY_FAULT, {"retry_count": 0}),
    Promise("event-lost", KEPT, "Subscriber Considerations", "while the replica's process lives and the subscriber is "
            "not removed"),
    Promise("event-order", OPEN, "Publisher Considerations", "subscriber and publisher are not suitably configured",
            mode={"reliability": "unordered"}),
    Promise("event-order", GAP, "Publisher Considerations", "an event that was given up may still arrive, after those "
            "that were sent in its stead", ANY_FAULT, _DISCARDED),
    Promise("event-order", KEPT, "Publisher Considerations", "while the publisher stays on one replica, for `ordered` "
            "subscribers"),
    Promise("topic-phantom", KEPT, "Subscriber Considerations", "replicas deliver what was published"),
    Promise("recovery", KEPT, "Replication Algorithm", "coordinators look for others until all are in one group"),
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
"""The modes that are compared, by the settings that differ from the defaults."""

# Clocks that are wrong tell stamps apart; a minority has to be cut off for longer than it may take to stop.
TRIAL = Trial(("subscriptions", "events"), "partition,pause,kill,clock",
              {"fault_duration": "4", "master_timeout": "2", "response_timeout": "0.2"})
