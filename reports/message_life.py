"""The life of a message: when it was sent, confirmed, stored on nodes and taken, and when the last node lost it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from reports.message_trace import QueueStay
from reports.narrative import ShownOperation, fault_name
from reports.pack import shorten
from reports.run_facts import CLOCKS_S, NEAR_S, Facts, role_text, source_of, what_happened
from stormproof.contracts.system import (
    ACKNOWLEDGED,
    CLOSED,
    COPIED,
    LOGGED,
    PASSED,
    REPLACED,
    RETURNED,
    SENT,
    STARTED,
)
from stormproof.text import listed

MAX_EVENTS = 60
"""Upper bound of the events of one life that a page shows."""
_TOGETHER_S = 0.25
"""Identical events on several nodes within this many seconds are merged."""
_CAME = {
    SENT: "had it in {place}", COPIED: "had a copy in {place}", LOGGED: "had it in its log, not yet applied",
    STARTED: "started with it in {place}",
    CLOSED: "put it into {place} again when a client’s connection was closed",
    RETURNED: "put it into {place} again when a client returned it",
}  # fmt: skip

SEND, RECEIPT, DELIVERY, HERE, AWAY, STATE, ROLE, FAULT, NOTE = (
    "send", "receipt", "delivery", "here", "away", "state", "role", "fault", "note")  # fmt: skip
"""Kinds of events: three are arrows between a client process and a node, a transfer of state is an arrow between nodes;
the others happen at nodes."""


@dataclass(frozen=True)
class LifeEvent:
    """An event in the life of a message, or of a node that had it. ``source`` and ``targets`` are nodes, or client
    processes (``client 3``)."""

    time: float
    kind: str
    text: str
    source: str = ""
    targets: tuple[str, ...] = ()


def life_of(message: str, operations: Sequence[ShownOperation], facts: Facts) -> list[LifeEvent]:
    """Return the events, in order of time; empty where the trace records nothing of this message."""
    stays = facts.trace.stays(message)
    if not facts.trace.exists or not (stays or operations):
        return []
    told = list(_operations(message, operations, facts))
    sent = next((event.time for event in told if event.kind == SEND), None)
    events = [*told, *(_not_before(event, sent) for event in (*_stays(stays, facts), *_passed(message, facts)))]
    if stays:
        begin = min(event.time for event in events)
        end = max(event.time for event in events)
        events += _roles(stays, facts, end)
        events += _faults(facts, begin, end)
    events.sort(key=lambda event: event.time)
    return events[:MAX_EVENTS]


def _not_before(event: LifeEvent, sent: float | None) -> LifeEvent:
    """Correct an event's time: the clocks of nodes and of the harness differ slightly, and no node has a message before
    it is sent."""
    early = sent is not None and sent - CLOCKS_S <= event.time < sent
    return replace(event, time=sent) if early and sent is not None else event


def death_of(stays: Sequence[QueueStay]) -> float | None:
    """Return the time at which the last node that had the message lost it; None if one still has it, or none had it."""
    ends = [stay.end for stay in stays if not stay.logged]
    return max((end for end in ends if end is not None), default=None) if ends and None not in ends else None


def _operations(message: str, operations: Sequence[ShownOperation], facts: Facts) -> Iterator[LifeEvent]:
    for op in operations:
        if op.value != message:
            continue
        client, node = f"client {op.process}", op.node or "?"
        if op.sends:
            during = f", during {' and '.join(op.faults)}" if op.faults else ""
            yield LifeEvent(op.start, SEND, f"{client} sent it to {node}{during}.", client, (node,))
            if op.end is not None and op.type == "ok":
                role = next((role_text(stretch) for lane in facts.roles if lane.node == node
                             for stretch in lane.stretches if stretch.start <= op.end < stretch.end), "")
                text = f"{node}{f' ({role})' if role else ''} confirmed it."
                yield LifeEvent(op.end, RECEIPT, text, node, (client,))
            elif op.end is not None:
                how = "no receipt came" if op.type == "info" else "it was refused"
                why = f" ({op.error})" if op.error else ""
                yield LifeEvent(op.end, RECEIPT, f"{client}: {how}{why}.", "", (client,))
        elif op.takes and op.end is not None:
            how = "and its ACK was confirmed" if op.type == "ok" else "and its ACK was never confirmed"
            drain = " in the final drain" if op.function.final else ""
            yield LifeEvent(op.end, DELIVERY, f"{node} delivered it to {client}{drain}, {how}.", node, (client,))


def _stays(stays: Sequence[QueueStay], facts: Facts) -> Iterator[LifeEvent]:
    came: list[tuple[float, str, str]] = []
    gone: list[tuple[float, str, str]] = []
    last = max((stay.end for stay in stays if stay.end is not None and not stay.logged), default=None)
    dead = death_of(stays) is not None
    for stay in stays:
        if stay.put == REPLACED:
            source = source_of(stay.node, stay.start, facts)
            text = f"{stay.node} had it in {shorten(stay.place)} with {shorten(source)}’s state." if source else (
                f"{stay.node} had it in {shorten(stay.place)} after its state was replaced.")
            yield LifeEvent(stay.start, STATE if source else HERE, text, source, (stay.node,))
        else:
            words = _CAME.get(stay.put, f"had it in {{place}} ({shorten(stay.put)})").replace(
                "{place}", shorten(stay.place))
            came.append((stay.start, stay.node, words))
        if stay.end is None:
            continue
        words, _ = what_happened(stay, facts)
        if stay.gone == REPLACED and (source := source_of(stay.node, stay.end, facts)):
            finish = _finish(stay, stays, dead, last)
            yield LifeEvent(stay.end, STATE, f"{stay.node} {words}{finish}.", source, (stay.node,))
        else:
            gone.append((stay.end, stay.node, words + _finish(stay, stays, dead, last)))
    yield from _together(came, HERE)
    yield from _together(gone, AWAY)


def _passed(message: str, facts: Facts) -> Iterator[LifeEvent]:
    """Yield the copies that nodes received and did not take."""
    for mark in facts.trace.of(PASSED, message):
        place, _, kept = (*mark.token.split(), "", "", "")[:3]
        why = f"it already had {shorten(kept)} under that number" if kept else "it had already counted past that number"
        yield LifeEvent(mark.time, NOTE, f"{mark.node} skipped a copy of it: {why}, {place}.", "", (mark.node,))


def _finish(stay: QueueStay, stays: Sequence[QueueStay], dead: bool, last: float | None) -> str:
    """Return the addition to the text of the last stay's end, if the message is lost with it and was not consumed."""
    if not dead or stay.end != last or stay.gone == ACKNOWLEDGED or stay.logged:
        return ""
    others = {each.node for each in stays if each.node != stay.node and not each.logged}
    return f"; no {'node had it after that' if others else 'other node ever had it'}, so it was lost"


def _together(found: list[tuple[float, str, str]], kind: str) -> Iterator[LifeEvent]:
    found.sort()
    while found:
        time, _, words = found[0]
        alike = [each for each in found if each[2] == words and each[0] - time <= _TOGETHER_S]
        nodes = sorted({each[1] for each in alike})
        found = [each for each in found if each not in alike]
        yield LifeEvent(time, kind, f"{listed(nodes)} {words}.", "", tuple(nodes))


def _roles(stays: Sequence[QueueStay], facts: Facts, end: float) -> Iterator[LifeEvent]:
    """Yield the roles of nodes while they had the message."""
    for lane in facts.roles:
        node = lane.node.partition(".")[0]
        mine = [stay for stay in stays if stay.node == node]
        known: tuple[str, str, tuple[str, ...]] | None = None
        for stretch in lane.stretches:
            had = any(stay.start <= stretch.start and (stay.end is None or stretch.start <= stay.end + NEAR_S)
                      for stay in mine)  # fmt: skip
            before, known = known, (stretch.role, stretch.group, stretch.members)
            if had and stretch.start <= end and known != before:
                yield LifeEvent(stretch.start, ROLE, f"{lane.node} was {role_text(stretch)}.", "", (node,))


def _faults(facts: Facts, begin: float, end: float) -> Iterator[LifeEvent]:
    for fault in facts.faults:
        start, until = fault.start / 1e9, None if fault.end is None else fault.end / 1e9
        if start > end or (until is not None and until < begin):
            continue
        name = f"{fault_name(fault)} ({', '.join(fault.targets)})" if fault.targets else fault_name(fault)
        if start >= begin:
            yield LifeEvent(start, FAULT, f"{shorten(name)} was injected.", "", fault.targets)
        if until is not None and until <= end:
            yield LifeEvent(until, FAULT, f"{shorten(name)} was healed.", "", fault.targets)
