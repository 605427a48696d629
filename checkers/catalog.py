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
TOPICS = "topics"
TRANSACTIONS = "transactions"
METADATA = "metadata"
EVENTS = "events"
ANY = "any"


@dataclass(frozen=True)
class Check:
    """A registered check.

    ``summary`` says what it finds, ``promise`` what a broker that passes it has kept; ``anomaly`` is the name
    under which a run counts what was found, None for a mere reading of the history; ``decides`` is whether it bears on
    the verdict when a run does not say which promises it checks. ``subjects`` are the kinds of histories that it takes:
    ``messages`` (of queues), ``topics``, ``transactions``, ``metadata``, ``events``, or ``any``. ``target`` is
    ``module:function``.
    """

    name: str
    summary: str
    promise: str
    target: str
    anomaly: str | None = None
    decides: bool = False
    subjects: tuple[str, ...] = (MESSAGES,)

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
          "checkers.checks.duplicated:check", anomaly="duplicated", decides=True,
          subjects=(MESSAGES, TRANSACTIONS)),
    Check("redelivered-unconfirmed", "delivered again while no ACK was confirmed", "nothing is delivered twice "
          "unless it was acknowledged in between; permitted to an at-least-once broker",
          "checkers.checks.redelivered:check", anomaly="redelivered-unconfirmed",
          subjects=(MESSAGES, TRANSACTIONS)),
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
    Check("topic-lost", "confirmed, but never delivered to a durable subscription that existed",
          "a durable subscription gets every confirmed message, whoever failed and whether it was attached or not",
          "checkers.checks.topic_lost:check", anomaly="topic-lost", decides=True, subjects=(TOPICS,)),
    Check("topic-phantom", "delivered to a subscription that could not have got it",
          "a subscription gets what was published to its topics since it was asked for, and nothing else",
          "checkers.checks.topic_phantom:check", anomaly="topic-phantom", decides=True, subjects=(TOPICS,)),
    Check("topic-duplicated", "delivered to a subscription again after the receipt of its ACK",
          "a subscription never gets again what it was told that it consumed",
          "checkers.checks.topic_duplicated:check", anomaly="topic-duplicated", decides=True, subjects=(TOPICS,)),
    Check("topic-order", "delivered to a subscription after a later message of the same producer",
          "each subscription gets a producer's messages in the order sent",
          "checkers.checks.topic_order:check", anomaly="topic-order", decides=True, subjects=(TOPICS,)),
    Check("agreement", "seen in different orders by different subscriptions",
          "all subscriptions see the messages that they share in one order",
          "checkers.checks.agreement:check", anomaly="agreement", decides=True, subjects=(TOPICS,)),
    Check("gaps", "missing in what a connected transient subscription got",
          "a transient subscription misses nothing between the messages it gets on one connection; what comes between "
          "two connections is not promised",
          "checkers.checks.gaps:check", anomaly="gaps", decides=True, subjects=(TOPICS,)),
    Check("atomic", "transactions of which some parts came and others did not, or that came though aborted",
          "of a transaction all parts come or none: all when it was committed, none when it was aborted",
          "checkers.checks.atomic:check", anomaly="atomic", decides=True, subjects=(TRANSACTIONS,)),
    Check("exactly-once", "messages that moves by transactions lost or multiplied",
          "every message that is moved by transactions leads to exactly one",
          "checkers.checks.exactly_once:check", anomaly="exactly-once", decides=True, subjects=(TRANSACTIONS,)),
    Check("prepared", "prepared transactions that could not be ended as decided",
          "a confirmed PREPARE is a promise: COMMIT and ABORT of the branch are never refused",
          "checkers.checks.prepared:check", anomaly="prepared-refused", decides=True, subjects=(TRANSACTIONS,)),
    Check("tx-phantom", "delivered though no transaction had sent it there",
          "only what a transaction sent to a queue is delivered from it",
          "checkers.checks.tx_phantom:check", anomaly="tx-phantom", decides=True, subjects=(TRANSACTIONS,)),
    Check("event-lost", "confirmed by a replica that lived on, but never delivered to a subscriber",
          "a replica delivers what it confirmed to every subscriber, as long as its process lives",
          "checkers.checks.event_lost:check", anomaly="event-lost", subjects=(EVENTS,)),
    Check("event-order", "delivered to a subscriber after a later event of a publisher that had not moved",
          "a publisher's events come in order while it stays on one replica",
          "checkers.checks.event_order:check", anomaly="event-order", subjects=(EVENTS,)),
    Check("metadata", "subscriptions, topics and links that did not exist, or not exist, for all alike",
          "each subscription, topic and link is linearizable: it exists or not, once", "checkers.checks.metadata:check",
          anomaly="metadata", subjects=(METADATA,)),
    Check("elections", "rules of the election that the replicas' logs show broken",
          "a group replicates with a majority, after a stop of all with everybody; nobody is in two; a minority stops",
          "checkers.checks.elections:check", anomaly="elections", subjects=(METADATA, EVENTS)),
    Check("depth", "messages left in a queue after it was drained", "a drained queue is empty",
          "checkers.checks.depth:check", anomaly="depth", decides=True,
          subjects=(MESSAGES, TOPICS, TRANSACTIONS)),
    Check("availability", "the longest time without a success; recovery time after each fault",
          "service comes back after every fault", "checkers.checks.availability:check",
          anomaly="never-recovered", subjects=(ANY,)),
    Check("recovery", "not healthy again in time after the last heal", "a healed cluster serves again",
          "checkers.checks.recovery:check", anomaly="not-recovered", subjects=(ANY,)),
    Check("latency", "quantiles of the time that operations took", "none: figures only",
          "checkers.checks.latency:check", subjects=(ANY,)),
    Check(GATES, "coverage: did the run exercise what it was to exercise", "none: a run that tested "
          "too little is unknown", "checkers.gates:check", decides=True, subjects=(ANY,)),
)  # fmt: skip
"""Every check, in the order in which verdicts list them."""
