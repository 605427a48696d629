"""Time bounds for a Qpid cluster with built-in managers to serve again and to settle, as multiples of its settings, and
bounds of its machines' traffic."""

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

FAILOVER: Mapping[str, float] = {"detection_timeout": 2, "manager_lease": 3, "eviction_timeout": 1,
                               "catchup_timeout": 1}  # fmt: skip
_WHY = ("Failover and Cluster Resource Managers: silence is noticed, the old primary's lease ends, managers elect, "
        "again where votes are split; a broker that a manager has lost is ended within eviction_timeout; completions "
        "wait catchup_timeout for who is not caught up; the rest is for starts, and clients that come back")
_OURS = {"manager": ("builtin",)}

BOUNDS = (
    # Ten seconds: an administrator may have to choose the best store, and observes the cluster for a while first.
    Bound(HEALTHY, FAILOVER, 10, _WHY, unless=("disk",), where=_OURS),
    Bound(SERVES, FAILOVER, 10, _WHY, unless=("disk",), where=_OURS),
    Bound(SERVES_WITH_MAJORITY, FAILOVER, 10, _WHY, unless=("disk",), where=_OURS, of_use=True),
    Bound(KEEPS_ROLES, FAILOVER, 10, _WHY, unless=("disk",), where=_OURS),
)

_COPIES = ("Cluster Resource Managers: managers send each other five heartbeats in a manager_lease, and answer; "
           "backups browse what the primary has, several messages a frame; what is fixed is for failovers and the "
           "copying that follows")

WORK = (
    WorkBound(FRAMES, 1.2, {"manager_lease": 35}, 100, _COPIES, ("clock",), _OURS),
    WorkBound(BYTES, 4.5, {"manager_lease": 3000}, 14_000, _COPIES, ("clock",), _OURS),
)
