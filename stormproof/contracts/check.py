"""Checks: questions about a recorded run, and their findings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # NumPy and Arrow take half a second to import
    from stormproof.history.columns import HistoryColumns
    from stormproof.history.ledger import FaultWindow

VALID, UNKNOWN, INVALID = "valid", "unknown", "invalid"
VERDICTS = (VALID, UNKNOWN, INVALID)
"""From the most to the least favourable."""

MAX_EXAMPLES = 50
"""The maximum number of a check's anomalies that a verdict holds as examples."""


def worst(verdicts: Iterable[str]) -> str:
    """Return the least favourable of some verdicts (valid < unknown < invalid); valid if there are none."""
    return max(verdicts, key=VERDICTS.index, default=VALID)


@dataclass(frozen=True)
class Anomaly:
    """One event that should not have happened; ``ops`` are the rows of the history that prove it.

    ``value`` is the message as ``producer/sequence``, ``key`` the queue.
    """

    kind: str
    ops: tuple[int, ...]
    key: int | None = None
    value: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckOutcome:
    """The finding of one check: ``count`` anomalies in total, with ``anomalies`` as examples.

    ``pages`` maps file names to functions that render the explaining pages; they are written into the run's folder.
    """

    verdict: str
    count: int
    summary: str
    anomalies: tuple[Anomaly, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    pages: Mapping[str, Callable[[], str]] = field(default_factory=dict, repr=False, compare=False)


class RecordedRun(Protocol):
    """A recorded run: ``info`` is run.json, ``faults`` the windows of its ledger in order of injection."""

    @property
    def name(self) -> str:
        """The run's id."""
        ...

    @property
    def info(self) -> Mapping[str, Any]:
        """The content of run.json."""
        ...

    @property
    def faults(self) -> Sequence[FaultWindow]:
        """The faults, in order of injection."""
        ...

    @property
    def history(self) -> HistoryColumns:
        """The rows as arrays, each invocation joined with its completion."""
        ...

    @property
    def folder(self) -> Path | None:
        """The run's folder, if there is one."""
        ...


class Check(ABC):
    """A question about a run.

    ``anomaly`` is the name under which a run counts the findings, None for a mere reading of the history; ``decides``
    tells whether the check affects the verdict of a run that does not declare its guarantees. ``subjects`` are the
    kinds of histories that it accepts: ``messages`` (of queues), ``topics``, ``transactions``, ``metadata``,
    ``events``, ``registers``, ``locks``, or ``any``. ``guarantee`` describes the guarantee that a broker has kept if
    the check passes. ``speaks_when_held``: its summary is the sentence of a valid run. ``headline_figures``: its
    figures are among those of the run.
    """

    name: str = ""
    guarantee: str = ""
    anomaly: str | None = None
    decides: bool = False
    subjects: tuple[str, ...] = ("any",)
    speaks_when_held: bool = False
    headline_figures: bool = False

    @abstractmethod
    def judge(self, run: RecordedRun) -> CheckOutcome:
        """Return the check's finding about a run.

        Raises:
            HistoryError: the check can't judge this history, for the reason in the text; the result is then *unknown*.
        """

    def clause(self, count: int) -> str:
        """Return the clause about ``count`` anomalies in a verdict's sentence; empty if other clauses make the same
        point.
        """
        return ""
