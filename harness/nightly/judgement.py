"""The judgement of a night: new failures, known failures, and twins that did not fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from harness.nightly.known import KnownFailure
from harness.nightly.plan_file import Cell
from harness.nightly.record import Night, NightResult
from harness.nightly.triage import NEW, ORDER, OVERDUE, FailureHistory, kinds_over
from harness.run.cases import BROKEN
from stormproof.contracts.check import INVALID, UNKNOWN
from stormproof.errors import EXIT_INVALID, EXIT_UNKNOWN, EXIT_VALID


@dataclass(frozen=True)
class Judgement:
    """A night's kinds of failure, the new ones first; cells that should have failed and did not; runs with an unknown
    verdict; cells without a run."""

    kinds: Sequence[FailureHistory]
    unfailing: Sequence[Cell]
    unknown: Sequence[NightResult]
    missed: Sequence[Cell]

    @property
    def status(self) -> int:
        """The exit status. 0: nothing new. 1: a new failure, a twin that did not fail, or a known failure that is
        overdue. 2: nothing new, but some runs are unknown."""
        if self.unfailing or any(kind.status in (NEW, OVERDUE) for kind in self.kinds):
            return EXIT_INVALID
        return EXIT_UNKNOWN if self.unknown else EXIT_VALID


def judge(night: Night, cells: Sequence[Cell], earlier: Sequence[Night], known: Mapping[str, KnownFailure],
          today: date | None = None) -> Judgement:
    """Compare a night with earlier nights and with known failures."""
    kinds = sorted(kinds_over([*earlier, night], {night.name}, known, today),
                   key=lambda kind: (ORDER.index(kind.status), -len(kind.runs), kind.fingerprint))
    by_cell: dict[str, list[NightResult]] = {}
    for result in night.results:
        by_cell.setdefault(result.cell, []).append(result)
    twins = [cell for cell in cells
             if cell.expected == INVALID and len(by_cell.get(cell.name, [])) >= len(cell.seeds)]
    unfailing = [cell for cell in twins
                 if not any(result.verdict in (INVALID, BROKEN) for result in by_cell[cell.name])]
    unknown = [result for result in night.results if result.verdict == UNKNOWN]
    return Judgement(kinds, unfailing, unknown, [cell for cell in cells if cell.name not in by_cell])
