"""What may be pending in a broker of a Qpid cluster, and for how long."""

from __future__ import annotations

from nodes.systems.qpid.bounds import FAILOVER
from nodes.systems.reference.deadlines import DEADLINES, GREETING, MISDIRECTS
from stormproof.contracts.deadline import Deadline

_ODD = ("disk", "clock")
_ENDED = (*_ODD, "kill", "power", "reboot", "rolling", "stop")
"""Faults by which all brokers may end: then a person says whose store is the best."""
_OURS = {"manager": ("builtin",), "standby": ("hot",)}
_ATTACHED = {"detection_timeout": 2, "manager_lease": 3}
_LINKS = ("Links: of two peers one dials the other, in every eighth of detection_timeout; what comes on top is for a "
          "broker that its manager has to start again")

QPID_DEADLINES = (
    Deadline("link", {"detection_timeout": 2, "manager_lease": 1}, 2.5, _LINKS, _ODD, _OURS, "a broker has no link",
             calm=True),
    Deadline(
        "manager-link",
        {"manager_lease": 2},
        1.5,
        "Links: of two managers one dials the other, in every heartbeat",
        _ODD,
        _OURS,
        "a manager has no link",
        calm=True,
    ),
    Deadline(
        "candidacy",
        {"manager_lease": 1},
        0.2,
        "Cluster Resource Managers: who hears most managers and no coordinator stands within half a lease, by chance",
        _ODD,
        _OURS,
        "a manager that hears most others and no coordinator does not stand",
    ),
    Deadline(
        "ballot",
        {"manager_lease": 1.5},
        0.2,
        "coordinator.py: who gets no majority within a lease gives up",
        _ODD,
        _OURS,
        "a ballot is under way",
    ),
    Deadline(
        "silent-peer",
        {"detection_timeout": 0.6},
        0.3,
        "brokers speak in every quarter of detection_timeout",
        _ODD,
        _OURS,
        "nothing is heard of a broker with a link",
        calm=True,
    ),
    Deadline(
        "primary",
        {**FAILOVER, "manager_lease": FAILOVER["manager_lease"] + 10},
        10,
        "Failover: bounds.py; managers pass over a broker that the last primary noted it would go on without: a person "
        "waits for ten leases, or ten seconds, and takes it",
        _ENDED,
        _OURS,
        "a broker that may be promoted has no primary",
        calm=True,
    ),
    Deadline(
        "catchup",
        {"catchup_timeout": 1, "detection_timeout": 1},
        1,
        "Replicating browsers",
        _ODD,
        _OURS,
        "a backup has not caught up",
        calm=True,
    ),
    Deadline(
        "expected",
        {"catchup_timeout": 1, "detection_timeout": 0.5},
        0.3,
        "completions wait catchup_timeout for who is not caught up",
        ("clock",),
        _OURS,
        "completions wait for a backup that is expected",
    ),
    Deadline(
        "expected-though-there",
        {},
        0.02,
        "Failover: a new primary waits for the backups that have not attached yet",
        (),
        _OURS,
        "a backup is expected that is there",
        momentary=True,
    ),
    Deadline(
        "ready-uncounted",
        {},
        0.02,
        "Replicating browsers: what is confirmed is at all backups that are ready",
        (),
        _OURS,
        "a backup is ready, and completions do not wait for it",
        momentary=True,
    ),
    Deadline(
        "slow-backup",
        {"catchup_timeout": 1, "detection_timeout": 0.25},
        0.1,
        "completions wait catchup_timeout for who is not caught up; looked at in each quarter of detection_timeout",
        ("clock",),
        _OURS,
        "completions wait for a backup that does not catch up",
    ),
    Deadline(
        "away", _ATTACHED, 2, "Broker discovery and lifecycle", _ODD, _OURS, "a backup is not attached", calm=True
    ),
    Deadline(
        "browser",
        {"detection_timeout": 2},
        0.5,
        "Replicating browsers",
        _ODD,
        _OURS,
        "a backup has not answered what it was sent",
        calm=True,
    ),
    Deadline(
        "catch-up-window",
        {},
        0.02,
        "browsing.py: eight groups may be under way while a backup catches up",
        ("clock",),
        _OURS,
        "a backup that catches up is sent nothing though its window has room",
    ),
    Deadline(
        "completion",
        {**_ATTACHED, "catchup_timeout": 1},
        2,
        "Replicating browsers: bounds.py",
        _ODD,
        _OURS,
        "a command is not completed",
        calm=True,
    ),
    GREETING,
    MISDIRECTS,
    *DEADLINES,
)
