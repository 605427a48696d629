"""What repeated deliveries are: shared by the checks that tell forbidden from permitted ones."""

from __future__ import annotations

import numpy as np

from checkers import kernels_delivery
from checkers.run import Run
from stormproof.contracts.check import MAX_EXAMPLES, Anomaly
from stormproof.history.columns import Int8s, Int64s

BUFFERED = "buffered"
"""Word in the error of a completion whose message may have been on its way to the client before the invocation."""

_KINDS = {
    kernels_delivery.UNCONFIRMED: "redelivered-unconfirmed",
    kernels_delivery.ACKED_TWICE: "acknowledged-twice",
    kernels_delivery.AFTER_RECEIPT: "delivered-after-receipt",
}


def judge(run: Run) -> tuple[Int8s, Int64s]:
    """Code and witness of every delivery (see ``kernels_delivery.judge_deliveries``)."""
    h, messages = run.history, run.messages
    marked = np.asarray([*(BUFFERED in name for name in h.error.names), False], dtype=np.int8)
    buffered = marked[h.error.codes[messages.delivered]]
    return kernels_delivery.judge_deliveries(h.kind, h.partner, messages.start, messages.delivered, buffered)


def examples(run: Run, codes: Int8s, shown_by: Int64s, places: Int64s) -> tuple[Anomaly, ...]:
    """Anomalies for the first few of some deliveries (``places`` in the account's order)."""
    messages, h = run.messages, run.history
    found = []
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
        found.append(Anomaly(kind, ops, int(messages.key[message]), messages.name(message), detail))
    return tuple(found)
