"""Messages of topics that came again although the broker had confirmed that the subscription consumed them."""

from __future__ import annotations

import numpy as np

from checkers import kernels_topic
from checkers.run import Run
from checkers.verdict import INVALID, MAX_EXAMPLES, VALID, Anomaly, Outcome, amount


def check(run: Run) -> Outcome:
    """Deliveries to a subscription after the receipt of its ACK of the message; each counts. A subscription has one
    consumer at a time, so nothing was under way then. Other repeats are permitted, and counted beside."""
    t, h = run.topics, run.history
    places = np.flatnonzero(t.codes == kernels_topic.DUPLICATED)
    permitted = int(np.count_nonzero(t.codes == kernels_topic.UNCONFIRMED))
    figures = {"redelivered_unconfirmed": permitted}
    if not len(places):
        text = f"no message came again after the receipt of its ACK ({permitted:,} did while none was confirmed)"
        return Outcome(VALID, 0, text, (), figures)
    examples = []
    for place in places[:MAX_EXAMPLES].tolist():
        row, witness = int(t.rows[place]), int(t.shown_by[place])
        detail = {
            "subscription": t.subscriptions[int(t.which[place])].key,
            "seconds_between": round(float(h.time[row] - h.time[witness]) / 1e9, 6),
            "faults": run.faults_at(row),
        }
        name = t.name(int(t.message[place]))
        examples.append(Anomaly("delivered-after-receipt", run.rows_of(witness, row), None, name, detail))
    deliveries = amount(len(places), "delivery", "deliveries")
    text = f"{deliveries} to a subscription came after the receipt of the message's ACK"
    return Outcome(INVALID, len(places), text, tuple(examples), figures)
