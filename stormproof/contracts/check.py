"""Checks: what is asked of a recorded run, and what is found."""

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
"""Anomalies of one check that a verdict holds as examples."""


def worst(verdicts: Iterable[str]) -> str:
    """The least favourable of some verdicts (valid < unknown < invalid); valid if there are none."""
    return max(verdicts, key=VERDICTS.index, default=VALID)


@dataclass(frozen=True)
class Anomaly:
    """One thing that should not have happened; ``ops`` are the rows of the history that prove it.

    ``value`` is the message as ``producer/sequence``, ``key`` the queue.
    """

    kind: str
    ops: tuple[int, ...]
    key: int | None = None
    value: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckOutcome:
    """What one check found: ``count`` anomalies in all, of which ``anomalies`` are examples.

    ``pages`` makes, by file name, the pages that explain it; they are written into the run's folder.
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
        """What run.json holds."""
        ...

    @property
    def faults(self) -> Sequence[FaultWindow]:
        """The faults, in order of injection."""
        ...

    @property
    def history(self) -> HistoryColumns:
        """Its rows as arrays, each invocation joined with its completion."""
        ...

    @property
    def folder(self) -> Path | None:
        """Where it lies, if it lies anywhere."""
        ...


class Check(ABC):
    """Something that is asked of a run.

    ``anomaly`` is the name under which a run counts what was found, None for a mere reading of the history; ``decides``
    is whether it bears on the verdict when a run does not say which guarantees it is judged by. ``subjects`` are the
    kinds of histories that it takes: ``messages`` (of queues), ``topics``, ``transactions``, ``metadata``, ``events``,
    ``registers``, ``locks``, or ``any``. ``guarantee`` says what a broker that passes it has kept.
    ``speaks_when_held``: its summary is the sentence on a valid run. ``headline_figures``: its figures are among those
    of the run.
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
        """What the check finds in a run.

        Raises:
            HistoryError: it can't judge this history, for the reason that the text gives; it is *unknown* then.
        """

    def clause(self, count: int) -> str:
        """What a verdict's sentence says of so many anomalies; empty: it repeats what others say louder."""
        return ""
