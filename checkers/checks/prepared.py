"""Prepared branches whose decided COMMIT or ABORT the broker refused, though it had confirmed the PREPARE."""

from __future__ import annotations

import numpy as np

from checkers.account import name_of
from checkers.api import RunCheck
from checkers.run import Run
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, Anomaly, CheckOutcome
from stormproof.text import amount
from stormproof.vocabulary import TRANSACTIONS

REFUSED = "refused when prepared"
"""Text in the error of a completion: COMMIT or ABORT of a prepared branch was refused."""


def check(run: Run) -> CheckOutcome:
    """Find completions with that error.

    A receipt for PREPARE is a promise: after it, only the coordinator's decision ends the branch.
    """
    h = run.history
    rows = np.flatnonzero(h.error.rows_containing(REFUSED) & (h.process >= 0)).tolist()
    if not rows:
        return CheckOutcome(VALID, 0, "no prepared transaction was refused its end")
    examples = []
    for row in rows[:MAX_EXAMPLES]:
        value = int(h.value[row])
        detail = {"error": h.error.at(row), "refused_by": h.node.at(row), "faults": run.faults_at(row)}
        name = name_of(value) if value >= 0 else None
        examples.append(Anomaly(REFUSED.replace(" ", "-"), run.rows_of(row), None, name, detail))
    text = f"{amount(len(rows), 'prepared transaction was', 'prepared transactions were')} refused an end"
    return CheckOutcome(INVALID, len(rows), text, tuple(examples))


CHECK = RunCheck(
    name="prepared",
    guarantee="a confirmed PREPARE is a promise: COMMIT and ABORT of the branch are never refused",
    anomaly="prepared-refused",
    decides=True,
    subjects=(TRANSACTIONS,),
    one="prepared transaction was refused their end",
    more="prepared transactions were refused their end",
    function=check,
)
