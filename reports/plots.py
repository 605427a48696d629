"""What is plotted over time on the page of a run: throughput, latencies, and whatever else was sampled.

A page draws every ``Plot`` that it gets on the timeline's one axis, one below the other. So another module that reads
samples from the run folder needs to return plots only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from reports.series import QUANTILES, Series

RATE, MILLISECONDS, PERCENT, BYTES, BYTE_RATE = "rate", "milliseconds", "percent", "bytes", "byte-rate"
"""How the values of a plot are written."""
COLOURS = 4
"""Functions, nodes and the like have the colours ``f0`` to ``f3``, by turns."""


@dataclass(frozen=True)
class Line:
    """One line of a plot. ``colour`` names a colour of the style (``f0``, ``info``, ``fault-1``); of lines that have it
    in common ``rank`` makes the later ones fainter.

    Either the values stand for buckets of ``width`` seconds, counted from the start of the run, and are drawn as steps;
    or ``times`` (seconds of the run) says when each of them was sampled. None is a gap.
    """

    name: str
    values: Sequence[float | None]
    colour: str = "f0"
    rank: int = 0
    width: float = 0.0
    times: Sequence[float] = ()


@dataclass(frozen=True)
class Plot:
    """Lines with one scale. ``points``: the number of the function whose operations are drawn as points under them, by
    their latency; ``name`` tells the plot from others in the page."""

    name: str
    title: str
    remark: str
    written: str
    lines: Sequence[Line]
    logarithmic: bool = False
    points: int = -1

    def to_json(self) -> dict[str, Any]:
        """Plain data for the page."""
        return asdict(self)


def run_plots(series: Series, functions: Sequence[str]) -> list[Plot]:
    """Throughput, and latency by function; ``functions`` are all that clients called, in the order of their colours."""

    def colour(name: str) -> str:
        return f"f{min(COLOURS - 1, functions.index(name))}" if name in functions else "f0"

    rates = [Line(name, values, name if name in ("info", "fail") else colour(name.removesuffix(" ok")),
                  width=series.width)
             for name, values in series.rate.items() if any(values)]  # fmt: skip
    plots = [Plot("throughput", "Throughput", "operations a second", RATE, rates)] if rates else []
    for name, quantiles in series.latency.items():
        if not any(value is not None for values in quantiles for value in values):
            continue
        lines = [Line(_quantile_name(quantile), values, colour(name), rank, series.width)
                 for rank, (quantile, values) in enumerate(zip(QUANTILES, quantiles, strict=True))]  # fmt: skip
        remark = "points: operations, as they were answered; lines: quantiles"
        plots.append(Plot(f"latency-{name}", f"Latency of {name}", remark, MILLISECONDS, lines, True,
                          functions.index(name)))  # fmt: skip
    return plots


def _quantile_name(quantile: float) -> str:
    return "max" if quantile == 1 else f"p{round(quantile * 100)}"
