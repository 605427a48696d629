"""The at-most-once reading: how many messages came more than once, whatever was acknowledged."""

from __future__ import annotations

import numpy as np

from checkers.api import RunCheck
from checkers.run import Run
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, Anomaly, CheckOutcome
from stormproof.vocabulary import MESSAGES

SAME = "same copy"
"""Words in the error of a completion whose message had been delivered before: the same copy of it, not another one."""


def check(run: Run) -> CheckOutcome:
    """Messages that more than one completed dequeue or drain names; copies that are known to be the same one again
    (``SAME``) count once."""
    messages, errors = run.messages, run.history.error
    came = messages.deliveries
    same = np.asarray([*(SAME in name for name in errors.names), False], dtype=np.bool_)[errors.codes]
    owner = np.repeat(np.arange(len(came)), came)[~same[messages.delivered]]
    several = np.bincount(owner, minlength=len(came))
    twice = np.flatnonzero(several > 1)
    delivered = int(np.count_nonzero(came))
    if not len(twice):
        return CheckOutcome(VALID, 0, f"none of {delivered:,} delivered messages came more than once")
    examples = []
    for message in twice[:MAX_EXAMPLES]:
        rows = messages.delivered[messages.start[message] : messages.start[message + 1]]
        detail = {"deliveries": len(rows), "copies": int(several[message]), "faults": run.faults_at(int(rows[-1]))}
        name, key = messages.name(int(message)), int(messages.key[message])
        examples.append(Anomaly("delivered-more-than-once", run.rows_of(*rows), key, name, detail))
    text = f"{len(twice):,} of {delivered:,} delivered messages came more than once"
    return CheckOutcome(INVALID, len(twice), text, tuple(examples), {"deliveries": int(came.sum())})


CHECK = RunCheck(
    name="at-most-once",
    guarantee="no message is delivered twice",
    subjects=(MESSAGES,),
    function=check,
)
