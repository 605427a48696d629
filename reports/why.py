"""Why a guarantee was violated, as far as the run tells: what its system says of the guarantee, what the messages of a
kind of anomaly have in common, and what the nodes that confirmed them announced afterwards.

These are recorded facts in order of time, never a guess at a cause: where the run does not tell, it says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.folder import mapping, number
from reports.pack import shorten
from reports.roles import Lane
from reports.story import Operation, ShownAnomaly, plain
from stormproof.contracts.guarantee import KNOWN_VIOLATION, NOT_PROMISED, PROMISED
from stormproof.errors import HistoryError
from stormproof.history.bounds import read_small_text
from stormproof.run_folder import LOG_EVENTS

BINS = 60
"""Bars of a group's histogram over the whole run."""
MAX_LINES = 6
"""Announcements that are told of one node, and stretches with two masters."""

_SAID = {
    PROMISED: "Promised",
    KNOWN_VIOLATION: "A known violation: demanded, but this mode can't keep it",
    NOT_PROMISED: "Not promised",
}


@dataclass(frozen=True)
class Transfer:
    """At ``time`` (seconds of the run) ``target`` announced a transfer of ``source``'s state to it: its beginning or
    its end, as the system declares."""

    time: float
    source: str
    target: str
    detail: str


@dataclass(frozen=True)
class Group:
    """The anomalies of one kind that a check names: a sentence on what they have in common, what the nodes announced,
    and how many began in each of the ``BINS`` equal parts of the run, the most being 1."""

    kind: str
    sentence: str
    happened: tuple[str, ...]
    bars: tuple[float, ...]


def declared(run: Mapping[str, Any], check: str) -> str:
    """What the system says of the guarantee that a check finds violated; empty where it says nothing."""
    told = mapping(mapping(run.get("statuses")).get(check))
    said = _SAID.get(str(told.get("status")))
    if said is None:
        return ""
    where, why = shorten(str(told.get("where") or "")), shorten(str(told.get("why") or ""))
    return f"{said}{f' ({where})' if where else ''}{f': {why}' if why else ''}"


def read_transfers(run_dir: Path) -> list[Transfer]:
    """The transfers of state that the nodes' logs tell, in order of time."""
    found: list[Transfer] = []
    try:
        lines = read_small_text(run_dir / LOG_EVENTS).splitlines()
    except (OSError, HistoryError):
        lines = []  # a report shows what it can
    for line in lines:
        try:
            row = mapping(json.loads(line))
        except (ValueError, RecursionError):
            continue
        time = number(row.get("time"))
        if row.get("event") == "transfer" and time is not None:
            found.append(Transfer(time, *(str(row.get(name) or "") for name in ("source", "target", "detail"))))
    return sorted(found, key=lambda each: each.time)


def groups(
    anomalies: Sequence[ShownAnomaly], count: int, roles: Sequence[Lane], transfers: Sequence[Transfer], duration: float
) -> tuple[Group, ...]:
    """The anomalies of a check by their kinds, in order of appearance; ``count`` is how many it found in all, of which
    a verdict names the first only; ``duration`` is the length of the run in seconds."""
    kinds = dict.fromkeys(anomaly.kind for anomaly in anomalies)
    return tuple(_group(kind, [a for a in anomalies if a.kind == kind], count == len(anomalies), roles, transfers,
                        duration) for kind in kinds)  # fmt: skip


def _group(
    kind: str, members: Sequence[ShownAnomaly], whole: bool, roles: Sequence[Lane], transfers: Sequence[Transfer],
    duration: float,
) -> Group:
    begun = [anomaly.window[0] for anomaly in members if anomaly.window]
    confirmed = [_confirmed(anomaly) for anomaly in members]
    sends = [op for op in confirmed if op is not None]
    who = f"{plain(len(members))} {kind}" if whole else f"Of the {plain(len(members))} {kind} that the verdict names"
    parts: list[str] = []
    happened: list[str] = []
    if sends:
        all_sent = len(sends) == len(members)
        several = len(members) > 1
        which = ("all " if several else "") if all_sent else f"{plain(len(sends))} "
        nodes = sorted({op.node for op in sends if op.node})
        if nodes:
            parts.append(f"{which}confirmed by {' or '.join(nodes)}")
        first, last = min(op.start for op in sends), max(op.start for op in sends)
        parts.append(f"sent at {first:.3f} s" if first == last else f"sent {first:.3f} to {last:.3f} s")
        parts.extend(_during(sends))
        processes = len({op.process for op in sends})
        parts.append(f"by {plain(processes)} client process{'es' if processes > 1 else ''}")
        happened += _two_masters(roles, first, max(op.end or op.start for op in sends))
        happened += [line for node in nodes for line in _afterwards(node, sends, roles, transfers)]
    elif begun:
        first, last = min(begun), max(begun)
        parts.append(f"at {first:.3f} s" if first == last else f"from {first:.3f} to {last:.3f} s")
    sentence = f"{who}: {', '.join(parts)}." if parts else f"{who}."
    return Group(kind, sentence, tuple(happened), _bars(begun, duration))


def _confirmed(anomaly: ShownAnomaly) -> Operation | None:
    """The operation that sent an anomaly's message and was confirmed; None if the history has no such one, or
    several."""
    sends = [op for op in anomaly.operations
             if op.sends and op.type == "ok" and op.f != "abort" and op.value == anomaly.value]  # fmt: skip
    return sends[0] if len(sends) == 1 else None


def _during(sends: Sequence[Operation]) -> Iterator[str]:
    every = [fault for fault in dict.fromkeys(sends[0].faults) if all(fault in op.faults for op in sends)]
    some = [fault for fault in dict.fromkeys(f for op in sends for f in op.faults) if fault not in every]
    if every:
        yield f"during {_listed(every)}"
    if some:
        yield f"{'and ' if every else ''}some during {_listed(some[:4])}"
    if not every and not some:
        yield "while no fault was in force"


def _two_masters(roles: Sequence[Lane], first: float, last: float) -> list[str]:
    """Where, from ``first`` to ``last``, two machines took themselves for master at once."""
    led = [(lane.node, s) for lane in roles for s in lane.stretches if s.leads and s.start <= last and s.end >= first]
    told = []
    for at, (node, mine) in enumerate(led):
        for other, theirs in led[at + 1 :]:
            start, end = max(mine.start, theirs.start), min(mine.end, theirs.end)
            if node.partition(".")[0] != other.partition(".")[0] and start < end and start <= last and end >= first:
                groups_told = f" ({mine.group} and {theirs.group})" if mine.group and theirs.group else ""
                told.append((start, f"{start:.3f} – {end:.3f} s: {node} and {other} both announced that they "
                                    f"led{groups_told}."))  # fmt: skip
    return [line for _, line in sorted(told)[:MAX_LINES]]


def _afterwards(
    node: str, sends: Sequence[Operation], roles: Sequence[Lane], transfers: Sequence[Transfer]
) -> Iterator[str]:
    """What the node announced since the last of the messages that it confirmed was sent: its roles until a
    transfer of state to it, or the first few. From the sending on, since a receipt is on its way when the
    client gets it."""
    last = max(op.start for op in sends if op.node == node)
    stretches = [s for lane in roles if lane.node == node for s in lane.stretches]
    replaced = next((each for each in transfers if each.target == node and each.time >= last), None)
    then = next((s for s in stretches if s.start <= last < s.end), None)
    if then is not None:
        yield f"{last:.3f} s: the last that {node} confirmed was sent; its role then: {_role(then.role, then.group)}."
    until = replaced.time if replaced is not None else float("inf")
    known = None if then is None else (then.role, then.group)
    told = 0
    for s in stretches:
        if not last < s.start <= until or (s.role, s.group) == known:
            continue
        known, told = (s.role, s.group), told + 1
        if told > MAX_LINES:
            break
        yield f"{s.start:.3f} s: {node} was {_role(s.role, s.group)}."
    if replaced is not None:
        source = replaced.source if replaced.source not in ("", "?") else "another node"
        detail = f" ({shorten(replaced.detail)})" if replaced.detail else ""
        # Of some designs it is the end of a replacement, of others the beginning of catching up.
        yield f"{replaced.time:.3f} s: {node} announced a transfer of state to it from {source}{detail}."
    elif stretches:
        yield f"The logs tell of no transfer of state to {node} after that."
    else:
        yield f"The logs tell no roles of {node}."


def _role(role: str, group: str) -> str:
    return f"{shorten(role)} ({shorten(group)})" if group else shorten(role)


def _bars(begun: Sequence[float], duration: float) -> tuple[float, ...]:
    if not begun or duration <= 0:
        return ()
    counts = [0] * BINS
    for time in begun:
        counts[min(BINS - 1, max(0, int(time / duration * BINS)))] += 1
    return tuple(n / max(counts) for n in counts)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)
