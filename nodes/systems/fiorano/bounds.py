"""Within which time a FioranoMQ pair serves again and is at rest, as multiples of its settings."""

from __future__ import annotations

from collections.abc import Mapping

from stormproof.contracts.bounds import HEALTHY, KEEPS_ROLES, SERVES, Bound

_TAKEOVER: Mapping[str, float] = {"lease": 3, "heartbeat": 4, "database_timeout": 2}
_WHY = ("Determining which HA to use: the peer's heartbeats are missed, its lock's lease ends and is granted anew, the "
        "database answers or is given up, and a pair that synchronises does so once more; what is fixed is for clients "
        "that come back, and disks")
_LOCKED = {"lock": (True,), "fencing": (True,), "as_documented": ("",)}

BOUNDS = (
    Bound(HEALTHY, _TAKEOVER, 1, _WHY, unless=("disk",), where=_LOCKED),
    Bound(SERVES, _TAKEOVER, 1, _WHY, unless=("disk",), where=_LOCKED),
    Bound(KEEPS_ROLES, _TAKEOVER, 1, _WHY, unless=("disk",), where=_LOCKED),
)
