"""A workload whose clients can use all features that a broker offers them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stormproof.contracts.workload import Workload
from stormproof.test import Test
from workloads.feature_coverage import LOOKED_AT, SURFACE, Surface


class SurfacedWorkload(Workload):
    """A workload with the option ``surface``; ``looked_at`` are the checks that then judge the consumers'
    observations."""

    looked_at: tuple[str, ...] = LOOKED_AT
    _surface: Surface | None = None

    @classmethod
    def judged_by(cls, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the deciding checks; with the surface, also those of the consumers' observations."""
        return (*cls.guarantees, *(cls.looked_at if options.get(SURFACE.name) else ()))

    def surface_of(self, test: Test) -> Surface | None:
        """Return the surface of the run; None if the run uses the basic features only."""
        if self._surface is None and test.options[SURFACE.name]:
            self._surface = Surface(test)
        return self._surface

    def used(self) -> Mapping[str, int]:
        """Return the number of uses of each item of the surface."""
        return self._surface.used if self._surface is not None else {}
