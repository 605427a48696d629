"""What consumers saw besides the outcome of their operations: rows of ``observe``, whose error says what."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from checkers.run import Run
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, Anomaly, CheckOutcome
from stormproof.history.schema import decode_pair
from stormproof.text import amount

OBSERVE = "observe"
"""The function of such rows."""
_NEAR = 100
"""Rows of a history within which what a client saw follows on the operation that it broke off."""
SURFACE = "surface"
"""The setting with which consumers look."""


def observed(run: Run, beginning: str) -> list[int]:
    """Rows of observations whose error begins so, in order."""
    h = run.history
    if OBSERVE not in h.f.names:
        return []
    told = np.asarray([*(error.startswith(beginning) for error in h.error.names), False], dtype=np.bool_)
    here = (h.f.codes == h.f.names.index(OBSERVE)) & told[h.error.codes] & (h.process >= 0)
    return [int(row) for row in np.flatnonzero(here)]


def looked(run: Run) -> bool:
    """Whether the run's consumers looked at what came to them: clients of some systems know of no more than messages,
    whatever the setting."""
    used = run.info.get(SURFACE) or {}
    return bool((run.test.get("options") or {}).get(SURFACE)) and any(not name.startswith("f:") for name in used)


def as_it_should_be(run: Run, beginning: str, good: str, bad: tuple[str, str]) -> CheckOutcome:
    """Each observation of this kind is an anomaly; where nobody looked, nothing is asked. ``good`` is the summary
    without any, ``bad`` that with one and with several."""
    if not looked(run):
        return CheckOutcome(VALID, 0, "nobody looked: the run has not the setting `surface`")
    return each_observed(run, beginning, good, bad)


def each_observed(run: Run, beginning: str, good: str, bad: tuple[str, str]) -> CheckOutcome:
    """As ``as_it_should_be``, where somebody looked."""
    rows = observed(run, beginning)
    if not rows:
        return CheckOutcome(VALID, 0, good)
    examples = tuple(_anomalies(run, rows[:MAX_EXAMPLES], beginning))
    return CheckOutcome(INVALID, len(rows), amount(len(rows), *bad), examples, _kinds(run, rows))


def _kinds(run: Run, rows: Iterable[int]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        kind = _kind(run, row)
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def _kind(run: Run, row: int) -> str:
    return str(run.history.error.at(row)).partition(": ")[2].replace(",", "").replace(" ", "-")


def _anomalies(run: Run, rows: Iterable[int], beginning: str) -> Iterable[Anomaly]:
    h = run.history
    for row in rows:
        value = int(h.value[row])
        name = "/".join(map(str, decode_pair(value))) if value >= 0 else None
        detail = {"delivered_by": h.node.at(row), "faults": run.faults_at(row)}
        ops = (*_ended_by_it(run, row, beginning), *run.rows_of(row))
        yield Anomaly(_kind(run, row), ops, int(h.key[row]), name, detail)


def _ended_by_it(run: Run, row: int, beginning: str) -> tuple[int, ...]:
    """The rows of the operation that its client broke off because of what it saw, if it did: that says more."""
    h = run.history
    for before in range(row - 1, max(-1, row - _NEAR), -1):
        if h.process[before] == h.process[row] and h.f.at(before) != OBSERVE:
            return tuple(run.rows_of(before)) if str(h.error.at(before)).startswith(beginning) else ()
    return ()
