"""Messages delivered again although the broker had confirmed that they were consumed."""

from __future__ import annotations

import numpy as np

from checkers import kernels_delivery
from checkers.api import RunCheck
from checkers.checks import repeats
from checkers.run import Run
from stormproof.contracts.check import INVALID, VALID, CheckOutcome
from stormproof.text import amount
from stormproof.vocabulary import MESSAGES, TRANSACTIONS


def check(run: Run) -> CheckOutcome:
    """Deliveries after the receipt of the message's ACK, and second confirmed ACKs; each extra one counts."""
    codes, shown_by = repeats.judge(run)
    after = codes == kernels_delivery.AFTER_RECEIPT
    twice = codes == kernels_delivery.ACKED_TWICE
    places = np.flatnonzero(after | twice)
    figures = {"after_receipt": int(after.sum()), "acknowledged_twice": int(twice.sum())}
    if not len(places):
        return CheckOutcome(VALID, 0, "no message came again after the receipt of its ACK", (), figures)
    text = (f"{amount(len(places), 'delivery', 'deliveries')} came after the receipt of the message's ACK or got "
            "confirmed a second time")
    return CheckOutcome(INVALID, len(places), text, repeats.examples(run, codes, shown_by, places), figures)


CHECK = RunCheck(
    name="duplicated",
    guarantee="a confirmed ACK is final",
    anomaly="duplicated",
    decides=True,
    subjects=(MESSAGES, TRANSACTIONS,),
    one="message was delivered again after the receipt of the ACK",
    more="messages were delivered again after the receipt of the ACK",
    function=check,
)
