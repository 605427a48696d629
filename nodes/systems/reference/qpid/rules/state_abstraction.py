"""The abstraction that distinguishes situations of a qpid cluster."""

from __future__ import annotations

from stormproof.contracts.state_abstraction import Abstraction

ABSTRACTION = Abstraction(
    changes=("state", "term", "confirms", "store", "generation"),
    kept=("state", "confirms", "store"),
    present=("term",),
    behind=("term", "generation"),
)
