"""Anomalies of single messages at a subscription, shared by the checks of topics and of events."""

from __future__ import annotations

from typing import Any

from checkers.run import Run
from checkers.topics import SubscriptionRecord
from stormproof.contracts.check import Anomaly


def late_anomaly(run: Run, kind: str, place: int, witness: int, **detail: Any) -> Anomaly:
    """Report a delivery to a subscription (``place``) that followed that of a later message (``witness``)."""
    t = run.topics
    message, later = int(t.message[place]), int(t.message[witness])
    rows = run.rows_of(int(t.sent[message]), int(t.sent[later]), int(t.rows[witness]), int(t.rows[place]))
    about = {"subscription": t.subscriptions[int(t.which[place])].key, "came_after": t.name(later)}
    return Anomaly(kind, rows, None, t.name(message), about | detail)


def missing_anomaly(run: Run, kind: str, s: SubscriptionRecord, message: int) -> Anomaly:
    """Report a confirmed message that a subscription never got."""
    t, h = run.topics, run.history
    sent = int(t.sent[message])
    confirmed = int(h.partner[sent])
    detail = {"subscription": s.key, "topic": int(t.topic[message]), "confirmed_by": h.node.at(confirmed),
              "faults": run.faults_at(confirmed)}  # fmt: skip
    return Anomaly(kind, run.rows_of(s.since, sent), None, t.name(message), detail)
