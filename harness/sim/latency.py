"""How long packets take in a simulated network."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class LatencyModel:
    """How long packets take: ``base`` seconds on an idle link, more by ``jitter`` (its mean), and with the
    probability ``spikes`` up to ``spike`` seconds more. ``slices`` is the probability that a read returns less
    than there is."""

    base: float
    jitter: float
    spikes: float
    spike: float
    slices: float

    @classmethod
    def draw(cls, rng: random.Random) -> LatencyModel:
        """A network that suits the seed: from one rack to a slow campus."""
        base = 10 ** rng.uniform(-4.3, -2.7)
        return cls(
            base=base,
            jitter=base * rng.choice((0.1, 0.5, 2.0)),
            spikes=rng.choice((0.0, 0.0005, 0.005)),
            spike=rng.uniform(0.005, 0.1),
            slices=rng.choice((0.0, 0.02, 0.2)),
        )
