"""Why a subscriber never got some events: its replica ended, or its deliveries stopped for good."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from reports.inference.circumstances import cut_off_from, over, span, struck
from reports.inference.loss import NOT_TOLD, loss_causes
from reports.inference.sends import ConfirmedSends
from reports.narrative import ShownAnomaly, plain
from reports.run_facts import Cause, Facts
from reports.spans import parse_value
from stormproof.contracts.fault import CUTS_LINKS
from stormproof.history.columns import Bools
from stormproof.history.ledger import FaultWindow
from stormproof.text import listed

_LATE_S = 5.0
"""A system may give a subscriber up this long after a partition that made it unreachable."""


def of_subscription(members: Sequence[ShownAnomaly], facts: Facts) -> list[tuple[int, Cause]]:
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
        silent = _silenced(key, sends, wanted, facts) if wanted.any() else None
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


def _silenced(key: int, sends: ConfirmedSends, wanted: Bools, facts: Facts) -> Cause | None:
    """Return the cause if a subscription got every event up to some time and none from then on, and that time lies in
    the only partition between clients and nodes, or just after it."""
    got = ~sends.lost
    if not got.any():
        return None
    last = float(sends.end[got].max())
    later = int(np.count_nonzero(sends.end > last))
    cuts = [(fault, cut) for fault in facts.faults if fault.confirmed and CUTS_LINKS in fault.effects
            and (cut := _cut_clients(fault, facts))]  # fmt: skip
    if last >= float(sends.end[wanted].min()) or len(cuts) != 1:
        return None
    fault, cut = cuts[0]
    if not struck(fault) <= last <= over(fault) + _LATE_S or float(sends.end[-1]) <= over(fault) + _LATE_S:
        return None
    clients = listed([f"{host} from {listed(sorted(nodes))}" for host, nodes in sorted(cut.items())])
    retries = facts.options.get("retry_count")
    tried = f" (retry_count={plain(retries)})" if retries is not None else ""
    was = "was" if len(cut) == 1 else "were"
    text = (f"{clients} {was} cut off ({span(fault)}). The last event that subscription {key} got was confirmed at "
            f"{last:.3f} s. It got none of the {plain(later)} events that were confirmed later.")  # fmt: skip
    return Cause("silenced", text, inferred=(
        f"The system gave subscription {key} up after it could not reach its subscriber, and did not resume when the "
        f"partition ended{tried}."))  # fmt: skip


def _cut_clients(fault: FaultWindow, facts: Facts) -> dict[str, frozenset[str]]:
    hosts = [f"c{name[1:]}" for name in facts.names if name[1:].isdecimal()]
    return {host: cut for host in hosts if (cut := cut_off_from(host, fault, facts.names))}
