"""Random faults in virtual time; a failing seed repeats exactly."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any

import pytest
from joram_sim import Group, VirtualLoop, simulate


def check_primary(group: Group) -> None:
    """Confirmed messages are there, or were acknowledged; confirmed acknowledgements hold; all agree."""
    states: dict[str, Any] = group.states  # type: ignore[attr-defined]
    final: dict[str, list[str]] = group.final  # type: ignore[attr-defined]
    first, *others = group.names
    for other in others:
        assert states[other] == states[first]
    left = final[first]
    assert len(left) == len(set(left)), "a message is stored twice"
    assert set(left) <= group.sent
    assert not set(left) & group.acked, "a confirmed acknowledgement was undone"
    assert group.stored <= set(left) | group.taken, "a confirmed message is lost"


@pytest.mark.requirement("J9")
@pytest.mark.requirement("J6")
@pytest.mark.parametrize("ack", ["all", "majority"])
@pytest.mark.parametrize("seed", range(12))
def test_a_primary_partition_keeps_its_promises_under_random_faults(seed: int, ack: str):
    group = simulate(seed, 3, 25, ack=ack, log_keep=[20, 10_000][seed % 2])
    check_primary(group)


@pytest.mark.parametrize("seed", range(100, 105))
def test_five_replicas_keep_them_too(seed: int):
    check_primary(simulate(seed, 5, 25, ack=["all", "majority"][seed % 2], log_keep=50))


@pytest.mark.requirement("J20")
@pytest.mark.parametrize("seed", range(8))
def test_unspecified_always_becomes_one_group_with_one_state_again(seed: int):
    group = simulate(seed, 3, 20, partitions="unspecified", log_keep=50)
    states: dict[str, Any] = group.states  # type: ignore[attr-defined]
    assert states["n1"] == states["n2"] == states["n3"]


async def whole(group: Group, names: list[str]) -> None:
    """Wait until these nodes are one group that has the same log."""
    for _ in range(600):
        await asyncio.sleep(0.1)
        states = [group.nodes[name].design.status() for name in names]
        for master in states:
            if master["serving"] and len(master["view"]) == len(names) and all(
                state["applied"] == master["log_last"] and state["view"] == master["view"] for state in states
            ):
                return
    raise AssertionError(f"never whole: {states}")


async def restarted_with_slow_answers(seed: int, stale: str) -> list[int]:
    """All stop, ``stale`` before messages that the others confirm; all start again on a network that is slow.

    Returns how many messages each has in the end.
    """
    group, kept = Group(seed, 3, partitions="unspecified"), "/queue/kept"
    group.network.slowest = 0.003
    for name in group.names:
        await group.start(name)
    await whole(group, group.names)
    group.crash(stale)
    others = [name for name in group.names if name != stale]
    await whole(group, others)
    for number in range(10):
        group.serving()[0].request("send", f"m{number}", {"destination": kept, "headers": {}, "body": b"m"})
    await asyncio.sleep(2)
    assert len(group.stored) == 10
    for name in others:
        group.crash(name)
    group.network.slowest = 0.3  # answers to a proposal come when a running group would go on without them
    for name in group.names:
        await group.start(name)
    await asyncio.sleep(30)
    group.network.slowest = 0.003
    await whole(group, group.names)
    depths = [len(group.contents(name)) for name in group.names]
    group.end()
    await asyncio.sleep(0.01)
    return depths


@pytest.mark.requirement("J9")
@pytest.mark.requirement("J20")
@pytest.mark.parametrize("stale", ["n1", "n3"])
@pytest.mark.parametrize("seed", range(5))
def test_unspecified_no_first_election_goes_on_without_an_answer(seed: int, stale: str):
    with closing(VirtualLoop()) as loop:
        assert loop.run_until_complete(restarted_with_slow_answers(seed, stale)) == [10, 10, 10]


def test_a_seed_repeats_exactly():
    assert simulate(3, 3, 10).story() == simulate(3, 3, 10).story()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1400))
def test_many_more_seeds(seed: int):
    options: dict[str, Any] = {"ack": ["all", "majority"][seed % 2], "log_keep": [10, 100, 10_000][seed % 3]}
    check_primary(simulate(seed, [3, 5][seed // 2 % 2], 40, **options))
