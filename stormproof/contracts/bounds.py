"""Bounds of time and work that a system claims, as data: multiples of its own settings, each with its source.

A run's description holds those that are claimed of it, with their values; checks judge by these alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stormproof.test import Test

HEALTHY, SERVES, SERVES_WITH_MAJORITY, SERVES_WITH_ONE, KEEPS_ROLES = (
    "healthy", "serves", "serves-with-majority", "serves-with-one", "keeps-roles",
)  # fmt: skip
"""What is bounded, in seconds.

``healthy``: from the last heal until the system says that it is well. ``serves``: how long nothing that clients ask
for may succeed while no fault is in force. ``serves-with-majority``: the same while processes of a minority of the
nodes are down or stand still. ``serves-with-one``: the same while one of a pair is, and no fault had been in force for
a second before.
``keeps-roles``: after which, with no fault in force, no node changes its role any more.
"""


JUDGED_BY_BOUNDS: Mapping[str, tuple[str, ...]] = {
    "availability": (HEALTHY, SERVES, SERVES_WITH_MAJORITY, SERVES_WITH_ONE),
    "stability": (KEEPS_ROLES,),
}
"""Checks that decide where one of these bounds is claimed."""


@dataclass(frozen=True)
class Bound:
    """``name`` is one of those above. It is ``fixed`` seconds and, of each setting in ``times``, so many times its
    value. ``source`` is where that comes from.

    It is claimed of tests in which none of the faults ``unless`` strike (``FAMILY``, or ``FAMILY:KIND`` for one kind of
    it), and whose options have all values of ``where``, each of which may be one of several. With ``of_use`` it holds,
    while nodes are down, where one of those that stay was of use when that began, by its role: part of what serves, or
    ready to take over.
    """

    name: str
    times: Mapping[str, float]
    fixed: float
    source: str
    unless: tuple[str, ...] = ()
    where: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    of_use: bool = field(default=False, kw_only=True)

    def claimed(self, test: Test) -> bool:
        """Whether it must hold in a test."""
        return _claimed(test, self.unless, self.where)

    def seconds(self, options: Mapping[str, Any]) -> float:
        """Its value under these settings."""
        return self.fixed + sum(factor * float(options[name]) for name, factor in self.times.items())

    @property
    def formula(self) -> str:
        """What it is, for a person: ``4 x detection_timeout + 2 s``."""
        parts = [f"{factor:g} x {name}" for name, factor in self.times.items()]
        return " + ".join([*parts, *([f"{self.fixed:g} s"] if self.fixed or not parts else [])])


FRAMES, BYTES = "frames", "bytes"
"""What of work is bounded: frames (what a program hands to its kernel at once), and their bytes."""


@dataclass(frozen=True)
class WorkBound:
    """How many frames, or bytes, the machines of a run may send each other; ``name`` says of what.

    For each one that clients have sent to them, so many (``each``) to each other machine; each of their frames counts
    for ``more`` than it holds (what has to be told of it besides); and ``again`` as many for each fault, after which
    all that is kept may have to be sent. And from each machine to each other: of each setting in ``times``, so many in
    each such time; ``fixed`` for the start, and again for each fault. It is claimed as a ``Bound`` is.
    """

    name: str
    each: float
    times: Mapping[str, float]
    fixed: float
    source: str
    unless: tuple[str, ...] = ()
    where: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    more: float = 0
    again: float = 0

    def claimed(self, test: Test) -> bool:
        """Whether it must hold in a test."""
        return _claimed(test, self.unless, self.where)

    def a_second(self, options: Mapping[str, Any]) -> float:
        """How many from each machine to each other in a second, under these settings; one that is 0 adds none."""
        return sum(count / float(options[name]) for name, count in self.times.items() if options[name])

    @property
    def formula(self) -> str:
        """What it is, for a person."""
        every = [f"{count:g} in each {name}" for name, count in self.times.items()]
        each = f"{self.each:g} to each other machine for each that clients sent"
        each += f" (and {self.more:g} more in each frame)" if self.more else ""
        each += f", and {self.again:g} for each fault" if self.again else ""
        return f"{each}; between any two, {' and '.join([*every, f'{self.fixed:g} for the start and each fault'])}"

    def to_json(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """What a run's description says of it."""
        return {"each": self.each, "second": self.a_second(options), "fixed": self.fixed, "formula": self.formula,
                "source": self.source, "more": self.more, "again": self.again}  # fmt: skip


def work_bounds_of(declared: Sequence[WorkBound], test: Test) -> dict[str, dict[str, Any]]:
    """What a test's description says of the bounds of work that are claimed of it: of each name, the first that is."""
    found: dict[str, dict[str, Any]] = {}
    for each in declared:
        if each.name not in found and each.claimed(test):
            found[each.name] = each.to_json(test.options)
    return found


def _claimed(test: Test, unless: Sequence[str], where: Mapping[str, tuple[Any, ...]]) -> bool:
    """Whether no fault of a test is one of ``unless``, and its options have values as ``where`` says."""
    if any(test.has_fault(fault) for fault in unless):
        return False
    return all(test.options.get(name) in values for name, values in where.items())


def bounds_of(declared: Sequence[Bound], test: Test) -> dict[str, dict[str, Any]]:
    """What a test's description says of the bounds that are claimed of it: of each name, the first that is."""
    found: dict[str, dict[str, Any]] = {}
    for each in declared:
        if each.name not in found and each.claimed(test):
            found[each.name] = {"seconds": each.seconds(test.options), "formula": each.formula, "source": each.source}
            found[each.name] |= {"of_use": True} if each.of_use else {}
    return found
