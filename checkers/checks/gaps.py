"""Gaps: while it stays connected, a transient subscription misses nothing between the messages that it gets."""

from __future__ import annotations

import numpy as np

from checkers.api import RunCheck
from checkers.cluster_shards import elements_of
from checkers.exemptions import near_fault
from checkers.kernels.topics import skipped_by_order, skipped_by_time
from checkers.run import Run
from checkers.topics import SubscriptionConnection, Topics
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, Anomaly, CheckOutcome
from stormproof.history.columns import HistoryColumns, Int64s
from stormproof.text import amount
from stormproof.vocabulary import TOPICS

BY_TIME = "missed-by-time"
BY_ORDER = "missed-by-order"


def check(run: Run) -> CheckOutcome:
    """Find messages that a process with a transient subscription never got, though it got a later one.

    ``missed-by-time``: published after the process's subscription was confirmed, and confirmed before the later message
    was published. ``missed-by-order``: another subscription got the message between two that this process got. A
    message counts once for each process that missed it. A message that is missed after a process's last message, or
    between two processes of one subscription, does not count as a gap: the broker does not promise it. Of a clustered
    topic, only messages published on the subscription's element count by time, and only subscriptions on that element
    count by order. If the run's mode promises nothing by time, messages missed while a fault may have contributed are
    only counted.
    """
    t, h, elements = run.topics, run.history, elements_of(run)
    by_sending = np.flatnonzero(t.sent >= 0)
    by_sending = by_sending[np.argsort(t.sent[by_sending])]
    firsts = [t.first_places(s) for s in t.subscriptions]
    examples: list[Anomaly] = []
    by_time = by_order = unpromised = 0
    exempt = BY_TIME in run.exempt("gaps")
    for c in t.connections:
        s, known = c.subscription, set()
        if c.since >= 0:
            here = by_sending[elements.of_message[by_sending] == elements.of_subscription[s.number]]
            missed, shown_by = skipped_by_time(
                c.taken, t.message, s.mask, c.since, t.messages, here, t.sent, t.topic, t.state, h.partner
            )
            if exempt:
                near = near_fault(run, t.sent[missed], _came_without(t, h, c, missed))
                unpromised += int(near.sum())
                missed, shown_by = missed[~near], shown_by[~near]
            known.update(missed.tolist())
            by_time += len(missed)
            for m, later in zip(missed.tolist(), shown_by.tolist(), strict=True):
                if len(examples) < MAX_EXAMPLES:
                    examples.append(_anomaly(run, t, BY_TIME, c, m, [c.since, int(t.sent[m]), _row(t, c, later)],
                                             {"but_got_later": t.name(later)}))  # fmt: skip
        for other, (place_of, places) in enumerate(firsts):
            if other == s.number or not elements.together(other, s.number):
                continue
            missed, first, last = skipped_by_order(
                c.taken, t.message, s.mask, place_of, places, t.sent, t.topic
            )
            for m in missed.tolist():
                if m in known:
                    continue
                known.add(m)
                by_order += 1
                if len(examples) < MAX_EXAMPLES:
                    around = [int(t.message[first[0]]), int(t.message[last[0]])]
                    detail = {
                        "seen_by_subscription": t.subscriptions[other].key,
                        "between": [t.name(a) for a in around],
                    }
                    rows = [int(t.rows[p]) for p in (first[0], place_of[m], last[0])]
                    rows += [_row(t, c, a) for a in around]
                    examples.append(_anomaly(run, t, BY_ORDER, c, m, rows, detail))
    count = by_time + by_order
    figures = {"connections": len(t.connections), "by_time": by_time, "by_order": by_order}
    if exempt:
        figures["not_promised"] = unpromised
    if not count:
        text = f"no gap in what {amount(len(t.connections), 'connection')} of transient subscriptions got"
        return CheckOutcome(VALID, 0, text, (), figures)
    text = f"{amount(count, 'message was', 'messages were')} missing in what a connected transient subscription got"
    return CheckOutcome(INVALID, count, text, tuple(examples), figures)


def _came_without(t: Topics, h: HistoryColumns, c: SubscriptionConnection, missed: Int64s) -> Int64s:
    """Return, by message that a connection missed, the first row at which the message was lost or skipped.

    That is the first row at which the connection got a message that had been sent after the missed one was confirmed.
    """
    sent, rows = t.sent[t.message[c.taken]], t.rows[c.taken]
    confirmed = h.partner[t.sent[missed]]
    return np.asarray([rows[sent > row].min() for row in confirmed], dtype=np.int64)


def _row(t: Topics, c: SubscriptionConnection, message: int) -> int:
    """Return the row at which a connection first got a message."""
    return int(t.rows[c.taken[t.message[c.taken] == message][0]])


def _anomaly(
    run: Run, t: Topics, kind: str, c: SubscriptionConnection, message: int, rows: list[int], detail: dict[str, object]
) -> Anomaly:
    about = {"subscription": c.subscription.key, "process": c.process, "topic": int(t.topic[message])}
    return Anomaly(kind, run.rows_of(*rows), None, t.name(message), about | detail)


CHECK = RunCheck(
    name="gaps",
    guarantee="a transient subscription misses nothing between the messages it gets on one connection; what comes "
    "between two connections is not promised",
    anomaly="gaps",
    decides=True,
    subjects=(TOPICS,),
    one="message was missing in what a connected transient subscription got",
    more="messages were missing in what a connected transient subscription got",
    function=check,
)
