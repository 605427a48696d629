"""The leaders and roles over the run: each node's role, from the announcements in its log, as lanes.

Colours distinguish groups, views or epochs. The lanes show the nodes' own view: where two colours overlap in time, two
groups believed that they served.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.folder import json_lines, number, sequence
from stormproof.contracts.fault import ENDS_PROCESS
from stormproof.history.ledger import FaultWindow
from stormproof.run_folder import LOG_EVENTS

DOWN = "down"
COLOURS = 8


@dataclass(frozen=True)
class RolePeriod:
    """A node's role from ``start`` to ``end`` (seconds of the run). ``group`` names the group that it served in, or
    belonged to; ``colour`` numbers the groups in order of their appearance, -1 for none; ``serving``: it was part of a
    group that serves; ``leads``: it was the group's master. ``members`` are those of the group, where the node reported
    them."""

    start: float
    end: float
    role: str
    group: str
    serving: bool
    leads: bool
    colour: int
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lane:
    """The stretches of one node, in order."""

    node: str
    stretches: tuple[RolePeriod, ...]


@dataclass(frozen=True)
class TransferMark:
    """The announcement by ``target``, at ``time`` (seconds of the run), of a transfer of ``source``'s state to it: its
    start or its end, as the system declares."""

    time: float
    source: str
    target: str
    detail: str
    upto: int | None = None
    """The log entry up to which that state must hold everything, where the announcement names it."""


@dataclass(frozen=True)
class Granted:
    """The announcement by ``grantor``, at ``time`` (seconds of the run), of a lock granted to a node; see ``Grant``."""

    time: float
    grantor: str
    to: str
    epoch: str
    known: str
    last: str
    before: str
    stale: bool
    leased: tuple[str, ...]


@dataclass(frozen=True)
class RoleMark:
    """A node's new role from ``time`` on (seconds of the run); without a role the node does not run."""

    time: float
    role: str
    group: str = ""
    serving: bool = False
    leads: bool = False
    members: tuple[str, ...] = ()


def role_lanes(run_dir: Path, faults: Sequence[FaultWindow], duration: float) -> list[Lane]:
    """Return the lanes of all nodes whose logs report roles."""
    told = _told(run_dir / LOG_EVENTS)
    # Of changes at the same time, the last one in the log is in effect.
    changes = {node: sorted([*found, *_ends(node, faults)], key=_time) for node, found in told.items()}
    groups: dict[str, int] = {}
    for change in sorted((change for found in changes.values() for change in found), key=_time):
        if change.group and change.serving:
            groups.setdefault(change.group, len(groups) % COLOURS)
    return [Lane(node, tuple(_stretches(found, groups, duration))) for node, found in sorted(changes.items())]


def read_transfers(run_dir: Path) -> list[TransferMark]:
    """Return the transfers of state that the nodes' logs report, in order of time."""
    found = [TransferMark(time, _text(row, "source"), _text(row, "target"), _text(row, "detail"), _whole(row, "upto"))
             for time, row in _rows(run_dir / LOG_EVENTS) if row.get("event") == "transfer"]  # fmt: skip
    return sorted(found, key=lambda each: each.time)


def read_grants(run_dir: Path) -> list[Granted]:
    """Return the grants of locks that logs report, in order of time."""
    found = [Granted(time, _text(row, "node"), _text(row, "to"), _text(row, "epoch"), _text(row, "known"),
                     _text(row, "last"), _text(row, "before"), row.get("stale") is True,
                     tuple(str(name) for name in sequence(row.get("leased"))))
             for time, row in _rows(run_dir / LOG_EVENTS) if row.get("event") == "grant"]  # fmt: skip
    return sorted(found, key=lambda each: each.time)


def _text(row: Mapping[str, Any], name: str) -> str:
    return str(row.get(name) or "")


def _whole(row: Mapping[str, Any], name: str) -> int | None:
    found = number(row.get(name))
    return None if found is None else int(found)


def _time(change: RoleMark) -> float:
    return change.time


def _told(path: Path) -> dict[str, list[RoleMark]]:
    found: dict[str, list[RoleMark]] = {}
    members: dict[tuple[str, str], tuple[str, ...]] = {}
    for time, row in _rows(path):
        node, group = str(row.get("node")), str(row.get("group") or "")
        if row.get("event") == "group":
            members[node, group] = tuple(str(member) for member in sequence(row.get("members")))
        elif row.get("event") == "role":
            role, leads = str(row.get("role")), bool(row.get("leads"))
            change = RoleMark(time, role, group, bool(row.get("serving")), leads, members.get((node, group), ()))
            found.setdefault(node, []).append(change)
    return found


def _rows(path: Path) -> Iterator[tuple[float, Mapping[str, Any]]]:
    """Yield each event with its time, in the order of each node's log."""
    for row in json_lines(path):
        time = number(row.get("time"))
        if time is not None:
            yield time, row


def _ends(node: str, faults: Sequence[FaultWindow]) -> Iterator[RoleMark]:
    for fault in faults:
        # The log of one of several programs is named after its machine, followed by a dot.
        if ENDS_PROCESS in fault.effects and node.partition(".")[0] in fault.targets:
            yield RoleMark((fault.start if fault.struck is None else fault.struck) / 1e9, DOWN)


def _stretches(changes: Sequence[RoleMark], groups: Mapping[str, int], end: float) -> Iterator[RolePeriod]:
    for change, following in zip(changes, [*changes[1:], RoleMark(end, "")], strict=True):
        start, until = max(change.time, 0.0), min(following.time, end)
        if until > start:
            colour = groups.get(change.group, -1)
            yield RolePeriod(start, until, change.role, change.group, change.serving, change.leads, colour,
                          change.members)  # fmt: skip
