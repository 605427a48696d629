"""Time bounds for a FioranoMQ pair to serve again and to settle, as multiples of its settings, and bounds of its
machines' traffic."""

from __future__ import annotations

from collections.abc import Mapping

from stormproof.contracts.bounds import (
    BYTES,
    FRAMES,
    HEALTHY,
    KEEPS_ROLES,
    SERVES,
    SERVES_WITH_ONE,
    Bound,
    WorkBound,
)

TAKEOVER: Mapping[str, float] = {"lease": 3, "heartbeat": 4, "database_timeout": 2}
_WHY = ("Determining which HA to use: the peer's heartbeats are missed, its lock's lease ends and is granted anew, the "
        "database answers or is given up, and a pair that synchronises does so once more; what is fixed is for clients "
        "that come back, and disks")
_LOCKED = {"lock": (True,), "fencing": (True,), "as_documented": ("",)}

BOUNDS = (
    Bound(HEALTHY, TAKEOVER, 1, _WHY, unless=("disk",), where=_LOCKED),
    Bound(SERVES, TAKEOVER, 1, _WHY, unless=("disk",), where=_LOCKED),
    Bound(SERVES_WITH_ONE, TAKEOVER, 2, _WHY, unless=("disk", "gateway", "lockfile", "database"), where=_LOCKED,
          of_use=True),
    Bound(KEEPS_ROLES, TAKEOVER, 1, _WHY, unless=("disk",), where=_LOCKED),
)

_PAIR = ("the active server tells its standby each change, or asks the shared database, and is answered; a sign of "
         "life in each heartbeat, the lock in each lease; what is fixed is for takeovers and synchronisation")

WORK = (
    WorkBound(FRAMES, 2.2, {"heartbeat": 1, "lease": 0.5}, 30, _PAIR, ("clock", "packets")),
    WorkBound(BYTES, 5.5, {"heartbeat": 50}, 10_000, _PAIR, ("clock", "packets")),
)
