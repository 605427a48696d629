"""Random faults in virtual time; a failing seed repeats exactly."""

from __future__ import annotations

from typing import Any

import pytest
from joram_sim import Group, simulate


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


def test_a_seed_repeats_exactly():
    assert simulate(3, 3, 10).story() == simulate(3, 3, 10).story()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1400))
def test_many_more_seeds(seed: int):
    options: dict[str, Any] = {"ack": ["all", "majority"][seed % 2], "log_keep": [10, 100, 10_000][seed % 3]}
    check_primary(simulate(seed, [3, 5][seed // 2 % 2], 40, **options))
