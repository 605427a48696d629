"""The objects that idle joram replicas keep in memory."""

from __future__ import annotations

from nodes.systems.reference.rules.resting_state import ENGINE, REMEMBERED
from stormproof.contracts.resting_state import Keep

KEEPS = (
    *(Keep(name, "the newest entries of the log, which drops some at twice as many", "log_keep", 100, times=2)
      for name in ("Log._entries", "Log._epochs", "Log._sizes", "table joram_log")),
    *(Keep(name, "views and groups of the entries that are kept", more=100) for name in ("Log._views", "Log._groups")),
    Keep("task Links._dial", "each peer that this node has to dial, of a group that may grow", more=8),
    *(Keep(name, "who belongs to the group, with addresses, here and as others say", more=30)
      for name in ("Log._encoded", "Replica._told", "Replica._memberships", "Replica.places", "Replica.group")),
    *ENGINE,
    *REMEMBERED,
)  # fmt: skip
