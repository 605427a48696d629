"""The duplicate-okay reading: at least once is enough, so it is violated by losses only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from checkers import kernels
from checkers.api import RunCheck
from checkers.checks import lost
from checkers.run import Run
from stormproof.contracts.check import CheckOutcome
from stormproof.vocabulary import MESSAGES


def check(run: Run) -> CheckOutcome:
    """The account of an at-least-once queue: lost, duplicated, unexpected, recovered; decided by the losses.

    ``recovered`` are messages whose send was never confirmed and that came nevertheless.
    """
    messages = run.messages
    came = messages.deliveries
    found = lost.check(run)
    figures = {
        **found.figures,
        "lost": found.count,
        "duplicated": int(np.count_nonzero(came > 1)),
        "unexpected": int(np.count_nonzero((came > 0) & (messages.sent < 0))),
        "recovered": int(np.count_nonzero((came > 0) & (messages.state == kernels.UNSURE))),
    }
    return replace(found, anomalies=(), figures=figures, summary=f"at least once: {found.summary}")


CHECK = RunCheck(
    name="duplicate-okay",
    guarantee="every confirmed message is delivered at least once",
    decides=True,
    subjects=(MESSAGES,),
    function=check,
)
