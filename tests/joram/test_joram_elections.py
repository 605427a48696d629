"""Elections of three replicas in simulated time: how long one takes."""

from __future__ import annotations

import asyncio

import pytest
from joram_group import STEADY, Group, simulate


@pytest.mark.requirement("J9")
@pytest.mark.parametrize("seed", range(10))
def test_a_replica_that_suspects_the_master_first_need_not_wait_for_another_time_out(seed: int):
    async def failover(group: Group) -> None:
        await group.until(group.settled, "one group")
        await group.slow(0.03)
        master = group.serving()[0].config.node
        first = next(name for name in group.names if name != master)
        await asyncio.sleep(group.rng.uniform(1, 2))
        await group.cut((master, first))
        await asyncio.sleep(0.25)
        start = group.loop.now
        group.crash(master)
        await group.until(group.serving, "another master")
        assert group.loop.now - start < 1.7

    simulate(failover, Group(seed, 3, latency=STEADY, detection_timeout=1.0))
