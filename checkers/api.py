"""A check of a whole run, as a function with what is to be known of it."""

from __future__ import annotations

from collections.abc import Callable

from checkers.run import Run
from stormproof.contracts.check import Check, CheckOutcome, RecordedRun
from stormproof.text import amount


class RunCheck(Check):
    """A check whose ``function`` takes a ``Run``; ``one`` and ``more`` are what a verdict's sentence says of one
    anomaly, and of several. The rest is explained at ``Check``."""

    def __init__(
        self,
        *,
        name: str,
        guarantee: str,
        subjects: tuple[str, ...],
        function: Callable[[Run], CheckOutcome],
        anomaly: str | None = None,
        decides: bool = False,
        one: str = "",
        more: str = "",
        speaks_when_held: bool = False,
        headline_figures: bool = False,
    ) -> None:
        self.name = name
        self.guarantee = guarantee
        self.subjects = subjects
        self.anomaly = anomaly
        self.decides = decides
        self.speaks_when_held = speaks_when_held
        self.headline_figures = headline_figures
        self._function = function
        self._one, self._more = one, more

    def judge(self, run: RecordedRun) -> CheckOutcome:
        """What the function finds."""
        assert isinstance(run, Run)
        return self._function(run)

    def clause(self, count: int) -> str:
        """So many of what it finds."""
        return amount(count, self._one, self._more) if self._one else ""
