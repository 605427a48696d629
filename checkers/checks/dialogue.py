"""Answers of brokers that differ from the answers of a broker's model."""

from __future__ import annotations

from checkers.api import RunCheck
from checkers.observations import each_observed
from checkers.run import Run
from stormproof.contracts.check import CheckOutcome
from stormproof.vocabulary import DIALOGUES

NOT_AS_MODELLED = "not as modelled"
"""Prefix of the error of such an observation."""


def check(run: Run) -> CheckOutcome:
    """Report answers that contradict the model.

    Clients that have destinations for themselves know the next message and the refusals to expect (``broker_model``).
    """
    return each_observed(run, NOT_AS_MODELLED, "every answer agreed with the model of a broker",
                         ("answer differed from the model of a broker",
                          "answers differed from the model of a broker"))


CHECK = RunCheck(
    name="dialogue",
    guarantee="a client that uses destinations alone gets the answers of a broker's model: what is delivered, "
    "in which order, how often before, and what is refused",
    anomaly="not-as-modelled",
    subjects=(DIALOGUES,),
    one="answer differed from the model of a broker",
    more="answers differed from the model of a broker",
    function=check,
)
