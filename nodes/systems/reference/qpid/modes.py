"""The modes of ``qpid`` that are compared, and the trial of each limitation that is left as the document leaves it:
faults and a load that hit its window (docs/designs/qpid.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stormproof.contracts.guarantee import Trial

_PRIMARY_KILLED = {"kill_kind": "master", "kill_program": "broker"}
_BACKLOG = {"producers": "6", "consumers": "1"}
_MANY_OBJECTS = {"queues": "150", "exchanges": "80", "bindings": "0"}
_AWAY = Trial(("configuration",), "partition,kill",
              {**_PRIMARY_KILLED, **_MANY_OBJECTS, "partition_kind": "link", "detection_timeout": "0.5",
               "fault_gap": "0.3", "catchup_timeout": "5"}, 60)
"""A backup is cut off from the primary, returns with its old content, and the primary is lost."""

AIMED: Mapping[str, Trial] = {
    "LM1": Trial(("queue",), "partition,kill", {
        **_BACKLOG, "kill_program": "broker", "detection_timeout": "1", "catchup_timeout": "1",
        "schedule": "partition:link:5-5.6:1 kill:master:5.4-5.6:1 partition:one:7-11:8 kill:master:9.5-10:1",
    }, 60, 13),
    "LM2": Trial(("queue",), "partition,kill", {
        **_PRIMARY_KILLED, **_BACKLOG, "partition_kind": "link", "detection_timeout": "0.5", "sequence_bits": "3",
    }, 50, 12),
    "LM3": Trial(("transaction",), "packets,kill", {
        "writers": "20", "movers": "1", "parts": "4", "clients": "outside", "kill_program": "broker",
        "detection_timeout": "2", "schedule": "packets:delay:4-12:3 kill:master:6-6.5:1 kill:master:9.5-10:1",
    }, 300, 13),
    "LM4": Trial(("queue",), "partition", {"partition_kind": "master", "producers": "6", "consumers": "2"}, 80, 10),
    "LM5": Trial(("queue",), "partition,kill", {
        **_BACKLOG, "broker_network": "own", "fault_network": "brokers", "kill_program": "broker",
        "detection_timeout": "1", "catchup_timeout": "5",
        "schedule": "partition:one:5-11:7 kill:master:5.7-6.2:1 kill:master:8.5-9:1",
    }, 60, 14),
    "LC2c": Trial(("configuration",), "kill", {**_PRIMARY_KILLED, "fault_duration": "1"}, 60, 14),
    "LC3": _AWAY,
    "LC4": _AWAY,
    "LC6": Trial(("configuration",), "kill", {
        **_MANY_OBJECTS, "changers": "8", "kill_kind": "one,master", "kill_program": "broker",
        "detection_timeout": "2", "fault_duration": "1",
    }, 100, 16),
}  # fmt: skip
"""Limitation -> the trial that shows it. Without the limitation the same runs are valid."""

_BY_HAND = "a person promotes"
_SLOWLY = Trial(("queue", "transaction", "configuration", "consume-last"), "partition,pause,kill",
                {"fault_duration": "8", "fault_gap": "2"}, seconds=30)
"""Faults that last until the administrator has acted."""

MODES: Mapping[str, Mapping[str, Any]] = {
    "managers": {},
    _BY_HAND: {"manager": "none"},
    "a store that is not synced": {"store": "async"},
    "no store": {"store": "none"},
    **{f"{limitation} as documented": {"as_documented": limitation} for limitation in AIMED},
}
"""The modes that are compared, by their settings that differ from the defaults."""

TRIAL = Trial(("queue", "transaction", "configuration", "consume-last", "lock", "lease", "register"),
              "partition,pause,kill",
              {"settle_timeout": "40", "fault_gap": "1", "catchup_timeout": "1"}, seconds=30,
              of_mode={_BY_HAND: _SLOWLY,
                       **{f"{limitation} as documented": trial for limitation, trial in AIMED.items()}})
