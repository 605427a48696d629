"""Why a watch went back or left events out: the node that it watched was behind, or had just started again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reports.inference.circumstances import cuts_of, ends_of, over, span, struck
from reports.inference.loss import NOT_TOLD
from reports.narrative import ShownAnomaly, ShownOperation, fault_name, plain
from reports.run_facts import Cause, Facts, end_of
from reports.spans import parse_value
from stormproof.history.ledger import FaultWindow
from stormproof.history.schema import decode_pair
from stormproof.text import listed

WATCH_ORDER = "watch-order"
"""The check whose anomalies this module explains."""
WENT_BACK = "went-back"
EVENT, REWATCH = "event", "rewatch"
_BEHIND_S = 30.0
"""A node may be behind for this long after a fault."""


class WatchStep(NamedTuple):
    """Two steps of a watch: the furthest that it had reached, and the wrong event, at a node with a fault; ``others``
    are those that the fault cut the node off from, if it is a partition."""

    before: ShownOperation
    wrong: ShownOperation
    fault: FaultWindow
    others: frozenset[str]


def watch_causes(
    members: Sequence[ShownAnomaly], facts: Facts, operations: Sequence[ShownOperation]
) -> list[tuple[int, Cause]]:
    """Return the causes of the watches' anomalies of one kind, each with their number, by node and fault."""
    groups: dict[tuple[str, int], list[WatchStep]] = {}
    unknown = 0
    for anomaly in members:
        steps = sorted((op for op in anomaly.operations if op.proof), key=end_of)
        found = _behind(steps[-1], facts, operations) if steps else None
        if found is None:
            unknown += 1
        else:
            groups.setdefault((found.wrong.node, found.fault.id), []).append(found)
    causes = [(len(mine), _told(members[0].kind, mine)) for mine in groups.values()]
    return [*sorted(causes, key=lambda each: -each[0]), *([(unknown, Cause("", NOT_TOLD))] if unknown else [])]


def _behind(wrong: ShownOperation, facts: Facts, operations: Sequence[ShownOperation]) -> WatchStep | None:
    time, node = end_of(wrong), wrong.node
    earlier = [op for op in operations if op.process == wrong.process and op.key == wrong.key and op.type == "ok"
               and op.f in (EVENT, REWATCH) and end_of(op) <= wrong.start]  # fmt: skip
    before = max(earlier, key=_revision, default=None)
    cuts = [(fault, others) for fault, others in cuts_of(node, facts)
            if struck(fault) <= time <= over(fault) + _BEHIND_S]  # fmt: skip
    ends = [(fault, frozenset[str]()) for fault in ends_of(node, facts)
            if struck(fault) <= time <= over(fault) + _BEHIND_S]  # fmt: skip
    found = [*cuts, *ends]
    if not node or before is None or len(found) != 1:
        return None  # nothing, or several things, may have set the node back
    return WatchStep(before, wrong, *found[0])


def _told(kind: str, mine: Sequence[WatchStep]) -> Cause:
    first = min(mine, key=lambda each: end_of(each.wrong))
    node, fault, others = first.wrong.node, first.fault, first.others
    where = (f"{node} was cut off from {listed(sorted(others))} ({span(fault)})" if others else
             f"{fault_name(fault)} ended {node} ({span(fault)})")  # fmt: skip
    reached, again = _revision(first.before), _revision(first.wrong)
    resumed = "had resumed its watch after" if first.before.f == REWATCH else "had reached"
    text = (f"{where}. Process {first.wrong.process} {resumed} revision {reached} at {end_of(first.before):.3f} s, "
            f"through {first.before.node}; {node} then reported revision {again} to it at "
            f"{end_of(first.wrong):.3f} s.")  # fmt: skip
    if len(mine) > 1:
        last = max(end_of(each.wrong) for each in mine)
        text += f" {plain(len(mine))} such events came through {node}, until {last:.3f} s."
    what = "reported revisions that the watch had already passed" if kind == WENT_BACK else "left revisions out"
    how = "it had been cut off from the others" if others else "it had been ended and started again"
    return Cause(f"watch-{'cut-off' if others else 'restarted'}", text, inferred=(
        f"{node} was behind because {how}, and {what} when it caught up."))  # fmt: skip


def _revision(op: ShownOperation) -> int:
    encoded = parse_value(op.value) or 0
    return decode_pair(encoded)[0] if "/" in op.value else encoded
