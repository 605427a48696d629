"""The at-most-once reading: the number of messages delivered more than once, regardless of acknowledgements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from checkers.api import ByParts, Example, RunCheck, WholeRun, examples_of
from checkers.run import Run
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, Anomaly, CheckOutcome
from stormproof.vocabulary import MESSAGES

SAME = "same copy"
"""Text in the error of a completion whose message had been delivered before: it is the same copy, not another one."""


@dataclass
class Found:
    """The messages of a part of a run: the number delivered, the number of deliveries, and the messages delivered
    twice.
    """

    delivered: int
    deliveries: int
    several: int
    examples: list[Example]


def find(run: Run) -> Found:
    """Find messages that more than one completed dequeue or drain names.

    Copies that are known to be the same copy again (``SAME``) count once.
    """
    messages, errors = run.messages, run.history.error
    came = messages.deliveries
    found = Found(int(np.count_nonzero(came)), int(came.sum()), 0, [])
    if came.max(initial=0) <= 1:
        return found
    same = np.asarray([*(SAME in name for name in errors.names), False], dtype=np.bool_)[errors.codes]
    owner = np.repeat(np.arange(len(came)), came)[~same[messages.delivered]]
    several = np.bincount(owner, minlength=len(came))
    twice = np.flatnonzero(several > 1)
    found.several = len(twice)
    for message in twice[:MAX_EXAMPLES].tolist():
        rows = messages.delivered[messages.start[message] : messages.start[message + 1]]
        detail = {"deliveries": len(rows), "copies": int(several[message]), "faults": run.faults_at(int(rows[-1]))}
        name, key = messages.name(message), int(messages.key[message])
        anomaly = Anomaly("delivered-more-than-once", run.rows_of(*rows), key, name, detail)
        found.examples.append(((run.place(message),), anomaly))
    return found


def conclude(parts: Sequence[Found], whole: WholeRun) -> CheckOutcome:
    """Count the messages that were delivered more than once."""
    twice, delivered = sum(part.several for part in parts), sum(part.delivered for part in parts)
    if not twice:
        return CheckOutcome(VALID, 0, f"none of {delivered:,} delivered messages came more than once")
    figures = {"deliveries": sum(part.deliveries for part in parts)}
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
