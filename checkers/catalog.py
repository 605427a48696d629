"""All checks by name. A new check is one module beside the others and one line here."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from checkers.run import Run
    from checkers.verdict import Outcome

GATES = "gates"
MESSAGES = "messages"
METADATA = "metadata"
ANY = "any"


@dataclass(frozen=True)
class Check:
    """A registered check.

    ``summary`` says what it finds, ``promise`` what a broker that passes it has kept; ``anomaly`` is the name
    under which a run counts what was found, None for a mere reading of the history; ``decides`` is whether it bears on
    the verdict when a run does not say which promises it checks. ``subject`` is ``messages`` for checks that need
    operations of a queue, ``metadata`` for those of subscriptions and topics, ``any`` for those that take
    every history. ``target`` is ``module:function``.
    """

    name: str
    summary: str
    promise: str
    target: str
    anomaly: str | None = None
    decides: bool = False
    subject: str = MESSAGES

    def load(self) -> Callable[[Run], Outcome]:
        """The function behind it."""
        module, _, attribute = self.target.partition(":")
        function: Callable[[Run], Outcome] = getattr(importlib.import_module(module), attribute)
        return function


CHECKS: tuple[Check, ...] = (
    Check("lost", "confirmed, but never delivered", "every confirmed message is delivered",
          "checkers.checks.lost:check", anomaly="lost", decides=True),
    Check("phantom", "delivered, but never sent to that queue", "only what was sent is delivered",
          "checkers.checks.phantom:check", anomaly="phantom", decides=True),
    Check("duplicated", "delivered again after the receipt of its ACK", "a confirmed ACK is final",
          "checkers.checks.duplicated:check", anomaly="duplicated", decides=True),
    Check("redelivered-unconfirmed", "delivered again while no ACK was confirmed", "nothing is delivered twice "
          "unless it was acknowledged in between; permitted to an at-least-once broker",
          "checkers.checks.redelivered:check", anomaly="redelivered-unconfirmed"),
    Check("at-most-once", "reading: messages delivered more than once", "no message is delivered twice",
          "checkers.checks.at_most_once:check"),
    Check("duplicate-okay", "reading: messages lost, however often others came",
          "every confirmed message is delivered at least once", "checkers.checks.duplicate_okay:check", decides=True),
    Check("order", "delivered after a later message of the same producer and queue",
          "each producer's messages are delivered in the order sent", "checkers.checks.order:check",
          anomaly="order"),
    Check("linearizable", "reading: queues that did not behave as one bag of messages",
          "each queue is linearizable as an unordered queue: nothing comes twice, nothing from nowhere",
          "checkers.checks.linearizable:check"),
    Check("metadata", "subscriptions and topics that did not exist, or not exist, for all alike",
          "each subscription and topic is linearizable: it exists or not, once", "checkers.checks.metadata:check",
          anomaly="metadata", subject=METADATA),
    Check("depth", "messages left in a queue after it was drained", "a drained queue is empty",
          "checkers.checks.depth:check", anomaly="depth", decides=True),
    Check("availability", "the longest time without a success; recovery time after each fault",
          "service comes back after every fault", "checkers.checks.availability:check",
          anomaly="never-recovered", subject=ANY),
    Check("recovery", "not healthy again in time after the last heal", "a healed cluster serves again",
          "checkers.checks.recovery:check", anomaly="not-recovered", subject=ANY),
    Check("latency", "quantiles of the time that operations took", "none: figures only",
          "checkers.checks.latency:check", subject=ANY),
    Check(GATES, "coverage: did the run exercise what it was to exercise", "none: a run that tested "
          "too little is unknown", "checkers.gates:check", decides=True, subject=ANY),
)  # fmt: skip
"""Every check, in the order in which verdicts list them."""
