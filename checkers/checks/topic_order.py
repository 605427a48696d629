"""Order of each producer's messages at each subscription."""

from __future__ import annotations

from checkers.api import RunCheck
from checkers.run import Run
from checkers.topic_anomalies import late_anomaly
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, CheckOutcome
from stormproof.history.schema import PAIR_SHIFT
from stormproof.text import amount
from stormproof.vocabulary import TOPICS


def check(run: Run) -> CheckOutcome:
    """Find messages whose first delivery to a subscription followed that of a later one of the same producer, of any
    topic.

    Order binds only a message that was confirmed before the later one was sent; redeliveries do not count.
    """
    t = run.topics
    late = t.late(t.value >> PAIR_SHIFT)
    if not late:
        return CheckOutcome(VALID, 0, "every producer's messages came to every subscription in the order sent")
    examples = tuple(late_anomaly(run, "producer-out-of-order", *pair) for pair in late[:MAX_EXAMPLES])
    text = f"{amount(len(late), 'message')} came to a subscription after a later one of the same producer"
    return CheckOutcome(INVALID, len(late), text, examples)


CHECK = RunCheck(
    name="topic-order",
    guarantee="each subscription gets a producer's messages in the order sent",
    anomaly="topic-order",
    decides=True,
    subjects=(TOPICS,),
    one="message was delivered to a subscription after a later one of the same producer",
    more="messages were delivered to a subscription after a later one of the same producer",
    function=check,
    happens=True,
)
