"""Messages delivered again while no acknowledgement was confirmed: what at-least-once permits."""

from __future__ import annotations

import numpy as np

from checkers import kernels_delivery
from checkers.api import RunCheck
from checkers.checks import repeats
from checkers.run import Run
from stormproof.contracts.check import VALID, CheckOutcome
from stormproof.text import amount
from stormproof.vocabulary import MESSAGES, TRANSACTIONS


def check(run: Run) -> CheckOutcome:
    """Repeated deliveries that ``duplicated`` does not forbid; each extra one counts. Never invalid: who promises
    more promises ``at-most-once``."""
    codes, shown_by = repeats.judge(run)
    places = np.flatnonzero(codes == kernels_delivery.UNCONFIRMED)
    if not len(places):
        return CheckOutcome(VALID, 0, "no message was delivered again")
    text = f"{amount(len(places), 'delivery', 'deliveries')} repeated a message whose ACK was not confirmed (permitted)"
    return CheckOutcome(VALID, len(places), text, repeats.examples(run, codes, shown_by, places))


CHECK = RunCheck(
    name="redelivered-unconfirmed",
    guarantee="nothing is delivered twice unless it was acknowledged in between; permitted to an at-least-once broker",
    anomaly="redelivered-unconfirmed",
    subjects=(MESSAGES, TRANSACTIONS,),
    function=check,
)
