"""Words for people."""

from __future__ import annotations

import re
from collections.abc import Iterable

from stormproof.errors import UsageError

MAX_SEEDS = 1_000_000
"""Of which a list is made."""


def amount(count: int, one: str, more: str = "") -> str:
    """A number with its noun (and verb), as a person would write them: ``more`` is ``one`` with an s unless given."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def size(count: int) -> str:
    """Bytes as a person writes them: ``512 bytes``, ``1.5 GiB``."""
    if count < 1 << 10:
        return amount(count, "byte")
    power = min(4, (count.bit_length() - 1) // 10)
    return f"{count / (1 << 10 * power):.3g} {'KMGT'[power - 1]}iB"


def seeds_of(given: str | int | Iterable[int]) -> list[int]:
    """The seeds that a person means by ``7``, ``1-20``, ``1-5,9`` or several numbers, each once.

    Raises:
        UsageError: they are none.
    """
    if isinstance(given, str):
        found: list[int] = []
        for part in given.split(","):
            match = re.fullmatch(r"\s*(\d{1,19})\s*(?:-\s*(\d{1,19})\s*)?", part, re.ASCII)
            if match is None:
                raise UsageError(f"seeds {given!r}: write them as 7, 1-20 or 1-5,9")
            first, last = int(match[1]), int(match[2] or match[1])
            if not 0 <= last - first < MAX_SEEDS:
                raise UsageError(f"seeds {given!r}: from the lower to the higher, and at most {MAX_SEEDS:,}")
            found += range(first, last + 1)
    else:
        found = [given] if isinstance(given, int) else list(given)
    if not found or not all(isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 for seed in found):
        raise UsageError(f"seeds {given!r}: whole numbers from 0, at least one")
    return list(dict.fromkeys(found))
