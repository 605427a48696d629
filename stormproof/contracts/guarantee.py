"""A system's guarantees, as data: the guarantees of each mode under each fault.

They are written once, next to the system. They determine which checks affect a run's verdict, and provide the page that
compares the guarantees with the results of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PROMISED, KNOWN_VIOLATION, NOT_PROMISED = "promised", "known violation", "not promised"
"""Statuses. ``known violation``: the document demands the guarantee, but this mode can't keep it; runs are to show
that."""

KIND = ":"
"""``GUARANTEE:KIND`` is about one kind of the anomalies that a check finds; the statement about the whole guarantee
holds for the other kinds."""

ANY_FAULT = ("*",)
"""For a guarantee about runs with any fault at all."""


ACTS_AS: Mapping[str, tuple[str, ...]] = {"points": ("kill", "power", "partition", "pause", "packets")}
"""Families that have the effects of other families, at another time: statements about those hold for runs with these,
too.
"""


@dataclass(frozen=True)
class Such:
    """A condition on settings that no single value expresses: ``holds`` evaluates it, ``words`` describes it."""

    words: str
    holds: Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True)
class Guarantee:
    """The status of one guarantee.

    ``name`` is the name of the check that would find it violated. ``where`` is the section of the system's document (or
    ``ours``), ``why`` the reason. The guarantee is about runs whose settings have the values in ``mode`` and satisfy
    ``such``, and that have one of ``faults``; without ``faults``, the faults of the run don't matter.
    """

    name: str
    status: str
    where: str
    why: str
    faults: tuple[str, ...] = ()
    mode: Mapping[str, Any] = field(default_factory=dict)
    such: Such | None = None

    def covers(self, options: Mapping[str, Any], faults: Iterable[str]) -> bool:
        """Return whether the guarantee is about a run with these settings and faults."""
        named = tuple(like for fault in faults for like in (fault, *ACTS_AS.get(fault, ())))
        if self.faults == ANY_FAULT:
            fits = bool(named)
        else:
            fits = not self.faults or any(fault in self.faults for fault in named)
        fits = fits and all(options.get(name) == value for name, value in self.mode.items())
        return fits and (self.such is None or self.such.holds(options))


@dataclass(frozen=True)
class Trial:
    """The test settings with which a system's modes are tried when guarantees are compared with results: workloads,
    faults (joined by commas), and settings with which these faults matter; operations a second, and seconds, if they
    differ from the defaults. ``of_mode`` are the modes that need other settings, by name, on top of these.
    """

    workloads: tuple[str, ...] = ("queue",)
    nemesis: str = "partition,pause,kill"
    settings: Mapping[str, str] = field(default_factory=dict)
    rate: float = 0.0
    seconds: float = 0.0
    of_mode: Mapping[str, Trial] = field(default_factory=dict)


def guarantee_for(
    declared: Sequence[Guarantee], name: str, options: Mapping[str, Any], faults: Sequence[str]
) -> Guarantee | None:
    """Return a system's statement about a guarantee in a run: the first one that applies; None if there is none."""
    for guarantee in declared:
        if guarantee.name == name and guarantee.covers(options, faults):
            return guarantee
    return None
