"""Revisions of watched keys: each holds one value of a key, and later puts get larger ones."""

from __future__ import annotations

import numpy as np

from checkers.api import RunCheck
from checkers.checks.log_offsets import judge, told_by_kinds
from checkers.run import Run
from checkers.watches import Watches
from stormproof.contracts.check import CheckOutcome
from stormproof.vocabulary import WATCHES


def check(run: Run) -> CheckOutcome:
    """Find contradictions among confirmations, events and final watches.

    The kinds are ``two-values`` at one revision of a key; a value at ``two-revisions``; a value ``from-nowhere`` (never
    put to this key, or its put was reported as failed); and ``put-went-back``: a put confirmed with a revision that is
    not larger than one confirmed for the key before the put was invoked.
    """
    watches = Watches(run)
    rows = np.concatenate([watches.appended, watches.told, watches.scanned])
    return judge(run, watches, rows, "revision", "put-went-back")


CHECK = RunCheck(
    name="watch-values",
    guarantee="a revision of a key stands for one value, a value has one revision, later puts have larger ones",
    anomaly="watch-values",
    decides=True,
    subjects=(WATCHES,),
    function=check,
    tell=told_by_kinds({
        "two-values": ("revision of a key had two values", "revisions of keys had two values"),
        "two-revisions": ("value was stored twice", "values were stored twice"),
        "from-nowhere": ("value was reported that no client had put", "values were reported that no client had put"),
        "put-went-back": ("put got no larger revision than an earlier one",
                          "puts got no larger revisions than earlier ones"),
    }, "watch-lost"),
    happens=True,
)
