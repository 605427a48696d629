"""Node logs, reduced to the size that a page can hold."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from reports.pack import shorten
from stormproof import node_logs
from stormproof.node_logs import PlacedLine

MAX_LINES = 1_500
"""Upper bound of the lines of one node that a page holds."""
MAX_LINE_CHARS = 400

ANOMALY_WINDOW_S = 3.0
FAULT_WINDOW_S = 1.0


@dataclass(frozen=True)
class NodeLog:
    """The kept lines of one node's log: ``total`` lines were read; ``clipped``: the file was too long to be read
    whole."""

    node: str
    file: str
    lines: tuple[PlacedLine, ...]
    total: int
    clipped: bool


def read_log(
    path: Path, started: datetime | None, anomaly_times: Sequence[float], fault_times: Sequence[float],
    hidden: Collection[int] = (),
) -> NodeLog:
    """Read one node's log and keep the lines nearest to anomalies, then to faults, then the ends.

    Times are seconds of the run. ``hidden`` are the numbers of lines that are meant for programs only.
    """
    lines, clipped = node_logs.read_log(path, None if started is None else started.timestamp())
    lines = [line for line in lines if line.number not in hidden] if hidden else lines
    kept = select_lines(lines, anomaly_times, fault_times, MAX_LINES)
    return NodeLog(
        node=path.stem,
        file=path.name,
        lines=tuple(replace(line, text=shorten(line.text, MAX_LINE_CHARS)) for line in kept),
        total=len(lines),
        clipped=clipped,
    )


def select_lines(
    lines: Sequence[PlacedLine], anomaly_times: Sequence[float], fault_times: Sequence[float], limit: int
) -> list[PlacedLine]:
    """Return at most ``limit`` lines, in order: near anomalies first, then near faults, then the end, then the
    start."""
    if len(lines) <= limit:
        return list(lines)
    near_anomaly = [i for i, line in enumerate(lines) if _near(line, anomaly_times, ANOMALY_WINDOW_S)]
    near_fault = [i for i, line in enumerate(lines) if _near(line, fault_times, FAULT_WINDOW_S)]
    ends = [*range(len(lines) - 1, len(lines) - limit // 4, -1), *range(len(lines))]
    chosen = list(dict.fromkeys([*near_anomaly[: limit * 3 // 4], *near_fault[: limit // 2], *ends]))[:limit]
    return [lines[i] for i in sorted(chosen)]


def _near(line: PlacedLine, times: Sequence[float], window: float) -> bool:
    moment = line.time
    return moment is not None and any(abs(moment - time) <= window for time in times)
