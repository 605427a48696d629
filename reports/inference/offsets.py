"""Why an offset of a log had two values, or offsets went back: entries were lost, and their offsets were given to
others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reports.inference.loss import NOT_TOLD, loss_causes
from reports.inference.sends import ConfirmedSends
from reports.narrative import ShownAnomaly, plain
from reports.run_facts import Cause, Facts
from reports.spans import parse_value
from stormproof.history.columns import Bools
from stormproof.history.schema import decode_pair
from stormproof.text import listed

OFFSETS = ("two-values", "append-went-back")
"""Kinds of anomalies that this module explains."""


def offset_causes(members: Sequence[ShownAnomaly], facts: Facts) -> list[tuple[int, Cause]]:
    """Return the causes: those for which one of an anomaly's two entries was lost."""
    assert facts.sends is not None
    sends = facts.sends(None)
    wanted = np.zeros(len(sends), dtype=np.bool_)
    unknown = 0
    for anomaly in members:
        pairs = [decode_pair(encoded) for op in anomaly.operations if op.proof and op.key == anomaly.key
                 and (encoded := parse_value(op.value)) is not None]  # fmt: skip
        mine = sends.named({(anomaly.key or 0, value) for _, value in pairs}) & sends.lost
        wanted |= mine
        unknown += not mine.any()
    found = loss_causes(sends, wanted, sends.lost, facts, rewritten) if wanted.any() else []
    return [*found, *([(unknown, Cause("", NOT_TOLD))] if unknown else [])]


def rewritten(sends: ConfirmedSends, lost: Bools) -> str:
    """Return a sentence on the offsets of lost entries that later got another confirmed value, and on its nodes."""
    places = {(int(sends.key[at]), int(sends.offset[at])): float(sends.end[at]) for at in np.flatnonzero(lost)}
    after: dict[str, set[tuple[int, int]]] = {}
    for at in range(len(sends)):
        place = int(sends.key[at]), int(sends.offset[at])
        if place in places and sends.end[at] > places[place]:
            after.setdefault(str(sends.via[at]), set()).add(place)
    if not after:
        return ""
    taken = set().union(*after.values())
    first, last = min(offset for _, offset in taken), max(offset for _, offset in taken)
    where = f"offset {first}" if first == last else f"offsets from {first} to {last}"
    by = listed([node for node in sorted(after) if node]) or "a node"
    how_many = "each" if len(taken) == len(places) else f"{plain(len(taken))} of {plain(len(places))}"
    return f" At {how_many} of their offsets ({where}), {by} later confirmed another value."
