"""The classification of repeated deliveries, shared by the checks that separate forbidden from permitted ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from checkers import held_back
from checkers.api import Example, Findings
from checkers.kernels.deliveries import ACKED_TWICE, AFTER_RECEIPT, BUFFERED, UNCONFIRMED, UNDECIDED, judge_deliveries
from checkers.run import Run
from stormproof.contracts.check import MAX_EXAMPLES, Anomaly
from stormproof.history.columns import Int8s, Int64s

IN_BUFFER = "buffered"
"""Word in the error of a completion whose message may have been on its way to the client before the invocation."""

UNDECIDED_KIND = "after-receipt-or-held-back"

_KINDS = {
    UNCONFIRMED: "redelivered-unconfirmed",
    ACKED_TWICE: "acknowledged-twice",
    AFTER_RECEIPT: "delivered-after-receipt",
    BUFFERED: "redelivered-unconfirmed",
    UNDECIDED: UNDECIDED_KIND,
}


def judge(run: Run) -> tuple[Int8s, Int64s]:
    """Return the code and the witness of every delivery (``deliveries.judge_deliveries``, ``held_back.settle``).
    """
    h, messages = run.history, run.messages
    if messages.deliveries.max(initial=0) <= 1:
        count = len(messages.delivered)
        return np.zeros(count, dtype=np.int8), np.full(count, -1, dtype=np.int64)
    buffered = h.error.rows_containing(IN_BUFFER)[messages.delivered].astype(np.int8)
    codes, shown_by = judge_deliveries(h.kind, h.partner, messages.start, messages.delivered, buffered)
    held_back.settle(run, codes, shown_by, messages.delivered)
    return codes, shown_by


def find(run: Run, wanted: Sequence[int], *besides: int) -> Findings:
    """Find the deliveries of the ``wanted`` codes. If there are none, the examples show the first of the other codes.
    """
    codes, shown_by = judge(run)
    counts = {code: int(np.count_nonzero(codes == code)) for code in (*wanted, *besides)}
    groups = (wanted, *((code,) for code in besides))
    shown = next((group for group in groups if any(counts[code] for code in group)), ())
    places = np.flatnonzero(np.isin(codes, shown)) if shown else np.empty(0, dtype=np.int64)
    return Findings(counts, _examples(run, codes, shown_by, places))


def _examples(run: Run, codes: Int8s, shown_by: Int64s, places: Int64s) -> list[Example]:
    """Return anomalies for the first of these deliveries (``places`` in the account's order)."""
    messages, h = run.messages, run.history
    found: list[Example] = []
    for place in places[:MAX_EXAMPLES]:
        row, witness = int(messages.delivered[place]), int(shown_by[place])
        message = int(messages.of_row[row])
        detail = {
            "first_by": h.node.at(witness),
            "again_by": h.node.at(row),
            "seconds_between": round(float(h.time[row] - h.time[witness]) / 1e9, 6),
            "faults": run.faults_at(row),
        }
        kind = _KINDS[int(codes[place])]
        ops = run.rows_of(witness, row)
        anomaly = Anomaly(kind, ops, int(messages.key[message]), messages.name(message), detail)
        found.append(((run.place(message), int(h.index[row])), anomaly))
    return found
