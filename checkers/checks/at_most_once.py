"""The at-most-once reading: the number of messages delivered more than once, regardless of acknowledgements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from checkers.api import ByParts, Findings, RunCheck, WholeRun, examples_of, total
from checkers.run import Run
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, Anomaly, CheckOutcome
from stormproof.vocabulary import MESSAGES

SAME = "same copy"
"""Text in the error of a completion whose message had been delivered before: it is the same copy, not another one."""


def find(run: Run) -> Findings:
    """Find messages that more than one completed dequeue or drain names.

    Copies that are known to be the same copy again (``SAME``) count once.
    """
    messages, came = run.messages, run.messages.deliveries
    found = Findings({"delivered": int(np.count_nonzero(came)), "deliveries": int(came.sum()), "several": 0}, [])
    if came.max(initial=0) <= 1:
        return found
    same = run.history.error.rows_containing(SAME)[messages.delivered]
    copies = np.bincount(np.repeat(np.arange(len(came)), came)[~same], minlength=len(came))
    several = np.flatnonzero(copies > 1)
    found.counts["several"] = len(several)
    for message in several[:MAX_EXAMPLES].tolist():
        rows = messages.delivered[messages.start[message] : messages.start[message + 1]]
        detail = {"deliveries": len(rows), "copies": int(copies[message]), "faults": run.faults_at(int(rows[-1]))}
        name, key = messages.name(message), int(messages.key[message])
        anomaly = Anomaly("delivered-more-than-once", run.rows_of(*rows), key, name, detail)
        found.examples.append(((run.place(message),), anomaly))
    return found


def conclude(parts: Sequence[Findings], whole: WholeRun) -> CheckOutcome:
    """Count the messages that were delivered more than once."""
    twice, delivered = total(parts, "several"), total(parts, "delivered")
    if not twice:
        return CheckOutcome(VALID, 0, f"none of {delivered:,} delivered messages came more than once")
    figures = {"deliveries": total(parts, "deliveries")}
    text = f"{twice:,} of {delivered:,} delivered messages came more than once"
    return CheckOutcome(INVALID, twice, text, examples_of(part.examples for part in parts), figures)


check = ByParts(find, conclude)

CHECK = RunCheck(
    name="at-most-once",
    guarantee="no message is delivered twice",
    subjects=(MESSAGES,),
    function=check,
    by_parts=check,
)
