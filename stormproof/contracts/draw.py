"""The settings that the default campaign may draw, declared next to the options that they concern.

A campaign that always runs the same settings finds the same things. Each seed therefore draws new values for some of
the settings (swarm testing: Groce, Zhang, Eide, Chen, Regehr, *Swarm Testing*, ISSTA 2012): tiny logs and windows,
other modes, more nodes, other clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Draw:
    """A setting that a ``share`` of all runs draws uniformly from ``values`` (a value listed twice has twice the
    chance); other runs use its default. ``where`` are settings that a run must have for the draw, ``faults`` the fault
    families; a draw with ``faults`` comes after all others, and its ``where`` names settings of such draws only."""

    name: str
    values: tuple[object, ...]
    share: float = 0.4
    where: Mapping[str, object] = field(default_factory=dict)
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class Never:
    """A combination that is never drawn, and ``why``: settings (``nodes`` among them) with any of the listed values. If
    ``workloads`` or fault families (``faults``) are named, it applies only to tests with one of them."""

    why: str
    where: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    workloads: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    def covers(self, workload: str, faults: Sequence[str], settings: Mapping[str, object]) -> bool:
        """Return whether this is such a combination; missing settings match none of the values."""
        if self.workloads and workload not in self.workloads:
            return False
        if self.faults and not set(self.faults) & set(faults):
            return False
        return all(str(settings.get(name)) in map(str, values) for name, values in self.where.items())


@dataclass(frozen=True)
class Drawing:
    """The rules for drawing tests of a system.

    ``draws`` are its settings; ``nodes`` are the possible numbers of nodes. ``timeouts`` names options, in seconds,
    that determine how a silence is interpreted: faults last a little less and a little more than these. ``never`` lists
    the combinations to leave out. ``undrawn`` maps each option that no run draws to the reason.
    """

    draws: tuple[Draw, ...] = ()
    nodes: tuple[int, ...] = ()
    timeouts: tuple[str, ...] = ()
    never: tuple[Never, ...] = ()
    undrawn: Mapping[str, str] = field(default_factory=dict)
