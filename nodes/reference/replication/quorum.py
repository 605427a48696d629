"""Quorum sizes."""

from __future__ import annotations


def majority(total: int) -> int:
    """Return the smallest number of replicas that is more than half of ``total``."""
    return total // 2 + 1
