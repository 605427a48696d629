"""The strips of a run's timeline: phases, faults, groups of nodes, the role of each node, leaders of queues.

They share one axis with the operations and the plots. The axis begins at the start of the load; the time before is
set-up.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from reports.faults import FaultRow
from reports.folder import number
from reports.pack import shorten
from reports.page import seconds
from reports.roles import DOWN, Lane, RolePeriod
from stormproof.history.columns import HistoryColumns
from stormproof.history.ledger import Standstill
from stormproof.test import replica_names

FAMILIES = ("partition", "pause", "kill")
"""Fault families with a separate colour; the others share one."""
MAX_GROUP_LANES = 6
LABEL_CHARS = 40
_IMPERCEPTIBLE = 0.003
"""A share of the run."""
_NO_NAME = re.compile(r"[^A-Za-z0-9-]+", re.ASCII)
LOAD = "main"
"""The phase in which the load runs."""


@dataclass(frozen=True)
class Strip:
    """A period from ``start`` to ``end`` (seconds of the run): its style, a short name, the full text."""

    start: float
    end: float
    style: str
    label: str
    title: str


@dataclass(frozen=True)
class StripLane:
    """Strips in a row; ``kind`` names their subject."""

    label: str
    kind: str
    strips: tuple[Strip, ...]


@dataclass(frozen=True)
class Phase:
    """A part of the run, in seconds of the run."""

    name: str
    start: float
    end: float


def axis_start(phases: Sequence[Phase], history: HistoryColumns | None, faults: Sequence[FaultRow]) -> float:
    """Return the start of the axis: the start of the load, or the first operation or fault where one is earlier."""
    load = [phase.start for phase in phases if phase.name == LOAD][:1]
    if history is not None and (clients := history.process >= 0).any():
        load.append(float(history.time[clients].min()) / 1e9)
    return max(0.0, min([*load, *(fault.start for fault in faults)], default=0.0)) if load else 0.0


def phase_lanes(phases: Sequence[Phase]) -> list[StripLane]:
    """Return the lane of the phases; those without a duration are omitted."""
    strips = [_strip(p.start, p.end, "phase", p.name, f"phase {p.name}") for p in phases if p.end > p.start]
    return [StripLane("phase", "phases", tuple(strips))] if strips else []


def fault_lanes(faults: Sequence[FaultRow], standstills: Sequence[Standstill], duration: float) -> list[StripLane]:
    """Return a lane for each family of faults, or several where faults of a family overlap; one more lane shows the
    times in which the harness stalled."""
    by_family: dict[str, list[Strip]] = {}
    for fault in faults:
        family, on = fault.window.fault, ", ".join(fault.window.targets)
        healed = "" if fault.end is not None else ", never healed"
        label = f"{fault.window.kind or family} #{fault.window.id}" + (f": {on}" if on else "")
        by_family.setdefault(family, []).append(
            _strip(fault.start, duration if fault.end is None else fault.end,
                   f"band fam-{FAMILIES.index(family) if family in FAMILIES else len(FAMILIES)}", label,
                   f"{fault.name}{f' {on}' if on else ''}{healed}"))  # fmt: skip
    still = [_strip(s.start / 1e9, s.end / 1e9, f"band fam-{len(FAMILIES)}", "stalled", "harness stalled")
             for s in standstills]  # fmt: skip
    rows = [*sorted(by_family.items()), *([("harness", still)] if still else [])]
    return [StripLane(name, "faults", row) for name, strips in rows for row in _stacked(strips)]


def group_lanes(roles: Sequence[Lane], duration: float) -> list[StripLane]:
    """Return the nodes that served together, by group: more than one lane where several groups served at the same time,
    for long enough to be visible at the scale of the run."""
    strips: list[Strip] = []
    for group, colour in dict.fromkeys((s.group, s.colour) for lane in roles for s in lane.stretches if _member(s)):
        for start, end, members in _membership(roles, group):
            named = ", ".join(members)
            strips.append(_strip(start, end, f"g{colour}", f"{named} · {group}",
                                 f"group {group}: {named}"))  # fmt: skip
    rows = _stacked(sorted(strips, key=lambda strip: strip.start), _IMPERCEPTIBLE * duration)[:MAX_GROUP_LANES]
    return [StripLane("groups", "groups", row) for row in rows]


def _member(stretch: RolePeriod) -> bool:
    return stretch.serving and bool(stretch.group)


def _membership(roles: Sequence[Lane], group: str) -> Iterator[tuple[float, float, tuple[str, ...]]]:
    """Yield (from, to, nodes) for each period in which the same nodes were in a group."""
    inside = [(lane.node, s) for lane in roles for s in lane.stretches if _member(s) and s.group == group]
    changes = sorted([(s.start, node, 1) for node, s in inside] + [(s.end, node, -1) for node, s in inside])
    members: Counter[str] = Counter()
    since = 0.0
    before: tuple[str, ...] = ()
    for time, now in groupby(changes, key=lambda change: change[0]):
        for _, node, step in now:
            members[node] += step
        present = tuple(sorted(node for node, times in members.items() if times > 0))
        if present != before:
            if before:
                yield since, time, before
            since, before = time, present


def node_lanes(roles: Sequence[Lane], nodes: Iterable[str]) -> list[StripLane]:
    """Return the role of each node, including nodes without a reported role."""
    told = {lane.node: lane for lane in roles}
    machines = {name.partition(".")[0] for name in told}
    names = sorted({*told, *(node for node in nodes if node not in machines)}, key=lambda name: (len(name), name))
    return [StripLane(shorten(name, LABEL_CHARS), "roles",
                      tuple(_roles(told[name])) if name in told else ()) for name in names]  # fmt: skip


def _roles(lane: Lane) -> Iterator[Strip]:
    for s in _joined(lane.stretches):
        if s.role == DOWN:
            continue
        style = f"g{s.colour}" if s.serving else f"idle s-{_NO_NAME.sub('-', s.role)}"
        yield _strip(s.start, s.end, style + (" leads" if s.leads else ""), s.role,
                     f"{lane.node}: {s.role}{f', {s.group}' if s.group else ''}")  # fmt: skip


def _joined(stretches: Iterable[RolePeriod]) -> list[RolePeriod]:
    """Join stretches that were announced repeatedly."""
    joined: list[RolePeriod] = []
    for s in stretches:
        before = joined[-1] if joined else None
        if before is not None and before.end == s.start and before == replace(s, start=before.start, end=before.end):
            s = replace(joined.pop(), end=s.end)
        joined.append(s)
    return joined


def leader_strips(leaders: Sequence[Lane]) -> list[StripLane]:
    """Return the leader of each queue according to each node."""
    return [StripLane(shorten(lane.node, LABEL_CHARS), "leaders", tuple(
        _strip(s.start, s.end, f"g{s.colour}{' leads' if s.leads else ''}", s.role, f"{lane.node}: led by {s.role}")
        for s in lane.stretches)) for lane in leaders]  # fmt: skip


def nodes_of(test: Mapping[str, Any], history: HistoryColumns | None, logs: Iterable[str]) -> list[str]:
    """Return the names of all nodes: those of the test's node count, and those that the history and the logs name."""
    count = number(test.get("nodes"))
    options = test.get("options")
    names = set(replica_names(options if isinstance(options, Mapping) else {}, min(100, int(count or 0))))
    names |= {name.partition(".")[0] for name in logs}
    return sorted(names | ({name for name in history.node.names if name} if history is not None else set()))


def _strip(start: float, end: float, style: str, label: str, what: str) -> Strip:
    return Strip(start, end, shorten(style, LABEL_CHARS), shorten(label, LABEL_CHARS),
                 f"{shorten(what)}, {seconds(start)} – {seconds(end)}")  # fmt: skip


def _stacked(strips: Iterable[Strip], slack: float = 0.0) -> list[tuple[Strip, ...]]:
    """Return strips in order of time, in the fewest rows that avoid overlaps of more than ``slack`` seconds."""
    rows: list[list[Strip]] = []
    for strip in strips:
        row = next((row for row in rows if row[-1].end <= strip.start + slack), None)
        if row is None:
            rows.append(row := [])
        row.append(strip)
    return [tuple(row) for row in rows]
