"""Shapes of partitions with more than two sides, or overlapping ones: the pairs of machines that can't hear each other.

Each is a pure function from machines and a random source to pairs (source, target) in which the target does not hear
the source. They are those of Jepsen's nemesis (``majorities-ring``, ``bridge``, and random groups).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations

from stormproof.contracts.fault import Infeasible

MAJORITY_RING, BRIDGE, RANDOM = "majority-ring", "bridge", "random"
SHAPES = (MAJORITY_RING, BRIDGE, RANDOM)

Pairs = frozenset[tuple[str, str]]


def majority_ring(machines: Sequence[str], rng: random.Random) -> tuple[Pairs, str]:
    """Let each machine hear a majority that includes itself, no two the same one: its neighbours on a ring.

    If a majority is even, as with three, each hears one more on one side of it, so some links are cut one way.

    Raises:
        Infeasible: there are fewer than three.
    """
    _demand(MAJORITY_RING, machines)
    ring = rng.sample(machines, len(machines))
    majority = len(ring) // 2 + 1
    before, after = majority // 2, (majority - 1) // 2
    heard = {ring[place]: {ring[(place + step) % len(ring)] for step in range(-before, after + 1)}
             for place in range(len(ring))}  # fmt: skip
    cut = frozenset((source, target) for source, target in permutations(ring, 2) if source not in heard[target])
    return cut, f"each hears its neighbours of {' '.join(ring)} and again {ring[0]}"


def bridge(machines: Sequence[str], rng: random.Random) -> tuple[Pairs, str]:
    """Form two halves that do not hear each other, and one machine that hears both and is heard by both.

    Raises:
        Infeasible: there are fewer than three.
    """
    _demand(BRIDGE, machines)
    shuffled = rng.sample(machines, len(machines))
    middle, others = shuffled[0], shuffled[1:]
    halves = others[: len(others) // 2], others[len(others) // 2 :]
    return _apart(halves), f"{middle} is the bridge between {_named(halves)}"


def groups(machines: Sequence[str], rng: random.Random) -> tuple[Pairs, str]:
    """Form two or more random groups that do not hear each other."""
    while True:
        drawn: dict[int, list[str]] = {}
        for machine in machines:
            drawn.setdefault(rng.randrange(len(machines)), []).append(machine)
        if len(drawn) > 1:
            return _apart(list(drawn.values())), f"{_named(list(drawn.values()))} are apart"


DRAWN: Mapping[str, Callable[[Sequence[str], random.Random], tuple[Pairs, str]]] = {
    MAJORITY_RING: majority_ring, BRIDGE: bridge, RANDOM: groups,
}  # fmt: skip
"""Each shape -> the function that returns its cut pairs and a description."""


def _apart(sides: Sequence[Sequence[str]]) -> Pairs:
    return frozenset((a, b) for one, other in permutations(sides, 2) for a in one for b in other)


def _named(sides: Sequence[Sequence[str]]) -> str:
    return " and ".join(",".join(sorted(side)) for side in sides)


def _demand(shape: str, machines: Sequence[str]) -> None:
    if len(machines) < 3:
        raise Infeasible(f"{shape} needs at least three nodes")
