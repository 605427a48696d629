"""All checks by name. A new one is one module beside the others and one line here."""

from __future__ import annotations

from typing import TypeGuard

from stormproof.contracts.check import Check
from stormproof.registry import Entry, Registry

GATES = "gates"


def _is_check(found: object) -> TypeGuard[Check]:
    return isinstance(found, Check)


CHECKS: Registry[Check] = Registry(
    "check",
    _is_check,
    Entry("lost", "confirmed, but never delivered", "checkers.checks.lost:CHECK"),
    Entry("loss-shape", "reading: whether the beginning, the middle or the end of what was confirmed is lost",
          "checkers.checks.loss_shape:CHECK"),
    Entry("duplicated", "delivered again after the receipt of its ACK", "checkers.checks.duplicated:CHECK"),
    Entry("phantom", "delivered, but never sent to that queue", "checkers.checks.phantom:CHECK"),
    Entry("redelivered-unconfirmed", "delivered again while no ACK was confirmed",
          "checkers.checks.redelivered:CHECK"),
    Entry("content", "delivered with other headers, or another body, than it was sent with",
          "checkers.checks.content:CHECK"),
    Entry("subscription", "delivered beyond a subscription's window, after its end, or to another",
          "checkers.checks.subscription:CHECK"),
    Entry("redelivery", "delivered again without saying so", "checkers.checks.redelivery:CHECK"),
    Entry("refusal", "a command that makes no sense, and was confirmed", "checkers.checks.refusal:CHECK"),
    Entry("dialogue", "answered otherwise than a model of a broker does", "checkers.checks.dialogue:CHECK"),
    Entry("at-most-once", "reading: messages delivered more than once", "checkers.checks.at_most_once:CHECK"),
    Entry("duplicate-okay", "reading: messages lost, however often others came",
          "checkers.checks.duplicate_okay:CHECK"),
    Entry("order", "delivered after a later message of the same producer and queue", "checkers.checks.order:CHECK"),
    Entry("transfer-order", "sent over a durable connection, delivered after what its client accepted later",
          "checkers.checks.transfer_order:CHECK"),
    Entry("untold-duplicate", "delivered twice, and neither copy says that it was sent again",
          "checkers.checks.untold:CHECK"),
    Entry("linearizable", "reading: queues that did not behave as one bag of messages",
          "checkers.checks.linearizable:CHECK"),
    Entry("topic-lost", "confirmed, but never delivered to a durable subscription that existed",
          "checkers.checks.topic_lost:CHECK"),
    Entry("topic-duplicated", "delivered to a subscription again after the receipt of its ACK",
          "checkers.checks.topic_duplicated:CHECK"),
    Entry("topic-phantom", "delivered to a subscription that could not have got it",
          "checkers.checks.topic_phantom:CHECK"),
    Entry("topic-order", "delivered to a subscription after a later message of the same producer",
          "checkers.checks.topic_order:CHECK"),
    Entry("agreement", "seen in different orders by different subscriptions", "checkers.checks.agreement:CHECK"),
    Entry("gaps", "missing in what a connected transient subscription got", "checkers.checks.gaps:CHECK"),
    Entry("atomic", "transactions of which some parts came and others did not, or that came though aborted",
          "checkers.checks.atomic:CHECK"),
    Entry("exactly-once", "messages that moves by transactions lost or multiplied",
          "checkers.checks.exactly_once:CHECK"),
    Entry("prepared", "prepared transactions that could not be ended as decided", "checkers.checks.prepared:CHECK"),
    Entry("tx-phantom", "delivered though no transaction had sent it there", "checkers.checks.tx_phantom:CHECK"),
    Entry("event-lost", "confirmed by a replica that lived on, but never delivered to a subscriber",
          "checkers.checks.event_lost:CHECK"),
    Entry("event-order", "delivered to a subscriber after a later event of a publisher that had not moved",
          "checkers.checks.event_order:CHECK"),
    Entry("metadata", "subscriptions, topics and links that did not exist, or not exist, for all alike",
          "checkers.checks.metadata:CHECK"),
    Entry("register", "registers that did not have one value at a time, for everybody",
          "checkers.checks.register:CHECK"),
    Entry("mutual-exclusion", "a lock that two held at once", "checkers.checks.mutual_exclusion:CHECK"),
    Entry("lost-update", "updates under a lock that were overwritten unseen", "checkers.checks.lost_update:CHECK"),
    Entry("fencing", "fencing tokens that did not grow", "checkers.checks.fencing:CHECK"),
    Entry("lock-lost", "a lock that nobody could have any more", "checkers.checks.lock_lost:CHECK"),
    Entry("log-lost", "appended with confirmation, or read, but not in the log at the end",
          "checkers.checks.log_lost:CHECK"),
    Entry("log-offsets", "offsets with two values, values with two offsets, offsets that went back",
          "checkers.checks.log_offsets:CHECK"),
    Entry("log-reads", "readers of a log that went back, or skipped what is there", "checkers.checks.log_reads:CHECK"),
    Entry("divergence", "nodes whose own copies of a log differ", "checkers.checks.divergence:CHECK"),
    Entry("watch-lost", "put with confirmation, or seen by a watch, but not in a watch from the beginning",
          "checkers.checks.watch_lost:CHECK"),
    Entry("watch-values", "revisions with two values, values with two revisions, revisions that went back",
          "checkers.checks.watch_values:CHECK"),
    Entry("watch-order", "watches that went back, told an event twice, or left one out",
          "checkers.checks.watch_order:CHECK"),
    Entry("elections", "rules of the election that the replicas' logs show broken", "checkers.checks.elections:CHECK"),
    Entry("depth", "messages left in a queue after it was drained", "checkers.checks.depth:CHECK"),
    Entry("availability", "the longest time without a success; recovery time after each fault",
          "checkers.checks.availability:CHECK"),
    Entry("stability", "changes of role for which there was no reason", "checkers.checks.stability:CHECK"),
    Entry("recovery", "not healthy again in time after the last heal", "checkers.checks.recovery:CHECK"),
    Entry("growth", "what nodes at rest hold that grows with what they have done", "checkers.checks.growth:CHECK"),
    Entry("work", "frames and bytes that simulated nodes sent each other, beyond what their system claims",
          "checkers.checks.work:CHECK"),
    Entry("livelock", "simulated nodes that are never done", "checkers.checks.livelock:CHECK"),
    Entry("invariants", "what must hold of simulated nodes at every instant", "checkers.checks.invariants:CHECK"),
    Entry("latency", "quantiles of the time that operations took", "checkers.checks.latency:CHECK"),
    Entry(GATES, "coverage: did the run exercise what it was to exercise", "checkers.gates:CHECK"),
)  # fmt: skip
"""Every check, in the order in which verdicts list them and their sentences speak."""
