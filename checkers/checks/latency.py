"""Latency of operations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from checkers.api import RunCheck
from checkers.kernels.rows import durations
from checkers.run import Run
from stormproof.contracts.check import VALID, CheckOutcome
from stormproof.history.columns import Int64s
from stormproof.vocabulary import ANY, OK

_QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


def check(run: Run) -> CheckOutcome:
    """Measure milliseconds from invocation to confirmed completion, by function: nearest-rank quantiles and the
    maximum.
    """
    h = run.history
    start = np.concatenate(([0], np.cumsum([counts[OK] for counts in run.tally.values()]))).astype(np.int64)
    took = durations(h.time, h.kind, h.process, h.f.codes, h.partner, start)
    figures = {name: _quantiles(took[start[code] : start[code + 1]])
               for code, name in enumerate(h.f.names) if start[code] < start[code + 1]}  # fmt: skip
    medians = ", ".join(f"{name} {figure['p50']:g} ms" for name, figure in figures.items())
    return CheckOutcome(VALID, 0, f"median {medians}" if medians else "nothing succeeded", (), {"latency_ms": figures})


def _quantiles(nanoseconds: Int64s) -> dict[str, Any]:
    ordered = np.sort(nanoseconds)
    count = len(ordered)
    ranks = {name: math.ceil(share * count) - 1 for name, share in _QUANTILES.items()} | {"max": count - 1}
    return {name: round(float(ordered[rank]) / 1e6, 3) for name, rank in ranks.items()} | {"count": count}


CHECK = RunCheck(
    name="latency",
    guarantee="none: figures only",
    subjects=(ANY,),
    headline_figures=True,
    function=check,
)
