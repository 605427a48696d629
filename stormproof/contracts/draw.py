"""What the default campaign may draw, declared beside the options that it is about.

A campaign that always runs the same settings finds the same things. Each seed draws some of the settings anew (swarm
testing: Groce, Zhang, Eide, Chen, Regehr, *Swarm Testing*, ISSTA 2012): of tiny logs and windows, other modes, more
nodes, other clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Draw:
    """A setting that a ``share`` of all runs draws from ``values``, each with the same chance (one that stands there
    twice has twice the chance); other runs have its default. ``where`` are settings without which it is not drawn."""

    name: str
    values: tuple[object, ...]
    share: float = 0.4
    where: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Never:
    """A combination that is not drawn, and ``why``: settings (``nodes`` among them) with any of the values that are
    listed, of ``workloads`` and fault families (``faults``) if any are named: then one of them must be there."""

    why: str
    where: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    workloads: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    def covers(self, workload: str, faults: Sequence[str], settings: Mapping[str, object]) -> bool:
        """Whether this is such a combination; settings that are missing have none of the values."""
        if self.workloads and workload not in self.workloads:
            return False
        if self.faults and not set(self.faults) & set(faults):
            return False
        return all(str(settings.get(name)) in map(str, values) for name, values in self.where.items())


@dataclass(frozen=True)
class Drawing:
    """How tests of a system are drawn.

    ``draws`` are its settings; ``nodes`` how many nodes there may be. ``timeouts`` names options, in seconds, that
    decide what a silence means: faults last a little less and a little more than these. ``never`` is left out.
    """

    draws: tuple[Draw, ...] = ()
    nodes: tuple[int, ...] = ()
    timeouts: tuple[str, ...] = ()
    never: tuple[Never, ...] = ()
