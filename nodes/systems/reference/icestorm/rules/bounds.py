"""Time bounds for HA IceStorm to serve again and to settle, as multiples of its settings, and bounds of its machines'
traffic."""

from __future__ import annotations

from collections.abc import Mapping

from stormproof.contracts.bounds import (
    BYTES,
    FRAMES,
    HEALTHY,
    KEEPS_ROLES,
    SERVES,
    SERVES_WITH_MAJORITY,
    Bound,
    WorkBound,
)

ELECTION: Mapping[str, float] = {"election_timeout": 4, "master_timeout": 2, "response_timeout": 4}
_WHY = ("Garcia-Molina's timers: a slave asks after its coordinator, a coordinator looks around, invitations and "
        "answers take a time each, twice where two groups meet; what is fixed is for clients that come back, and disks")

BOUNDS = (
    Bound(HEALTHY, ELECTION, 1, _WHY, unless=("disk",)),
    Bound(SERVES, ELECTION, 1, _WHY, unless=("disk",)),
    Bound(SERVES_WITH_MAJORITY, ELECTION, 2, _WHY, unless=("disk",), of_use=True),
    Bound(KEEPS_ROLES, ELECTION, 1, _WHY, unless=("disk",)),
)

_CHANGES = ("a change goes to each replica, which answers; Garcia-Molina's timers: replicas ask for their coordinator "
            "in each master_timeout, coordinators look around in each election_timeout; what is fixed is for elections "
            "and what a replica is given then")

WORK = (
    WorkBound(FRAMES, 2.5, {"master_timeout": 3, "election_timeout": 2.5}, 40, _CHANGES, ("clock",)),
    WorkBound(BYTES, 1, {"master_timeout": 170, "election_timeout": 80}, 2000, _CHANGES, ("clock",)),
)
