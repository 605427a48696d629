"""Deliveries that a subscription could not have got: beyond its window, after its end, or for another subscription."""

from __future__ import annotations

from checkers.api import RunCheck
from checkers.observations import as_it_should_be
from checkers.run import Run
from stormproof.contracts.check import CheckOutcome
from stormproof.vocabulary import MESSAGES, TOPICS, TRANSACTIONS

NOT_AS_SUBSCRIBED = "not as subscribed"
"""Prefix of the error of such an observation."""


def check(run: Run) -> CheckOutcome:
    """Report deliveries that do not fit their subscription.

    A consumer counts the messages that it has received and not acknowledged, given back or left. A message counts as
    acknowledged as soon as the ACK was sent, though the broker may not know it yet. So the count is never too high.
    """
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
