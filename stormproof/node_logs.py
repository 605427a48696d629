"""Lines of nodes' logs, on the clock of the run.

A line may begin with the seconds since its process started and the wall time, as in our own format: ``12.345
2026-05-01T10:00:12.345678+00:00 message``. A system with another format parses its lines itself
(``System.parse_line``).
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from stormproof.history.log_timestamps import read_moments

STAMPED = re.compile(
    r"(\d+(?:\.\d+)?)\s+(\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?)(?:\s(.*))?", re.DOTALL
)
"""Seconds since the process started, wall time, text."""

MAX_READ_BYTES = 8 << 20
_YOUNG, _SAME_CLOCK = 1.0, 0.05
"""The maximum age of a new process at its first line, and the maximum apparent difference between a node's clocks, in
seconds."""


@dataclass(frozen=True)
class LogLine:
    """The text of a log line, and the time at which it was written.

    ``time`` is in seconds since 1970 by the node's clock, None if the line has no time; ``uptime`` is the number of
    seconds since its process started, if the line has it: it does not jump with the time of day.
    """

    time: float | None
    text: str
    uptime: float | None = None


@dataclass(frozen=True)
class PlacedLine:
    """A log line with its number in the file (from 1) and its time in seconds of the run, None if unknown."""

    number: int
    time: float | None
    text: str
    raw: str = field(default="", compare=False)
    """The whole line, with its time."""


Parser = Callable[[str], LogLine]


def parse_stamped(line: str) -> LogLine:
    """Parse a line of our own format; a line of any other format has no time."""
    match = STAMPED.fullmatch(line)
    wall = parse_time(match[2].replace(",", ".")) if match else None
    if match is None or wall is None:
        return LogLine(None, line)
    return LogLine(wall.timestamp(), match[3] or "", float(match[1]))


def parse_dated(line: str, pattern: re.Pattern[str], form: str) -> LogLine:
    """Parse a line by a pattern. Its first group is a time in UTC, of this form of ``strptime``, and its last group the
    text; a line of any other format, or with a time that does not exist, has no time."""
    match = pattern.fullmatch(line)
    if match is None:
        return LogLine(None, line)
    try:
        moment = datetime.strptime(match[1], form).replace(tzinfo=UTC)
    except ValueError:
        return LogLine(None, line)
    return LogLine(moment.timestamp(), match[match.re.groups])


def parse_time(text: object) -> datetime | None:
    """Return the moment of an ISO 8601 text (UTC if it names no zone), None if the text is not a time."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def read_log(path: Path, zero: float | None, parse: Parser = parse_stamped) -> tuple[list[PlacedLine], bool]:
    """Return the lines of a log, on the clock of a run that began ``zero`` seconds after 1970 (None: unknown).

    For a file above ``MAX_READ_BYTES``, these are the lines at its end; the second result tells whether this is so.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - MAX_READ_BYTES))
        raw = file.read(MAX_READ_BYTES).decode("utf-8", "replace").splitlines()
    clipped = size > MAX_READ_BYTES
    lines = place_lines(raw, zero, parse)
    moments = read_moments(path, len(lines), tail=clipped)
    if moments is not None and zero is not None:
        lines = [PlacedLine(line.number, round(moment - zero, 4), line.text, line.raw)
                 for line, moment in zip(lines, moments, strict=True)]  # fmt: skip
    return lines, clipped


def place_lines(raw: Iterable[str], zero: float | None, parse: Parser = parse_stamped) -> list[PlacedLine]:
    """Return log lines with their times on the run's clock; a line without a time takes the time of the line before.

    If lines have times of a node's monotonic clock, these are used, shifted by their median distance from the node's
    wall clock during one process life: a bumped wall clock then does not move lines.
    """
    if zero is None:  # lines stay unparsed then: a line's stamp is the only record of its time
        return [PlacedLine(number, None, line, line) for number, line in enumerate(raw, 1)]
    whole = list(raw)
    lines = [parse(line) for line in whole]
    times = _aligned([(line.uptime, None if line.time is None else line.time - zero) for line in lines])
    placed = enumerate(zip(lines, times, whole, strict=True), 1)
    return [PlacedLine(number, time, line.text, raw) for number, (line, time, raw) in placed]


def _is_another_life(mono: float, wall: float, mono_then: float, wall_then: float) -> bool:
    """Return whether a different process wrote this line than the line before, judging by the seconds of both clocks.

    Monotonic seconds never decrease within one process. If they start at 0 with each process, they need not decrease
    from one process to the next either, if the former lived for a moment only: its successor is then younger than the
    time between the lines by the wall clock.
    """
    if mono_then < mono:
        return True
    passed = wall_then - wall
    return mono_then <= min(_YOUNG, passed) and passed - (mono_then - mono) > _SAME_CLOCK


def _aligned(stamps: Sequence[tuple[float | None, float | None]]) -> list[float | None]:
    """Return times on the run's clock, aligned for one process life at a time."""
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
