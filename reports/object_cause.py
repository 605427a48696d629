"""The causes of anomalies that concern no message of a queue: an object that a design keeps, a prepared transaction, an
event for a subscriber; and the known facts about messages whose places were not recorded."""

from __future__ import annotations

import re
from collections.abc import Sequence

from reports.message_trace import QueueStay
from reports.narrative import ShownAnomaly, ShownOperation, fault_name
from reports.pack import shorten
from reports.run_facts import (
    CANT_TELL,
    CLOCKS_S,
    NEAR_S,
    NO_TRACE,
    Cause,
    Facts,
    end_of,
    ended_by,
    role_at,
    role_text,
    source_of,
    stretches_at,
    what_happened,
)
from stormproof.contracts.fault import ENDS_PROCESS, STOPS_TIME
from stormproof.contracts.system import ACKNOWLEDGED, CLOSED, REPLACED
from stormproof.text import listed
from stormproof.vocabulary import OBJECT

NOT_LINEARIZABLE, PREPARED = "not-linearizable", "prepared"
"""A kind of anomaly, for which a check names the wrong answer; the place of prepared transactions."""
QUEUE = "q"
"""Prefix of the names of queues, before their numbers."""
_MOMENT_S = 1e-4
_XID = re.compile(r"\bXID (\S+) ")
_ENDED = {"open": "when a client resumed its connection", "commit": "when a COMMIT arrived",
          "abort": "when an ABORT arrived", CLOSED: "when a connection was closed"}  # fmt: skip


def untraced(anomaly: ShownAnomaly, facts: Facts) -> Cause:
    """Return the first incident at the node that had confirmed a lost message: its state was replaced, a fault ended
    it, or an operator repaired it."""
    sends = [op for op in anomaly.operations if op.sends and op.type == "ok" and op.value == anomaly.value]
    if not sends or not sends[0].node or any(op.takes for op in anomaly.operations if op.value == anomaly.value):
        return Cause("", NO_TRACE)
    node, time = sends[0].node, end_of(sends[0])
    replaced = min((each.time for each in facts.transfers
                    if each.target.partition(".")[0] == node and each.time >= time), default=None)  # fmt: skip
    ended = min((fault.start / 1e9 for fault in facts.faults if ENDS_PROCESS in fault.effects and node in fault.targets
                 and fault.start / 1e9 >= time), default=None)  # fmt: skip
    repair = next((each for each in facts.repairs
                   if each.end / 1e9 >= time and re.search(rf"\b{re.escape(node)}\b", each.text)), None)  # fmt: skip
    only = facts.nodes == 1
    rest = "" if only else " Whether other nodes had it was not recorded."
    before = _stood_still(node, sends[0], facts)
    led = _led_elsewhere(node, anomaly.key, time, facts)
    by_hand = f" An operator's repair at {repair.start / 1e9:.3f} s: {shorten(repair.text)}." if repair else ""
    if replaced is not None and (ended is None or replaced < ended):
        source = source_of(node, replaced, facts)
        whose = f"{shorten(source)}’s state" if source else "another node’s state"
        others = [(lane.node, stretch) for lane, stretch in stretches_at(facts.roles, time)
                  if stretch.leads and lane.node.partition(".")[0] != node]  # fmt: skip
        names = listed([f"{name} ({role_text(each)})" for name, each in others])
        beside = f" while {names} also led" if others else ""
        text = f"{before}{node}{role_at(node, time, facts)} confirmed it{beside}.{led}"
        code = f"untraced:{'led-elsewhere+' if led else ''}replaced"
        return Cause(code, f"{text} Then {node} took {whose} at {replaced:.3f} s.{by_hand}{rest}", replaced)
    if ended is not None:
        fault = ended_by(node, ended, facts.faults)
        last = {name for each in facts.faults if fault_name(each) == fault for name in each.targets}
        every = not only and len(last) == facts.nodes
        text = f"{before}{node}{', the only node,' if only else ''} confirmed it. Before any client received it, "
        text += f"{fault} ended {f'all {facts.nodes} nodes' if every else node} at {ended:.3f} s."
        return Cause("untraced:all-ended" if every else "untraced:ended", f"{text}{led}{rest}", ended)
    if by_hand:
        code = f"untraced:{'led-elsewhere+' if led else ''}repaired"
        return Cause(code, f"{before}{node} confirmed it.{led}{by_hand}{rest}")
    return Cause("", NO_TRACE)


def _stood_still(node: str, send: ShownOperation, facts: Facts) -> str:
    """Return whether a node had been stopped and continued shortly before it confirmed an operation."""
    last = max((fault for fault in facts.faults if STOPS_TIME in fault.effects and node in fault.targets
                and fault.end is not None and send.start - NEAR_S <= fault.end / 1e9 <= end_of(send)),
               key=lambda fault: fault.end or 0, default=None)  # fmt: skip
    if last is None:
        return ""
    return f"{node} was suspended from {last.start / 1e9:.3f} to {(last.end or 0) / 1e9:.3f} s ({fault_name(last)}). "


def _led_elsewhere(node: str, key: int | None, time: float, facts: Facts) -> str:
    """Return which node the others considered the leader of a queue when ``node`` confirmed an operation, if it was
    another one."""
    lanes = [(lane.node.partition(", ")[2], stretch) for lane in facts.leaders for stretch in lane.stretches
             if lane.node.partition(", ")[0] == f"{QUEUE}{key}" and stretch.start <= time < stretch.end]  # fmt: skip
    others: dict[str, list[tuple[str, float]]] = {}
    for witness, stretch in lanes:
        if witness not in ("", node) and stretch.role != node:
            others.setdefault(stretch.role, []).append((witness, stretch.start))
    told = [f"{listed([witness for witness, _ in found])} considered {leader} the leader of {QUEUE}{key} since "
            f"{max(since for _, since in found):.3f} s" for leader, found in others.items()]  # fmt: skip
    own = next((stretch for lane in facts.leaders for stretch in lane.stretches
                if lane.node == f"{QUEUE}{key}, {node}" and stretch.end > time - NEAR_S and stretch.leads
                and stretch.start <= time + NEAR_S), None)  # fmt: skip
    if not told:
        return ""
    self_led = f"; {node} considered itself the leader" if own is not None else ""
    return f" When it was confirmed, {listed(told)}{self_led}."


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
