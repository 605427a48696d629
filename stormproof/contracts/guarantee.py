"""What a system guarantees, as data: which guarantee holds in which mode, under which fault.

Written once, beside the system. It decides which checks bear on a run's verdict, and makes the page that compares the
guarantees with what runs have shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PROMISED, KNOWN_VIOLATION, NOT_PROMISED = "promised", "known violation", "not promised"
"""Statuses. ``known violation``: the document demands it, but this mode can't keep it, which runs are to show."""

KIND = ":"
"""``GUARANTEE:KIND`` is about one kind of the anomalies that a check finds; what is said of the guarantee holds for the
others."""

ANY_FAULT = ("*",)
"""For a guarantee that is about runs with any fault at all."""


ACTS_AS: Mapping[str, tuple[str, ...]] = {"points": ("kill", "power", "partition", "pause", "packets")}
"""Families that do what others do, at another time: what is said of those holds for runs with these, too."""


@dataclass(frozen=True)
class Such:
    """Settings of which something is true that no single value tells: ``holds`` says of which, ``words`` says it."""

    words: str
    holds: Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True)
class Guarantee:
    """The status of one guarantee.

    ``name`` is that of the check that would find it violated. ``where`` is the section of the system's document (or
    ``ours``), ``why`` the reason. It is about runs whose settings have the values in ``mode`` and are ``such``,
    and that have one of ``faults``; without ``faults`` it doesn't matter which they have.
    """

    name: str
    status: str
    where: str
    why: str
    faults: tuple[str, ...] = ()
    mode: Mapping[str, Any] = field(default_factory=dict)
    such: Such | None = None

    def covers(self, options: Mapping[str, Any], faults: Iterable[str]) -> bool:
        """Whether it is about a run with these settings and faults."""
        named = tuple(like for fault in faults for like in (fault, *ACTS_AS.get(fault, ())))
        if self.faults == ANY_FAULT:
            fits = bool(named)
        else:
            fits = not self.faults or any(fault in self.faults for fault in named)
        fits = fits and all(options.get(name) == value for name, value in self.mode.items())
        return fits and (self.such is None or self.such.holds(options))


@dataclass(frozen=True)
class Trial:
    """What the modes of a system are tried with when their guarantees are compared with what runs show: workloads,
    faults (joined by commas), and settings that let these faults matter; operations a second, and seconds, where they
    are others than usual. ``of_mode`` are modes that need something else, by name; its settings come on top of these.
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
    """What a system says of a guarantee in a run: the first that is about it; None if it says nothing."""
    for guarantee in declared:
        if guarantee.name == name and guarantee.covers(options, faults):
            return guarantee
    return None
