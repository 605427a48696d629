"""Bounds of time and work that a system claims, as data: multiples of its own settings, each with its source.

A run's description holds those that are claimed of it, with their values; checks judge by these alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stormproof.test import Test

HEALTHY, SERVES, SERVES_WITH_MAJORITY, KEEPS_ROLES = "healthy", "serves", "serves-with-majority", "keeps-roles"
"""What is bounded, in seconds.

``healthy``: from the last heal until the system says that it is well. ``serves``: how long nothing that clients ask
for may succeed while no fault is in force. ``serves-with-majority``: the same while processes of a minority of the
nodes are down or stand still. ``keeps-roles``: after which, with no fault in force, no node changes its role any more.
"""


JUDGED_BY_BOUNDS: Mapping[str, tuple[str, ...]] = {
    "availability": (HEALTHY, SERVES, SERVES_WITH_MAJORITY),
    "stability": (KEEPS_ROLES,),
}
"""Checks that decide where one of these bounds is claimed."""


@dataclass(frozen=True)
class Bound:
    """``name`` is one of those above. It is ``fixed`` seconds and, of each setting in ``times``, so many times its
    value. ``source`` is where that comes from.

    It is claimed of tests in which none of the faults ``unless`` strike, and whose options have all values of
    ``where``, each of which may be one of several.
    """

    name: str
    times: Mapping[str, float]
    fixed: float
    source: str
    unless: tuple[str, ...] = ()
    where: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def claimed(self, test: Test) -> bool:
        """Whether it must hold in a test."""
        if any(family in self.unless for family in test.nemesis):
            return False
        return all(test.options.get(name) in values for name, values in self.where.items())

    def seconds(self, options: Mapping[str, Any]) -> float:
        """Its value under these settings."""
        return self.fixed + sum(factor * float(options[name]) for name, factor in self.times.items())

    @property
    def formula(self) -> str:
        """What it is, for a person: ``4 x detection_timeout + 2 s``."""
        parts = [f"{factor:g} x {name}" for name, factor in self.times.items()]
        return " + ".join([*parts, *([f"{self.fixed:g} s"] if self.fixed or not parts else [])])


def bounds_of(declared: Sequence[Bound], test: Test) -> dict[str, dict[str, Any]]:
    """What a test's description says of the bounds that are claimed of it: of each name, the first that is."""
    found: dict[str, dict[str, Any]] = {}
    for each in declared:
        if each.name not in found and each.claimed(test):
            found[each.name] = {"seconds": each.seconds(test.options), "formula": each.formula, "source": each.source}
    return found
