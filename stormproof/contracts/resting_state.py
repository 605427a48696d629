"""Limits on the items that the programs of a system may hold when idle, declared next to its guarantees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LEFT = -1
"""Any number of items, left there by clients."""


@dataclass(frozen=True)
class RestingLimit:
    """A container or table of the nodes' programs that may hold items when idle, with the reason ``why``. ``name`` is
    its name in ``Holding``, or the beginning of that. The limit is ``times`` the value of an option, plus ``more``.
    With ``LEFT``, it holds what clients have left, and other items may exist because of that. ``like`` names another
    container with the same limit."""

    name: str
    why: str
    option: str = ""
    more: int = 0
    like: str = ""
    times: int = 1

    def most(self, options: Mapping[str, Any]) -> int | str:
        """Return the maximum number of items (``LEFT``: unlimited), or the name of the container with the same
        limit."""
        if self.like:
            return self.like
        return LEFT if self.more == LEFT else self.more + self.times * int(options.get(self.option, 0))
