"""Words for people."""

from __future__ import annotations


def amount(count: int, one: str, more: str = "") -> str:
    """A number with its noun (and verb), as a person would write them: ``more`` is ``one`` with an s unless given."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def size(count: int) -> str:
    """Bytes as a person writes them: ``512 bytes``, ``1.5 GiB``."""
    if count < 1 << 10:
        return amount(count, "byte")
    power = min(4, (count.bit_length() - 1) // 10)
    return f"{count / (1 << 10 * power):.3g} {'KMGT'[power - 1]}iB"
