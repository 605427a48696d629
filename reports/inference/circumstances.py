"""The recorded circumstances of an operation: which faults hit its node, which other nodes the node was cut off from,
and which node led."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from reports.folder import mapping, number
from reports.narrative import fault_name
from reports.run_facts import Facts, stretches_at
from stormproof.contracts.fault import CUTS_LINKS, ENDS_PROCESS, LOSES_DATA, LOSES_SYNCED, STOPS_TIME
from stormproof.contracts.topology import machine_of
from stormproof.history.disk_use import DISKS, LOST_AGE, LOST_BYTES, STORES_NOTHING
from stormproof.history.ledger import FaultWindow

POWER = "power"
"""The family of faults that cut a machine's power."""
ARROW = ">"
"""Between the ends of a link, in the evidence of a partition."""
SEEN_WITHIN_S = 1.5
"""The harness queries leaders once a second: a leader may have led this long before a node first named it."""

UNAWARE_S = 5.0
"""A node that was cut off may go on to confirm as leader for so long: its clients and itself first have to notice."""

_NUMBERED = re.compile(r".*?(\d+)")
_ASKED_FOR_MEMORY = {
    ("persistent", False): "Clients sent {them} as not persistent (persistent=false)",
    ("storage", "memory"): "Clients created streams in memory (storage=memory)",
}
"""Settings of protocol clients (``stormproof.clients``) by which a broker need not store what it confirms."""


class Led(NamedTuple):
    """``node`` led from ``since`` (seconds of the run) on; ``by`` is the source, as a clause."""

    node: str
    since: float
    by: str


class LedSpan(NamedTuple):
    """``node`` led for this time, by its own log."""

    node: str
    start: float
    end: float


def struck(fault: FaultWindow) -> float:
    """Return when a fault took effect, in seconds of the run."""
    return (fault.start if fault.struck is None else fault.struck) / 1e9


def complete(fault: FaultWindow) -> float:
    """Return when an injection was complete, in seconds of the run."""
    return struck(fault) if fault.struck is not None or fault.in_force is None else fault.in_force / 1e9


def over(fault: FaultWindow) -> float:
    """Return when a fault was healed, in seconds of the run; infinite if it never was."""
    return float("inf") if fault.end is None else max(fault.end, fault.healed or 0) / 1e9


def span(fault: FaultWindow) -> str:
    """Return a fault's name and time, for a sentence."""
    until = f" to {over(fault):.3f} s" if fault.end is not None else " s to the end"
    return f"{fault_name(fault)}, {struck(fault):.3f}{until}"


def ends_of(node: str, facts: Facts) -> list[FaultWindow]:
    """Return the faults that ended a node's programs, in order of time."""
    found = [fault for fault in facts.faults if fault.confirmed and ENDS_PROCESS in fault.effects
             and node in fault.targets]  # fmt: skip
    return sorted(found, key=struck)


def is_power(fault: FaultWindow) -> bool:
    """Return whether a fault cut the power of machines, so that unsynced writes were lost."""
    return POWER in (fault.fault, fault.kind)


def disk_faults(nodes: Collection[str], until: float, facts: Facts) -> list[FaultWindow]:
    """Return the faults of these nodes' disks, up to a time, by which stored data may have been lost."""
    return [fault for fault in facts.faults if fault.confirmed and fault.effects & {LOSES_DATA, LOSES_SYNCED}
            and set(nodes) & set(fault.targets) and struck(fault) <= until]  # fmt: skip


def stops_of(node: str, facts: Facts) -> list[FaultWindow]:
    """Return the faults that suspended a node, in order of time."""
    found = [fault for fault in facts.faults if fault.confirmed and STOPS_TIME in fault.effects
             and node in fault.targets]  # fmt: skip
    return sorted(found, key=struck)


def cuts_of(node: str, facts: Facts) -> Iterator[tuple[FaultWindow, frozenset[str]]]:
    """Yield the faults that cut a node off from others, with those nodes. One direction is enough: neither of two nodes
    gets an answer from the other."""
    for fault in sorted(facts.faults, key=struck):
        if fault.confirmed and CUTS_LINKS in fault.effects and (
                others := cut_off_from(node, fault, facts.names, one_way=True)):  # fmt: skip
            yield fault, others


def cut_off_from(
    machine: str, fault: FaultWindow, names: tuple[str, ...], one_way: bool = False
) -> frozenset[str]:
    """Return the nodes that a machine could neither hear nor reach during a fault, or ``one_way``, not do both: by the
    counts of dropped packets of each cut link, which its evidence holds."""
    cut = set()
    for link in mapping(fault.heal_evidence.get("dropped")):
        source, arrow, target = str(link).partition(ARROW)
        if arrow:
            cut.add((machine_of(source), machine_of(target)))
    few = 1 if one_way else 2
    return frozenset(node for node in names
                     if node != machine and len({(machine, node), (node, machine)} & cut) >= few)  # fmt: skip


def disk_of(node: str, fault: FaultWindow) -> Mapping[str, Any]:
    """Return the evidence about a node's disk in a fault."""
    return mapping(mapping(fault.inject_evidence.get(DISKS)).get(node))


def discarded(node: str, fault: FaultWindow) -> tuple[int | None, float | None]:
    """Return the bytes that a node's disk discarded at a loss of power, and the age of the oldest in seconds; None
    where it did not count."""
    count, age = number(disk_of(node, fault).get(LOST_BYTES)), number(disk_of(node, fault).get(LOST_AGE))
    return (None if count is None else int(count)), age


def keeps_in_memory(node: str, facts: Facts) -> str:
    """Return why a node's settings keep all data in memory, as the system declared it at a fault; empty: it did not."""
    for fault in facts.faults:
        why = mapping(fault.inject_evidence.get(STORES_NOTHING)).get(node) or disk_of(node, fault).get(STORES_NOTHING)
        if why:
            return str(why)
    return ""


def asked_for_memory(facts: Facts) -> str:
    """Return the setting by which clients let brokers keep messages in memory, as a clause about {them}, or ''."""
    return next((text for (name, value), text in _ASKED_FOR_MEMORY.items() if facts.options.get(name) == value), "")


def led_among(nodes: frozenset[str], key: int | None, since: float, until: float, facts: Facts) -> Led | None:
    """Return the first of these nodes that led at some time from ``since`` to ``until``: by its own log, or by what
    other nodes reported of the leader of an object (``key``)."""
    found = []
    for lane in () if key is not None and facts.led_separately else facts.roles:
        node = lane.node.partition(".")[0]
        for stretch in lane.stretches:
            if node in nodes and stretch.leads and stretch.start <= until and stretch.end > since:
                found.append(Led(node, max(stretch.start, 0.0), "by its log"))
    for lane in facts.leaders:
        led, _, witness = lane.node.partition(", ")
        if key is not None and _number_in(led) not in (key, None):
            continue
        for stretch in lane.stretches:
            if stretch.role in nodes and stretch.start <= until and stretch.end > since:
                whose = "its own" if witness == stretch.role else f"{witness}’s" if witness else "the system’s"
                found.append(Led(stretch.role, stretch.start, f"by {whose} report"))
    return min(found, key=lambda led: led.since, default=None)


def two_leaders(node: str, facts: Facts) -> Iterator[tuple[LedSpan, LedSpan]]:
    """Yield the times at which a node led beside another one, which led before and after it."""
    if facts.led_separately:
        return
    spans = [LedSpan(lane.node.partition(".")[0], stretch.start, stretch.end)
             for lane in facts.roles for stretch in lane.stretches if stretch.leads]  # fmt: skip
    for late in spans:
        for early in spans:
            if late.node == node != early.node and early.start < late.start and late.end < early.end:
                yield late, early


def keeper(node: str, key: int, time: float, facts: Facts) -> str:
    """Return the leader of an object (``key``) as a node itself saw it at a time, or as the system reported it; the
    node, if that is not known, if it was cut off from that leader, or if a log names another leader than the report.

    For ``UNAWARE_S`` seconds after a cut, a node that led before it counts as not knowing its successor.
    """
    roles = () if facts.led_separately else facts.roles
    leading = {lane.node.partition(".")[0] for lane, stretch in stretches_at(roles, time) if stretch.leads}
    for witness in (node, ""):
        for lane in facts.leaders:
            led, _, by = lane.node.partition(", ")
            if by == witness and _number_in(led) == key:
                for stretch in lane.stretches:
                    if stretch.start <= time < stretch.end:
                        cut = any(stretch.role in others and complete(fault) <= time <= (
                            over(fault) + UNAWARE_S * any(each.role == node and each.start <= struck(fault) < each.end
                                                          for each in lane.stretches))
                            for fault, others in cuts_of(node, facts))
                        rivals = leading - {stretch.role} if not witness else ()
                        return node if cut or rivals else stretch.role
    return node


def _number_in(name: str) -> int | None:
    """Return the number at the end of an object's name, as of log0; None if there is none."""
    match = _NUMBERED.fullmatch(name)
    return int(match[1]) if match else None


def led_at(node: str, key: int, time: float, facts: Facts) -> bool:
    """Return whether a node led at a time: by its log, or as the leader of an object."""
    return keeper(node, key, time, facts) == node and led_among(
        frozenset({node}), key, time - SEEN_WITHIN_S, time, facts) is not None  # fmt: skip


def stopped_leading(node: str, after: float, facts: Facts) -> float | None:
    """Return when a node first said after a time that it no longer leads, or took another node's state."""
    roles = () if facts.led_separately else facts.roles
    changes = [stretch.start for lane in roles if lane.node.partition(".")[0] == node
               for stretch in lane.stretches if not stretch.leads and stretch.start >= after]  # fmt: skip
    taken = [each.time for each in facts.transfers if each.target.partition(".")[0] == node and each.time >= after]
    return min([*changes, *taken], default=None)


def state_taken(node: str, after: float, facts: Facts) -> float | None:
    """Return when a node first reported after a time that it took another node's state, or dropped its own."""
    return min((each.time for each in facts.transfers
                if each.target.partition(".")[0] == node and each.time >= after), default=None)  # fmt: skip
