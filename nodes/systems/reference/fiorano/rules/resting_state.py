"""The objects that idle fiorano servers keep in memory."""

from __future__ import annotations

from nodes.systems.reference.rules.resting_state import ENGINE, REMEMBERED
from stormproof.contracts.resting_state import LEFT, Keep

_BEFORE = "who serves no longer has in memory what it had then, until it serves again and loads its repository"

_ROWS = "rows of all tables of the broker, which have their limits there"

KEEPS = (
    Keep("table stored", _ROWS, more=LEFT),
    Keep("View.facts", "what was true when the state changed, the latest three times", more=20),
    *(Keep(name, _BEFORE, more=150) for name in ("EngineState.contexts", "Context.", "Subscription.", "Destinations.",
                                                "table contexts", "table subscriptions")),
    *ENGINE,
    *REMEMBERED,
)
