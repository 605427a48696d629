"""What the programs of a system may hold when nobody uses them, declared beside its guarantees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Keep:
    """A container or table of the nodes' programs (as ``Holding`` names it; the beginning of its name is enough) that
    may hold as many things as an option says and some ``more``, with the reason ``why``."""

    name: str
    why: str
    option: str = ""
    more: int = 0

    def most(self, options: Mapping[str, Any]) -> int:
        """How many things it may hold."""
        return self.more + int(options.get(self.option, 0))
