"""Within which time HA IceStorm serves again and is at rest, as multiples of its settings."""

from __future__ import annotations

from collections.abc import Mapping

from stormproof.contracts.bounds import HEALTHY, KEEPS_ROLES, SERVES, SERVES_WITH_MAJORITY, Bound

_ELECTION: Mapping[str, float] = {"election_timeout": 4, "master_timeout": 2, "response_timeout": 4}
_WHY = ("Garcia-Molina's timers: a slave asks after its coordinator, a coordinator looks around, invitations and "
        "answers take a time each, twice where two groups meet; what is fixed is for clients that come back, and disks")

BOUNDS = (
    Bound(HEALTHY, _ELECTION, 1, _WHY, unless=("disk",)),
    Bound(SERVES, _ELECTION, 1, _WHY, unless=("disk",)),
    Bound(SERVES_WITH_MAJORITY, _ELECTION, 2, _WHY, unless=("disk",)),
    Bound(KEEPS_ROLES, _ELECTION, 1, _WHY, unless=("disk",)),
)
