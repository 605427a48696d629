"""IceStorm's guarantees, with the places in its manual."""

from __future__ import annotations

from stormproof.contracts.guarantee import ANY_FAULT, NOT_PROMISED, PROMISED, Guarantee

_QUALITY = "Ice manual 3.7, IceStorm Quality of Service"

GUARANTEES = (
    Guarantee(
        "event-lost",
        NOT_PROMISED,
        f"{_QUALITY}, retryCount; IceStorm Properties, IceStorm.Discard.Interval",
        "a subscriber is removed after its retries, and gets nothing for a while after each failed delivery",
        ANY_FAULT,
        {"owed": "promised"},
    ),
    Guarantee(
        "event-order",
        NOT_PROMISED,
        f"{_QUALITY}, Reliability",
        "order is promised to subscribers with reliability `ordered` only",
        mode={"reliability": "unordered"},
    ),
    Guarantee(
        "event-order",
        PROMISED,
        f"{_QUALITY}, Reliability",
        "to each subscriber, of what one publisher has published on one replica",
        mode={"links": 0, "copies": 1},
    ),
    Guarantee(
        "event-order",
        NOT_PROMISED,
        "Ice manual 3.7, Topic Graphs (Federation); ours",
        "what comes over a link takes another way than what is published to the topic itself; of copies the first one "
        "counts, and replicas don't learn of a subscription at the same moment",
    ),
    Guarantee(
        "elections",
        NOT_PROMISED,
        "ours",
        "the check reads the logs of the reference broker; IceStorm's are of another format",
    ),
)
"""Loss is judged if a run requests it (``owed`` is ``all`` or ``resumed``): users of IceStorm want to know about events
that were confirmed to a publisher and never reached a subscriber, regardless of what its manual says. The return of a
two-way publish means only that one replica has queued the event."""
