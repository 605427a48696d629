"""The objects that idle qpid brokers keep in memory."""

from __future__ import annotations

from nodes.systems.reference.rules.resting_state import ENGINE
from stormproof.contracts.resting_state import Keep

_CONFIGURATION = "queues, exchanges and bindings with their arguments: as many as clients have made"
_BEGINNINGS = "of each queue, where each generation of it began that backups may have to agree on"

KEEPS = (
    *(Keep(name, _CONFIGURATION, more=150) for name in ("Configuration.", "table qpid_objects", "QueueReplicas.")),
    *(Keep(name, _BEGINNINGS, more=150) for name in ("Generations.", "table qpid_generations")),
    *ENGINE,
)
