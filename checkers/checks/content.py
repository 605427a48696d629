"""Messages that were not delivered as they were sent: their headers or the bytes of the body differ."""

from __future__ import annotations

from checkers.api import RunCheck
from checkers.observations import as_it_should_be
from checkers.run import Run
from stormproof.contracts.check import CheckOutcome
from stormproof.vocabulary import EVENTS, MESSAGES, TOPICS, TRANSACTIONS

NOT_AS_SENT = "not as sent"
"""Prefix of the error of such an observation."""


def check(run: Run) -> CheckOutcome:
    """Report deliveries that differ from the sent message.

    Consumers compare each delivery with its sender's content, which follows from the run's seed.
    """
    return as_it_should_be(run, NOT_AS_SENT, "every message came as it was sent, headers and body",
                           ("delivery was not as it was sent", "deliveries were not as they were sent"))


CHECK = RunCheck(
    name="content",
    guarantee="each message is delivered as it was sent: the sender's headers and every byte of the body, nothing else",
    anomaly="not-as-sent",
    subjects=(MESSAGES, TRANSACTIONS, TOPICS, EVENTS),
    one="message was delivered with other contents than were sent",
    more="messages were delivered with other contents than were sent",
    function=check,
    happens=True,
)
