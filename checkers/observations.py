"""Observations of consumers beyond the outcome of their operations: rows of ``observe``, described by their error."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from checkers.account import name_of
from checkers.run import Run
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, Anomaly, CheckOutcome
from stormproof.text import amount

OBSERVE = "observe"
"""The function of such rows."""
MAX_ROWS_APART = 100
"""The number of rows within which an observation follows the operation that the client broke off because of it."""
SURFACE = "surface"
"""The setting that makes consumers observe."""


def observed(run: Run, beginning: str) -> list[int]:
    """Return the rows of observations whose error begins with ``beginning``, in order."""
    h = run.history
    if OBSERVE not in h.f.names:
        return []
    told = np.asarray([*(error.startswith(beginning) for error in h.error.names), False], dtype=np.bool_)
    here = (h.f.codes == h.f.names.index(OBSERVE)) & told[h.error.codes] & (h.process >= 0)
    return [int(row) for row in np.flatnonzero(here)]


def looked(run: Run) -> bool:
    """Return whether the run's consumers observed their deliveries: clients of some systems only know messages, even
    with the setting.
    """
    used = run.info.get(SURFACE) or {}
    return bool((run.test.get("options") or {}).get(SURFACE)) and any(not name.startswith("f:") for name in used)


def as_it_should_be(run: Run, beginning: str, good: str, bad: tuple[str, str]) -> CheckOutcome:
    """Report each observation of this kind as an anomaly; if consumers did not observe, the check is valid.

    ``good`` is the summary without an observation; ``bad`` are the summaries for one and for several.
    """
    if not looked(run):
        return CheckOutcome(VALID, 0, "not observed: the run does not have the setting `surface`")
    return each_observed(run, beginning, good, bad)


def each_observed(run: Run, beginning: str, good: str, bad: tuple[str, str]) -> CheckOutcome:
    """Report observations as ``as_it_should_be`` does, for consumers that did observe."""
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
        name = name_of(value) if value >= 0 else None
        detail = {"delivered_by": h.node.at(row), "faults": run.faults_at(row)}
        ops = (*_ended_by_it(run, row, beginning), *run.rows_of(row))
        yield Anomaly(_kind(run, row), ops, int(h.key[row]), name, detail)


def _ended_by_it(run: Run, row: int, beginning: str) -> tuple[int, ...]:
    """Return the rows of the operation that the client broke off because of its observation, if it did: they say more.
    """
    h = run.history
    for before in range(row - 1, max(-1, row - MAX_ROWS_APART), -1):
        if h.process[before] == h.process[row] and h.f.at(before) != OBSERVE:
            return tuple(run.rows_of(before)) if str(h.error.at(before)).startswith(beginning) else ()
    return ()
