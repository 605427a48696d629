"""Packet latency in a simulated network."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class LatencyModel:
    """The distribution of packet delays, in seconds.

    ``base`` is the delay on an idle link, ``jitter`` the mean of the random addition. With the probability ``spikes``,
    up to ``spike`` seconds are added. ``slices`` is the probability that a read returns less than is available.
    """

    base: float
    jitter: float
    spikes: float
    spike: float
    slices: float

    @classmethod
    def draw(cls, rng: random.Random) -> LatencyModel:
        """Draw a network that suits the seed: from one rack to a slow campus."""
        base = 10 ** rng.uniform(-4.3, -2.7)
        return cls(
            base=base,
            jitter=base * rng.choice((0.1, 0.5, 2.0)),
            spikes=rng.choice((0.0, 0.0005, 0.005)),
            spike=rng.uniform(0.005, 0.1),
            slices=rng.choice((0.0, 0.02, 0.2)),
        )
