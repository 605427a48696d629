"""All systems by name. A new one is one folder beside the others and one line here."""

from __future__ import annotations

from typing import TypeGuard

from stormproof.contracts.system import System
from stormproof.registry import Entry, Registry


def _is_system(found: object) -> TypeGuard[System]:
    return isinstance(found, System)


SYSTEMS: Registry[System] = Registry(
    "system",
    _is_system,
    Entry("standalone", "one broker, no replication", "nodes.systems.standalone.system:STANDALONE"),
    Entry("joram", "HA Joram: group view, master is first of the view, eager atomic multicast",
          "nodes.systems.joram.system:JORAM"),
    Entry("icestorm", "HA IceStorm: invitation election, replicated topics and subscribers, events from any replica",
          "nodes.systems.icestorm.system:ICESTORM"),
    Entry("qpid", "Qpid active-passive: hot standbys browse the primary's queues, a cluster manager promotes",
          "nodes.systems.qpid.system:QPID"),
    Entry("fiorano", "FioranoMQ HA: two servers that look like one, a lock on a third machine",
          "nodes.systems.fiorano.system:FIORANO"),
)  # fmt: skip
