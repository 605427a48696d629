"""Offsets of logs: each holds one value, each value has one offset, and later appends get larger ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from checkers.api import RunCheck
from checkers.logs import Logs, RowTuples, isin, outcome_of, same
from checkers.run import Run
from stormproof import vocabulary
from stormproof.contracts.check import CheckOutcome
from stormproof.history.columns import Int64s
from stormproof.text import amount
from stormproof.vocabulary import LOGS

Tell = Callable[[CheckOutcome, Mapping[str, CheckOutcome]], list[str]]
AFTER_LOSS = "after-loss"
"""The figure with the number of anomalies of each kind that follow from a loss."""


def check(run: Run) -> CheckOutcome:
    """Find contradictions among confirmations, polls and last reads.

    The kinds are ``two-values`` at one offset; a value at ``two-offsets``; a value ``from-nowhere`` (never appended to
    this log, or its append was reported as failed); and ``append-went-back``: an append confirmed with an offset that
    is not larger than one confirmed before the append was invoked.
    """
    logs = Logs(run)
    rows = np.concatenate([logs.appended, logs.polled, logs.scanned])
    return judge(run, logs, rows, "offset", "append-went-back", aborted="from-nowhere" in run.exempt("log-offsets"))


def judge(run: Run, logs: Logs, rows: Int64s, noun: str, went_back: str, aborted: bool = False) -> CheckOutcome:
    """Judge the pairs in ``rows`` in the same way; ``noun`` is the user's word for the first half of a pair.
    ``aborted``: readers may get values whose append failed; they are counted and not judged."""
    rows = np.sort(rows)
    key, offset, value = logs.key(rows), logs.offset(rows), logs.value(rows)
    failed = logs.rows(vocabulary.FAIL, logs.words.append)
    calls = logs.rows(vocabulary.INVOKE, logs.words.append)
    failed_calls = run.history.partner[failed]
    calls = calls[~isin(calls, failed_calls)]
    unknown = ~isin(same((key, value)), same((logs.key(calls), logs.value(calls))))
    _, first = np.unique(same((key, value))[unknown], return_index=True)
    nowhere = np.sort(rows[unknown][first])
    more: dict[str, int] = {}
    if aborted:
        came = isin(same((logs.key(nowhere), logs.value(nowhere))), same((logs.key(failed_calls),
                                                                          logs.value(failed_calls))))
        more["not_promised"] = int(np.count_nonzero(came))
        nowhere = nowhere[~came]
    found: dict[str, RowTuples] = {
        "two-values": _differing(rows, same((key, offset)), value),
        f"two-{noun}s": _differing(rows, same((key, value)), offset),
        "from-nowhere": [(row,) for row in nowhere.tolist()],
        went_back: _went_back(run, logs),
    }
    after_loss = {kind: _after_loss(logs, found[kind]) for kind in ("two-values", went_back)}
    seen = amount(len(np.unique(same((key, offset)))), noun)
    return outcome_of(logs, found, seen, ", each with one value", **{AFTER_LOSS: after_loss}, **more)


def _after_loss(logs: Logs, found: RowTuples) -> int:
    """Count the anomalies that follow from a loss.

    In these, the log was read to its end and one of two entries is missing, so its offset, or a smaller one, was given
    to another entry.
    """
    pairs = np.asarray(found, dtype=np.int64).reshape(-1, 2)
    read = isin(logs.key(pairs[:, 0]), logs.key(logs.ends(logs.words.scan)))
    there = same((logs.key(logs.scanned), logs.value(logs.scanned)))
    gone = [~isin(same((logs.key(rows), logs.value(rows))), there) for rows in pairs.T]
    return int(np.count_nonzero(read & (gone[0] | gone[1])))


def told_by_kinds(words: Mapping[str, tuple[str, str]], loss: str) -> Tell:
    """Return a function that gives a clause for each kind, without anomalies that follow from those of the check
    ``loss``.
    """

    def tell(outcome: CheckOutcome, invalid: Mapping[str, CheckOutcome]) -> list[str]:
        after = outcome.figures[AFTER_LOSS] if loss in invalid else {}
        counts = {kind: outcome.figures[kind] - after.get(kind, 0) for kind in words}
        return [amount(count, *words[kind]) for kind, count in counts.items() if count]

    return tell


def _differing(rows: Int64s, group: Int64s, what: Int64s) -> RowTuples:
    """Return, for each group of rows with different values, its first row and the first row with another value."""
    order = np.lexsort((rows, group))
    rows, group, what = rows[order], group[order], what[order]
    _, start, place = np.unique(group, return_index=True, return_inverse=True)
    other = np.flatnonzero(what != what[start[place]])
    _, first = np.unique(place[other], return_index=True)
    pairs = [(int(rows[start[place[at]]]), int(rows[at])) for at in other[first]]
    return sorted(pairs, key=lambda pair: pair[1])


def _went_back(run: Run, logs: Logs) -> RowTuples:
    found: RowTuples = []
    for key in np.unique(logs.key(logs.appended)):
        ends = logs.appended[logs.key(logs.appended) == key]
        offset = logs.offset(ends)
        largest = np.maximum.accumulate(offset)
        before = np.searchsorted(ends, run.history.partner[ends]) - 1
        for at in np.flatnonzero((before >= 0) & (largest[before] >= offset)).tolist():
            found.append((int(ends[np.argmax(offset[: before[at] + 1])]), int(ends[at])))
    return sorted(found, key=lambda pair: pair[1])


CHECK = RunCheck(
    name="log-offsets",
    guarantee="an offset stands for one value, a value has one offset, later appends have larger ones",
    anomaly="log-offsets",
    decides=True,
    subjects=(LOGS,),
    function=check,
    tell=told_by_kinds({
        "two-values": ("offset of a log had two values", "offsets of logs had two values"),
        "two-offsets": ("value was stored twice", "values were stored twice"),
        "from-nowhere": ("value was in a log that no client had appended",
                         "values were in logs that no client had appended"),
        "append-went-back": ("append got no larger offset than an earlier one",
                             "appends got no larger offsets than earlier ones"),
    }, "log-lost"),
    happens=True,
)
