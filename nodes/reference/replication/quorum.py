"""How many are enough."""

from __future__ import annotations


def majority(total: int) -> int:
    """The smallest number of replicas that is more than half of ``total``."""
    return total // 2 + 1
