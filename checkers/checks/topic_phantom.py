"""Phantoms of topics: deliveries that could not have been for the subscription."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from checkers.account import foreign
from checkers.api import RunCheck, listed
from checkers.cluster_shards import elements_of
from checkers.exemptions import near_fault
from checkers.kernels.deliveries import FIRST
from checkers.kernels.queues import ACKED, FAILED
from checkers.run import Run
from stormproof import vocabulary
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, Anomaly, CheckOutcome
from stormproof.history.columns import Int64s
from stormproof.text import amount
from stormproof.vocabulary import TOPICS

NEVER = "never-published"
EARLY = "delivered-before-published"
FAILED_SEND = "failed-yet-delivered"
OTHER_TOPIC = "of-another-topic"
OLDER = "older-than-subscription"
FOREIGN = "not-ours"


def check(run: Run) -> CheckOutcome:
    """Find first deliveries of messages that the subscription could not have got, and all deliveries of foreign bodies.

    Such a message was never published, or its publishing is certain to have failed, or it belongs to a topic that the
    subscription does not take, or it was confirmed before any client had asked for the subscription (if transient:
    before this process had). A foreign body is one that this test did not produce. A message published on another
    element of a clustered topic may be older than the subscription: it was in flight.

    Kinds that the run's mode does not exclude are only counted if a fault may have contributed to what happened between
    sending and delivery.
    """
    t, h = run.topics, run.history
    first = np.flatnonzero(t.codes == FIRST)
    message, row = t.message[first].astype(np.int64), t.rows[first]
    sent = t.sent[message]
    known = sent >= 0
    masks = np.asarray([s.mask for s in t.subscriptions], dtype=np.int64)[t.which[first]]
    takes = (masks >> np.where(known, t.topic[message], 0).astype(np.int64)) & 1 == 1
    confirmed = np.where(t.state[message] == ACKED, h.partner[np.maximum(sent, 0)], h.rows)
    wrong = {
        NEVER: ~known,
        EARLY: known & (sent > row),
        FAILED_SEND: known & (sent < row) & (t.state[message] == FAILED),
    }
    clean = ~np.logical_or.reduce(list(wrong.values()))
    wrong[OTHER_TOPIC] = clean & ~takes
    elements = elements_of(run)
    here = elements.of_message[message] == elements.of_subscription[t.which[first]]
    wrong[OLDER] = clean & takes & here & (confirmed < _asked(run)[first])
    unpromised = 0
    near = near_fault(run, np.where(known, sent, row), row)
    for kind in run.exempt("topic-phantom"):
        unpromised += int((wrong[kind] & near).sum())
        wrong[kind] &= ~near
    aside: dict[str, Any] = {"not_promised": unpromised} if run.exempt("topic-phantom") else {}
    kinds = {kind: int(mask.sum()) for kind, mask in wrong.items()}
    found = [
        _anomaly(run, kind, int(first[at]))
        for kind, mask in wrong.items()
        for at in np.flatnonzero(mask)[:MAX_EXAMPLES].tolist()
    ]
    bodies = foreign(h, (vocabulary.RECEIVE, vocabulary.DRAIN), whatever_ended=True).tolist()
    kinds[FOREIGN] = len(bodies)
    found += [Anomaly(FOREIGN, run.rows_of(row), None, None, {"subscription": int(h.key[row])}) for row in bodies]
    count = sum(kinds.values())
    if not count:
        text = "everything delivered had been published to a topic of the subscription"
        return CheckOutcome(VALID, 0, text, figures=aside)
    shown = {kind: n for kind, n in kinds.items() if n}
    told = listed(dict(Counter(shown).most_common()))
    text = f"{amount(count, 'delivery', 'deliveries')} to a subscription could not have been for it ({told})"
    return CheckOutcome(INVALID, count, text, tuple(found[:MAX_EXAMPLES]), {"kinds": shown, **aside})


def _asked(run: Run) -> Int64s:
    """Return by delivery the row at which its subscription was requested."""
    t = run.topics
    former = _unanswered(run)
    asked = np.asarray([min(s.asked, former.get(s.number, s.asked)) for s in t.subscriptions], dtype=np.int64)[t.which]
    for connection in t.connections:
        asked[connection.taken] = connection.asked
    return asked


def _unanswered(run: Run) -> dict[int, int]:
    """Return, by the number of a durable subscription, the first unanswered request for the subscription before it.

    Such a request may be carried out after that subscription was deleted, and the result then continues under the new
    number. A client that deletes a subscription creates another with a larger key.
    """
    t, h = run.topics, run.history
    threads = int(run.test.get("concurrency") or 0) or 1 << 31
    found: dict[int, int] = {}
    before: dict[tuple[int, int], Any] = {}
    for each in sorted(t.subscriptions, key=lambda it: it.key):
        if not each.durable:
            continue
        whose = int(h.process[each.asked]) % threads, each.mask
        former, before[whose] = before.get(whose), each
        if former is not None:
            asks = np.flatnonzero((h.role == vocabulary.ATTACH) & (h.key == former.key) & (h.kind == vocabulary.INVOKE))
            answered = h.partner[asks]
            lost = asks[(answered < 0) | (h.kind[answered] == vocabulary.INFO)]
            if len(lost):
                found[each.number] = int(lost[0])
    return found


def _anomaly(run: Run, kind: str, place: int) -> Anomaly:
    t, row, message = run.topics, int(run.topics.rows[place]), int(run.topics.message[place])
    subscription = t.subscriptions[int(t.which[place])]
    detail = {"subscription": subscription.key, "delivered_by": run.history.node.at(row)}
    rows = [row]
    if t.sent[message] >= 0:
        rows.append(int(t.sent[message]))
        detail["topic"] = int(t.topic[message])
    if kind == OLDER:
        rows.append(int(_asked(run)[place]))
    return Anomaly(kind, run.rows_of(*rows), None, t.name(message), detail)


CHECK = RunCheck(
    name="topic-phantom",
    guarantee="a subscription gets only messages that were published to its topics since it was requested",
    anomaly="topic-phantom",
    decides=True,
    subjects=(TOPICS,),
    one="phantom message was delivered to a subscription",
    more="phantom messages were delivered to a subscription",
    function=check,
    happens=True,
)
