"""What the programs of a system may hold when nobody uses them, declared beside its guarantees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LEFT = -1
"""Any number of things, which clients have left."""


@dataclass(frozen=True)
class Keep:
    """A container or table of the nodes' programs (as ``Holding`` names it; the beginning of its name is enough) that
    may hold ``times`` as many things as an option says and some ``more``, with the reason ``why``; ``LEFT``: it holds
    what clients have left, and other things may be held because of that. ``like`` names another one which says how
    many."""

    name: str
    why: str
    option: str = ""
    more: int = 0
    like: str = ""
    times: int = 1

    def most(self, options: Mapping[str, Any]) -> int | str:
        """How many things it may hold, ``LEFT`` is any number; or the name of what may hold as many."""
        if self.like:
            return self.like
        return LEFT if self.more == LEFT else self.more + self.times * int(options.get(self.option, 0))
