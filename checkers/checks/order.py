"""Order of each producer's messages in each queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from checkers.api import ByParts, Example, RunCheck, WholeRun, examples_of
from checkers.kernels import deliveries as kernels_delivery
from checkers.kernels import rows as kernels_rows
from checkers.run import Run
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, Anomaly, CheckOutcome
from stormproof.history.schema import PAIR_SHIFT
from stormproof.text import amount
from stormproof.vocabulary import MESSAGES

_KINDS = {kernels_delivery.BY_CONSUMER: "seen-by-one-consumer", kernels_delivery.OVERALL: "seen-overall"}


@dataclass
class Found:
    """Messages of a part of a run that were delivered late; ``by_consumer`` counts those that one consumer saw late."""

    count: int
    by_consumer: int
    examples: list[Example]


def find(run: Run) -> Found:
    """Find messages whose first delivery followed that of a later message of their producer and queue.

    Repeated deliveries do not count, nor do messages whose send was not confirmed before the later one was sent.
    """
    h, messages = run.history, run.messages
    low = (1 << PAIR_SHIFT) - 1
    stream, streams = kernels_rows.number_streams(messages.key, messages.value, PAIR_SHIFT)
    codes, shown_by = kernels_delivery.judge_order(
        h.role, h.kind, h.process, h.partner, messages.of_row, stream,
        messages.value & low, messages.sent, messages.state, messages.start,
        messages.delivered, streams,
    )  # fmt: skip
    late = np.flatnonzero(codes)
    found = Found(len(late), int(np.count_nonzero(codes == kernels_delivery.BY_CONSUMER)), [])
    for message in late[:MAX_EXAMPLES].tolist():
        row, witness = int(messages.delivered[messages.start[message]]), int(shown_by[message])
        later = int(messages.of_row[witness])
        ops = run.rows_of(int(messages.sent[message]), int(messages.sent[later]), witness, row)
        detail = {"came_after": messages.name(later)}
        anomaly = Anomaly(_KINDS[int(codes[message])], ops, int(messages.key[message]), messages.name(message), detail)
        found.examples.append(((run.place(message),), anomaly))
    return found


def conclude(parts: Sequence[Found], whole: WholeRun) -> CheckOutcome:
    """Sum up the late messages.

    No broker promises this order across failures to competing consumers, so the check decides only if it is promised.
    """
    late, by_consumer = sum(part.count for part in parts), sum(part.by_consumer for part in parts)
    figures = {"by_consumer": by_consumer, "overall": late - by_consumer}
    if not late:
        return CheckOutcome(VALID, 0, "every producer's messages came in the order sent", (), figures)
    text = (f"{amount(late, 'message')} came after a later one of the same producer "
            f"({by_consumer:,} at one consumer)")
    return CheckOutcome(INVALID, late, text, examples_of(part.examples for part in parts), figures)


check = ByParts(find, conclude)

CHECK = RunCheck(
    name="order",
    guarantee="each producer's messages are delivered in the order sent",
    anomaly="order",
    subjects=(MESSAGES,),
    function=check,
    happens=True,
    by_parts=check,
)
