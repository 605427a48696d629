"""The abstraction that distinguishes situations of a joram group."""

from __future__ import annotations

from stormproof.contracts.state_abstraction import Abstraction

ABSTRACTION = Abstraction(
    changes=("leads", "serving", "promised", "durable_promise", "last_epoch", "group_index"),
    kept=("serving",),
    present=("leads", "base"),
    behind=("promised", "last_epoch", "last", "committed", "group_index", "leads"),
    unequal=(("promised", "durable_promise"), ("last", "durable"), ("last", "committed")),
)
