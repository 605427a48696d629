"""A check of a whole run, as a function with what is to be known of it; some also judge a run part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from checkers.run import Run
from stormproof.contracts.check import MAX_EXAMPLES, Anomaly, Check, CheckOutcome, RecordedRun
from stormproof.text import amount

Example = tuple[tuple[int, ...], Anomaly]
"""An anomaly, after its place among all of its check's: such places are compared across the parts of a run."""


class NeedsWhole(Exception):
    """What was found in the parts of a run does not tell what the check finds in the whole."""


class WholeRun(Protocol):
    """What is known of a whole run where it is judged by parts."""

    @property
    def open_queues(self) -> Mapping[int, str]:
        """As ``Run.open_queues``."""
        ...

    @property
    def gone_queues(self) -> Mapping[int, tuple[int, int]]:
        """As ``Run.gone_queues``."""
        ...

    @property
    def accounts(self) -> Mapping[int, float]:
        """As ``Run.accounts``."""
        ...


class ByParts:
    """The way in which a check judges a run in parts (``checkers.partitioned_check``), each with all messages of some
    producers.

    ``find`` says what is in a part, as something that can be pickled; ``conclude`` what follows from all parts, and
    what is known of the whole. It raises NeedsWhole where that does not suffice.
    """

    def __init__(self, find: Callable[[Run], Any], conclude: Callable[[Sequence[Any], WholeRun], CheckOutcome]) -> None:
        self.find, self.conclude = find, conclude

    def __call__(self, run: Run) -> CheckOutcome:
        """The outcome for a run that is one part; raises HistoryError where it has no account."""
        return self.conclude([self.find(run)], run)


def examples_of(found: Iterable[Iterable[Example]]) -> tuple[Anomaly, ...]:
    """The first anomalies of those that each part gave the first of."""
    ordered = sorted((example for some in found for example in some), key=lambda example: example[0])
    return tuple(anomaly for _, anomaly in ordered[:MAX_EXAMPLES])


class RunCheck(Check):
    """A check whose ``function`` takes a ``Run``; ``one`` and ``more`` are what a verdict's sentence says of one
    anomaly, and of several. ``by_parts`` is the same for a run in parts.

    One that ``leads`` is told before all others, by the summary of what it found. What it finds ``happens`` if each
    anomaly's rows show all of it; otherwise something is missing in the end, or not all rows are named. ``tell`` gives
    clauses in the place of ``one`` and ``more``, by its own outcome and all outcomes that are invalid, so that one
    thing is not told twice. The rest is explained at ``Check``.
    """

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
        by_parts: ByParts | None = None,
        leads: bool = False,
        happens: bool = False,
        tell: Callable[[CheckOutcome, Mapping[str, CheckOutcome]], Sequence[str]] | None = None,
    ) -> None:
        self.name = name
        self.guarantee = guarantee
        self.subjects = subjects
        self.anomaly = anomaly
        self.decides = decides
        self.speaks_when_held = speaks_when_held
        self.headline_figures = headline_figures
        self.by_parts = by_parts
        self.leads = leads
        self.happens = happens
        self.tell = tell
        self._function = function
        self._one, self._more = one, more

    def judge(self, run: RecordedRun) -> CheckOutcome:
        """What the function finds."""
        assert isinstance(run, Run)
        return self._function(run)

    def clause(self, count: int) -> str:
        """So many of what it finds."""
        return amount(count, self._one, self._more) if self._one else ""
