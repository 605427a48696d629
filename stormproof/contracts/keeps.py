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
    may hold as many things as an option says and some ``more``, with the reason ``why``; ``LEFT``: it holds what
    clients have left, and other things may be held because of that."""

    name: str
    why: str
    option: str = ""
    more: int = 0

    def most(self, options: Mapping[str, Any]) -> int:
        """How many things it may hold; ``LEFT`` is any number."""
        return LEFT if self.more == LEFT else self.more + int(options.get(self.option, 0))
