"""Agreement: all subscriptions see the messages that they share in the same order."""

from __future__ import annotations

import numpy as np

from checkers.api import RunCheck
from checkers.cluster_shards import elements_of
from checkers.kernels.deliveries import UNCONFIRMED
from checkers.kernels.topics import disagreements, find_cycle
from checkers.run import Run
from checkers.topics import Topics
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, Anomaly, CheckOutcome
from stormproof.history.columns import Int64s
from stormproof.text import amount
from stormproof.vocabulary import TOPICS

TWO = "seen-in-two-orders"
NO_ORDER = "no-common-order"


def check(run: Run) -> CheckOutcome:
    """Judge first deliveries only; of a clustered topic, compare only subscriptions on the same element.

    ``seen-in-two-orders``: a message that reached one subscription after another message, while a second subscription
    got the two in reverse. Each such message counts once for each pair of subscriptions. ``no-common-order`` is
    searched for only if no two subscriptions disagree: no total order of all messages agrees with what every
    subscription saw, as when the first saw A before B, the second B before C, and the third C before A.
    """
    t, elements = run.topics, elements_of(run)
    examples: list[Anomaly] = []
    count = pairs = 0
    firsts = [t.first_places(s) for s in t.subscriptions]
    for one, (place_of, _) in enumerate(firsts):
        for other in range(one + 1, len(firsts)):
            if not elements.together(one, other):
                continue
            late, shown_by = disagreements(place_of, firsts[other][1], t.message)
            count += len(late)
            pairs += len(late) > 0
            for place, earlier in zip(late.tolist(), shown_by.tolist(), strict=True):
                if len(examples) == MAX_EXAMPLES:
                    break
                examples.append(_pair(run, t, place_of, one, other, place, earlier))
    figures = {"pairs": pairs}
    if count:
        text = (
            f"{amount(count, 'message')} came to two subscriptions in different orders "
            f"({amount(pairs, 'pair')} in disagreement)"
        )
        return CheckOutcome(INVALID, count, text, tuple(examples), figures)
    for element in range(elements.count):
        here = elements.of_subscription[t.which] == element
        codes = np.where(here, t.codes, UNCONFIRMED).astype(np.int8)
        cycle = find_cycle(codes, t.start, t.message, t.messages)
        if len(cycle):
            return CheckOutcome(INVALID, 1, "no order of all messages agrees with every subscription",
                           (_cycle(run, t, cycle.tolist()),), figures)  # fmt: skip
    which = "all subscriptions" if elements.count == 1 else "the subscriptions of each element"
    return CheckOutcome(VALID, 0, f"{which} saw the messages that they share in one order", (), figures)


def _pair(run: Run, t: Topics, place_of: Int64s, one: int, other: int, place: int, earlier: int) -> Anomaly:
    message, before = int(t.message[place]), int(t.message[earlier])
    keys = (t.subscriptions[one].key, t.subscriptions[other].key)
    detail = {
        "subscriptions": keys,
        "first_saw": f"{t.name(message)}, then {t.name(before)}",
        "second_saw": f"{t.name(before)}, then {t.name(message)}",
        "same_topic": bool(t.topic[message] == t.topic[before]),
    }
    rows = (t.rows[p] for p in (place_of[message], place_of[before], earlier, place))
    return Anomaly(TWO, run.rows_of(*map(int, rows)), None, t.name(message), detail)


def _cycle(run: Run, t: Topics, places: list[int]) -> Anomaly:
    steps = [
        f"subscription {t.subscriptions[int(t.which[a])].key} saw {t.name(int(t.message[a]))} before "
        f"{t.name(int(t.message[b]))}"
        for a, b in zip(places[::2], places[1::2], strict=True)
    ]
    shown = "; ".join(steps[:10]) + (f"; and {len(steps) - 10} more" if len(steps) > 10 else "")
    rows = run.rows_of(*(int(t.rows[place]) for place in places))
    return Anomaly(NO_ORDER, rows, None, t.name(int(t.message[places[0]])), {"order": shown})


CHECK = RunCheck(
    name="agreement",
    guarantee="all subscriptions see the messages that they share in one order",
    anomaly="agreement",
    decides=True,
    subjects=(TOPICS,),
    one="message was seen in different orders by different subscriptions",
    more="messages were seen in different orders by different subscriptions",
    speaks_when_held=True,
    function=check,
)
