"""Unmarked duplicates: copies of a message without the mark that says that they may not be the first."""

from __future__ import annotations

import re

import numpy as np

from checkers.account import repeats
from checkers.api import RunCheck
from checkers.checks.repeats import IN_BUFFER
from checkers.kernels.deliveries import ACKED_TWICE
from checkers.run import Run
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, Anomaly, CheckOutcome
from stormproof.text import amount
from stormproof.vocabulary import TRANSFERS

_MARK = re.compile(r"\bsent again (\d{1,9})\b")


def check(run: Run) -> CheckOutcome:
    """Find deliveries of a copy after the receipt of that copy's ACK, and second confirmed ACKs of one copy.

    Copies are distinguished by their marks: the first send has none, a repeated send names its connection. Two copies
    with different marks are a duplicate of which the receiver was informed.
    """
    h, messages = run.history, run.messages
    marks = [_MARK.search(name) for name in h.error.names]
    number = np.asarray([*(int(mark[1]) if mark else 0 for mark in marks), 0], dtype=np.int64)
    rows = messages.delivered
    mark, message = number[h.error.codes[rows]], messages.of_row[rows].astype(np.int64)
    order = np.lexsort((rows, mark, message))
    rows, mark, message = rows[order], mark[order], message[order]
    # A client that receives transfers marks by itself the deliveries that were in its buffer.
    codes, shown_by = repeats(h, rows, (message, mark), h.error.rows_containing(IN_BUFFER)[rows])
    forbidden = np.flatnonzero(codes >= ACKED_TWICE)
    another = np.flatnonzero((np.diff(message) == 0) & (np.diff(mark) != 0))
    figures = {"told": len(np.unique(message[another]))}
    if not len(forbidden):
        several = amount(figures["told"], "message")
        text = f"no copy of a message was delivered twice; {several} had several copies, all marked"
        return CheckOutcome(VALID, 0, text, (), figures)
    examples = []
    for place in forbidden[:MAX_EXAMPLES].tolist():
        row, witness = int(rows[place]), int(shown_by[place])
        each = int(message[place])
        examples.append(Anomaly("untold-duplicate", run.rows_of(witness, row), int(messages.key[each]),
                                messages.name(each), {"mark": int(mark[place]), "faults": run.faults_at(row)}))
    text = f"{amount(len(forbidden), 'delivery', 'deliveries')} of a copy that had been acknowledged before"
    return CheckOutcome(INVALID, len(forbidden), text, tuple(examples), figures)


CHECK = RunCheck(
    name="untold-duplicate",
    guarantee="each duplicate is marked as one",
    anomaly="untold-duplicate",
    decides=True,
    subjects=(TRANSFERS,),
    one="duplicate was not marked as one",
    more="duplicates were not marked as such",
    function=check,
    happens=True,
)
