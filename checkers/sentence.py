"""A verdict's sentence for the user: the violation, the reason why it is unknown, or what held; and the faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from checkers.api import RunCheck
from checkers.catalog import GATES
from checkers.checks import recovery
from checkers.locks import closed_by_test
from checkers.run import Run
from checkers.verdict import CheckVerdict
from stormproof.contracts.check import INVALID, UNKNOWN, VALID, Check, CheckOutcome, worst
from stormproof.run_folder import IMPORTED
from stormproof.text import amount, elapsed, listed


@dataclass(frozen=True)
class Circumstances:
    """The faults that count, each as its family and the number of rows before it began, and further circumstances.

    ``claimed``: an imported history names the faults, without proof. ``unrecorded``: no faults were recorded at all.
    ``own``: the test itself did something that counts like a fault, which ``besides`` names.
    """

    faults: tuple[tuple[str, int], ...]
    claimed: bool
    unrecorded: bool
    own: bool
    besides: str

    def phrase(self, last: int | None = None) -> str:
        """Return the circumstances as a phrase.

        Faults that began after row ``last`` are left out, since they cannot have contributed to what that row shows.
        """
        begun = [family for family, row in self.faults if last is None or row <= last]
        names = ", ".join(f"{begun.count(name)} {name}" for name in dict.fromkeys(begun))
        if not begun and self.own:
            return self.besides
        if self.faults and not begun:
            return f", before any fault had begun{self.besides}"
        if self.claimed:
            return f" under {amount(len(begun), 'claimed fault')} ({names}), without proof{self.besides}"
        if begun:
            return f" under {amount(len(begun), 'confirmed fault')} ({names}){self.besides}"
        return ", and no fault was recorded" if self.unrecorded else f", with no fault in force{self.besides}"


def circumstances(run: Run) -> Circumstances:
    """Collect the circumstances of a run's sentence: its faults, and the actions after them."""
    claimed = [fault for fault in run.faults if fault.claimed]
    counted = claimed or [fault for fault in run.faults if fault.counts]
    rows = np.searchsorted(run.history.time, np.asarray([fault.start for fault in counted], dtype=np.int64))
    besides = ", after repair" if run.repairs else ""
    if run.standstills:
        besides += f", though the harness stood still for {elapsed(sum(each.seconds for each in run.standstills))}"
    if run.unsealed:
        besides += ", description unsealed"
    if closed := closed_by_test(run):
        besides = f", after this test itself closed the connections of {amount(closed, 'holder')}{besides}"
    if run.fenced_queues:
        besides += ", emptiness shown by fences"
    unrecorded = (run.info.get("backend") or {}).get("name") == IMPORTED
    faults = tuple(zip((fault.fault for fault in counted), rows.tolist(), strict=True))
    return Circumstances(faults, bool(claimed), unrecorded, bool(closed), besides)


def sentence(under: Circumstances, results: Iterable[CheckVerdict], load: Callable[[str], Check]) -> str:
    """Return the sentence of a verdict; ``load`` returns a check by its name."""
    results = list(results)
    deciding = [result for result in results if result.decides]
    verdict = worst(result.outcome.verdict for result in deciding)
    if verdict == INVALID:
        bad = {result.check: result.outcome for result in deciding if result.outcome.verdict == INVALID}
        checks = {name: load(name) for name in bad}
        return f"Invalid: {listed(_clauses(checks, bad))}{under.phrase(_last_row(checks, bad))}{_words(bad)}."
    if verdict == UNKNOWN:
        open_ones = [result for result in deciding if result.outcome.verdict == UNKNOWN]
        gates = [result for result in open_ones if result.check == GATES]
        return f"Unknown: {(gates or open_ones)[0].outcome.summary}."
    held = {result.outcome.summary: None for result in results  # two checks of a lock have the same summary
            if result.outcome.verdict == VALID and load(result.check).speaks_when_held}  # fmt: skip
    return f"Valid: {listed(list(held)) if held else 'every guarantee was kept'}{under.phrase()}."


def _clauses(checks: dict[str, Check], bad: dict[str, CheckOutcome]) -> list[str]:
    """Return a clause for each kind of violation."""
    leading = [name for name, check in checks.items() if isinstance(check, RunCheck) and check.leads]
    first = ["".join(_told(checks[name], name, bad)) or bad[name].summary for name in leading]
    others = [name for name in bad if name not in leading]
    told = [text for name in others for text in _told(checks[name], name, bad) if text]
    # The readings repeat the findings of the other checks: they are used only if those give no clause.
    return first + (told or [bad[name].summary for name in others])


def _words(bad: dict[str, CheckOutcome]) -> str:
    """Return the state that the nodes of a never-recovered cluster report, as an end of the sentence."""
    if recovery.CHECK.name not in bad:
        return ""
    (anomaly,) = bad[recovery.CHECK.name].anomalies
    errors = [f"a repair failed: {error}" for error in anomaly.detail.get(recovery.ERRORS, ())]
    return "".join(f"; {text}" for text in (anomaly.detail[recovery.STATE], *errors))


def _told(check: Check, name: str, bad: dict[str, CheckOutcome]) -> Sequence[str]:
    if isinstance(check, RunCheck) and check.tell is not None:
        return check.tell(bad[name], bad)
    return [check.clause(bad[name].count)]


def _last_row(checks: dict[str, Check], bad: dict[str, CheckOutcome]) -> int | None:
    """Return the last row that shows a violation; None if something is missing in the end, or not all rows are shown.
    """
    last = -1
    for name, outcome in bad.items():
        check, rows = checks[name], [anomaly.ops for anomaly in outcome.anomalies]
        if not (isinstance(check, RunCheck) and check.happens) or not all(rows) or len(rows) < outcome.count:
            return None
        last = max(last, *(max(each) for each in rows))
    return last
