"""Random faults in simulated time; a failing seed repeats exactly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from joram_group import STEADY, Group, simulate


def storm(seed: int, nodes: int, seconds: float, check: Callable[[Group], None], **options: Any) -> Group:
    """A group under load and random faults, looked at when it is whole again."""

    async def scenario(group: Group) -> None:
        await group.live(seconds)
        check(group)

    return simulate(scenario, Group(seed, nodes, **options))


def check_state(group: Group) -> None:
    """All agree."""
    first, *others = (list(node.engine.dump()) for node in group.nodes.values())
    assert all(other == first for other in others)


def check_primary(group: Group) -> None:
    """Confirmed messages are there, or were acknowledged; confirmed acknowledgements hold; all agree."""
    left, *others = (group.contents(name) for name in group.names)
    assert all(other == left for other in others)
    check_state(group)
    assert len(left) == len(set(left)), "a message is stored twice"
    assert set(left) <= group.sent
    assert not set(left) & group.acked, "a confirmed acknowledgement was undone"
    assert group.stored <= set(left) | group.taken, "a confirmed message is lost"


@pytest.mark.requirement("J9")
@pytest.mark.requirement("J6")
@pytest.mark.parametrize("ack", ["all", "majority"])
@pytest.mark.parametrize("seed", range(12))
def test_a_primary_partition_keeps_its_guarantees_under_random_faults(seed: int, ack: str):
    storm(seed, 3, 25, check_primary, ack=ack, log_keep=[20, 10_000][seed % 2])


@pytest.mark.parametrize("seed", range(100, 105))
def test_five_replicas_keep_them_too(seed: int):
    storm(seed, 5, 25, check_primary, ack=["all", "majority"][seed % 2], log_keep=50)


@pytest.mark.requirement("J20")
@pytest.mark.parametrize("seed", range(8))
def test_unspecified_always_becomes_one_group_with_one_state_again(seed: int):
    storm(seed, 3, 20, check_state, partitions="unspecified", log_keep=50)


async def restarted_with_slow_answers(group: Group, stale: str) -> None:
    """All stop, ``stale`` before messages that the others confirm; all start again on a network that is slow."""
    kept = "/queue/kept"
    await group.until(group.settled, "one group")
    group.crash(stale)
    others = [name for name in group.names if name != stale]
    await group.until(lambda: group.whole(others) and group.serving(), "two go on")
    for number in range(10):
        group.serving()[0].request("send", f"m{number}", {"destination": kept, "headers": {}, "body": b"m"})
    await asyncio.sleep(2)
    assert len(group.stored) == 10
    for name in others:
        group.crash(name)
    await group.slow(0.4)  # answers to a proposal come when a running group would go on without them
    await asyncio.gather(*map(group.start, group.names))
    await asyncio.sleep(30)
    await group.slow(0.003)
    await group.until(lambda: group.whole(group.names), "whole again")
    assert [len(group.contents(name)) for name in group.names] == [10, 10, 10]


@pytest.mark.requirement("J9")
@pytest.mark.requirement("J20")
@pytest.mark.parametrize("stale", ["n1", "n3"])
@pytest.mark.parametrize("seed", range(5))
def test_unspecified_no_first_election_goes_on_without_an_answer(seed: int, stale: str):
    group = Group(seed, 3, latency=STEADY, partitions="unspecified")
    simulate(lambda group: restarted_with_slow_answers(group, stale), group)


def test_a_seed_repeats_exactly():
    assert storm(3, 3, 10, check_primary).story() == storm(3, 3, 10, check_primary).story()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1400))
def test_many_more_seeds(seed: int):
    options: dict[str, Any] = {"ack": ["all", "majority"][seed % 2], "log_keep": [10, 100, 10_000][seed % 3]}
    storm(seed, [3, 5][seed // 2 % 2], 40, check_primary, **options)
