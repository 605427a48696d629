"""Atomicity: of a transaction that sends to several queues, all parts are delivered or none."""

from __future__ import annotations

from collections import Counter

import numpy as np

from checkers.api import RunCheck, listed
from checkers.run import Run
from checkers.transactions import ABORTED, COMMITTED, OUTCOMES, UNSURE, TransactionTable
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.text import amount
from stormproof.vocabulary import TRANSACTIONS

TORN = "torn"
WHOLE = "lost-whole"
REVIVED = "aborted-yet-delivered"


def check(run: Run) -> CheckOutcome:
    """Find committed transactions with a part that was never delivered, aborted ones with a part that was delivered,
    and transactions of unknown outcome of which one part was delivered and another was not.

    A missing part of a queue that was not drained is undecided (unknown).
    """
    t = run.transactions
    some = t.came != 0
    gone = t.wanted & ~t.came & t.drained != 0
    open_parts = (t.wanted & ~t.came & ~t.drained != 0) & ~gone
    committed, aborted, unsure = (t.outcome == code for code in (COMMITTED, ABORTED, UNSURE))
    sends = ~t.is_move
    torn = np.flatnonzero(sends & some & gone & (committed | unsure))
    whole = np.flatnonzero(sends & ~some & gone & committed)
    revived = np.flatnonzero(sends & some & aborted)
    undecided = np.count_nonzero(sends & open_parts & (committed | (unsure & some)))
    kinds = Counter({TORN: len(torn), WHOLE: len(whole), REVIVED: len(revived)})
    count = kinds.total()
    figures = {
        "committed": int(np.count_nonzero(sends & committed)),
        "aborted": int(np.count_nonzero(sends & aborted)),
        "unknown": int(np.count_nonzero(sends & unsure)),
        "undecided": int(undecided),
        "kinds": {kind: found for kind, found in kinds.items() if found},
    }
    if count:
        told = [(kind, n) for kind, group in ((TORN, torn), (WHOLE, whole), (REVIVED, revived)) for n in group.tolist()]
        examples = tuple(_anomaly(run, t, kind, number) for kind, number in told[:MAX_EXAMPLES])
        text = f"{amount(count, 'transaction')} did not happen as a whole ({listed(dict(kinds.most_common()))})"
        return CheckOutcome(INVALID, count, text, examples, figures)
    if undecided:
        queue, reason = next(iter(t.undrained.items()))
        some = amount(int(undecided), "transaction")
        text = f"{some} with parts that did not come, but queue {queue} was not drained: {reason}"
        return CheckOutcome(UNKNOWN, 0, text, (), figures)
    text = f"all {int(sends.sum()):,} transactions happened as a whole or not at all"
    return CheckOutcome(VALID, 0, text, (), figures)


def _anomaly(run: Run, t: TransactionTable, kind: str, number: int) -> Anomaly:
    row = int(t.row[number])
    rows = [row, *t.deliveries[t.of_delivery == number].tolist()]
    wanted, came = int(t.wanted[number]), int(t.came[number])
    detail = {
        "outcome": OUTCOMES[int(t.outcome[number])],
        "parts_for_queues": _bits(wanted),
        "came_from_queues": _bits(came),
        "missing_in_queues": _bits(wanted & ~came),
        "faults": run.faults_at(max(row, int(run.history.partner[row]))),
    }
    return Anomaly(kind, run.rows_of(*rows), None, t.name(number), detail)


def _bits(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


CHECK = RunCheck(
    name="atomic",
    guarantee="a transaction is atomic: all its parts are delivered if it was committed, none if it was aborted",
    anomaly="atomic",
    decides=True,
    subjects=(TRANSACTIONS,),
    one="transaction was carried out in part, or contrary to its confirmed outcome",
    more="transactions were carried out in part, or contrary to their confirmed outcome",
    speaks_when_held=True,
    function=check,
)
