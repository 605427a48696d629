"""Lines of nodes' logs, on the clock of the run.

A line may begin with the seconds since its process started and the wall time, as ours do:
``12.345 2026-05-01T10:00:12.345678+00:00 message``. A system whose logs look otherwise says how they are read
(``System.parse_line``).
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from stormproof.history.log_timestamps import read_moments

STAMPED = re.compile(
    r"(\d+(?:\.\d+)?)\s+(\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?)(?:\s(.*))?", re.DOTALL
)
"""Seconds since the process started, wall time, text."""

MAX_READ_BYTES = 8 << 20
_YOUNG, _SAME_CLOCK = 1.0, 0.05
"""Seconds within which a process that has just started writes its first line, and by which a node's clocks may seem to
differ."""


@dataclass(frozen=True)
class LogLine:
    """What a line of a log says, and when it was written.

    ``time`` is in seconds since 1970 by the node's clock, None where the line does not say; ``uptime`` are the seconds
    since its process started, if it tells them: they don't jump with the time of day.
    """

    time: float | None
    text: str
    uptime: float | None = None


@dataclass(frozen=True)
class PlacedLine:
    """One line: its number in the file (from 1) and its time in seconds of the run, None when unknown."""

    number: int
    time: float | None
    text: str


Parser = Callable[[str], LogLine]


def parse_stamped(line: str) -> LogLine:
    """A line of our own format; any other has no time."""
    match = STAMPED.fullmatch(line)
    wall = parse_time(match[2].replace(",", ".")) if match else None
    if match is None or wall is None:
        return LogLine(None, line)
    return LogLine(wall.timestamp(), match[3] or "", float(match[1]))


def parse_time(text: object) -> datetime | None:
    """The moment that an ISO 8601 text names (UTC where it names no zone), None when it names none."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def read_log(path: Path, zero: float | None, parse: Parser = parse_stamped) -> tuple[list[PlacedLine], bool]:
    """The lines of a log, on the clock of a run that began ``zero`` seconds after 1970 (None: nobody knows).

    Of a file above ``MAX_READ_BYTES`` those at its end, which the second result tells.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - MAX_READ_BYTES))
        raw = file.read(MAX_READ_BYTES).decode("utf-8", "replace").splitlines()
    clipped = size > MAX_READ_BYTES
    lines = place_lines(raw, zero, parse)
    moments = read_moments(path, len(lines), tail=clipped)
    if moments is not None and zero is not None:
        lines = [PlacedLine(line.number, round(moment - zero, 4), line.text)
                 for line, moment in zip(lines, moments, strict=True)]  # fmt: skip
    return lines, clipped


def place_lines(raw: Iterable[str], zero: float | None, parse: Parser = parse_stamped) -> list[PlacedLine]:
    """Log lines with their times on the run's clock; a line without a time takes that of the one before.

    A node's monotonic clock is used where the lines tell it, shifted by the median distance to its wall clock while one
    process lived: a bumped wall clock then does not move lines.
    """
    if zero is None:  # then a line's own stamp is all that tells when it was written
        return [PlacedLine(number, None, line) for number, line in enumerate(raw, 1)]
    lines = [parse(line) for line in raw]
    times = _aligned([(line.uptime, None if line.time is None else line.time - zero) for line in lines])
    placed = enumerate(zip(lines, times, strict=True), 1)
    return [PlacedLine(number, time, line.text) for number, (line, time) in placed]


def _is_another_life(mono: float, wall: float, mono_then: float, wall_then: float) -> bool:
    """Whether a line was written by another process than the line before it, by the seconds of both clocks.

    Monotonic seconds never fall. Where they begin with the process, they need not fall from one to the next either, if
    the former lived for a moment only: its successor is younger than the time between the lines, by the wall clock.
    """
    if mono_then < mono:
        return True
    passed = wall_then - wall
    return mono_then <= min(_YOUNG, passed) and passed - (mono_then - mono) > _SAME_CLOCK


def _aligned(stamps: Sequence[tuple[float | None, float | None]]) -> list[float | None]:
    """Times on the run's clock, one process life at a time."""
    lives: list[list[tuple[float, float]]] = []
    owner: list[int] = []
    for mono, wall in stamps:
        if mono is not None and wall is not None:
            if not lives or _is_another_life(*lives[-1][-1], mono, wall):
                lives.append([])
            lives[-1].append((mono, wall))
        owner.append(len(lives) - 1)
    shifts = [statistics.median(wall - mono for mono, wall in life) for life in lives]
    times: list[float | None] = []
    for (mono, wall), life in zip(stamps, owner, strict=True):
        if mono is not None and wall is not None:
            times.append(round(mono + shifts[life], 4))
        elif wall is not None:
            times.append(round(wall, 4))
        else:
            times.append(times[-1] if times else None)
    return times
