"""Order of each publisher's events at each subscriber, while the publisher stayed on one replica."""

from __future__ import annotations

import numpy as np

from checkers.api import RunCheck
from checkers.checks.event_lost import may_end
from checkers.kernels.queues import ACKED
from checkers.run import Run
from checkers.topic_anomalies import late_anomaly
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, CheckOutcome
from stormproof.history.columns import Int64s
from stormproof.history.schema import PAIR_SHIFT
from stormproof.text import amount
from stormproof.vocabulary import EVENTS


def check(run: Run) -> CheckOutcome:
    """Find events whose first delivery to a subscriber follows that of a later event of the same publisher.

    Order is *promised* to subscribers with ``reliability`` ordered while the publisher stays on one replica: for events
    that one replica confirmed, if no event between them was confirmed by another replica or has an unknown outcome, and
    while the replica's process lives. Events that a killed process had sent may arrive after those that the next
    process sends. Other inversions are counted as not promised.
    """
    t = run.topics
    ordered = run.test.get("options", {}).get("reliability", "ordered") == "ordered"
    late = t.late(_stays(run)) if ordered else []
    moved = len({place for place, _ in t.late(t.value >> PAIR_SHIFT)} - {place for place, _ in late})
    figures = {"not_promised": moved}
    aside = f"; {moved:,} came out of order where no order was promised" if moved else ""
    if not late:
        text = f"every publisher's events came in order while it stayed on one replica{aside}"
        return CheckOutcome(VALID, 0, text, (), figures)
    examples = []
    for place, witness in late[:MAX_EXAMPLES]:
        replica = run.history.node.at(int(run.history.partner[t.sent[t.message[place]]]))
        examples.append(late_anomaly(run, "event-out-of-order", place, witness, replica=replica))
    events = amount(len(late), "event")
    text = f"{events} came to a subscriber after a later one, though the publisher had not moved{aside}"
    return CheckOutcome(INVALID, len(late), text, tuple(examples), figures)


def _stays(run: Run) -> Int64s:
    """Return by message a number for the publisher's stay on one replica during which the message was sent."""
    t, h = run.topics, run.history
    published = np.flatnonzero(t.sent >= 0)
    order = published[np.argsort(t.sent[published], kind="stable")]
    stays = np.zeros(t.messages, dtype=np.int64)
    current: dict[int, tuple[tuple[int, int] | None, int]] = {}
    number = 0
    for message in order.tolist():
        producer = int(t.value[message]) >> PAIR_SHIFT
        ended = int(h.partner[t.sent[message]])
        known = ended >= 0 and t.state[message] == ACKED
        place = _life(run, int(t.sent[message]), ended) if known else None
        if place is None or current.get(producer, (None, 0))[0] != place:
            number += 1
            current[producer] = (place, number)
        stays[message] = current[producer][1]
    return stays


def _life(run: Run, sent: int, ended: int) -> tuple[int, int] | None:
    """Return the replica that confirmed an event, and how often its process had ended before; None if that is unknown.
    """
    h = run.history
    name = h.node.at(ended)
    if name is None:
        return None
    lives = 0
    for fault in run.faults:
        if not may_end(fault) or name not in fault.targets:
            continue
        if fault.end is not None and fault.end < h.time[sent]:
            lives += 1
        elif fault.start <= h.time[ended]:
            return None
    return int(h.node.codes[ended]), lives


CHECK = RunCheck(
    name="event-order",
    guarantee="a publisher's events come in order while it stays on one replica",
    anomaly="event-order",
    subjects=(EVENTS,),
    one="message was delivered to a subscriber after a later one of a publisher that had not moved",
    more="messages were delivered to a subscriber after a later one of a publisher that had not moved",
    function=check,
    happens=True,
)
