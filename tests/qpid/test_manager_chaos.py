"""Never two primaries with valid leases, whatever happens to managers, brokers, network, clocks; one after the heal."""

from __future__ import annotations

import asyncio
import os

import pytest
from manager_world import World, chaos, run

DETECTION = 1.0
"""The lease, after which silence counts."""
FAULTY_SECONDS = 20.0
SETTLED = 6 * DETECTION
"""After the last heal: a coordinator is elected, all leases run out, a broker is started again, and promoted."""


async def _storm(world: World) -> None:
    await world.start()
    await chaos(world, FAULTY_SECONDS)
    await asyncio.sleep(SETTLED)
    assert world.one_primary() and world.holders() == world.primaries(), world.describe()
    primaries, promotions = world.primaries(), len(world.promotions)
    await asyncio.sleep(5 * DETECTION)
    assert world.primaries() == primaries and len(world.promotions) == promotions, world.describe()


def storm(seed: int) -> World:
    return run(World(seed, nodes=(3, 3, 5, 2, 4)[seed % 5]), _storm)


@pytest.mark.requirement("Q4")
def test_never_two_primaries() -> None:
    worlds = [storm(seed) for seed in range(1, 7)]
    assert sum(len(world.promotions) for world in worlds) > 3 * len(worlds), "faults led to failovers"


@pytest.mark.soak
@pytest.mark.requirement("Q4", part=True)
def test_never_two_primaries_in_many_storms() -> None:
    count = int(os.environ.get("STORMPROOF_MANAGER_SEEDS", "600"))
    promotions = sum(len(storm(seed).promotions) for seed in range(100, 100 + count))
    assert promotions > 3 * count
