"""Trends over nights as a page: STORE/trend.html."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from reports.page import render, write_page

TREND = "trend.html"
STYLES = ("base.css", "store.css", "trend.css")
SCRIPTS = ("dom.js", "theme.js", "still.js")


@dataclass(frozen=True)
class TrendNight:
    """A night: its id, its tag, its start, its runs."""

    name: str
    tag: str
    started: str
    runs: int


@dataclass(frozen=True)
class Point:
    """One night's value, from ``runs`` runs; ``bad`` of them, where the value is a share."""

    night: int
    value: float
    runs: int
    bad: int = 0


@dataclass(frozen=True)
class Level:
    """The median of all runs from night ``first`` to before ``last``, between two changes."""

    first: int
    last: int
    value: float


@dataclass(frozen=True)
class ChangeMark:
    """A change: its first night, its text, whether it is for the worse, and the probability that it is accidental."""

    at: int
    words: str
    worse: bool
    p: float


@dataclass(frozen=True)
class TrendSeries:
    """One measure of a case over nights."""

    name: str
    unit: str
    share: bool
    points: tuple[Point, ...]
    levels: tuple[Level, ...]
    marks: tuple[ChangeMark, ...]

    @property
    def top(self) -> float:
        """The end of its axis: a round number that no value exceeds."""
        highest = max((point.value for point in self.points), default=0.0)
        if highest <= 0:
            return 1.0 if not self.share else 0.1
        power = 10.0 ** math.floor(math.log10(highest))
        return next(factor * power for factor in (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 20) if factor * power >= highest)

    def told(self, value: float) -> str:
        """Return a readable value."""
        return f"{100 * value:.3g} %" if self.share else f"{value:,.3g} {self.unit}" if value < 1000 \
            else f"{value:,.0f} {self.unit}"


@dataclass(frozen=True)
class TrendRow:
    """The values in a night's row of a table."""

    night: int
    runs: int
    values: tuple[str, ...]


@dataclass(frozen=True)
class TrendCase:
    """A case; ``twin`` if it must fail."""

    name: str
    twin: bool
    series: tuple[TrendSeries, ...]

    @property
    def marks(self) -> int:
        """The number of its changes."""
        return sum(len(series.marks) for series in self.series)

    @property
    def rows(self) -> list[TrendRow]:
        """Its values as a table, the newest night first."""
        values = [{point.night: point for point in series.points} for series in self.series]
        nights = sorted({night for each in values for night in each}, reverse=True)
        return [TrendRow(night, max(each[night].runs for each in values if night in each),
                         tuple(series.told(each[night].value) if night in each else "—"
                               for series, each in zip(self.series, values, strict=True)))
                for night in nights]  # fmt: skip


@dataclass(frozen=True)
class Trend:
    """All cases over nights. ``tested`` series were searched for changes, of which ``short`` were too short for any
    change to be reported; ``false_alarms`` is the upper bound of the probability that a change is reported where
    nothing changed."""

    nights: tuple[TrendNight, ...]
    cases: tuple[TrendCase, ...]
    tested: int
    short: int
    false_alarms: float

    @property
    def sentence(self) -> str:
        """The extent of the search, and the certainty of its findings."""
        changes = sum(case.marks for case in self.cases)
        told = "no change" if not changes else "1 change" if changes == 1 else f"{changes} changes"
        nights = f"{len(self.nights)} night{'s' * (len(self.nights) != 1)}"
        lacking = f"; {self.short} of them are too short to show a change" if self.short else ""
        if not self.tested:
            return f"{nights}: too few to show a change"
        return (f"{told} in {self.tested} series of {nights}{lacking}; if nothing has changed, at most one "
                f"page in {round(1 / self.false_alarms)} reports a change")  # fmt: skip


def write_trend(store: Path, found: Trend) -> Path:
    """Write STORE/trend.html. Raises HistoryError when that can't be done."""
    ordered = sorted(found.cases, key=lambda case: not case.marks)
    marks = sorted(((mark, at) for at, case in enumerate(ordered) for series in case.series for mark in series.marks),
                   key=lambda pair: (-pair[0].at, not pair[0].worse))  # fmt: skip
    sentence = found.sentence[:1].upper() + found.sentence[1:] + "."
    context = {"store": store.resolve().name, "trend": found, "cases": ordered, "marks": marks, "sentence": sentence,
               "count": len(found.nights)}  # fmt: skip
    return write_page(store / TREND, render("trend.html", STYLES, SCRIPTS, {}, context))
