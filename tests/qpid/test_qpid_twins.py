"""Limitations of the document, each on and off under the same schedules: histories catch it when it is on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.comparison import cases_of
from harness.sim.campaign import run_seed
from nodes.systems.qpid.modes import AIMED

SEEDS = 4
"""One of these has to catch it."""
CAUGHT_BY = {
    "LM1": {"lost"}, "LM2": {"lost", "duplicated"}, "LM3": {"atomic"}, "LM4": {"duplicated"}, "LM5": {"lost"},
    "LC2c": {"metadata"}, "LC3": {"metadata"}, "LC4": {"metadata"}, "LC6": {"metadata"},
}  # fmt: skip


@pytest.mark.requirement("Q13", part=True)
@pytest.mark.parametrize("limitation", AIMED)
def test_histories_catch_a_limitation_that_is_left_as_documented(tmp_path: Path, limitation: str) -> None:
    (on,) = cases_of("qpid", {"as_documented": limitation})
    results = (run_seed(on, seed, tmp_path, tmp_path) for seed in range(1, SEEDS + 1))
    caught = next((result for result in results if result.verdict == "invalid"), None)
    assert caught is not None, f"{SEEDS} seeds did not catch {limitation}"
    assert set(caught.broken) & CAUGHT_BY[limitation], caught.sentence
    off = replace(on, settings={name: value for name, value in on.settings.items() if name != "as_documented"})
    result = run_seed(off, caught.seed, tmp_path, tmp_path)
    assert result.verdict == "valid", result.sentence
