"""Order of each producer's messages in each queue."""

from __future__ import annotations

import numpy as np

from checkers import kernels_delivery
from checkers.api import RunCheck
from checkers.run import Run
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, Anomaly, CheckOutcome
from stormproof.history.schema import PAIR_SHIFT
from stormproof.text import amount
from stormproof.vocabulary import MESSAGES

_KINDS = {kernels_delivery.BY_CONSUMER: "seen-by-one-consumer", kernels_delivery.OVERALL: "seen-overall"}


def check(run: Run) -> CheckOutcome:
    """Messages whose first delivery came after that of a later message of their producer and queue.

    Repeated deliveries don't count, nor messages whose send was not confirmed before the later one was sent.
    With competing consumers no broker promises this across failures: it decides only where it is promised.
    """
    h, messages = run.history, run.messages
    low = (1 << PAIR_SHIFT) - 1
    producer_and_queue = (messages.value & ~low) | (messages.key.astype(np.int64) & low)
    distinct, stream = np.unique(producer_and_queue, return_inverse=True)
    codes, shown_by = kernels_delivery.judge_order(
        h.role, h.kind, h.process, h.partner, messages.of_row, stream.astype(np.int32),
        messages.value & low, messages.sent, messages.state, messages.start,
        messages.delivered, len(distinct),
    )  # fmt: skip
    late = np.flatnonzero(codes)
    by_consumer = int(np.count_nonzero(codes == kernels_delivery.BY_CONSUMER))
    figures = {"by_consumer": by_consumer, "overall": len(late) - by_consumer}
    if not len(late):
        return CheckOutcome(VALID, 0, "every producer's messages came in the order sent", (), figures)
    examples = []
    for message in late[:MAX_EXAMPLES].tolist():
        row, witness = int(messages.delivered[messages.start[message]]), int(shown_by[message])
        later = int(messages.of_row[witness])
        ops = run.rows_of(int(messages.sent[message]), int(messages.sent[later]), witness, row)
        detail = {"came_after": messages.name(later)}
        key, name = int(messages.key[message]), messages.name(message)
        examples.append(Anomaly(_KINDS[int(codes[message])], ops, key, name, detail))
    text = (f"{amount(len(late), 'message')} came after a later one of the same producer "
            f"({by_consumer:,} at one consumer)")
    return CheckOutcome(INVALID, len(late), text, tuple(examples), figures)


CHECK = RunCheck(
    name="order",
    guarantee="each producer's messages are delivered in the order sent",
    anomaly="order",
    subjects=(MESSAGES,),
    function=check,
)
