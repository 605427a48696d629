"""Messages delivered again although the broker had confirmed that they were consumed."""

from __future__ import annotations

from collections.abc import Sequence

from checkers import kernels_delivery
from checkers.api import ByParts, RunCheck, WholeRun, examples_of
from checkers.checks import repeats
from checkers.run import Run
from stormproof.contracts.check import INVALID, VALID, CheckOutcome
from stormproof.text import amount
from stormproof.vocabulary import MESSAGES, TRANSACTIONS


def find(run: Run) -> repeats.Found:
    """Deliveries after the receipt of the message's ACK, and second confirmed ACKs."""
    return repeats.find(run, (kernels_delivery.AFTER_RECEIPT, kernels_delivery.ACKED_TWICE))


def conclude(parts: Sequence[repeats.Found], whole: WholeRun) -> CheckOutcome:
    """Each extra one counts."""
    after = repeats.counted(parts, kernels_delivery.AFTER_RECEIPT)
    twice = repeats.counted(parts, kernels_delivery.ACKED_TWICE)
    figures = {"after_receipt": after, "acknowledged_twice": twice}
    if not after + twice:
        return CheckOutcome(VALID, 0, "no message came again after the receipt of its ACK", (), figures)
    text = (f"{amount(after + twice, 'delivery', 'deliveries')} came after the receipt of the message's ACK or got "
            "confirmed a second time")
    return CheckOutcome(INVALID, after + twice, text, examples_of(part.examples for part in parts), figures)


check = ByParts(find, conclude)


CHECK = RunCheck(
    name="duplicated",
    guarantee="a confirmed ACK is final",
    anomaly="duplicated",
    decides=True,
    subjects=(MESSAGES, TRANSACTIONS,),
    one="message was delivered again after the receipt of the ACK",
    more="messages were delivered again after the receipt of the ACK",
    function=check,
    by_parts=check,
)
