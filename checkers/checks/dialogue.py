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
    return each_observed(run, NOT_AS_MODELLED, "every answer was as the model of a broker has it",
                         ("answer was not as the model of a broker has it",
                          "answers were not as the model of a broker has them"))


CHECK = RunCheck(
    name="dialogue",
    guarantee="to whoever has destinations for itself, a broker answers as a model of it: what comes, in which order, "
    "how often before, and what is refused",
    anomaly="not-as-modelled",
    subjects=(DIALOGUES,),
    one="answer was not as the model of a broker has it",
    more="answers were not as the model of a broker has them",
    function=check,
)
