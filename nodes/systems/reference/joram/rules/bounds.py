"""Time bounds for HA Joram to serve again and to settle, as multiples of its settings, and bounds of its machines'
traffic."""

from __future__ import annotations

from collections.abc import Mapping

from nodes.reference.server.reaction import TAKING
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

_ELECTION: Mapping[str, float] = {"detection_timeout": 4}
_WHY = ("4.5, and Raft paper 5.2: one detection_timeout until silence is noticed, one for the master's lease, one for "
        "an election, one more where votes are split; what is fixed is for clients that come back, and disks")
_GROUP = {"partitions": ("primary-partition",)}

BOUNDS = (
    Bound(HEALTHY, _ELECTION, 1, _WHY, unless=("disk",), where=_GROUP),
    Bound(SERVES, _ELECTION, 1, _WHY, unless=("disk",), where=_GROUP),
    Bound(SERVES_WITH_MAJORITY, _ELECTION, 2, _WHY, unless=("disk",), where=_GROUP),
    Bound(KEEPS_ROLES, _ELECTION, 1, _WHY, unless=("disk",), where=_GROUP),
)

_ENTRIES = ("Raft paper 5.3: what a client asks for goes to each follower, which answers; five heartbeats in each "
            "detection_timeout where nothing else is said; what is fixed is for elections and catching up")

_STATES = (f"{_ENTRIES}; one that is behind what the log keeps gets the whole state (docs/designs/joram.md: log_keep), "
           "all messages that wait")
_LONG: Mapping[str, tuple[int, ...]] = {"log_keep": (10_000,)}
"""Settings of a test in which no replica lags further than the log reaches."""
_SERVICES: Mapping[str, tuple[str, ...]] = {"taking": TAKING}
"""Settings of a test with services, which send messages and acknowledgements in addition to those of clients."""

WORK = (
    WorkBound(FRAMES, 3.5, {"detection_timeout": 6}, 20, _ENTRIES, ("clock", "packets"), _SERVICES),
    WorkBound(FRAMES, 2.3, {"detection_timeout": 6}, 20, _ENTRIES, ("clock", "packets")),
    WorkBound(BYTES, 3.5, {"detection_timeout": 400}, 10_000, _ENTRIES, ("clock", "packets"), {**_SERVICES, **_LONG},
              more=25),
    WorkBound(BYTES, 2.3, {"detection_timeout": 400}, 10_000, _ENTRIES, ("clock", "packets"), _LONG, more=25),
    WorkBound(BYTES, 3.5, {"detection_timeout": 400}, 10_000, _STATES, ("clock", "packets"), _SERVICES, more=25,
              again=1),
    WorkBound(BYTES, 2.3, {"detection_timeout": 400}, 10_000, _STATES, ("clock", "packets"), more=25, again=1),
)
