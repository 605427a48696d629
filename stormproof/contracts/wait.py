"""Waits: how long a system's programs wait at the places of their code that set a timer, as data, each with its source.

A deadline (``stormproof.contracts.deadline``) is about work that stays pending; it has slack for everything that may
happen meanwhile. A wait is about the timer itself, which the simulator sees when the program sets it: it has no slack,
and a wait that is too short is wrong as well. An instant is the same for an end that a program notes, and compares with
its clock later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stormproof.contracts.invariant import BROKER


@dataclass(frozen=True)
class Wait:
    """A requirement that a timer that ``place`` sets ends after ``fixed`` seconds plus a multiple of each of the
    settings in ``times``; ``{}`` in its text stands for that.

    ``place`` is the qualified name of the function that waits. ``through`` names a function that sets the timer in its
    place. Where a place has several waits, each of its timers is one of them. The shortest wait is ``least`` of the
    longest, where it is drawn by chance, or cut short. Programs of the kind ``of`` are examined. ``unit`` names a
    variable of the function: its value takes the place of a second, for a time that a client has asked for.
    """

    name: str
    place: str
    times: Mapping[str, float]
    fixed: float
    source: str
    requirement: str
    least: float = 1.0
    through: str = ""
    unit: str = ""
    of: str = BROKER
    where: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def seconds(self, options: Mapping[str, Any]) -> float:
        """Return the length of the longest wait under these settings."""
        return self.fixed + sum(factor * float(options[name]) for name, factor in self.times.items())

    @property
    def formula(self) -> str:
        """The longest wait in readable form: ``0.25 x lease``."""
        parts = [f"{factor:g} x {name}" for name, factor in self.times.items()]
        unit = f"x {self.unit}" if self.unit else "s"
        return " + ".join([*parts, *([f"{self.fixed:g} {unit}"] if self.fixed or not parts else [])])

    @property
    def rule(self) -> str:
        """The requirement in readable form, with the wait's formula."""
        if not self.least:
            told = f"at most {self.formula}"
        else:
            told = self.formula if self.least == 1 else f"{self.least:g} to 1 times ({self.formula})"
        return self.requirement.replace("{}", told)

    def claimed(self, options: Mapping[str, Any]) -> bool:
        """Return whether the wait has this length under these settings, which must have all that it depends on."""
        return (all(name in options for name in self.times)
                and all(options.get(name) in values for name, values in self.where.items()))


@dataclass(frozen=True)
class Instant(Wait):
    """A requirement that an instant that a program notes is as far ahead as a wait would be long.

    ``place`` is the path of its attribute, from the object that the program exposes to the simulator. The attribute may
    be a pair that ends with the instant; None, 0 and infinite values stand for none.
    """
