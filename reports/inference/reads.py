"""Why a read of a register returned a replaced value: the node that answered was behind, or the newer value was lost.

A read is stale if another write had been confirmed before it began, and the write of the value that it returned had
been confirmed before that other write began.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from reports.inference.circumstances import complete, cuts_of, led_among, over, span, stops_of, struck
from reports.inference.loss import NOT_TOLD, loss_causes
from reports.inference.sends import ConfirmedSends
from reports.narrative import ShownAnomaly, ShownOperation, plain
from reports.run_facts import Cause, Facts, end_of
from reports.value_cause import WRITES, written
from stormproof.text import elapsed, listed

_JUST_S = 1.5
"""A fault that ended at most this long before a read counts as its circumstance: the node may still be behind."""


class StaleRead(NamedTuple):
    """A read of a replaced value, and the last write that had been confirmed before it began."""

    read: ShownOperation
    newer: ShownOperation

    @property
    def seconds(self) -> float:
        """The time from the confirmation of the newer value to the read."""
        return self.read.start - end_of(self.newer)


def of_reads(anomaly: ShownAnomaly, facts: Facts, operations: Callable[[], Sequence[ShownOperation]]) -> Cause:
    """Return the cause of a register's stale reads."""
    mine = [op for op in operations() if op.key == anomaly.key]
    writes = sorted((op for op in mine if op.f in WRITES and op.type == "ok"), key=end_of)
    reads = [op for op in mine if op.f == "read" and op.type == "ok"]
    stale = [found for read in reads if (found := _stale(read, writes))]
    if not stale:
        return Cause("", NOT_TOLD)
    missing = [each for each in stale if not any(written(each.newer) == read.value for read in reads)]
    if len(missing) == len(stale):
        return _lost(stale, writes, reads, facts)
    seen = [each for each in stale if each not in missing]
    by_node: dict[str, list[StaleRead]] = {}
    for each in seen:
        by_node.setdefault(each.read.node, []).append(each)
    node, most = max(by_node.items(), key=lambda found: len(found[1]))
    worst = max(most, key=lambda each: each.seconds)
    text = (f"Process {worst.read.process} read {worst.read.value} through {node} at {worst.read.start:.3f} s, "
            f"{elapsed(worst.seconds)} after {worst.newer.node or 'the system'} had confirmed {written(worst.newer)}. "
            f"Stale reads of it: {plain(len(most))} through {node}, {plain(len(stale))} in all.")  # fmt: skip
    return _circumstances(node, worst, text, facts)


def _stale(read: ShownOperation, writes: Sequence[ShownOperation]) -> StaleRead | None:
    before = [op for op in writes if end_of(op) < read.start]
    last = max(before, key=end_of, default=None)
    if last is None or written(last) == read.value:
        return None
    own = [op for op in writes if written(op) == read.value]
    if len(own) != 1 or end_of(own[0]) >= last.start:
        return None  # nothing tells which of the two writes came first
    return StaleRead(read, last)


def _circumstances(node: str, worst: StaleRead, text: str, facts: Facts) -> Cause:
    time, late = worst.read.start, elapsed(worst.seconds)
    leader = led_among(frozenset(facts.names) - {node}, worst.read.key, time - 1, time, facts)
    cuts = [(fault, others) for fault, others in cuts_of(node, facts) if struck(fault) <= time <= over(fault) + _JUST_S]
    for fault, others in cuts:
        # From a majority with the nodes that had the newer value, a node is not cut off.
        few = len(facts.names) - len(others) <= len(facts.names) // 2
        from_it = others & {worst.newer.node, leader.node if leader is not None else None}
        if complete(fault) <= time and (few or from_it):
            when = "while" if time <= over(fault) else "shortly after"
            return Cause("stale-cut-off", f"{text} {node} was cut off from {listed(sorted(others))} ({span(fault)}).",
                         inferred=f"{node} answered from its own state, which was {late} behind, {when} it was cut off "
                                  f"from {listed(sorted(others))}.")  # fmt: skip
    for fault in stops_of(node, facts):
        if struck(fault) <= time <= over(fault) + _JUST_S:
            return Cause("stale-suspended", f"{text} {node} was suspended ({span(fault)}).", inferred=(
                f"{node} answered from its own state, which was {late} behind after its suspension."))
    if leader is not None:
        return Cause("stale-follower", f"{text} {leader.node} led since {leader.since:.3f} s, {leader.by}.", inferred=(
            f"{node}, which did not lead, answered from a state that was {late} behind."))
    if cuts:
        (fault, others), *_ = cuts
        return Cause("stale", f"{text} A cut of {node} from {listed(sorted(others))} was under way or in force "
                     f"({span(fault)}).")  # fmt: skip
    return Cause("stale", f"{text} No fault of {node} was in force.")


def _lost(
    stale: Sequence[StaleRead], writes: Sequence[ShownOperation], reads: Sequence[ShownOperation], facts: Facts
) -> Cause:
    """Return why confirmed values that no read ever returned are missing."""
    first = {op.value: end_of(op) for op in sorted(reads, key=end_of, reverse=True)}
    gone = {each.newer.span for each in stale}
    known = [op for op in writes if op.span in gone or written(op) in first]
    nodes = np.array([op.node for op in known], dtype=object)
    sends = ConfirmedSends(
        np.array([op.start for op in known]), np.array([end_of(op) for op in known]),
        np.array([first.get(written(op), np.inf) for op in known]), np.array([op.key for op in known]),
        np.arange(len(known)), np.full(len(known), -1), nodes, nodes)  # fmt: skip
    lost = np.array([op.span in gone for op in known])
    causes = loss_causes(sends, lost, lost, facts, lambda _, __: " After that, reads returned an older value.")
    return causes[0][1] if len(causes) == 1 else Cause("", NOT_TOLD)
