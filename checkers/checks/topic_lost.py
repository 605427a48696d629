"""Messages lost to a durable subscription: published while it existed, confirmed, and never delivered to it."""

from __future__ import annotations

import numpy as np

from checkers.api import RunCheck
from checkers.run import Run
from checkers.topic_anomalies import missing_anomaly
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.text import amount
from stormproof.vocabulary import TOPICS


def check(run: Run) -> CheckOutcome:
    """Find confirmed messages of a subscription's topics that no receive or drain of it (``ok`` or ``info``) names.

    The messages were sent after the subscription had been confirmed, and confirmed before its deletion was requested. A
    message counts once for each subscription that lost it.

    Undecided (unknown) for a subscription whose drain did not finish; a deleted subscription is skipped.
    """
    t, h = run.topics, run.history
    examples: list[Anomaly] = []
    lost = undecided = owed_in_all = 0
    by_subscription: dict[str, int] = {}
    confirmed = int(np.count_nonzero(t.confirmed))
    for s in t.subscriptions:
        if not s.durable or s.since < 0 or s.until < h.rows:
            continue
        owed, missing = t.owed(s)
        owed_in_all += len(owed)
        if s.key in t.undrained:
            undecided += len(missing)
            continue
        lost += len(missing)
        if len(missing):
            by_subscription[str(s.key)] = len(missing)
        shown = missing[: MAX_EXAMPLES - len(examples)].tolist()
        examples += [missing_anomaly(run, "lost-to-subscription", s, message) for message in shown]
    figures = {
        "confirmed": confirmed, "owed": owed_in_all, "undecided": undecided, "by_subscription": by_subscription
    }  # fmt: skip
    if lost:
        text = f"{lost:,} of {owed_in_all:,} messages owed to durable subscriptions were never delivered"
        return CheckOutcome(INVALID, lost, text, tuple(examples), figures)
    if undecided:
        key, reason = next(iter(t.undrained.items()))
        messages = amount(undecided, "confirmed message")
        text = f"{messages} did not come, but subscription {key} was not drained: {reason}"
        return CheckOutcome(UNKNOWN, 0, text, (), figures)
    return CheckOutcome(VALID, 0, f"all {owed_in_all:,} messages owed to durable subscriptions came", (), figures)


CHECK = RunCheck(
    name="topic-lost",
    guarantee="a durable subscription gets every confirmed message, whichever nodes failed, attached or not",
    anomaly="topic-lost",
    decides=True,
    subjects=(TOPICS,),
    one="confirmed message was never delivered to a durable subscription",
    more="confirmed messages were never delivered to a durable subscription",
    speaks_when_held=True,
    function=check,
)
