"""What a design promises, as data: which guarantee holds in which mode, under which fault.

Written once, beside the design. It decides which checks bear on a run's verdict, and makes the page that compares the
promises with what runs have shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

KEPT, GAP, OPEN = "promised", "gap", "not promised"
"""``gap``: the document demands it, but this mode can't keep it, which tests are to show."""

KIND = ":"
"""``GUARANTEE:KIND`` is about one kind of the anomalies that a check finds; what is promised of the guarantee holds for
the others."""

ANY_FAULT = ("*",)
"""For a promise that is about runs with any fault at all."""


@dataclass(frozen=True)
class Promise:
    """One guarantee's standing.

    ``guarantee`` is the name of the check that would find it broken. ``where`` is the section of the design's
    document (or ``ours``), ``why`` the reason. It is about runs whose settings have the values in ``mode`` and that
    have one of ``faults``; without ``faults`` it doesn't matter which they have.
    """

    guarantee: str
    standing: str
    where: str
    why: str
    faults: tuple[str, ...] = ()
    mode: Mapping[str, Any] = field(default_factory=dict)

    def covers(self, options: Mapping[str, Any], faults: Iterable[str]) -> bool:
        """Whether it is about a run with these settings and faults."""
        named = tuple(faults)
        if self.faults == ANY_FAULT:
            fits = bool(named)
        else:
            fits = not self.faults or any(fault in self.faults for fault in named)
        return fits and all(options.get(name) == value for name, value in self.mode.items())


@dataclass(frozen=True)
class Trial:
    """What the modes of a design are tried with when their promises are compared with what runs show: workloads, faults
    (families, joined by commas), and settings that let these faults matter."""

    workloads: tuple[str, ...] = ("queue",)
    nemesis: str = "partition,pause,kill"
    settings: Mapping[str, str] = field(default_factory=dict)


def standing_of(
    promises: Sequence[Promise], guarantee: str, options: Mapping[str, Any], faults: Sequence[str]
) -> Promise | None:
    """What the design says of a guarantee in a run: the first promise that is about it; None if it says nothing."""
    for promise in promises:
        if promise.guarantee == guarantee and promise.covers(options, faults):
            return promise
    return None
