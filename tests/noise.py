"""Values that make no sense, and values that nearly do, for whoever must withstand them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

NUMBERS = [0, 1, -1, 2, 5, 63, 64, 65, 1 << 31, 1 << 53, (1 << 62) + 1, (1 << 63) - 1, -(1 << 63)]
FLOATS = [0.0, -1.0, 1.0, 1e308, float("inf"), float("-inf"), float("nan")]


def noise(rng: random.Random, depth: int = 0) -> Any:
    """Some value."""
    makers: list[Callable[[], Any]] = [
        lambda: None, lambda: rng.random() < 0.5, lambda: rng.choice(NUMBERS), lambda: rng.choice(FLOATS),
        lambda: rng.choice(["", "n1", "n2", "q", "/queue/q", "/topic/>", "/server/2/queue/q", "/wanted/queue/q", "\0"]),
        lambda: rng.randbytes(rng.randrange(20)),
    ]
    if depth < 4:
        makers += [lambda: [noise(rng, depth + 1) for _ in range(rng.randrange(5))],
                   lambda: {f"k{n}": noise(rng, depth + 1) for n in range(rng.randrange(3))}]
    return rng.choice(makers)()


def mutated(rng: random.Random, value: Any) -> Any:
    """The value with something in it exchanged, left out or there twice."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        found = {**value, key: mutated(rng, value[key])}
        if rng.random() < 0.2:
            del found[key]
        return found
    if isinstance(value, (list, tuple)) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        found = list(value)
        found[place:place + 1] = rng.choice([[], [found[place]] * 2, [mutated(rng, found[place])]])
        return found
    if isinstance(value, bytes) and value and rng.random() < 0.7:
        place = rng.randrange(len(value))
        return value[:place] + rng.randbytes(1) + value[place + 1:]
    return noise(rng)
