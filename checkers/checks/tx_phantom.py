"""Phantoms of transactions: deliveries of messages that no transaction had sent to that queue."""

from __future__ import annotations

from collections import Counter

import numpy as np

from checkers.account import TAKES, foreign, name_of
from checkers.api import RunCheck, listed
from checkers.run import Run
from checkers.transactions import find
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, Anomaly, CheckOutcome
from stormproof.text import amount
from stormproof.vocabulary import TRANSACTIONS

NEVER_SENT = "never-sent"
OTHER_QUEUE = "sent-to-another-queue"
BEFORE_SENT = "delivered-before-sent"
FOREIGN = "not-ours"


def check(run: Run) -> CheckOutcome:
    """Find deliveries of a value that no transaction sends to that queue, deliveries that complete before the
    transaction was begun, and deliveries of a body that this test did not produce; each counts.

    Deliveries from aborted transactions are a matter for ``atomic`` and ``exactly-once``.
    """
    h, t = run.history, run.transactions
    kinds: Counter[str] = Counter()
    found: list[Anomaly] = []

    def add(kind: str, row: int, *others: int) -> None:
        kinds[kind] += 1
        if len(found) < MAX_EXAMPLES:
            value = int(h.value[row])
            shown = name_of(value) if value >= 0 else None
            found.append(Anomaly(kind, run.rows_of(row, *others), int(h.key[row]), shown,
                                 {"delivered_by": h.node.at(row)}))  # fmt: skip

    nobodys = t.deliveries[t.of_delivery < 0]
    somewhere = find(t.value, h.value[nobodys])
    for row, number in zip(nobodys.tolist(), somewhere.tolist(), strict=True):
        add(NEVER_SENT if number < 0 else OTHER_QUEUE, row)
    ours = np.flatnonzero(t.of_delivery >= 0)
    begun = t.row[t.of_delivery[ours]]
    early = t.deliveries[ours] < begun
    for row, sent in zip(t.deliveries[ours][early].tolist(), begun[early].tolist(), strict=True):
        add(BEFORE_SENT, row, sent)
    for row in foreign(h, TAKES, whatever_ended=True).tolist():
        add(FOREIGN, row)
    if not kinds:
        return CheckOutcome(VALID, 0, "everything delivered had been sent by a transaction")
    deliveries = amount(kinds.total(), "delivery was", "deliveries were")
    text = f"{deliveries} of what no transaction had sent there ({listed(dict(kinds.most_common()))})"
    return CheckOutcome(INVALID, kinds.total(), text, tuple(found), {"kinds": dict(kinds)})


CHECK = RunCheck(
    name="tx-phantom",
    guarantee="only what a transaction sent to a queue is delivered from it",
    anomaly="tx-phantom",
    decides=True,
    subjects=(TRANSACTIONS,),
    one="phantom message was delivered that no transaction had sent",
    more="phantom messages were delivered that no transaction had sent",
    function=check,
    happens=True,
)
