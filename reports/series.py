"""Latency and throughput over time, from the spans of one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reports.spans import Spans, client_functions
from stormproof.history.columns import HistoryColumns
from stormproof.operation import UNKNOWN_DEPTH
from stormproof.vocabulary import FAIL, INFO, OK, function_named

QUANTILES = (0.5, 0.95, 0.99, 1.0)
TARGET_BUCKETS = 120
LEAST_BUCKETS = 30
LEAST_PER_BUCKET = 15
"""Average number of operations in a bucket of a sparse run: with fewer, the curve would be noise."""
MAX_FUNCTIONS = 4
QUIET_ERRORS = ("empty", UNKNOWN_DEPTH)
"""The errors of a poll that found no message: not failures worth a line in a plot."""

_NICE_SECONDS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """Buckets of ``width`` seconds from the start of the run.

    ``latency`` maps a function to one list per quantile (milliseconds; None for an empty bucket) of its operations that
    are ``ok``, placed at their completion; ``rate`` maps a line's name to operations a second.
    """

    width: float
    buckets: int
    latency: dict[str, list[list[float | None]]]
    rate: dict[str, list[float | None]]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for the page."""
        return {
            "width": self.width,
            "buckets": self.buckets,
            "quantiles": list(QUANTILES),
            "latency": self.latency,
            "rate": self.rate,
        }


def bucket_width(duration_s: float, operations: int) -> float:
    """Return the round width (seconds) that divides a run into ``TARGET_BUCKETS`` pieces, or fewer and fuller ones."""
    pieces = min(TARGET_BUCKETS, max(LEAST_BUCKETS, operations // LEAST_PER_BUCKET))
    wanted = duration_s / pieces
    return float(next((nice for nice in _NICE_SECONDS if nice >= wanted), wanted))


def run_series(history: HistoryColumns, spans: Spans) -> Series:
    """Return quantiles of latency, and rates, per bucket of time."""
    duration_s = float(history.time.max()) / 1e9 if history.rows else 0.0
    width = bucket_width(duration_s, len(spans))
    buckets = int(duration_s / width) + 1
    place = np.clip(spans.end / 1e9 / width, 0, buckets - 1).astype(np.int64)
    latency_ms = (spans.end - spans.start) / 1e6
    ok = spans.type == OK
    latency: dict[str, list[list[float | None]]] = {}
    rate: dict[str, list[float | None]] = {}
    # The final operations of a run are omitted: their burst would flatten the rest.
    functions = [c for c in client_functions(history, spans) if not function_named(history.f.names[c]).final]
    main = np.isin(spans.f, functions)
    # No lines of zeros during the cluster's start, nor during the drain.
    first, last = int(place[main].min(initial=buckets)), int(place[main].max(initial=0))
    busy = slice(first, last + 1)
    for code in functions[:MAX_FUNCTIONS]:
        mine = ok & (spans.f == code)
        latency[history.f.names[code]] = bucket_quantiles(place[mine], latency_ms[mine], buckets)
        rate[f"{history.f.names[code]} ok"] = _rates(place[mine], buckets, busy, width)
    quiet = np.array([name in QUIET_ERRORS for name in history.error.names] + [False])
    rate["info"] = _rates(place[main & (spans.type == INFO)], buckets, busy, width)
    rate["fail"] = _rates(place[main & (spans.type == FAIL) & ~quiet[spans.error]], buckets, busy, width)
    return Series(width, buckets, latency, rate)


def bucket_quantiles(place: npt.NDArray[np.int64], sample: Floats, buckets: int) -> list[list[float | None]]:
    """Return, per quantile, its value in each bucket (nearest rank), None where a bucket is empty."""
    order = np.lexsort((sample, place))
    place, sample = place[order], sample[order]
    edges = np.searchsorted(place, np.arange(buckets + 1))
    size = np.diff(edges)
    lines: list[list[float | None]] = []
    for quantile in QUANTILES:
        rank = edges[:-1] + np.maximum(np.ceil(quantile * size).astype(np.int64) - 1, 0)
        lines.append([round(float(sample[r]), 3) if n else None for r, n in zip(rank, size, strict=True)])
    return lines


def _rates(place: npt.NDArray[np.int64], buckets: int, busy: slice, width: float) -> list[float | None]:
    counts = np.bincount(place, minlength=buckets)
    rates: list[float | None] = [None] * buckets
    rates[busy] = [round(float(n) / width, 2) for n in counts[busy]]
    return rates
