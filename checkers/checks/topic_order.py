"""Order of each producer's messages at each subscription."""

from __future__ import annotations

import numpy as np

from checkers.api import RunCheck
from checkers.kernels import topics as kernels_topic
from checkers.run import Run
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, Anomaly, CheckOutcome
from stormproof.history.schema import PAIR_SHIFT
from stormproof.text import amount
from stormproof.vocabulary import TOPICS


def check(run: Run) -> CheckOutcome:
    """Find messages whose first delivery to a subscription followed that of a later one of the same producer, of any
    topic.

    Order binds only a message that was confirmed before the later one was sent; redeliveries do not count.
    """
    t = run.topics
    distinct, producer = np.unique(t.value >> PAIR_SHIFT, return_inverse=True)
    shown_by = kernels_topic.judge_order(
        run.history.partner, t.codes, t.start, t.message, producer.astype(np.int32),
        t.value & ((1 << PAIR_SHIFT) - 1), t.sent, t.state, len(distinct),
    )  # fmt: skip
    late = np.flatnonzero(shown_by >= 0)
    if not len(late):
        return CheckOutcome(VALID, 0, "every producer's messages came to every subscription in the order sent")
    examples = []
    for place in late[:MAX_EXAMPLES].tolist():
        witness = int(shown_by[place])
        message, later = int(t.message[place]), int(t.message[witness])
        detail = {"subscription": t.subscriptions[int(t.which[place])].key, "came_after": t.name(later)}
        rows = run.rows_of(int(t.sent[message]), int(t.sent[later]), int(t.rows[witness]), int(t.rows[place]))
        examples.append(Anomaly("producer-out-of-order", rows, None, t.name(message), detail))
    text = f"{amount(len(late), 'message')} came to a subscription after a later one of the same producer"
    return CheckOutcome(INVALID, len(late), text, tuple(examples))


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
