"""How long operations took."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from checkers.api import RunCheck
from checkers.run import Run
from stormproof.contracts.check import VALID, CheckOutcome
from stormproof.history.columns import Int64s
from stormproof.vocabulary import ANY, OK

_QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


def check(run: Run) -> CheckOutcome:
    """Milliseconds from invocation to confirmed completion, by function: nearest-rank quantiles and the maximum."""
    h = run.history
    confirmed = np.flatnonzero((h.kind == OK) & (h.process >= 0))
    took = h.time[confirmed] - h.time[h.partner[confirmed]]
    functions = h.f.codes[confirmed]
    figures = {
        name: _quantiles(took[functions == code]) for code, name in enumerate(h.f.names) if (functions == code).any()
    }
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
