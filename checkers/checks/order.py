"""Order of each producer's messages in each queue."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from checkers.api import ByParts, Findings, RunCheck, WholeRun, examples_of, total
from checkers.kernels.deliveries import BY_CONSUMER, OVERALL, judge_order
from checkers.kernels.rows import number_streams
from checkers.run import Run
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, Anomaly, CheckOutcome
from stormproof.history.schema import PAIR_SHIFT
from stormproof.text import amount
from stormproof.vocabulary import MESSAGES

_KINDS = {BY_CONSUMER: "seen-by-one-consumer", OVERALL: "seen-overall"}


def find(run: Run) -> Findings:
    """Find messages whose first delivery followed that of a later message of their producer and queue.

    Repeated deliveries do not count, nor do messages whose send was not confirmed before the later one was sent.
    """
    h, messages = run.history, run.messages
    stream, streams = number_streams(messages.key, messages.value, PAIR_SHIFT)
    taker, takers = number_streams(h.process[messages.first], stream.astype(np.int64), 0)
    codes, shown_by = judge_order(
        h.kind, h.partner, messages.of_row, messages.first, stream, taker,
        messages.sequence, messages.sent, messages.state, streams, takers,
    )  # fmt: skip
    late = np.flatnonzero(codes)
    found = Findings({code: int(np.count_nonzero(codes == code)) for code in _KINDS}, [])
    for message in late[:MAX_EXAMPLES].tolist():
        row, witness = int(messages.first[message]), int(shown_by[message])
        later = int(messages.of_row[witness])
        ops = run.rows_of(int(messages.sent[message]), int(messages.sent[later]), witness, row)
        detail = {"came_after": messages.name(later)}
        anomaly = Anomaly(_KINDS[int(codes[message])], ops, int(messages.key[message]), messages.name(message), detail)
        found.examples.append(((run.place(message),), anomaly))
    return found


def conclude(parts: Sequence[Findings], whole: WholeRun) -> CheckOutcome:
    """Sum up the late messages.

    No broker promises this order across failures to competing consumers, so the check decides only if it is promised.
    """
    by_consumer, overall = total(parts, BY_CONSUMER), total(parts, OVERALL)
    late = by_consumer + overall
    figures = {"by_consumer": by_consumer, "overall": overall}
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
