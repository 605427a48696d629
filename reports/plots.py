"""The plots over time on the page of a run: throughput, latencies, and other sampled values.

A page draws each ``Plot`` on the timeline's common axis, one below the other. Therefore another module that reads
samples from the run folder only needs to return plots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from reports.series import QUANTILES, Series

RATE, MILLISECONDS, PERCENT, BYTES, BYTE_RATE = "rate", "milliseconds", "percent", "bytes", "byte-rate"
"""The formats of the values of a plot."""
COLOURS = 4
"""Functions, nodes and the like get the colours ``f0`` to ``f3`` in turn."""


@dataclass(frozen=True)
class PlotLine:
    """One line of a plot. ``colour`` names a colour of the style (``f0``, ``info``, ``fault-1``). Among lines of the
    same colour, a higher ``rank`` makes a line fainter.

    Either the values belong to buckets of ``width`` seconds, counted from the start of the run, and are drawn as steps;
    or ``times`` (seconds of the run) are the times of the samples. None is a gap.
    """

    name: str
    values: Sequence[float | None]
    colour: str = "f0"
    rank: int = 0
    width: float = 0.0
    times: Sequence[float] = ()


@dataclass(frozen=True)
class Plot:
    """Lines with one scale. ``points`` is the number of the function whose operations are drawn as points under the
    lines, by their latency; ``name`` identifies the plot in the page."""

    name: str
    title: str
    remark: str
    written: str
    lines: Sequence[PlotLine]
    logarithmic: bool = False
    points: int = -1

    def to_json(self) -> dict[str, Any]:
        """Return plain data for the page."""
        return asdict(self)


def run_plots(series: Series, functions: Sequence[str]) -> list[Plot]:
    """Return throughput, and latency by function; ``functions`` are all functions that clients called, in the order of
    their colours."""

    def colour(name: str) -> str:
        return f"f{min(COLOURS - 1, functions.index(name))}" if name in functions else "f0"

    rates = [PlotLine(name, values, name if name in ("info", "fail") else colour(name.removesuffix(" ok")),
                  width=series.width)
             for name, values in series.rate.items() if any(values)]  # fmt: skip
    plots = [Plot("throughput", "Throughput", "operations a second", RATE, rates)] if rates else []
    for name, quantiles in series.latency.items():
        if not any(value is not None for values in quantiles for value in values):
            continue
        lines = [PlotLine(_quantile_name(quantile), values, colour(name), rank, series.width)
                 for rank, (quantile, values) in enumerate(zip(QUANTILES, quantiles, strict=True))]  # fmt: skip
        remark = "points: operations, as they were answered; lines: quantiles"
        plots.append(Plot(f"latency-{name}", f"Latency of {name}", remark, MILLISECONDS, lines, True,
                          functions.index(name)))  # fmt: skip
    return plots


def _quantile_name(quantile: float) -> str:
    return "max" if quantile == 1 else f"p{round(quantile * 100)}"
