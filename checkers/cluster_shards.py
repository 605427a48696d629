"""Elements of clustered destinations: some promises hold within one element, not between two (HA Joram, 6).

If a run's destinations are spread over several servers, its ``run.json`` names the nodes of each (``elements``). An
operation was carried out at the element of the node that answered. Without such names, everything is one element.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from checkers.run import Run
from stormproof.history.columns import Int64s

UNKNOWN, NOWHERE = -1, -2
"""The elements of a subscription and of a message without a known node.

They differ, because nothing can be concluded about such a message and such a subscription.
"""


@dataclass(frozen=True)
class Elements:
    """The number of the element of each subscription, and of each message's publishing.

    ``UNKNOWN`` and ``NOWHERE`` stand for an unknown node. ``count`` is the number of elements.
    """

    count: int
    of_subscription: Int64s
    of_message: Int64s

    def together(self, subscription: int, other: int) -> bool:
        """Return whether two subscriptions, given by number, are known to be on one element."""
        return bool(self.of_subscription[subscription] == self.of_subscription[other] != UNKNOWN)


def elements_of(run: Run) -> Elements:
    """Return the elements of a run on topics."""
    h, t = run.history, run.topics
    servers = run.info.get("elements") or ()
    if len(servers) < 2:
        return Elements(1, np.zeros(len(t.subscriptions), np.int64), np.zeros(t.messages, np.int64))
    place = {node: number for number, nodes in enumerate(servers) for node in nodes}
    by_name = np.asarray([*(place.get(name, UNKNOWN) for name in h.node.names), UNKNOWN], dtype=np.int64)
    by_row = by_name[h.node.codes]
    subscriptions = np.full(len(t.subscriptions), UNKNOWN, dtype=np.int64)
    for s in t.subscriptions:
        known = by_row[(h.key == s.key) & t.on_subscriptions & (by_row != UNKNOWN)]
        if len(known):
            subscriptions[s.number] = known[0]
    answered = np.where(t.sent >= 0, h.partner[np.maximum(t.sent, 0)], -1)
    messages = np.where(answered >= 0, by_row[np.maximum(answered, 0)], UNKNOWN)
    messages[messages == UNKNOWN] = NOWHERE
    return Elements(len(servers), subscriptions, messages)
