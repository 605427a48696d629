"""The abstraction that distinguishes situations of an icestorm group."""

from __future__ import annotations

from stormproof.contracts.state_abstraction import Abstraction

ABSTRACTION = Abstraction(
    changes=("state", "coordinator", "epoch", "members", "max_seen", "promised"),
    kept=("state", "members", "max_seen"),
    behind=("epoch", "promised", "stamp"),
    unequal=(("epoch", "promised"),),
)
