"""Words for people."""

from __future__ import annotations


def amount(count: int, one: str, more: str = "") -> str:
    """A number with its noun (and verb), as a person would write them: ``more`` is ``one`` with an s unless given."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"
