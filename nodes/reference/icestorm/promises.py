"""What the design ``icestorm`` promises (headings of *Highly Available IceStorm* in ``where``)."""

from __future__ import annotations

from nodes.reference.promises import ANY_FAULT, GAP, KEPT, OPEN, Promise

_DISK = ("disk",)

PROMISES: tuple[Promise, ...] = (
    Promise("metadata", OPEN, "ours", "a replica that is cut off answers from its own database, which may be old",
            ANY_FAULT, {"reads": "local"}),
    Promise("metadata", GAP, "Replication Algorithm", "clocks that are wrong make an old database the most recent",
            ("clock",), {"stamp": "wall-clock"}),
    Promise("metadata", OPEN, "ours", "a disk that forgets what it had confirmed is beyond what replicas can mend",
            _DISK),
    Promise("metadata", KEPT, "Replication Algorithm", "a change is confirmed when a majority has it on disk, and no "
            "group replicates without one of those"),
    Promise("elections", GAP, "Replication Algorithm", "a coordinator that is cut off stays normal until a change is "
            "tried", ("partition", "packets"), {"step_down": "on-write"}),
    Promise("elections", KEPT, "Replication Algorithm, Replica States", "majority, full participation at full start"),
    Promise("event-lost", KEPT, "Subscriber Considerations", "while the replica's process lives and the subscriber is "
            "not removed"),
    Promise("event-order", KEPT, "Publisher Considerations", "while the publisher stays on one replica, for `ordered` "
            "subscribers"),
    Promise("topic-phantom", KEPT, "Subscriber Considerations", "replicas deliver what was published"),
    Promise("recovery", KEPT, "Replication Algorithm", "coordinators look for others until all are in one group"),
)
