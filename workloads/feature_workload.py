"""A workload whose clients can use all features that a broker offers them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stormproof.contracts.workload import Workload
from stormproof.test import Test
from workloads.feature_coverage import FEATURE_COVERAGE, OBSERVATION_CHECKS, FeatureCoverage


class FeatureWorkload(Workload):
    """A workload with the option ``surface``; ``observation_checks`` are the checks that then judge the consumers'
    observations."""

    observation_checks: tuple[str, ...] = OBSERVATION_CHECKS
    _coverage: FeatureCoverage | None = None

    @classmethod
    def judged_by(cls, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the deciding checks; with the option, also those of the consumers' observations."""
        return (*cls.guarantees, *(cls.observation_checks if options.get(FEATURE_COVERAGE.name) else ()))

    def coverage_of(self, test: Test) -> FeatureCoverage | None:
        """Return the feature coverage of the run; None if the run uses the basic features only."""
        if self._coverage is None and test.options[FEATURE_COVERAGE.name]:
            self._coverage = FeatureCoverage(test)
        return self._coverage

    def used(self) -> Mapping[str, int]:
        """Return the number of uses of each counted item."""
        return self._coverage.used if self._coverage is not None else {}
