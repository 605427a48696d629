"""Invalid commands that were confirmed nevertheless."""

from __future__ import annotations

from checkers.api import RunCheck
from checkers.observations import as_it_should_be
from checkers.run import Run
from stormproof.contracts.check import CheckOutcome
from stormproof.vocabulary import MESSAGES, TOPICS, TRANSACTIONS

NOT_REFUSED = "not refused"
"""Prefix of the error of such an observation."""


def check(run: Run) -> CheckOutcome:
    """Report invalid commands that the broker confirmed.

    Clients send some on purpose: an ACK that nothing awaits, the end of a transaction that was never begun...
    """
    return as_it_should_be(run, NOT_REFUSED, "every invalid command was refused",
                           ("invalid command was confirmed", "invalid commands were confirmed"))


CHECK = RunCheck(
    name="refusal",
    guarantee="a command that can't be carried out is refused, has no effect, and ends its connection",
    anomaly="not-refused",
    subjects=(MESSAGES, TRANSACTIONS, TOPICS),
    one="invalid command was confirmed",
    more="invalid commands were confirmed",
    function=check,
)
