"""What qpid's brokers hold at rest."""

from __future__ import annotations

from nodes.systems.reference.keeps import ENGINE
from stormproof.contracts.keeps import Keep

_CONFIGURATION = "queues, exchanges and bindings with their arguments: as many as clients have made"

KEEPS = (
    *(Keep(name, _CONFIGURATION, more=5_000) for name in ("Configuration.", "Generations.", "table qpid_")),
    *ENGINE,
)
