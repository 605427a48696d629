"""The modes of ``fiorano`` that are compared, and trials of the modes that leave something out: faults and clients that
hit what the omitted part protects against (docs/designs/fiorano.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodes.systems.reference.fiorano.rules.table import CLIENT_ORDER, NEAREST_FIRST
from stormproof.contracts.guarantee import Trial

_ON_BOTH_SIDES = {CLIENT_ORDER: NEAREST_FIRST}
"""Each server has clients next to it, so that there are clients on both sides of a fault."""
_APART = {**_ON_BOTH_SIDES, "fault_network": "all", "partition_kind": "halves", "fault_duration": "4"}
"""The servers can't reach each other; each has clients next to it, and reaches the gateway."""
_ALONE = {**_ON_BOTH_SIDES, "fault_network": "channel", "kill_kind": "master",
          "schedule": "partition:halves:3-9:1 kill:master:6-8.5:1 partition:halves:11-17:1 kill:master:14-16.5:1"}
"""A server continues alone, and is killed while its standby is out of touch with it."""
_NO_LEASE = {**_ON_BOTH_SIDES, "fault_network": "channel", "gateway_target": "master", "heartbeat": "1",
             "producers": "6",
             "schedule": "partition:halves:2-17:1 gateway:cut-one:8-10:1 gateway:cut-one:13-15:1"}
"""The active server can't renew its lease, and checks it once a second; the other server takes the lock in the
meantime.
"""
_DATABASE = {**_ON_BOTH_SIDES, "partition_kind": "shared-db", "fault_network": "main", "fault_duration": "3"}

AIMED: Mapping[str, Trial] = {
    "no lock": Trial(("queue",), "partition", _APART),
    "no fencing": Trial(("queue",), "partition,kill", _ALONE),
    "wall-clock stamps": Trial(("queue",), "clock,partition,kill", {**_ON_BOTH_SIDES, "clock_kind": "bump"}),
    "shared, no lock": Trial(("queue",), "partition", _APART),
    "shared, no fencing": Trial(("queue",), "partition,gateway", _NO_LEASE),
    "shared, database as documented": Trial(("queue",), "partition,kill", _DATABASE),
}
"""Mode -> a trial that exposes the omission of that mode. With the omitted part in place, the same runs are valid."""

MODES: Mapping[str, Mapping[str, Any]] = {
    "replicated": {},
    "shared": {"mode": "shared"},
    "start alone": {"start_alone": True},
    "no lock": {"lock": False},
    "no fencing": {"fencing": False},
    "wall-clock stamps": {"stamps": "wall-clock"},
    "shared, no lock": {"mode": "shared", "lock": False},
    "shared, no fencing": {"mode": "shared", "fencing": False},
    "shared, database as documented": {"mode": "shared", "as_documented": "database"},
}
"""The modes that are compared, by their settings that differ from the defaults."""

TRIAL = Trial(("queue", "topic", "transaction", "offline-send", "security", "consume-last", "lock", "lease",
               "register"), "partition,pause,kill",
              {"settle_timeout": "40"}, of_mode=AIMED)
