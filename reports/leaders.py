"""The leader of each queue, as each node reported it during the run: lanes next to those of the nodes' roles.

Where two nodes report different leaders at the same time, there was a split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from reports.folder import json_lines, mapping, number
from reports.roles import COLOURS, Lane, RolePeriod
from stormproof.run_folder import LEADERS

MAX_LANES = 24


def leader_lanes(run_dir: Path, duration: float) -> list[Lane]:
    """Return a lane for each object and each witness that reported its leader, until ``duration`` (seconds); at most
    MAX_LANES.

    A stretch's ``role`` is the leader, whose colour it has; ``leads`` means that the witness considers itself the
    leader. Where the witness did not answer there is no stretch.
    """
    told = _told(run_dir / LEADERS)
    leaders = sorted({node for _, _, found in told for node in found.values()}, key=lambda name: (len(name), name))
    colours = {name: at % COLOURS for at, name in enumerate(leaders)}
    lanes = []
    for led, witness in sorted({(led, witness) for _, witness, found in told for led in found}):
        mine = [(time, found.get(led, "")) for time, by, found in told if by == witness]
        ends = [*(time for time, _ in mine[1:]), duration]
        stretches: list[RolePeriod] = []
        for (start, leader), end in zip(mine, ends, strict=True):
            if leader and end > start:
                stretches.append(RolePeriod(start, min(end, duration), leader, "", serving=True,
                                            leads=leader == witness, colour=colours[leader]))  # fmt: skip
        lanes.append(Lane(f"{led}, {witness}" if witness else led, _joined(stretches)))
    return lanes[:MAX_LANES]


def _told(path: Path) -> list[tuple[float, str, Mapping[str, str]]]:
    """Return (seconds, witness, object -> leader), in order of time."""
    found: list[tuple[float, str, Mapping[str, str]]] = []
    for row in json_lines(path):
        time = number(row.get("time"))
        if time is not None:
            leaders = {str(led): str(node) for led, node in mapping(row.get("leaders")).items()}
            found.append((time / 1e9, str(row.get("witness") or ""), leaders))
    return sorted(found, key=lambda each: each[0])


def _joined(stretches: Sequence[RolePeriod]) -> tuple[RolePeriod, ...]:
    """Join the stretches of reports that were repeated because another object had changed."""
    joined: list[RolePeriod] = []
    for stretch in stretches:
        if joined and joined[-1].role == stretch.role and joined[-1].end == stretch.start:
            stretch = replace(stretch, start=joined.pop().start)
        joined.append(stretch)
    return tuple(joined)
