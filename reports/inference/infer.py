"""The causes of a group of anomalies in a run without a trace: chooses the module for their kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from reports.inference.copies import DIVERGENCE, MISSING, copy_causes
from reports.inference.doubles import DOUBLES, double_causes
from reports.inference.loss import loss_causes, no_more
from reports.inference.offsets import OFFSETS, offset_causes, rewritten
from reports.inference.subscriptions import of_subscription
from reports.inference.watching import WATCH_ORDER, watch_causes
from reports.narrative import ShownAnomaly, ShownOperation
from reports.run_facts import Cause, Facts
from reports.spans import parse_value

LOST, ENTRY_LOST, EVENT_LOST, TOPIC_LOST = "lost", "confirmed-lost", "event-lost", "topic-lost"
"""Kinds of anomalies about missing messages or entries."""
LOSS_SHAPES = ("lost-prefix", "lost-middle", "lost-postfix", "lost-whole")
"""Kinds that only describe a loss which another check counts."""


def inferred(
    kind: str, members: Sequence[ShownAnomaly], count: int, facts: Facts,
    operations: Callable[[], Sequence[ShownOperation]],
) -> list[tuple[int, Cause]] | None:  # fmt: skip
    """Return the causes of a check's anomalies of one kind, each with their number; None for a kind that no module
    explains. ``count`` is the number of all anomalies of the check; ``members`` are those that the verdict names.
    """
    if facts.sends is None or facts.trace.exists:
        return None
    if kind in LOSS_SHAPES:
        return []  # the check of losses tells why
    if kind in (LOST, ENTRY_LOST):
        sends = facts.sends(None)
        lost = sends.lost
        names = {(anomaly.key or 0, message) for anomaly in members if (message := _message(anomaly)) is not None}
        whole = int(np.count_nonzero(lost)) == count  # else the check leaves some undecided
        wanted = lost if whole else lost & sends.named(names)
        if not wanted.any():
            return None
        return loss_causes(sends, wanted, lost, facts, rewritten if kind == ENTRY_LOST else no_more)
    if kind in (EVENT_LOST, TOPIC_LOST):
        return of_subscription(members, facts)
    if kind in DOUBLES:
        return double_causes(members, facts)
    if kind in OFFSETS:
        return offset_causes(members, facts)
    if (members[0].check, kind) == (DIVERGENCE, MISSING):
        return copy_causes(members, facts, operations())
    if members[0].check == WATCH_ORDER:
        return watch_causes(members, facts, operations())
    return None


def _message(anomaly: ShownAnomaly) -> int | None:
    value = anomaly.value or dict(anomaly.detail).get("value", "")
    return parse_value(value)
