"""Messages of topics delivered again although the broker had confirmed that the subscription consumed them."""

from __future__ import annotations

import numpy as np

from checkers.api import RunCheck
from checkers.kernels.deliveries import ACKED_TWICE, UNCONFIRMED
from checkers.run import Run
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, Anomaly, CheckOutcome
from stormproof.text import amount
from stormproof.vocabulary import TOPICS


def check(run: Run) -> CheckOutcome:
    """Find deliveries to a subscription after the receipt of its ACK of the message; each counts.

    A subscription has one consumer at a time, so no other delivery was in flight at that moment. Other repeats are
    permitted and counted separately.
    """
    t, h = run.topics, run.history
    places = np.flatnonzero(t.codes >= ACKED_TWICE)
    permitted = int(np.count_nonzero(t.codes == UNCONFIRMED))
    figures = {"redelivered_unconfirmed": permitted}
    if not len(places):
        text = f"no message came again after the receipt of its ACK ({permitted:,} did while none was confirmed)"
        return CheckOutcome(VALID, 0, text, (), figures)
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
    return CheckOutcome(INVALID, len(places), text, tuple(examples), figures)


CHECK = RunCheck(
    name="topic-duplicated",
    guarantee="a subscription never gets a message again after the receipt of its ACK",
    anomaly="topic-duplicated",
    decides=True,
    subjects=(TOPICS,),
    one="message was delivered to a subscription again after the receipt of the ACK",
    more="messages were delivered to a subscription again after the receipt of the ACK",
    function=check,
    happens=True,
)
