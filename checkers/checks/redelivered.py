"""Messages delivered again while no acknowledgement was confirmed: what at-least-once permits."""

from __future__ import annotations

import numpy as np

from checkers import kernels_delivery
from checkers.checks import repeats
from checkers.run import Run
from checkers.verdict import VALID, Outcome, amount


def check(run: Run) -> Outcome:
    """Repeated deliveries that ``duplicated`` does not forbid; each extra one counts. Never invalid: who promises
    more promises ``at-most-once``."""
    codes, shown_by = repeats.judge(run)
    places = np.flatnonzero(codes == kernels_delivery.UNCONFIRMED)
    if not len(places):
        return Outcome(VALID, 0, "no message was delivered again")
    text = f"{amount(len(places), 'delivery', 'deliveries')} repeated a message whose ACK was not confirmed (permitted)"
    return Outcome(VALID, len(places), text, repeats.examples(run, codes, shown_by, places))
