"""Deliveries that a subscription could not have got: beyond its window, after its end, or another's."""

from __future__ import annotations

from checkers.api import RunCheck
from checkers.observations import as_it_should_be
from checkers.run import Run
from stormproof.contracts.check import CheckOutcome
from stormproof.vocabulary import MESSAGES, TOPICS, TRANSACTIONS

NOT_AS_SUBSCRIBED = "not as subscribed"
"""How the error of such an observation begins."""


def check(run: Run) -> CheckOutcome:
    """A consumer counts what it has and has not acknowledged, given back or left; what it has sent an ACK for counts
    as acknowledged, though the broker may not know yet, so that it never counts too many."""
    return as_it_should_be(run, NOT_AS_SUBSCRIBED, "no subscription got more than its window, or another's messages",
                           ("delivery was not as subscribed", "deliveries were not as subscribed"))


CHECK = RunCheck(
    name="subscription",
    guarantee="a subscription has at most its window of unacknowledged messages, and gets none after its end",
    anomaly="not-as-subscribed",
    subjects=(MESSAGES, TRANSACTIONS, TOPICS),
    one="delivery was beyond its subscription's window, or not for it",
    more="deliveries were beyond their subscription's window, or not for it",
    function=check,
)
