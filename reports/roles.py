"""Who led whom, and when: each node's role over the run, from its log, as lanes.

Colours tell groups (icestorm) or epochs (joram) apart. It is a picture of what the nodes said of themselves: where two
colours are there at the same time, two groups believed that they served.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from harness.history.ledger import FaultWindow
from reports.nodelogs import read_lines

DOWN_FAMILIES = frozenset({"kill", "power", "reboot"})
SERVING = frozenset({"master", "slave"})
COLOURS = 8

_FIELD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)')
_JORAM = {
    "promoted: serving as master": ("master", "epoch"),
    "following": ("slave", "epoch"),
    "master lost": ("electing", ""),
    "stepped down": ("electing", ""),
    "proposing": ("electing", ""),
    "joining the group": ("starting", ""),
}


@dataclass(frozen=True)
class Stretch:
    """A node had a role from ``start`` to ``end`` (seconds of the run). ``group`` names the group that it served in, or
    belonged to; ``colour`` numbers the groups in order of their appearance, -1 for none."""

    start: float
    end: float
    role: str
    group: str
    colour: int

    @property
    def serving(self) -> bool:
        """Whether it was part of a group that serves."""
        return self.role in SERVING


@dataclass(frozen=True)
class Lane:
    """The stretches of one node, in order."""

    node: str
    stretches: tuple[Stretch, ...]


def role_lanes(
    logs: Sequence[Path], started: datetime | None, faults: Sequence[FaultWindow], duration: float
) -> list[Lane]:
    """The lanes of all nodes whose logs tell roles."""
    changes = {path.stem: sorted(_changes(path, started, faults)) for path in logs}
    groups: dict[str, int] = {}
    for _, role, group in sorted(change for found in changes.values() for change in found):
        if group and role in SERVING:
            groups.setdefault(group, len(groups) % COLOURS)
    lanes = []
    for node, found in changes.items():
        if any(role != "down" for _, role, _ in found):
            lanes.append(Lane(node, tuple(_stretches(found, groups, duration))))
    return lanes


def _stretches(changes: Sequence[tuple[float, str, str]], groups: Mapping[str, int], end: float) -> Iterator[Stretch]:
    for (start, role, group), following in zip(changes, [*changes[1:], (end, "", "")], strict=True):
        until = min(following[0], end)
        if until > max(start, 0.0):
            yield Stretch(max(start, 0.0), until, role, group, groups.get(group, -1))


def _changes(
    path: Path, started: datetime | None, faults: Sequence[FaultWindow]
) -> Iterator[tuple[float, str, str]]:
    """(time, role, group) of each change that a node's log tells; ``down`` from faults that ended its process."""
    for fault in faults:
        if fault.fault in DOWN_FAMILIES and path.stem in fault.targets:
            yield fault.start / 1e9, "down", ""
    for line in read_lines(path, started):
        change = role_of(line.text)
        if change is not None and line.time is not None:
            yield line.time, *change


def role_of(text: str) -> tuple[str, str] | None:
    """The role that a line of a node's log announces, and the group; None for other lines."""
    fields = {name: _plain(value) for name, value in _FIELD.findall(text)}
    if text.startswith("replica state "):
        state = fields.get("state", "?")
        leads = fields.get("leads") == "True"
        return ("master" if leads else "slave") if state == "normal" else state, fields.get("group", "")
    for event, (role, group) in _JORAM.items():
        if text.startswith(f"{event} ") or text == event:
            return role, f"epoch {fields.get(group, '?')}" if group else ""
    return None


def _plain(value: str) -> str:
    if not value.startswith('"'):
        return value
    try:
        return str(json.loads(value))
    except ValueError:
        return value
