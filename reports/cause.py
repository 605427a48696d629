"""The cause of a message's loss, repeated delivery or stay, as far as the nodes recorded it.

Every sentence states facts that log lines record of this very message; where they record none, no cause is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from reports.divergence import NodeFinding, findings, left_out, wrong_grants
from reports.message_trace import QueueStay, Trace
from reports.narrative import ShownAnomaly, ShownOperation
from reports.object_cause import of_event, of_object
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
    group_at,
    nodes_of,
    role_at,
    role_text,
    source_of,
    stretches_at,
    what_happened,
)
from stormproof.contracts.system import (
    ACKNOWLEDGED,
    CLOSED,
    COPIED,
    REPLACED,
    RETURNED,
    SENT,
    STARTED,
    TRUNCATED,
)
from stormproof.text import listed

UNTOLD = "redelivered-untold"
"""A kind of anomaly: a delivery that did not report an earlier delivery."""
EVENTS = "events:"
"""Prefix of the names of places where a replica keeps events for a subscriber."""
_PUT_AGAIN = {CLOSED: "when a client's connection was closed", RETURNED: "when a client returned it"}


def cause_of(anomaly: ShownAnomaly, facts: Facts) -> Cause:
    """Return the cause, as far as the trace shows it."""
    trace = facts.trace
    if not anomaly.value:
        return of_object(anomaly, facts)
    if not trace.exists:
        return Cause("", NO_TRACE)
    subscription = dict(anomaly.detail).get("subscription", "")
    stays = _of_subscription(trace.stays(anomaly.value), subscription)
    if len({stay.place for stay in stays if not stay.logged}) > 1:
        return Cause("", CANT_TELL)  # several copies, each with a separate fate
    if stays and all(stay.place.startswith(EVENTS) for stay in stays):
        return of_event(stays, facts)
    takes = [op for op in anomaly.operations
             if op.takes and op.value == anomaly.value and (op.proof or not subscription)]  # fmt: skip
    if anomaly.kind.startswith("lost") and (not takes or anomaly.kind == "lost-to-subscription"):
        return _lost(anomaly, stays, facts)
    if anomaly.kind == UNTOLD and (told := _given_again(anomaly, facts)):
        return Cause("uncounted", told)
    if len(takes) > 1:
        return _again(anomaly.value, sorted(takes, key=end_of), stays, facts)
    return Cause("", CANT_TELL)


def _given_again(anomaly: ShownAnomaly, facts: Facts) -> str:
    """Return a sentence with the times at which the serving node gave a message to clients, the last time without
    reporting the earlier ones."""
    servers = {op.node for op in anomaly.operations if op.takes}
    given = sorted({mark.time for mark in facts.trace.given(anomaly.value) if mark.node in servers})
    if len(given) < 2:
        return ""
    times = listed([f"{time:.3f} s" for time in given])
    return f"{listed(sorted(servers))} delivered it to clients at {times}, but did not count the earlier deliveries."


def left_over(place: str, facts: Facts, operations: Iterable[ShownOperation]) -> Iterator[tuple[str, Cause]]:
    """Yield the messages that are still at a place when the run ends, each with the cause."""
    taken: dict[str, list[ShownOperation]] = {}
    for op in operations:
        if op.takes:
            taken.setdefault(op.value, []).append(op)
    for name in facts.trace.marks:
        stays = facts.trace.stays(name)
        held = [stay for stay in stays if stay.end is None and stay.place == place and not stay.logged]
        if held:
            takes = sorted(taken.get(name, ()), key=end_of)
            yield name, _still_there(name, takes, stays, facts) if takes else _never_taken(name, held, facts)


def _never_taken(name: str, held: Sequence[QueueStay], facts: Facts) -> Cause:
    text = f"{listed(nodes_of(held))} still had it at the end; no client had received it."
    given = facts.trace.given(name)
    if not given:
        return Cause("never-given", f"{text} No node delivered it to a consumer.")
    last = max(given, key=lambda mark: mark.time)
    since = [stay for stay in held if stay.start > last.time]
    if since:
        return Cause("given-back", text)
    return Cause("held-by-connection", f"{text} It had been sent on a client's connection. The client neither "
                                       "acknowledged nor returned it, and the connection stayed open.")  # fmt: skip


def _of_subscription(stays: list[QueueStay], name: str) -> list[QueueStay]:
    """Of a message that each subscription has a copy of, return the stays of the subscription in question, if they are
    marked; else all."""
    mine = [stay for stay in stays if name and stay.place.endswith((f":{name}", f":s{name}"))]
    return [*mine, *(stay for stay in stays if stay.logged)] if mine else stays


def _lost(anomaly: ShownAnomaly, stays: Sequence[QueueStay], facts: Facts) -> Cause:
    trace = facts.trace
    sends = [op for op in anomaly.operations if op.sends and op.type == "ok" and op.value == anomaly.value]
    by = sends[0].node if sends else ""
    if not stays:
        if not trace.whole or not trace.names_like(anomaly.value) or anomaly.kind == "lost-to-subscription":
            return Cause("", CANT_TELL)
        return Cause("never-stored", f"{by or 'A node'} confirmed it, but no node ever stored it.")
    queued = [stay for stay in stays if not stay.logged]
    if not queued:
        return _in_logs_only(by, stays, facts)
    held = [stay for stay in queued if stay.end is None]
    ends = [stay for stay in queued if stay.end is not None and stay.gone != COPIED] or [
        stay for stay in queued if stay.end is not None]  # fmt: skip
    death = None if held else max(stay.end for stay in queued if stay.end is not None)
    parts = list(_confirmed(sends[0], stays, facts) if sends else ())
    logged = nodes_of(stay for stay in stays if stay.logged)
    never = list(_never(queued, sends[0] if sends else None, logged, facts))
    parts.append(_who_had(queued, never, trace))
    leader, led = _led_without(sends[0], stays, facts, death) if sends else ("", "")
    found = [*_why_lacking(anomaly.value, sends, stays, ends, leader, death, facts), *left_out(stays, facts)]
    parts += [each.sentence for each in found]
    parts += [led, _told(ends, facts) if ends else ""]
    parts.append(_held_to_the_end(anomaly.value, held, facts) if held else "After that, no node had it.")
    return _coded(found, f"held:{_codes(ends)}" if held else _codes(ends), parts, death)


def _coded(found: Sequence[NodeFinding], code: str, parts: Sequence[str], death: float | None = None) -> Cause:
    """Return a cause; the code of the first finding about nodes is the prefix of its code."""
    text = " ".join(part for part in parts if part)
    first = next((each.code for each in found if each.code), "")
    return Cause(f"{first}:{code}" if first else code, text, death)


def _why_lacking(
    message: str, sends: Sequence[ShownOperation], stays: Sequence[QueueStay], ends: Sequence[QueueStay], leader: str,
    death: float | None, facts: Facts,
) -> Iterator[NodeFinding]:
    """Yield the faults of the nodes that continued without a message: the first ``leader`` that did not have it, and
    the nodes whose states others took."""
    until = float("inf") if death is None else death
    sources = {source_of(stay.node, stay.end or 0.0, facts) for stay in ends if stay.gone == REPLACED}

    def unaware(node: str, time: float) -> bool:
        return not any(stay.node == node and stay.start < time for stay in stays)

    if sends:
        yield from wrong_grants(sends[0].node, end_of(sends[0]), unaware, until, facts)
    yield from findings(message, stays, {leader, *sources} & facts.trace.nodes, until, facts)


def _never(
    stays: Sequence[QueueStay], send: ShownOperation | None, logged: Sequence[str], facts: Facts
) -> Iterator[str]:
    """Yield, for each node that never had a message, a clause that says so. It names the node's roles when another node
    first had the message and when it was confirmed, unless another sentence tells that."""
    for node in sorted(facts.trace.nodes - {stay.node for stay in stays}):
        what = "had it in its log, but never applied it" if node in logged else "never had it"
        if send is None or any(stretch.leads and lane.node == node
                               for lane, stretch in stretches_at(facts.roles, end_of(send))):  # fmt: skip
            yield f"{node} {what}"
            continue
        first = min(stay.start for stay in stays)
        roles = [stretch.role for time in (first, end_of(send)) for lane, stretch in stretches_at(facts.roles, time)
                 if lane.node == node]  # fmt: skip
        if len(set(roles)) == 2:
            yield f"{node} ({roles[0]} when another node got it, {roles[1]} when it was confirmed) {what}"
        else:
            yield f"{node}{role_at(node, end_of(send), facts)} {what}"


def _confirmed(send: ShownOperation, stays: Sequence[QueueStay], facts: Facts) -> Iterator[str]:
    """Yield whether other nodes led when a message was confirmed, and whether no other node had it."""
    time, by = end_of(send), send.node
    others = [(lane.node, stretch) for lane, stretch in stretches_at(facts.roles, time)
              if stretch.leads and lane.node.partition(".")[0] != by]  # fmt: skip
    if others and by:
        names = listed([f"{node} ({role_text(stretch)})" for node, stretch in others])
        yield f"{by}{role_at(by, time, facts)} confirmed it while {names} also led."
    having = {stay.node for stay in stays if stay.start <= time + CLOCKS_S}
    beside = [(lane.node, stretch) for lane, stretch in stretches_at(facts.roles, time)
              if stretch.serving and lane.node != by and lane.node in facts.trace.nodes and not stretch.leads
              and stretch.group == group_at(by, time, facts)]  # fmt: skip
    if by and not having - {by} and beside and not others:
        names = listed([f"{node} ({role_text(stretch)})" for node, stretch in beside])
        yield f"When {by}{role_at(by, time, facts)} confirmed it, no other node had it, not even {names}."


def _led_without(
    send: ShownOperation, stays: Sequence[QueueStay], facts: Facts, death: float | None
) -> tuple[str, str]:
    """Return the first node that began to lead after a message was confirmed, and did not have it; and a sentence."""
    time = end_of(send)
    began = sorted((stretch.start, lane.node) for lane in facts.roles
                   for before, stretch in zip((None, *lane.stretches), lane.stretches, strict=False)
                   if stretch.leads and not (before is not None and before.leads)
                   and stretch.start > time and (death is None or stretch.start <= death))  # fmt: skip
    for start, name in began:
        node = name.partition(".")[0]
        if node in facts.trace.nodes and not any(
                stay.node == node and (stay.holds(start) or stay.holds(start + NEAR_S)) for stay in stays):
            still = any(stretch.leads and lane.node == send.node for lane, stretch in stretches_at(facts.roles, start))
            beside = f", while {send.node}{role_at(send.node, start, facts)} still led" if still else ""
            return node, f"{node}{role_at(node, start, facts)} led from {start:.3f} s on, but did not have it{beside}."
    return "", ""


def _in_logs_only(by: str, stays: Sequence[QueueStay], facts: Facts) -> Cause:
    nodes = nodes_of(stays)
    cut = [stay for stay in stays if stay.gone == TRUNCATED]
    replaced = [stay for stay in stays if stay.gone == REPLACED]
    text = f"{by or 'A node'} confirmed it; it was in the log of {listed(nodes)}, but no node ever applied it."
    if cut:
        text += f" {listed(nodes_of(cut))} removed it from the log, which contradicted another node's log."
    if replaced:
        text += f" {_told(replaced, facts)}"
    return Cause("never-applied", text, max((stay.end for stay in cut if stay.end is not None), default=None))


def _who_had(stays: Sequence[QueueStay], never: Sequence[str], trace: Trace) -> str:
    """Return which nodes had a message at any time; ``never`` are clauses on the others."""
    nodes = nodes_of(stays)
    if len(trace.nodes) == 1:
        return f"{nodes[0]}, the only node, had it."
    if not never:
        return "All nodes had it."
    if len(nodes) == 1 and all(clause.endswith("never had it") and "when" not in clause for clause in never):
        return f"Only {nodes[0]} had it."
    return f"{listed(nodes)} had it; {'; '.join(never)}."


def _told(ends: Sequence[QueueStay], facts: Facts) -> str:
    """Return how stays ended, in the order of time; nodes with the same kind of end are grouped."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for stay in sorted(ends, key=lambda each: (each.end or 0.0, each.node)):
        what, when = what_happened(stay, facts)
        entry = (stay.node, when)
        if entry not in groups.setdefault(what, []):
            groups[what].append(entry)
    parts = []
    for what, nodes in groups.items():
        names = listed([f"{node} ({when})" if when else node for node, when in nodes])
        parts.append(f"{names} {what}")
    return f"{'; '.join(parts)}."


def _held_to_the_end(message: str, held: Sequence[QueueStay], facts: Facts) -> str:
    """Return which nodes still had a message, and the client to which it had been given."""
    given = facts.trace.given(message)
    last = max(given, key=lambda mark: mark.time, default=None)
    open_since = min(stay.start for stay in held)
    text = _still_had(held, facts)
    if last is None:
        return f"{text} No node delivered it to a client." if facts.trace.whole else text
    if last.time < open_since:
        return text
    return (f"{text} {last.node} had sent it on a client’s connection at {last.time:.3f} s; the client did not "
            "acknowledge it.")  # fmt: skip


def _still_had(held: Sequence[QueueStay], facts: Facts) -> str:
    nodes = nodes_of(held)
    leaders = [lane.node for lane in facts.roles if lane.stretches and lane.stretches[-1].leads]
    beside = [leader for leader in leaders if leader.partition(".")[0] not in nodes]
    if leaders and len(beside) == len(leaders):
        return f"{listed(nodes)} still had it at the end; {listed(beside)}, which led then, did not."
    return f"{listed(nodes)} still had it at the end."


def _codes(ends: Sequence[QueueStay]) -> str:
    return "+".join(sorted({stay.gone for stay in ends}))


def _again(message: str, takes: Sequence[ShownOperation], stays: Sequence[QueueStay], facts: Facts) -> Cause:
    """Return the cause of another delivery of a message that a client had taken."""
    queued = [stay for stay in stays if not stay.logged]
    if not queued:
        return Cause("", CANT_TELL)
    by_node: dict[str, list[QueueStay]] = {}
    for stay in queued:
        by_node.setdefault(stay.node, []).append(stay)
    for node, mine in by_node.items():
        twice = [stay for stay in mine if stay.put == SENT]
        if len(twice) > 1:
            return _put_twice(node, twice)
        again = next((stay for stay in mine if stay.put in _PUT_AGAIN), None)
        if again is not None:
            return Cause("put-again", f"{node} put it into the queue again {_PUT_AGAIN[again.put]}.")
    return _still_there(message, takes, stays, facts)


def _put_twice(node: str, puts: Sequence[QueueStay]) -> Cause:
    tokens = [stay.put_token for stay in puts]
    if len(set(tokens)) < len(tokens):
        return Cause("applied-twice", f"{node} applied the same command twice and put it into the queue each time.")
    connections = {token.partition(" ")[0] for token in tokens}
    how = "on the same connection" if len(connections) == 1 else f"on {len(connections)} connections"
    return Cause("sent-twice", f"{node} put it into the queue {len(puts)} times, for {len(puts)} commands that the "
                               f"client sent {how}.")  # fmt: skip


def _still_there(message: str, takes: Sequence[ShownOperation], every: Sequence[QueueStay], facts: Facts) -> Cause:
    """Return which node still had a message after the first client took it, and since when."""
    stays = [stay for stay in every if not stay.logged]
    first, until = end_of(takes[0]), end_of(takes[1]) if len(takes) > 1 else float("inf")
    server = takes[0].node
    acks = [stay for stay in stays if stay.gone == ACKNOWLEDGED and stay.end is not None]
    early = min(acks, key=lambda stay: stay.end or 0.0, default=None)
    back = next((stay for stay in sorted(stays, key=lambda each: each.start) if stay.start > first
                 and stay.put in (STARTED, REPLACED)), None)  # fmt: skip
    if early is None or (early.end or 0.0) > until:
        return Cause("never-removed", f"{server or 'A node'} confirmed the first ACK, but no node removed it then.")
    again = takes[1].node if len(takes) > 1 else ""
    keeper = next((stay for stay in stays if stay.node != early.node and stay.holds(early.end or 0.0)
                   and (not again or stay.node == again)
                   and (stay.end is None or stay.gone_token != early.gone_token)), None)  # fmt: skip
    source = source_of(back.node, back.start, facts) if back is not None else ""
    removed = sorted({stay.node for stay in acks if stay.gone_token == early.gone_token})
    at = early.end or 0.0

    def unaware(node: str, time: float) -> bool:
        return any(stay.node == node and stay.holds(time) for stay in stays)

    kept = {keeper.node if keeper is not None else source, source} & facts.trace.nodes
    found = [*wrong_grants(server, first, unaware, until, facts), *findings(message, every, kept, until, facts)]
    text = f"{listed([f'{node}{role_at(node, at, facts)}' for node in removed])} removed it at the first ACK"
    rest = [each.sentence for each in found]
    if keeper is not None:
        text += f"; {keeper.node}{role_at(keeper.node, at, facts)} did not, and still had it"
        if back is not None and back.put == REPLACED and source == keeper.node:
            others = sorted({stay.node for stay in stays if stay.put == REPLACED and stay.start > first})
            text += f"; {listed(others)} had it again with that node’s state"
        return _coded(found, "kept-elsewhere", [f"{text}.", *rest])
    if back is not None and back.put == REPLACED:
        whose = f"{shorten(source)}’s state" if source else "the state that replaced its own"
        text += f"; {back.node} had it again with {whose} at {back.start:.3f} s."
        return _coded(found, "came-back", [text, *rest])
    if back is not None:
        fault = ended_by(back.node, back.start, facts.faults)
        return Cause("back-after-start", f"{text}; {back.node} had it again when it restarted at {back.start:.3f} s"
                                         f"{f', after {fault}' if fault else ''}.")  # fmt: skip
    return Cause("", CANT_TELL)
