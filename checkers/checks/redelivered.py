"""Messages delivered again while no acknowledgement was confirmed: at-least-once delivery permits them."""

from __future__ import annotations

from collections.abc import Sequence

from checkers.api import ByParts, Findings, RunCheck, WholeRun, examples_of, total
from checkers.checks import repeats
from checkers.kernels.deliveries import BUFFERED, UNCONFIRMED
from checkers.run import Run
from stormproof.contracts.check import VALID, CheckOutcome
from stormproof.text import amount
from stormproof.vocabulary import MESSAGES, TRANSACTIONS


def find(run: Run) -> Findings:
    """Find repeated deliveries that ``duplicated`` does not forbid."""
    return repeats.find(run, (UNCONFIRMED, BUFFERED))


def conclude(parts: Sequence[Findings], whole: WholeRun) -> CheckOutcome:
    """Count each extra delivery. Never invalid: a broker that promises more is checked by ``at-most-once``."""
    count = sum(total(parts, code) for code in (UNCONFIRMED, BUFFERED))
    if not count:
        return CheckOutcome(VALID, 0, "no message was delivered again")
    text = f"{amount(count, 'delivery', 'deliveries')} repeated a message whose ACK was not confirmed (permitted)"
    return CheckOutcome(VALID, count, text, examples_of(part.examples for part in parts))


check = ByParts(find, conclude)


CHECK = RunCheck(
    name="redelivered-unconfirmed",
    guarantee="no unacknowledged message is delivered again; an at-least-once broker may do so",
    anomaly="redelivered-unconfirmed",
    subjects=(MESSAGES, TRANSACTIONS,),
    function=check,
    by_parts=check,
)
