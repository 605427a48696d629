"""Why confirmed messages or entries are missing.

Every explanation names one fault and one node, and the lost sends that it fits. It is tested against all confirmed
sends of that node:

- *cut off*: the node confirmed them while it could reach no majority, or while a node on the other side led; at least
  half of what it confirmed then, and no client received before the heal, is lost.
- *suspended*: the same, after a suspension of the node and the lead of another one.
- *gave way*: the node began to lead while another one led, and stopped while that one still led; at least half of what
  it confirmed between, and no client received before, is lost.
- *joined anew*: another node had started again; then this node ended, and the other one led. The messages confirmed
  before that start are lost, and those confirmed after it arrived.
- *ended*: the node's programs or its power ended after the confirmations, and of what it confirmed later and before
  that end, at most a third arrived. Earlier messages may have arrived: a loss of memory or of unsynced writes takes the
  last ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from reports.folder import mapping, number
from reports.inference.circumstances import (
    UNAWARE_S,
    Led,
    LedSpan,
    asked_for_memory,
    complete,
    cuts_of,
    discarded,
    disk_faults,
    ends_of,
    is_power,
    keeper,
    keeps_in_memory,
    led_among,
    led_at,
    over,
    span,
    state_taken,
    stopped_leading,
    stops_of,
    struck,
    two_leaders,
)
from reports.inference.sends import ConfirmedSends
from reports.narrative import fault_name, plain
from reports.pack import shorten
from reports.run_facts import CLOCKS_S, Cause, Facts
from stormproof.contracts.fault import ENDS_PROCESS
from stormproof.history.columns import Bools, Int64s
from stormproof.history.ledger import FaultWindow
from stormproof.text import elapsed, listed

NOT_TOLD = "The history, the faults and the logs do not show the cause."
_MOST_KEPT = 1 / 3
"""Largest share of later messages that may have survived the end of a node that is to have taken an earlier one."""
_LEAST_LOST = 0.5
"""Smallest share of a node's isolated confirmations that must be lost."""
_ARRIVED = 0.8
"""Smallest share of messages that must have arrived where an explanation says that they were safe."""
_AFTER_S = 30.0
"""A node that takes over from another one leads within this many seconds after a fault."""
BEST, ENDED, WEAK = 1, 2, 3
"""Ranks: a rival leader is recorded; the node's end is; only the isolation is."""


Later = Callable[[ConfirmedSends, Bools], str]


def no_more(sends: ConfirmedSends, assigned: Bools) -> str:
    """Return nothing to add to a cause."""
    return ""


@dataclass(frozen=True)
class LossExplanation:
    """``fits`` marks the lost sends that it explains; ``tell`` returns, for those of them that are assigned to it, the
    facts and the conclusion."""

    code: str
    rank: int
    fits: Bools
    time: float
    tell: Callable[[Bools], tuple[str, str]]
    whole: bool = False
    """Nothing that the node had confirmed survived this step, so that a later step can have taken nothing more."""


def loss_causes(
    sends: ConfirmedSends, wanted: Bools, lost: Bools, facts: Facts, later: Later = no_more, own: bool = False
) -> list[tuple[int, Cause]]:
    """Return the causes of the ``wanted`` ones of the ``lost`` sends, each with their number; those without a cause
    come last, with an empty code. ``later`` returns a sentence to add to the cause of some sends. ``own``: the node
    that confirmed a send kept it itself, leader or not."""
    sends = sends if own else _by_keeper(sends, facts)
    every = list(_all_ended(sends, lost, facts))
    for node in sorted(set(sends.node[lost].tolist()) - {""}):
        mine = sends.node == node
        keys = sorted(set(sends.key[mine & lost].tolist()))
        for key in keys if facts.led_separately else keys[:1]:
            own_ones = mine & (sends.key == key) if facts.led_separately else mine
            every += _explanations(str(node), key, own_ones, sends, lost, facts, own)
    every = [each for each in every if each.fits.any()]
    chosen: dict[tuple[int, ...], list[int]] = {}
    for at in np.flatnonzero(wanted).tolist():
        chosen.setdefault(_chosen(at, every), []).append(at)
    causes: list[tuple[int, Cause]] = []
    for which, rows in chosen.items():
        mine = np.zeros(len(sends), dtype=np.bool_)
        mine[rows] = True
        told = [every[number].tell(mine) for number in which]
        more = later(sends, mine)
        if not told:
            causes.append((len(rows), Cause("", NOT_TOLD)))
        elif len(told) == 1:
            causes.append((len(rows), Cause(every[which[0]].code, f"{told[0][0]}{more}", inferred=told[0][1])))
        else:
            text = " Or: ".join(f"{conclusion} {known}" for known, conclusion in told)
            causes.append((len(rows), Cause("either", f"{text}{more}",
                                            inferred="Several causes fit, and the records do not tell which it was.")))
    return sorted(causes, key=lambda each: (not each[1].code, -each[0]))


def _chosen(at: int, every: list[LossExplanation]) -> tuple[int, ...]:
    """Return the explanations of one send: the best ones, and of several ends only the first that left nothing."""
    fitting = [number for number, each in enumerate(every) if each.fits[at]]
    best = min((every[number].rank for number in fitting), default=0)
    found: list[int] = []
    for place in sorted((n for n in fitting if every[n].rank == best), key=lambda n: every[n].time):
        found.append(place)
        if every[place].whole:
            break
    return tuple(found)


def _by_keeper(sends: ConfirmedSends, facts: Facts) -> ConfirmedSends:
    rows = zip(sends.via.tolist(), sends.key.tolist(), sends.end.tolist(), strict=True)
    found = [keeper(node, key, time, facts) for node, key, time in rows] if facts.leaders else sends.via
    return replace(sends, node=np.array(found, dtype=object))


def _all_ended(sends: ConfirmedSends, lost: Bools, facts: Facts) -> Iterator[LossExplanation]:
    """Yield an explanation for each time at which all nodes were down: it does not matter which of them had what.
    Objects with separate leaders are explained one by one, since each node's disk keeps another part."""
    seen: set[frozenset[int]] = set()
    keys: list[int | None] = [*sorted(set(sends.key[lost].tolist()))] if facts.led_separately else [None]
    for fault in sorted(facts.faults, key=struck):
        down = [each for each in facts.faults if each.confirmed and ENDS_PROCESS in each.effects
                and struck(each) <= struck(fault) <= over(each)]  # fmt: skip
        which = frozenset(each.id for each in down)
        if fault in down and set(facts.names) <= {name for each in down for name in each.targets} and which not in seen:
            seen.add(which)
            for key in keys:
                part = np.ones(len(sends), dtype=np.bool_) if key is None else sends.key == key
                yield _ended(facts.names, fault, down, part, key, sends, lost, facts)


def _explanations(
    node: str, key: int, mine: Bools, sends: ConfirmedSends, lost: Bools, facts: Facts, own: bool
) -> Iterator[LossExplanation]:
    for fault, others in cuts_of(node, facts):
        yield from _cut_off(node, fault, others, mine, key, sends, lost, facts)
    for fault in stops_of(node, facts):
        yield from _stood_still(node, fault, mine, key, sends, lost, facts)
    yield from _gave_way(node, mine, sends, lost, facts)
    for fault in ends_of(node, facts):
        yield from _joined_anew(node, fault, mine, key, sends, lost, facts)
        # Without a leader, or with another one, other nodes may have kept what this one confirmed.
        alone = not set(facts.names) <= set(fault.targets)  # an end of all nodes is explained by itself
        if len(facts.names) > 1 and alone and (own or led_at(node, key, struck(fault), facts)):
            yield _ended((node,), fault, [fault], mine, key if facts.led_separately else None, sends, lost, facts, own)


def _cut_off(
    node: str, fault: FaultWindow, others: frozenset[str], mine: Bools, key: int, sends: ConfirmedSends, lost: Bools,
    facts: Facts,
) -> Iterator[LossExplanation]:
    begin, end = struck(fault), over(fault)
    rival = led_among(others, key, begin + CLOCKS_S, end + _AFTER_S, facts)
    few = len(facts.names) - len(others) <= len(facts.names) // 2
    if rival is not None and _led_before(rival, key, begin, facts):
        rival = None  # it led all along, so that the cut did not make it leader
    stepped = stopped_leading(node, end, facts)
    if stepped is None and rival is not None:
        stepped = _noticed(mine, lost, end, sends, facts)
    until = end if stepped is None or stepped > end + _AFTER_S else stepped
    inside = mine & (sends.end >= begin) & (sends.end <= until)
    pool = inside & (sends.got > until)
    if rival is not None and _share(lost & pool, pool):
        inside |= _unaware(mine, lost, until, sends, facts)
    if not _share(lost & pool, pool) or (rival is None and not few):
        return

    def tell(assigned: Bools) -> tuple[str, str]:
        text = (f"{node} was cut off from {listed(sorted(others))} ({span(fault)}{_dropped(fault)}). "
                f"{_confirmed((node,), sends, assigned)}. Lost of what {node} confirmed from the cut to {until:.3f} s"
                f"{_undelivered(sends)}: {_of(pool & lost, pool)}.{_rival(rival)}{_then(node, end, facts)}")
        whom = rival.node if rival is not None else "the other nodes"
        side = sorted(set(facts.names) - others - {node})
        beside = f"with only {listed(side)} on its side" if side else "alone"
        if (late := sends.end[assigned] > end).any():
            beside = "soon after the heal" if late.all() else f"{beside}, or soon after the heal"
        return text, (f"{node} confirmed {_them(assigned)} {beside}, and gave {_them(assigned)} up after the partition "
                      f"for the state of {whom}, which never got {_them(assigned)}.")  # fmt: skip

    yield LossExplanation("cut-off", BEST if rival is not None else WEAK, lost & inside, end, tell)


def _dropped(fault: FaultWindow) -> str:
    counts = [number(count) or 0 for count in mapping(fault.heal_evidence.get("dropped")).values()]
    return "; packets were dropped" if any(count > 0 for count in counts) else ""


def _noticed(mine: Bools, lost: Bools, healed: float, sends: ConfirmedSends, facts: Facts) -> float | None:
    """Return the time of the last of a node's confirmations after a heal, up to the first one that survived or to the
    next fault: the node had not yet noticed the new leader. None if there is none."""
    until = min([*sends.end[mine & ~lost & (sends.end > healed)],
                 *(struck(each) for each in facts.faults if struck(each) > healed)], default=float("inf"))  # fmt: skip
    return max(sends.end[mine & lost & (sends.end > healed) & (sends.end < until)], default=None)


def _unaware(mine: Bools, lost: Bools, until: float, sends: ConfirmedSends, facts: Facts) -> Bools:
    """Return the lost sends that a node confirmed soon after a time, before the next fault: to clients that had not
    noticed the new leader, while others had."""
    limit = min([until + UNAWARE_S, *(struck(each) for each in facts.faults if struck(each) > until)])
    return mine & lost & (sends.end > until) & (sends.end < limit)


def _stood_still(
    node: str, fault: FaultWindow, mine: Bools, key: int, sends: ConfirmedSends, lost: Bools, facts: Facts
) -> Iterator[LossExplanation]:
    begin, end = struck(fault), over(fault)
    rival = led_among(frozenset(facts.names) - {node}, key, begin + CLOCKS_S, end + _AFTER_S, facts)
    if rival is None or _led_before(rival, key, begin, facts):
        return
    repaired = _repair(node, end, facts)
    gone = min([time for time in (state_taken(node, end, facts), None if repaired is None else repaired[0])
                if time is not None], default=float("inf"))  # fmt: skip
    inside = mine & (sends.end >= max(begin, rival.since)) & (sends.start <= gone)
    pool = inside & (sends.got > gone) if gone < float("inf") else inside
    if not _share(lost & pool, pool):
        return

    def tell(assigned: Bools) -> tuple[str, str]:
        text = (f"{node} was suspended ({span(fault)}).{_rival(rival)} {_confirmed((node,), sends, assigned)}."
                f"{_then(node, end, facts)}")  # fmt: skip
        whose = rival.node if rival is not None else "another node"
        return text, (f"After its suspension, {node} continued to confirm although {whose} led by then; its "
                      f"state, with {_them(assigned)}, was then given up.")  # fmt: skip

    yield LossExplanation("stood-still", BEST, lost & inside, gone, tell)


def _gave_way(node: str, mine: Bools, sends: ConfirmedSends, lost: Bools, facts: Facts) -> Iterator[LossExplanation]:
    for late, early in two_leaders(node, facts):
        repaired = _repair(node, late.start, facts)
        gone = late.end if repaired is None else min(late.end, repaired[0])
        inside = mine & (sends.end >= late.start) & (sends.start <= gone)
        pool = inside & (sends.got > gone)
        if not _share(lost & pool, pool):
            continue

        def tell(assigned: Bools, late: LedSpan = late, early: LedSpan = early, pool: Bools = pool) -> tuple[str, str]:
            them = _them(assigned)
            text = (f"{early.node} led from {early.start:.3f} s on, and {node}, too, from {late.start:.3f} to "
                    f"{late.end:.3f} s, by their logs. {_confirmed((node,), sends, assigned)}. Lost of what {node} "
                    f"confirmed in this time{_undelivered(sends)}: {_of(pool & lost, pool)}."
                    f"{_then(node, late.end - 1, facts)}")  # fmt: skip
            return text, (f"{node} confirmed {them} while {early.node} led, too, and its state, with {them}, was then "
                          f"given up for that of {early.node}.")  # fmt: skip

        yield LossExplanation("two-leaders", BEST, lost & inside, gone, tell)


def _joined_anew(
    node: str, fault: FaultWindow, mine: Bools, key: int, sends: ConfirmedSends, lost: Bools, facts: Facts
) -> Iterator[LossExplanation]:
    at = struck(fault)
    for other in facts.names:
        starts = [over(each) for each in ends_of(other, facts) if over(each) < at]
        leads = led_among(frozenset({other}), key, at, over(fault) + _AFTER_S, facts)
        if other == node or not starts or other in fault.targets or leads is None:
            continue
        start = max(starts)
        joined = min([each.time for each in facts.transfers if each.target.partition(".")[0] == other
                      and start - 1 <= each.time < at], default=start)  # fmt: skip
        kept = (sends.end <= at) & (sends.got > at)
        if facts.led_separately:
            kept &= sends.key == key
        # Whichever node kept the early ones at first: the one that joined had none of them when it took over.
        early, late = kept & (sends.end <= joined), kept & mine & (sends.start > joined)
        if not late.any() or not _share(late & ~lost, late, _ARRIVED) or not _share(lost & early, early, _ARRIVED):
            continue

        def tell(assigned: Bools, other: str = other, joined: float = joined, leads: Led = leads, late: Bools = late
                 ) -> tuple[str, str]:  # fmt: skip
            via = tuple(sorted(set(sends.via[assigned].tolist())))
            text = (f"{_confirmed(via, sends, assigned)}, before {other} had started again ({joined:.3f} s). "
                    f"{fault_name(fault)} ended {node} at {at:.3f} s.{_rival(leads)} Arrived of what was confirmed "
                    f"between these times: {_of(late & ~lost, late)}.")  # fmt: skip
            return text, (f"{other} had started again without {_them(assigned)}, got only newer messages from {node}, "
                          f"and took over when {node} ended.")  # fmt: skip

        yield LossExplanation("joined-anew", BEST, lost & early, at, tell)


def _ended(
    nodes: tuple[str, ...], fault: FaultWindow, down: list[FaultWindow], mine: Bools, key: int | None,
    sends: ConfirmedSends, lost: Bools, facts: Facts, own: bool = False,
) -> LossExplanation:
    """Return the explanation by the end of these nodes, which ``fault`` completed; ``down`` are the faults by which
    they were down then. The next leader is that of the object ``key``; None: of any."""
    at = struck(fault)
    every = own or set(facts.names) <= set(nodes)
    pool = mine & (sends.end <= complete(fault) + CLOCKS_S) & (sends.got > at)
    rows = np.flatnonzero(pool)
    kept = ~lost[rows]
    later_kept: Int64s = np.cumsum(kept[::-1])[::-1] - kept
    fits = np.zeros(len(sends), dtype=np.bool_)
    fits[rows] = lost[rows] & (later_kept <= np.arange(len(rows))[::-1] * _MOST_KEPT)
    rival = None if every else led_among(frozenset(facts.names) - {*nodes}, key, at, over(fault) + _AFTER_S, facts)

    def tell(assigned: Bools) -> tuple[str, str]:
        first = sends.end[assigned].min()
        before, after = pool & (sends.end < first), pool & (sends.end >= first)
        who = nodes[0] if len(nodes) == 1 else f"all {len(nodes)} nodes"
        only = ", the only node" if len(facts.names) == 1 else ""
        names = listed([fault_name(each) for each in down])
        of_key = "" if key is None else f", in {'queue' if sends.offset[0] < 0 else 'log'} {key}"
        text = (f"{_confirmed(nodes, sends, assigned)}{of_key}. {names} ended {who}{only}, {_moment(fault)}."
                f"{_disks(down)} "
                f"Lost of what was confirmed since {first:.3f} s{_undelivered(sends)}: {_of(after & lost, after)}")
        if before.any():
            text += f". Arrived of what was confirmed earlier: {_of(before & ~lost, before)}"
        return f"{text}.{_rival(rival)}", _end_conclusion(nodes, down, assigned, rival, every, facts)

    power = any(is_power(each) for each in down)
    return LossExplanation("power" if power else "ended", ENDED if every else WEAK, fits, at, tell,
                           whole=not kept.any())  # fmt: skip


def _moment(fault: FaultWindow) -> str:
    begin, end = struck(fault), complete(fault)
    return f"at {begin:.3f} s" if end - begin < CLOCKS_S else f"between {begin:.3f} and {end:.3f} s"


def _end_conclusion(
    nodes: tuple[str, ...], down: list[FaultWindow], assigned: Bools, rival: Led | None, every: bool, facts: Facts
) -> str:
    them, who = _them(assigned), nodes[0] if len(nodes) == 1 else "the nodes"
    asked = asked_for_memory(facts)
    lost_bytes = [discarded(name, fault)[0] for fault in down for name in fault.targets if is_power(fault)]
    memory = next((why for node in nodes if (why := keeps_in_memory(node, facts))), "")
    if not every:
        return f"{rival.node if rival else 'The other nodes'} did not have {them} when {who} ended."
    if memory:
        return f"By its settings ({shorten(memory)}), {who} kept {them} in memory only, and the end took {them}."
    if damaged := disk_faults(nodes, max(over(fault) for fault in down), facts):
        names = listed([fault_name(fault) for fault in damaged])
        return f"The end of {who} or the fault of a disk ({names}) took {them}; the records do not tell which."
    if asked:
        return f"{asked.format(them=them)}: {who} may keep {them} in memory only, and the end took {them}."
    if any(count is None or count > 0 for count in lost_bytes):
        they = "it" if them == "it" else "they"
        return f"The loss of power took {them}: {they} had been confirmed, but not synced to disk."
    whose = "its process" if len(nodes) == 1 else "their processes"
    had = nodes[0] if len(nodes) == 1 else "The nodes"
    return (f"{had} had {them} only in the memory of {whose}: such an end takes nothing that a program has written to "
            "a file.")  # fmt: skip


def _disks(down: list[FaultWindow]) -> str:
    found = [discarded(node, fault) for fault in down for node in fault.targets if is_power(fault)]
    counts = [count for count, _ in found if count is not None]
    ages = [age for count, age in found if count and age is not None]
    if not counts:
        return ""
    old = f", the oldest written {elapsed(max(ages))} before" if ages else ""
    disk = "The disk" if len(counts) == 1 else f"The {len(counts)} disks"
    return f" {disk} discarded {plain(sum(counts))} bytes that were not synced{old}."


def _led_before(rival: Led, key: int, begin: float, facts: Facts) -> bool:
    """Return whether a rival led before a fault began, by its own log or the reports."""
    only = key if facts.led_separately else None
    return led_among(frozenset({rival.node}), only, begin - 1.0, begin - CLOCKS_S, facts) is not None


def _rival(rival: Led | None) -> str:
    return f" {rival.node} led from {rival.since:.3f} s on, {rival.by}." if rival is not None else ""


def _repair(node: str, after: float, facts: Facts) -> tuple[float, str] | None:
    return next(((each.start / 1e9, each.text) for each in facts.repairs if each.end / 1e9 >= after
                 and re.search(rf"\b{re.escape(node)}\b", each.text)), None)  # fmt: skip


def _then(node: str, after: float, facts: Facts) -> str:
    """Return what the records tell of the end of a node's state after a fault."""
    taken, stepped, repair = state_taken(node, after, facts), stopped_leading(node, after, facts), _repair(
        node, after, facts)  # fmt: skip
    text = ""
    if taken is not None:
        text += f" {node} took another node’s state at {taken:.3f} s."
    elif stepped is not None:
        text += f" {node} no longer led from {stepped:.3f} s on."
    if repair is not None:
        text += f" An operator's repair at {repair[0]:.3f} s: {shorten(repair[1])}."
    return text


def _share(part: Bools, whole: Bools, least: float = _LEAST_LOST) -> bool:
    """Return whether a part is large enough; an empty whole has none."""
    total = int(np.count_nonzero(whole))
    return total > 0 and int(np.count_nonzero(part)) >= least * total


def _count(assigned: Bools) -> int:
    return int(np.count_nonzero(assigned))


def _undelivered(sends: ConfirmedSends) -> str:
    in_logs = len(sends) and sends.offset[0] >= 0
    return "" if in_logs else ", and no client had received by then"


def _of(part: Bools, whole: Bools) -> str:
    return f"{plain(_count(part))} of {plain(_count(whole))}"


def _confirmed(nodes: tuple[str, ...], sends: ConfirmedSends, assigned: Bools) -> str:
    """Return who confirmed the assigned sends, and when; where clients got the answers through other nodes than their
    leader, through whom."""
    via = sorted(set(sends.via[assigned].tolist()))
    when = _between(sends, assigned)
    if len(nodes) > 1 or via == list(nodes):
        return f"{listed(via)} confirmed {_these(assigned)} {when}"
    what = "It was" if _count(assigned) == 1 else f"All {plain(_count(assigned))} were"
    return f"{what} confirmed {when}, through {listed(via)}, while {nodes[0]} led"


def _them(assigned: Bools) -> str:
    return "it" if _count(assigned) == 1 else "them"


def _these(assigned: Bools) -> str:
    return "it" if _count(assigned) == 1 else f"all {plain(_count(assigned))}"


def _between(sends: ConfirmedSends, assigned: Bools) -> str:
    first, last = sends.end[assigned].min(), sends.end[assigned].max()
    return f"at {first:.3f} s" if first == last else f"from {first:.3f} to {last:.3f} s"
