"""Lost updates: a holder's write under the lock that another holder overwrote without having seen it."""

from __future__ import annotations

import numpy as np

from checkers.api import RunCheck
from checkers.locks import UPDATE
from checkers.run import Run
from stormproof import vocabulary
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.errors import HistoryError
from stormproof.history.schema import decode_pair
from stormproof.text import amount
from stormproof.vocabulary import LOCKS

FENCED = "the token is older than one that was seen"
"""Error of an update that the guarded resource refused."""


def check(run: Run) -> CheckOutcome:
    """Find confirmed updates of the counter under the lock that the counter does not contain.

    An update reads the counter and writes it back incremented by one. Its value is a pair: the number of writes so far,
    including its own, and the count it wrote. The counter contains an update as long as every later write has a larger
    count.

    Raises:
        HistoryError: an update's value is not such a pair, or two have the same number.
    """
    h = run.history
    ended = (h.process >= 0) & h.f.rows_with(UPDATE)
    rows = np.flatnonzero(ended & (h.kind == vocabulary.OK))
    refused = int(np.count_nonzero(ended & (h.kind == vocabulary.FAIL) & h.error.rows_containing(FENCED)))
    figures: dict[str, object] = {"updates": len(rows), "refused": refused}
    if not len(rows):
        return CheckOutcome(UNKNOWN, 0, "nothing was updated under the lock", (), figures)
    if int(h.value[rows].min()) < 0:
        raise HistoryError(f"row {int(rows[h.value[rows].argmin()])}: an update does not say what it wrote")
    written = sorted((*decode_pair(int(h.value[row])), row) for row in rows.tolist())
    lost = _lost(written)
    if not lost:
        return CheckOutcome(VALID, 0, f"all {amount(len(rows), 'update')} under the lock are there", (), figures)
    examples = tuple(
        Anomaly("lost-update", run.rows_of(row, by), 0, None, {"wrote": count, "faults": run.faults_at(by)})
        for row, count, by in lost[:MAX_EXAMPLES]
    )
    text = f"{len(lost):,} of {amount(len(rows), 'update')} under the lock were overwritten unseen"
    return CheckOutcome(INVALID, len(lost), text, examples, figures)


def _lost(written: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return (row, count, row that overwrote it) of each lost update.

    ``written`` holds (number of the write, count that it wrote, row), in order.
    """
    lost: list[tuple[int, int, int]] = []
    standing: list[tuple[int, int]] = []
    last = -1
    for number, count, row in written:
        if number == last:
            raise HistoryError(f"row {row}: two updates were write number {number}")
        last = number
        while standing and standing[-1][0] >= count:
            overwritten, before = standing.pop()
            lost.append((before, overwritten, row))
        standing.append((count, row))
    return sorted(lost)


CHECK = RunCheck(
    name="lost-update",
    guarantee="each holder's update under the lock is seen by the next holders",
    anomaly="lost-update",
    decides=True,
    subjects=(LOCKS,),
    one="update under the lock was overwritten unseen",
    more="updates under the lock were overwritten unseen",
    speaks_when_held=True,
    function=check,
    happens=True,
)
