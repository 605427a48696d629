"""The judgement of a night: new failures, known failures, and twins that did not fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from harness.nightly.known import Known
from harness.nightly.plan_file import Cell
from harness.nightly.record import Night, Result, first_and_last
from harness.run.cases import BROKEN
from stormproof.contracts.check import INVALID, UNKNOWN
from stormproof.errors import EXIT_INVALID, EXIT_UNKNOWN, EXIT_VALID

NEW, SEEN, KNOWN, OVERDUE = "new", "seen before", "known", "known, but overdue"


@dataclass(frozen=True)
class Kind:
    """One kind of failure. ``first`` and ``last`` are nights. ``example`` is the best run to examine: the shortest."""

    fingerprint: str
    words: str
    status: str
    runs: Sequence[Result]
    first: str
    last: str
    example: Result
    known: Known | None = None
    confirmed: tuple[int, int] | None = None


@dataclass(frozen=True)
class Judgement:
    """A night's kinds of failure, the new ones first; cells that should have failed and did not; runs with an unknown
    verdict; cells without a run."""

    kinds: Sequence[Kind]
    unfailing: Sequence[Cell]
    unknown: Sequence[Result]
    missed: Sequence[Cell]

    @property
    def status(self) -> int:
        """The exit status. 0: nothing new. 1: a new failure, a twin that did not fail, or a known failure that is
        overdue. 2: nothing new, but some runs are unknown."""
        if self.unfailing or any(kind.status in (NEW, OVERDUE) for kind in self.kinds):
            return EXIT_INVALID
        return EXIT_UNKNOWN if self.unknown else EXIT_VALID


ORDER = (NEW, OVERDUE, SEEN, KNOWN)
"""The order in which kinds are reported."""


def judge(night: Night, cells: Sequence[Cell], earlier: Sequence[Night], known: Mapping[str, Known],
          today: date | None = None) -> Judgement:
    """Compare a night with earlier nights and with known failures."""
    expected = {cell.name: cell.expected for cell in cells}
    failures: dict[str, list[Result]] = {}
    for result in night.results:
        wanted = expected.get(result.cell) == INVALID and result.verdict == INVALID
        if result.fingerprint and not wanted:
            failures.setdefault(result.fingerprint, []).append(result)
    seen = first_and_last([*earlier, night])
    before = first_and_last(earlier)
    kinds = []
    for code, runs in failures.items():
        entry = known.get(code)
        status = SEEN if code in before else NEW
        if entry is not None:
            status = OVERDUE if entry.is_over(today) else KNOWN
        first, last = seen[code]
        example = min(runs, key=lambda run: (not run.run, run.seconds))
        kinds.append(Kind(code, runs[0].words, status, runs, first, last, example, entry, night.confirmed.get(code)))
    kinds.sort(key=lambda kind: (ORDER.index(kind.status), -len(kind.runs), kind.fingerprint))
    by_cell: dict[str, list[Result]] = {}
    for result in night.results:
        by_cell.setdefault(result.cell, []).append(result)
    twins = [cell for cell in cells
             if cell.expected == INVALID and len(by_cell.get(cell.name, [])) >= len(cell.seeds)]
    unfailing = [cell for cell in twins
                 if not any(result.verdict in (INVALID, BROKEN) for result in by_cell[cell.name])]
    unknown = [result for result in night.results if result.verdict == UNKNOWN]
    return Judgement(kinds, unfailing, unknown, [cell for cell in cells if cell.name not in by_cell])
