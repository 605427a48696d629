"""Bounds of time and work that a system claims, as data: multiples of the system's settings, each with its source.

A run's description holds the bounds claimed for the run, with their values; checks judge by these alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stormproof.test import Test

HEALTHY, SERVES, SERVES_WITH_MAJORITY, SERVES_WITH_ONE, KEEPS_ROLES = (
    "healthy", "serves", "serves-with-majority", "serves-with-one", "keeps-roles",
)  # fmt: skip
"""The bounded periods, in seconds.

``healthy``: from the last heal until the system reports itself healthy. ``serves``: the longest period without any
successful operation of a client while no fault is in force. ``serves-with-majority``: the same while processes of a
minority of the nodes are down or paused. ``serves-with-one``: the same while one node of a pair is down or paused,
provided that no fault was in force in the second before.
``keeps-roles``: the period without faults after which no node changes its role any longer.
"""


JUDGED_BY_BOUNDS: Mapping[str, tuple[str, ...]] = {
    "availability": (HEALTHY, SERVES, SERVES_WITH_MAJORITY, SERVES_WITH_ONE),
    "stability": (KEEPS_ROLES,),
}
"""The checks that decide if one of these bounds is claimed."""


@dataclass(frozen=True)
class Bound:
    """A bound of time. ``name`` is one of those above. The bound is ``fixed`` seconds, plus, for each setting in
    ``times``, a multiple of the setting's value. ``source`` is the origin of the claim.

    The bound is claimed for tests in which none of the faults ``excuses`` strike (``FAMILY``, or ``FAMILY:KIND`` for
    one kind; with the reason, and what still judges such tests), nor those of ``unless``, which lacks reasons. Their
    options must all match ``where``, which may allow several values of an option. With ``of_use``, the
    bound holds while nodes are down only if one of the remaining nodes was useful by its role when that began: part of
    the serving group, or ready to take over.
    """

    name: str
    times: Mapping[str, float]
    fixed: float
    source: str
    unless: tuple[str, ...] = ()
    where: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    of_use: bool = field(default=False, kw_only=True)
    excuses: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def claimed(self, test: Test) -> bool:
        """Return whether the bound must hold in a test."""
        return claimed(test, (*self.unless, *self.excuses), self.where)

    def seconds(self, options: Mapping[str, Any]) -> float:
        """Return the bound's value under these settings."""
        return self.fixed + sum(factor * float(options[name]) for name, factor in self.times.items())

    @property
    def formula(self) -> str:
        """The bound in readable form: ``4 x detection_timeout + 2 s``."""
        parts = [f"{factor:g} x {name}" for name, factor in self.times.items()]
        return " + ".join([*parts, *([f"{self.fixed:g} s"] if self.fixed or not parts else [])])


FRAMES, BYTES = "frames", "bytes"
"""The units of bounded work: frames (data that a program hands to its kernel at once), and their bytes."""


@dataclass(frozen=True)
class WorkBound:
    """The maximum number of frames, or bytes, that the machines of a run may send each other; ``name`` is the unit.

    Each unit that clients have sent to the machines allows ``each`` units to each other machine. Each of the clients'
    frames counts ``more`` units in addition to its content, for metadata. Each fault allows ``again`` further units for
    each one that clients sent, since everything that is stored may have to be sent again. In addition, each machine may
    send each other machine a number of units over time: for each setting in ``times``, the given number in each period
    of the setting's value; and ``fixed`` units for the start and for each fault. The bound is claimed in the same way
    as a ``Bound``.
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
    excuses: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def claimed(self, test: Test) -> bool:
        """Return whether the bound must hold in a test."""
        return claimed(test, (*self.unless, *self.excuses), self.where)

    def a_second(self, options: Mapping[str, Any]) -> float:
        """Return the units allowed per second from each machine to each other, under these settings; a setting of 0
        adds none.
        """
        return sum(count / float(options[name]) for name, count in self.times.items() if options[name])

    @property
    def formula(self) -> str:
        """The bound in readable form."""
        every = [f"{count:g} in each {name}" for name, count in self.times.items()]
        each = f"{self.each:g} to each other machine for each that clients sent"
        each += f" (and {self.more:g} more in each frame)" if self.more else ""
        each += f", and {self.again:g} for each fault" if self.again else ""
        return f"{each}; between any two, {' and '.join([*every, f'{self.fixed:g} for the start and each fault'])}"

    def to_json(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the bound's entry in a run's description."""
        return {"each": self.each, "second": self.a_second(options), "fixed": self.fixed, "formula": self.formula,
                "source": self.source, "more": self.more, "again": self.again}  # fmt: skip


def work_bounds_of(declared: Sequence[WorkBound], test: Test) -> dict[str, dict[str, Any]]:
    """Return the bounds of work claimed for a test, as in its description: the first claimed one of each name."""
    found: dict[str, dict[str, Any]] = {}
    for each in declared:
        if each.name not in found and each.claimed(test):
            found[each.name] = each.to_json(test.options)
    return found


def claimed(test: Test, unless: Sequence[str], where: Mapping[str, tuple[Any, ...]]) -> bool:
    """Return whether none of a test's faults is one of ``unless``, and its options match ``where``."""
    if any(test.has_fault(fault) for fault in unless):
        return False
    return all(test.options.get(name) in values for name, values in where.items())


def bounds_of(declared: Sequence[Bound], test: Test) -> dict[str, dict[str, Any]]:
    """Return the bounds of time claimed for a test, as in its description: the first claimed one of each name."""
    found: dict[str, dict[str, Any]] = {}
    for each in declared:
        if each.name not in found and each.claimed(test):
            found[each.name] = {"seconds": each.seconds(test.options), "formula": each.formula, "source": each.source}
            found[each.name] |= {"of_use": True} if each.of_use else {}
    return found
