"""The figures of a run from which trends are computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.folder import mapping, number, sequence
from stormproof.vocabulary import SENDS, function_named

P99, OUTAGE, RECOVERY = "p99_ms", "outage_s", "recovery_s"


def figures_of(figures: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures for trends from a verdict's figures. They are the p99 of the most frequent sending operation
    (of any operation, if none sends), the longest time without a success, and the slowest recovery from a fault.
    Missing figures are left out."""
    latencies = {str(name): mapping(each) for name, each in mapping(figures.get("latency_ms")).items()}
    sends = {name: each for name, each in latencies.items() if function_named(name).does == SENDS} or latencies
    commonest = max(sends.values(), key=lambda each: number(each.get("count")) or 0, default={})
    recoveries = [number(mapping(each).get("seconds")) for each in sequence(figures.get("recovery_s"))]
    found = {
        P99: number(commonest.get("p99")),
        OUTAGE: number(figures.get("longest_gap_s")),
        RECOVERY: max((each for each in recoveries if each is not None), default=None),
    }
    return {name: float(value) for name, value in found.items() if value is not None}
