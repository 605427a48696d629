"""Elections of three replicas in virtual time: how long one takes."""

from __future__ import annotations

import asyncio

import pytest
from joram_sim import Group, in_virtual_time


@pytest.mark.requirement("J9")
@pytest.mark.parametrize("seed", range(10))
def test_a_replica_that_suspects_the_master_first_need_not_wait_for_another_time_out(seed: int):
    async def failover(group: Group) -> None:
        await group.until(group.settled, "one group")
        group.network.slowest = 0.03
        (master,) = [name for name, node in group.nodes.items() if node.design.status()["serving"]]
        first = next(name for name in group.names if name != master)
        await asyncio.sleep(group.rng.uniform(1, 2))
        group.network.cuts.add(frozenset((master, first)))
        await asyncio.sleep(0.25)
        start = asyncio.get_running_loop().time()
        group.crash(master)
        await group.until(group.serving, "another master")
        assert asyncio.get_running_loop().time() - start < 1.7

    in_virtual_time(failover, Group(seed, 3, detection_timeout=1.0))
