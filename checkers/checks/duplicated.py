"""Messages delivered again although the broker had confirmed that they were consumed."""

from __future__ import annotations

from collections.abc import Sequence

from checkers.api import ByParts, Findings, RunCheck, WholeRun, examples_of, total
from checkers.checks import repeats
from checkers.kernels.deliveries import ACKED_TWICE, AFTER_RECEIPT, BUFFERED, UNDECIDED
from checkers.run import Run
from stormproof.contracts.check import INVALID, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.text import amount
from stormproof.vocabulary import MESSAGES, TRANSACTIONS


def find(run: Run) -> Findings:
    """Find deliveries after the receipt of the message's ACK, and second confirmed ACKs.

    If there are none, find deliveries that a fault may have held back since before the receipt.
    """
    forbidden = (AFTER_RECEIPT, ACKED_TWICE)
    return repeats.find(run, forbidden, UNDECIDED, BUFFERED)


def conclude(parts: Sequence[Findings], whole: WholeRun) -> CheckOutcome:
    """Count each extra delivery."""
    after = total(parts, AFTER_RECEIPT)
    twice = total(parts, ACKED_TWICE)
    undecided = total(parts, UNDECIDED)
    buffered = total(parts, BUFFERED)
    figures = {"after_receipt": after, "acknowledged_twice": twice}
    figures |= {name: count for name, count in (("undecided", undecided), ("buffered", buffered)) if count}
    if after + twice:
        text = (f"{amount(after + twice, 'delivery', 'deliveries')} came after the receipt of the message's ACK or got "
                "confirmed a second time")
        return CheckOutcome(INVALID, after + twice, text, _examples(parts, decided=True), figures)
    if undecided:
        text = (f"{amount(undecided, 'delivery', 'deliveries')} came after the receipt of the message's ACK: sent "
                "again after it, or held back by a fault since before it")
        return CheckOutcome(UNKNOWN, 0, text, _examples(parts, decided=False), figures)
    text = "no message came again after the receipt of its ACK"
    if buffered:
        text += f" ({amount(buffered, 'delivery', 'deliveries')} had been on the way since before it)"
    return CheckOutcome(VALID, 0, text, (), figures)


def _examples(parts: Sequence[Findings], *, decided: bool) -> tuple[Anomaly, ...]:
    return examples_of([each for each in part.examples if (each[1].kind != repeats.UNDECIDED_KIND) == decided]
                       for part in parts)  # fmt: skip


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
    happens=True,
    by_parts=check,
)
