"""The causes of anomalies that concern no message of a queue: an object that a design keeps, a prepared transaction, an
event for a subscriber."""

from __future__ import annotations

import re
from collections.abc import Sequence

from reports.message_trace import QueueStay
from reports.narrative import ShownAnomaly, ShownOperation
from reports.pack import shorten
from reports.run_facts import (
    CANT_TELL,
    CLOCKS_S,
    Cause,
    Facts,
    end_of,
    role_at,
    source_of,
    stretches_at,
    what_happened,
)
from stormproof.contracts.system import ACKNOWLEDGED, CLOSED, REPLACED
from stormproof.text import listed
from stormproof.vocabulary import OBJECT

NOT_LINEARIZABLE, PREPARED = "not-linearizable", "prepared"
"""A kind of anomaly, for which a check names the wrong answer; the place of prepared transactions."""
_MOMENT_S = 1e-4
_XID = re.compile(r"\bXID (\S+) ")
_ENDED = {"open": "when a client resumed its connection", "commit": "when a COMMIT arrived",
          "abort": "when an ABORT arrived", CLOSED: "when a connection was closed"}  # fmt: skip


def of_object(anomaly: ShownAnomaly, facts: Facts) -> Cause:
    """Return the cause of an anomaly about an object that a design keeps, or about a transaction."""
    detail = dict(anomaly.detail)
    branch = _XID.search(detail.get("error", ""))
    if branch is not None:
        ends = [stay for stay in facts.trace.stays(branch[1]) if stay.place == PREPARED and stay.end is not None]
        if not ends:
            return Cause("", CANT_TELL)
        first = min(ends, key=lambda stay: stay.end or 0.0)
        how = _ENDED.get(first.gone, f"({shorten(first.gone)})")
        return Cause(f"prepared:{first.gone}", f"{first.node} ended the prepared transaction {how}.")
    name = detail.get(OBJECT, "").replace(" ", "-")
    stays = facts.trace.stays(name) if name else []
    if not stays:
        # For an object the check names the wrong answer, not the cause.
        reason = "" if anomaly.kind == NOT_LINEARIZABLE else detail.get("reason") or detail.get("state") or ""
        return Cause("breach", f"{reason}.") if reason else Cause("", CANT_TELL)
    against = _against_majority(stays, facts)
    if against:
        return Cause("against-majority", against)
    for op in sorted(anomaly.operations, key=end_of):
        told = _disagreement(stays, op, facts)
        if told:
            return Cause("disagreed", told)
    return Cause("", CANT_TELL)


def _against_majority(stays: Sequence[QueueStay], facts: Facts) -> str:
    """Return the first time that a node's state was replaced by one that lacked an object which most nodes had, or that
    had one which most nodes had removed."""
    quorum = len(facts.trace.nodes) // 2 + 1
    changes = [(stay.end, stay, False) for stay in stays if stay.gone == REPLACED and stay.end is not None]
    changes += [(stay.start, stay, True) for stay in stays if stay.put == REPLACED]
    for time, stay, came in sorted(changes, key=lambda each: each[0]):
        having = sorted({each.node for each in stays if each.holds(time - _MOMENT_S)})
        lacking = sorted(facts.trace.nodes - set(having))
        if not came and len(having) >= quorum:
            what, _ = what_happened(stay, facts)
            return f"{listed(having)}, a majority of the nodes, had it when {stay.node} {what} at {time:.3f} s."
        removed = {each.node for each in stays if each.end is not None and each.end < time}
        if came and len(lacking) >= quorum and removed.issuperset(lacking):
            source = source_of(stay.node, time, facts)
            return (f"{listed(lacking)}, a majority of the nodes, had removed it when {stay.node} had it again with "
                    f"{f'{shorten(source)}’s state' if source else 'another state'} at {time:.3f} s.")
    return ""


def _disagreement(stays: Sequence[QueueStay], op: ShownOperation, facts: Facts) -> str:
    """Return which serving nodes had an object and which had not, if they differed for the whole duration of an
    operation."""
    start, end = op.start - CLOCKS_S, end_of(op) + CLOCKS_S
    serving = {lane.node for lane, stretch in stretches_at(facts.roles, end_of(op)) if stretch.serving}
    having = sorted({stay.node for stay in stays if stay.start <= start and (stay.end is None or stay.end >= end)}
                    & serving)  # fmt: skip
    lacking = sorted(node for node in facts.trace.nodes & serving if not any(
        stay.node == node and stay.start <= end and (stay.end is None or stay.end >= start) for stay in stays))
    if not having or not lacking:
        return ""
    roles = [listed([f"{node}{role_at(node, end_of(op), facts)}" for node in nodes]) for nodes in (having, lacking)]
    return f"While {op.f} was answered through {op.node or 'a node'}, {roles[0]} had it, but {roles[1]} did not."


def of_event(stays: Sequence[QueueStay], facts: Facts) -> Cause:
    """Return the cause for an event, which waits at one replica for each subscriber, in memory."""
    late = [stay for stay in stays if stay.put == "retry" and not stay.put_token.startswith("behind 0 ")]
    if late:
        return Cause("retried-late", f"{late[0].node} could not deliver it at first, and retried it only after later "
                                     "events.")  # fmt: skip
    ended = [stay for stay in stays if stay.end is not None and stay.gone not in (ACKNOWLEDGED, "undelivered")]
    if not ended:
        return Cause("", CANT_TELL)
    last = max(ended, key=lambda stay: stay.end or 0.0)
    return Cause(last.gone.partition(":")[0], f"It waited at {last.node} for the subscriber, and {last.node} "
                                              f"{what_happened(last, facts)[0]}.", last.end)  # fmt: skip
