"""Fencing tokens: who gets the lock later gets a larger number."""

from __future__ import annotations

import numpy as np

from checkers.api import RunCheck
from checkers.locks import ACQUIRE
from checkers.run import Run
from stormproof import vocabulary
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, Anomaly, CheckOutcome
from stormproof.text import amount
from stormproof.vocabulary import LOCKS


def check(run: Run) -> CheckOutcome:
    """Acquires whose token is not larger than that of one which had ended before they were invoked, or whose token
    another one has as well. Without tokens nothing is asked."""
    h = run.history
    rows = np.flatnonzero((h.kind == vocabulary.OK) & (h.process >= 0) & h.f.rows_with(ACQUIRE) & (h.value > 0))
    figures: dict[str, object] = {"tokens": len(rows)}
    if not len(rows):
        return CheckOutcome(VALID, 0, "no fencing tokens were given", (), figures)
    wrong: list[tuple[int, int]] = []
    owner: dict[int, int] = {}
    for row in rows.tolist():  # by the ends of acquires: what one sees of others' ends lies before it
        token, call = int(h.value[row]), int(h.partner[row])
        before = rows[rows < call]
        newest = int(before[np.argmax(h.value[before])]) if len(before) else -1
        if token in owner:
            wrong.append((owner[token], row))
        elif newest >= 0 and token < int(h.value[newest]):
            wrong.append((newest, row))
        owner.setdefault(token, row)
    if not wrong:
        return CheckOutcome(VALID, 0, f"{amount(len(rows), 'fencing token')}, each larger than all before", (), figures)
    examples = tuple(
        Anomaly("token-went-back", run.rows_of(first, row), 0, None,
                {"token": int(h.value[row]), "after": int(h.value[first])})
        for first, row in wrong[:MAX_EXAMPLES]
    )  # fmt: skip
    text = f"{len(wrong):,} of {amount(len(rows), 'fencing token')} not larger than one before"
    return CheckOutcome(INVALID, len(wrong), text, examples, figures)


CHECK = RunCheck(
    name="fencing",
    guarantee="fencing tokens grow: who gets the lock later gets a larger one",
    anomaly="token-went-back",
    decides=True,
    subjects=(LOCKS,),
    one="fencing token was not larger than one before",
    more="fencing tokens were not larger than one before",
    function=check,
)
