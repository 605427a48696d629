"""The trend of each case over nights: its share of invalid runs, its latency, its outages; and the changes of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np

from harness.backends.catalog import BACKENDS
from harness.nightly.changes import ChangePoint, Samples, find_changes, too_short
from harness.nightly.figures import OUTAGE, P99, RECOVERY
from harness.nightly.record import Night, NightResult
from harness.run.cases import BROKEN
from reports.trend_page import ChangeMark, Level, Point, Trend, TrendCase, TrendNight, TrendSeries
from stormproof.contracts.check import INVALID, VALID
from stormproof.errors import UsageError

FALSE_ALARMS = 0.05
"""The largest probability that a page without any change reports one. All its series share this probability."""
MOST_NIGHTS = 60


@dataclass(frozen=True)
class Measure:
    """A measure of a case. ``value`` returns the value of a run, or None if it has none. Several runs of a night are
    summarised by their mean if the measure is a share, else by their median."""

    name: str
    unit: str
    value: Callable[[NightResult], float | None]
    share: bool = False


def _invalid(result: NightResult) -> float | None:
    return None if result.verdict == BROKEN else float(result.verdict == INVALID)


def _figure(name: str) -> Callable[[NightResult], float | None]:
    def value(result: NightResult) -> float | None:
        found = result.figures.get(name)
        return float(found) if isinstance(found, int | float) and np.isfinite(found) else None

    return value


MEASURES = (
    Measure("invalid runs", "", _invalid, share=True),
    Measure("p99 of sends", "ms", _figure(P99)),
    Measure("longest outage", "s", _figure(OUTAGE)),
    Measure("slowest recovery", "s", _figure(RECOVERY)),
)


@dataclass(frozen=True)
class _Runs:
    """The runs of one case that have one measure, with the samples for comparison."""

    case: str
    twin: bool
    measure: Measure
    samples: Samples


def trend(nights: Sequence[Night], seed: int = 0) -> Trend:
    """Return the trend over these nights, the oldest first. ``seed`` is that of the shuffles."""
    found = _runs_of(nights)
    every = [runs for each in found.values() for runs in each if len(np.unique(runs.samples.night)) > 1]
    level = FALSE_ALARMS / max(1, len(every))
    rng = np.random.default_rng(seed)
    short = sum(too_short(runs.samples, level) for runs in every)
    cases = [
        TrendCase(case, each[0].twin, tuple(_series(runs, find_changes(runs.samples, level, rng), nights)
                                            for runs in each if len(runs.samples.night)))
        for case, each in found.items()
    ]  # fmt: skip
    told = [_described(night) for night in nights]
    return Trend(tuple(told), tuple(cases), len(every), short, FALSE_ALARMS)


def _described(night: Night) -> TrendNight:
    return TrendNight(night.name, str(night.head.get("tag") or ""), str(night.head.get("started") or ""),
                      len(night.results))  # fmt: skip


def _cells(night: Night) -> list[Mapping[str, Any]]:
    cells = night.head.get("cells")
    return [cell for cell in cells if isinstance(cell, dict) and {"name", "case"} <= cell.keys()] \
        if isinstance(cells, list) else []


def _runs_of(nights: Sequence[Night]) -> dict[str, list[_Runs]]:
    """Return the runs of each case for each measure. Cases of the last night are first, in their order."""
    cases = dict.fromkeys(str(cell["case"]) for night in reversed(nights) for cell in _cells(night))
    rows: dict[str, list[tuple[int, NightResult]]] = {case: [] for case in cases}
    twins: dict[str, bool] = {}
    by_night: set[str] = set()
    for at, night in enumerate(nights):
        case_of: dict[str, str] = {}
        for cell in _cells(night):
            case = case_of[str(cell["name"])] = str(cell["case"])
            twins[case] = cell.get("expected") == INVALID
            if not _alike(str(cell.get("backend"))):
                by_night.add(case)
        for result in night.results:
            if result.cell in case_of:
                rows[case_of[result.cell]].append((at, result))
    return {case: [_Runs(case, twins[case], measure, _samples(rows[case], measure, case in by_night))
                   for measure in MEASURES] for case in cases}  # fmt: skip


def _samples(rows: Sequence[tuple[int, NightResult]], measure: Measure, by_night: bool) -> Samples:
    strata: dict[str, int] = {}
    found = [(at, strata.setdefault(result.cell, len(strata)), value) for at, result in rows
             if (value := measure.value(result)) is not None]  # fmt: skip
    night, stratum, values = zip(*found, strict=True) if found else ((), (), ())
    return Samples(np.array(night, np.int64), np.array(stratum, np.int64), np.array(values, np.float64), by_night)


def _alike(backend: str) -> bool:
    """Return whether runs of a backend are independent of the night, because time is simulated."""
    try:
        return bool(BACKENDS.load(backend).in_process)
    except UsageError:
        return False


def _series(runs: _Runs, changes: Sequence[ChangePoint], nights: Sequence[Night]) -> TrendSeries:
    samples, measure = runs.samples, runs.measure
    points = []
    for at in np.unique(samples.night).tolist():
        values = samples.value[samples.night == at]
        points.append(Point(at, _middle(values, measure), len(values), int(values.sum()) if measure.share else 0))
    edges = [0, *(change.at for change in changes), len(nights)]
    parts = [samples.value[(samples.night >= first) & (samples.night < last)]
             for first, last in pairwise(edges)]  # fmt: skip
    levels = [Level(first, last, _middle(part, measure))
              for (first, last), part in zip(pairwise(edges), parts, strict=True)]  # fmt: skip
    marks = [_mark(runs, change, before, after, nights)
             for change, (before, after) in zip(changes, pairwise(parts), strict=True)]  # fmt: skip
    return TrendSeries(measure.name, measure.unit, measure.share, tuple(points), tuple(levels), tuple(marks))


def _middle(values: Any, measure: Measure) -> float:
    return float(np.mean(values) if measure.share else np.median(values))


def _mark(runs: _Runs, change: ChangePoint, before: Any, after: Any, nights: Sequence[Night]) -> ChangeMark:
    """Describe a change in words: the measure, its old and new value, the night, and other novelties of that night."""
    measure, night = runs.measure, nights[change.at]
    was, now = (_told(values, measure) for values in (before, after))
    rose = _middle(after, measure) > _middle(before, measure)
    verb = "rose" if change.rose else "fell"
    # Within the combinations that ran at both times. All runs together may show the opposite if others were added.
    within = "" if rose == change.rose else " (within its combinations; others were run as well)"
    tag = f", {night.head['tag']}" if night.head.get("tag") else ""
    earlier = nights[change.at - 1]
    plan = "; the night's file was changed then, too" if night.head.get("digest") != earlier.head.get("digest") else ""
    words = (f"{runs.case}: {measure.name} {verb} from {was} to {now}{within} "
             f"with the night {night.name}{_day(night)}{tag}{plan}")  # fmt: skip
    good = runs.twin and measure.share  # a twin should fail
    return ChangeMark(change.at, words, change.rose != good, change.p)


def _day(night: Night) -> str:
    try:
        return f" ({datetime.fromisoformat(str(night.head.get('started'))):%d %B %Y})".replace("(0", "(")
    except ValueError:
        return ""


def _told(values: Any, measure: Measure) -> str:
    if measure.share:
        return f"{int(np.sum(values))} of {len(values)} ({100 * float(np.mean(values)):.3g} %)"
    return f"{float(np.median(values)):.3g} {measure.unit}"


def lines_of(found: Trend) -> list[str]:
    """Return lines for people: each change in words, the newest first, and the confidence."""
    marks = sorted((mark for case in found.cases for series in case.series for mark in series.marks),
                   key=lambda mark: (-mark.at, not mark.worse))  # fmt: skip
    return [f"{'worse' if mark.worse else 'better'}: {mark.words}" for mark in marks] + [found.sentence]


def to_json(found: Trend) -> dict[str, Any]:
    """Return the object that ``trend --json`` prints."""
    names = [night.name for night in found.nights]
    return {
        "nights": names, "tested": found.tested, "too_short": found.short, "false_alarms": found.false_alarms,
        "changes": [{"case": case.name, "measure": series.name, "night": names[mark.at], "worse": mark.worse,
                     "p": mark.p, "words": mark.words}
                    for case in found.cases for series in case.series for mark in series.marks],
        "cases": [{"case": case.name, "expected": INVALID if case.twin else VALID, "series": {
                   series.name: {names[point.night]: point.value for point in series.points}
                   for series in case.series}} for case in found.cases],
    }  # fmt: skip
