"""The abstraction that distinguishes situations of two fiorano servers."""

from __future__ import annotations

from stormproof.contracts.state_abstraction import Abstraction

ABSTRACTION = Abstraction(
    changes=("state", "serves", "lock", "holds", "stamp.whole", "stamp.epoch", "stamp.asked"),
    kept=("state", "before", "serves", "holds", "stamp.whole"),
    behind=("lock", "stamp.epoch", "stamp.counter", "stamp.asked"),
    unequal=(("lock", "stamp.epoch"), ("lock", "stamp.asked")),
)
