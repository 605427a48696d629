"""Checks of a whole run as functions of a ``Run``; some can also judge a run part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from checkers.run import Run
from stormproof.contracts.check import MAX_EXAMPLES, Anomaly, Check, CheckOutcome, RecordedRun
from stormproof.text import amount

Example = tuple[tuple[int, ...], Anomaly]
"""An anomaly, with its place among all anomalies of its check: places can be compared across the parts of a run."""


class NeedsWhole(Exception):
    """The findings in the parts of a run do not suffice for the check's outcome in the whole."""


class WholeRun(Protocol):
    """The facts of a whole run that are available when it is judged by parts."""

    @property
    def open_queues(self) -> Mapping[int, str]:
        """As ``Run.open_queues``."""
        ...

    @property
    def delivery_limit(self) -> str:
        """As ``Run.delivery_limit``."""
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
    """The way a check judges a run in parts (``checkers.partitioned_check``), each with all messages of some producers.

    ``find`` returns the findings in a part, as an object that can be pickled. ``conclude`` derives the outcome from all
    parts and the facts of the whole. It raises NeedsWhole if these do not suffice.
    """

    def __init__(self, find: Callable[[Run], Any], conclude: Callable[[Sequence[Any], WholeRun], CheckOutcome]) -> None:
        self.find, self.conclude = find, conclude

    def __call__(self, run: Run) -> CheckOutcome:
        """Return the outcome of a run that is one part; raises HistoryError if the run has no account."""
        return self.conclude([self.find(run)], run)


def examples_of(found: Iterable[Iterable[Example]]) -> tuple[Anomaly, ...]:
    """Return the first anomalies overall, from the first ones of each part."""
    ordered = sorted((example for some in found for example in some), key=lambda example: example[0])
    return tuple(anomaly for _, anomaly in ordered[:MAX_EXAMPLES])


@dataclass
class Findings:
    """What a check found in a part of a run: numbers by name or code, and the first anomalies."""

    counts: dict[Any, int]
    examples: list[Example]


def total(parts: Iterable[Findings], name: Any) -> int:
    """Return a number's sum over all parts."""
    return sum(part.counts[name] for part in parts)


def listed(kinds: Mapping[str, int]) -> str:
    """Return the number of anomalies of each kind that occurred, for a summary."""
    return ", ".join(f"{count:,} {kind}" for kind, count in kinds.items() if count)


class RunCheck(Check):
    """A check whose ``function`` takes a ``Run``.

    ``one`` and ``more`` are the clauses of a verdict's sentence for one anomaly and for several. ``by_parts`` judges a
    run in parts.

    A check that ``leads`` is reported before all others, by the summary of its outcome. ``happens`` is set if each
    anomaly's rows show all of it; otherwise something is missing in the end, or the rows are incomplete. ``tell`` gives
    clauses instead of ``one`` and ``more``, from the check's outcome and all invalid outcomes, so that nothing is
    reported twice. ``Check`` documents the other attributes.
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
        """Return the function's outcome."""
        assert isinstance(run, Run)
        return self._function(run)

    def clause(self, count: int) -> str:
        """Return the clause of a verdict's sentence for this number of anomalies."""
        return amount(count, self._one, self._more) if self._one else ""
