"""Why a subscriber never got some events: its replica ended, or its deliveries stopped for good."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from reports.inference.circumstances import cut_off_from, over, span, struck
from reports.inference.loss import NOT_TOLD, loss_causes
from reports.inference.sends import ConfirmedSends
from reports.narrative import ShownAnomaly, ShownOperation, plain
from reports.run_facts import Cause, Facts, end_of
from reports.spans import parse_value
from stormproof.contracts.fault import CUTS_LINKS
from stormproof.history.columns import Bools
from stormproof.history.ledger import FaultWindow
from stormproof.text import listed

RECEIVE, ATTACH = "receive", "attach"
_LATE_S = 30.0
"""A subscriber's deliveries stopped because of a partition only if the last one came at most this long before its end.
"""


def of_subscription(
    members: Sequence[ShownAnomaly], facts: Facts, operations: Callable[[], Sequence[ShownOperation]]
) -> list[tuple[int, Cause]]:
    """Return the causes of the events that subscriptions miss, by subscription."""
    assert facts.sends is not None
    by_subscription: dict[int, list[ShownAnomaly]] = {}
    for anomaly in members:
        named = dict(anomaly.detail).get("subscription", "")
        by_subscription.setdefault(int(named) if named.isdecimal() else -1, []).append(anomaly)
    found: list[tuple[int, Cause]] = []
    for key, mine in sorted(by_subscription.items()):
        names = {(0, message) for anomaly in mine if (message := parse_value(anomaly.value)) is not None}
        sends = facts.sends(key)
        lost = sends.lost
        wanted = lost & sends.named(names)
        first = float(sends.end[wanted].min()) if wanted.any() else np.inf
        silent = _silenced(key, first, len(mine), facts, operations()) if wanted.any() else None
        if silent is not None:
            found.append((len(mine), silent))
        elif wanted.any():
            never = partial(_never, f" Subscription {key} never got {'it' if len(mine) == 1 else 'them'}.")
            found += loss_causes(sends, wanted, lost, facts, never, own=True)
        else:
            found.append((len(mine), Cause("", NOT_TOLD)))
    return found


def _never(text: str, sends: ConfirmedSends, assigned: Bools) -> str:
    return text


def _silenced(
    key: int, first: float, count: int, facts: Facts, operations: Sequence[ShownOperation]
) -> Cause | None:
    """Return the cause if a subscription got nothing from some time on, before the ``first`` lost event, and that time
    lies in a partition between its client and nodes, or just before it."""
    gets = [op for op in operations if op.takes and op.key == key and op.end is not None]
    last = max((end_of(op) for op in gets), default=None)
    if last is None or last > first:
        return None
    others = [op for op in operations if op.takes and op.key != key and end_of(op) > first]
    cuts = [(fault, _cut_clients(fault, facts)) for fault in facts.faults
            if fault.confirmed and CUTS_LINKS in fault.effects and last < over(fault) < first + _LATE_S
            and struck(fault) - _LATE_S <= last]  # fmt: skip
    cuts = [(fault, cut) for fault, cut in cuts if cut]
    if len(cuts) != 1 or not others:
        return None
    fault, cut = cuts[0]
    clients = listed([f"{host} from {listed(sorted(nodes))}" for host, nodes in sorted(cut.items())])
    retries = facts.options.get("retry_count")
    tried = f" (retry_count={plain(retries)})" if retries is not None else ""
    was, missing = ("was" if len(cut) == 1 else "were"), ("The missing event" if count == 1 else
                                                          f"All {plain(count)} missing events")  # fmt: skip
    text = (f"Subscription {key} got its last event at {last:.3f} s. {clients} {was} cut off ({span(fault)}). "
            f"{missing} came after that, from {first:.3f} s on; other subscriptions received events until "
            f"{max(end_of(op) for op in others):.3f} s.")  # fmt: skip
    return Cause("silenced", text, inferred=(
        f"The system stopped delivering to subscription {key} while its subscriber could not be reached, and did not "
        f"resume when the partition ended{tried}."))  # fmt: skip


def _cut_clients(fault: FaultWindow, facts: Facts) -> dict[str, frozenset[str]]:
    hosts = [f"c{name[1:]}" for name in facts.names if name[1:].isdecimal()]
    return {host: cut for host in hosts if (cut := cut_off_from(host, fault, facts.names))}
