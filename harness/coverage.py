"""Which of the states that a design declares a run has reached."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.registry import DESIGNS
from nodes.reference.coverage import State, reached


def states_of(design: str) -> Sequence[State]:
    """The states that a design declares; none for a system that knows nothing of it."""
    states: Sequence[State] = getattr(DESIGNS.load(design), "states", ())
    return states


def read_coverage(design: str, logs: Path) -> dict[str, int]:
    """State -> times reached, from the node logs of a run; clocks that differ may blur what spans several nodes."""
    texts = {path.stem: path.read_text(encoding="utf-8", errors="replace") for path in sorted(logs.glob("*.log"))}
    return reached(states_of(design), texts)
