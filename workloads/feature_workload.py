"""A workload whose clients can use all that a broker offers them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stormproof.contracts.workload import Workload
from stormproof.test import Test
from workloads.feature_coverage import LOOKED_AT, SURFACE, Surface


class SurfacedWorkload(Workload):
    """It has the option ``surface``; ``looked_at`` are the checks that then judge what consumers see."""

    looked_at: tuple[str, ...] = LOOKED_AT
    _surface: Surface | None = None

    @classmethod
    def judged_by(cls, options: Mapping[str, Any]) -> tuple[str, ...]:
        """With the surface, what consumers look at, too."""
        return (*cls.guarantees, *(cls.looked_at if options.get(SURFACE.name) else ()))

    def surface_of(self, test: Test) -> Surface | None:
        """What the run uses of what brokers offer, where it is to use more than the plain things."""
        if self._surface is None and test.options[SURFACE.name]:
            self._surface = Surface(test)
        return self._surface

    def used(self) -> Mapping[str, int]:
        """How often each item of the surface was used."""
        return self._surface.used if self._surface is not None else {}
