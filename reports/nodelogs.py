"""Node logs on the clock of the run, cut down to what a page can hold.

A line begins with the node's monotonic seconds and the wall time:
``12.345 2026-05-01T10:00:12.345678+00:00 message``.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from harness.history.moments import read_moments
from reports.folder import parse_time
from reports.pack import shorten

LINE = re.compile(r"^(\d+(?:\.\d+)?)\s+(\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?)(?:\s(.*))?$", re.DOTALL)

MAX_READ_BYTES = 8 << 20
MAX_LINES = 1_500
"""Lines of one node that a page holds."""
MAX_LINE_CHARS = 400

ANOMALY_WINDOW_S = 3.0
FAULT_WINDOW_S = 1.0


@dataclass(frozen=True)
class LogLine:
    """One line: its number in the file (from 1) and its time in seconds of the run, None when unknown."""

    number: int
    time: float | None
    text: str


@dataclass(frozen=True)
class NodeLog:
    """What is kept of one node's log: ``total`` lines were read; ``clipped``: the file was too long to read whole."""

    node: str
    file: str
    lines: tuple[LogLine, ...]
    total: int
    clipped: bool


def read_log(
    path: Path, started: datetime | None, anomaly_times: Sequence[float], fault_times: Sequence[float]
) -> NodeLog:
    """Read one node's log and keep the lines nearest to anomalies, then to faults, then the ends.

    Times are seconds of the run. Of a file above ``MAX_READ_BYTES`` the end is read.
    """
    raw, clipped = _tail(path)
    lines = _placed(path, raw.splitlines(), started, clipped)
    return NodeLog(
        node=path.stem,
        file=path.name,
        lines=tuple(select_lines(lines, anomaly_times, fault_times, MAX_LINES)),
        total=len(lines),
        clipped=clipped,
    )


def read_lines(path: Path, started: datetime | None) -> list[LogLine]:
    """All lines of one node's log; of a file above ``MAX_READ_BYTES`` those at its end."""
    raw, clipped = _tail(path)
    return _placed(path, raw.splitlines(), started, clipped)


def _placed(path: Path, raw: Sequence[str], started: datetime | None, clipped: bool) -> list[LogLine]:
    """The lines of a log, at the times that the run knows, or else at those that the node wrote."""
    lines = parse_lines(raw, started)
    moments = read_moments(path, len(lines), tail=clipped)
    if moments is None or started is None:
        return lines
    zero = started.timestamp()
    return [replace(line, time=round(moment - zero, 4)) for line, moment in zip(lines, moments, strict=True)]


def _tail(path: Path) -> tuple[str, bool]:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - MAX_READ_BYTES))
        raw = file.read(MAX_READ_BYTES)
    return raw.decode("utf-8", "replace"), size > MAX_READ_BYTES


def parse_lines(raw: Iterable[str], started: datetime | None) -> list[LogLine]:
    """Log lines with their times on the run's clock; a line without a stamp takes the time of the one before.

    A node's monotonic clock is used, shifted by the median distance to its wall clock while one process
    lived: a bumped wall clock then does not move lines.
    """
    stamped: list[tuple[float | None, float | None, str]] = []
    for line in raw:
        match = LINE.match(line)
        wall = parse_time(match.group(2).replace(",", ".")) if match else None
        if match and wall and started:
            stamped.append((float(match.group(1)), (wall - started).total_seconds(), match.group(3) or ""))
        else:
            stamped.append((None, None, line))
    times = _aligned([(mono, wall) for mono, wall, _ in stamped])
    return [
        LogLine(number, time, shorten(text, MAX_LINE_CHARS))
        for number, (time, (_, _, text)) in enumerate(zip(times, stamped, strict=True), 1)
    ]


def _aligned(stamps: Sequence[tuple[float | None, float | None]]) -> list[float | None]:
    """Times on the run's clock, one process life (monotonic seconds never fall) at a time."""
    lives: list[list[tuple[float, float]]] = []
    owner: list[int] = []
    for mono, wall in stamps:
        if mono is not None and wall is not None:
            if not lives or mono < lives[-1][-1][0]:
                lives.append([])
            lives[-1].append((mono, wall))
        owner.append(len(lives) - 1)
    shifts = [statistics.median(wall - mono for mono, wall in life) for life in lives]
    times: list[float | None] = []
    for (mono, _), life in zip(stamps, owner, strict=True):
        if mono is not None:
            times.append(round(mono + shifts[life], 4))
        else:
            times.append(times[-1] if times else None)
    return times


def select_lines(
    lines: Sequence[LogLine], anomaly_times: Sequence[float], fault_times: Sequence[float], limit: int
) -> list[LogLine]:
    """At most ``limit`` lines, in order: near anomalies first, then near faults, then the end, then the start."""
    if len(lines) <= limit:
        return list(lines)
    near_anomaly = [i for i, line in enumerate(lines) if _near(line, anomaly_times, ANOMALY_WINDOW_S)]
    near_fault = [i for i, line in enumerate(lines) if _near(line, fault_times, FAULT_WINDOW_S)]
    ends = [*range(len(lines) - 1, len(lines) - limit // 4, -1), *range(len(lines))]
    chosen = list(dict.fromkeys([*near_anomaly[: limit * 3 // 4], *near_fault[: limit // 2], *ends]))[:limit]
    return [lines[i] for i in sorted(chosen)]


def _near(line: LogLine, times: Sequence[float], window: float) -> bool:
    moment = line.time
    return moment is not None and any(abs(moment - time) <= window for time in times)
