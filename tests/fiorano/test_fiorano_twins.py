"""What the modes leave out, each left out and not under the same schedules: histories catch it when it is left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.guarantee_matrix import cases_of
from harness.sim.campaign import run_seed
from nodes.systems.reference.fiorano.modes import AIMED, MODES
from stormproof.contracts.guarantee import Trial

SEEDS = 6
"""One of these has to catch it."""
CAUGHT_BY = {
    "no lock": {"lost", "duplicated"}, "no fencing": {"lost"}, "wall-clock stamps": {"lost"},
    "shared, no fencing": {"lost", "duplicated"}, "shared, database as documented": {"lost"},
}  # fmt: skip
SLOW = {"no lock", "no fencing", "wall-clock stamps"}
REQUIREMENTS = {"shared, database as documented": "F16", "wall-clock stamps": "F5"}


def twin(trial: Trial, mode: str) -> dict[str, str]:
    """What is the same in both halves."""
    return {name: str(value) for name, value in MODES[mode].items() if name == "mode"} | dict(trial.settings)


@pytest.mark.parametrize("mode", [
    pytest.param(mode, marks=[pytest.mark.requirement(REQUIREMENTS.get(mode, "F3"), part=True),
                              *([pytest.mark.soak] if mode in SLOW else [])])
    for mode in CAUGHT_BY])  # fmt: skip
def test_histories_catch_what_a_mode_leaves_out(tmp_path: Path, mode: str) -> None:
    (on,) = cases_of("fiorano", MODES[mode])
    results = (run_seed(on, seed, tmp_path, tmp_path) for seed in range(1, SEEDS + 1))
    caught = next((result for result in results if set(result.broken) & CAUGHT_BY[mode]), None)
    assert caught is not None, f"{SEEDS} seeds did not catch {mode} by {CAUGHT_BY[mode]}"
    left_out = MODES[mode].keys() - {"mode"}
    off = replace(on, settings={name: value for name, value in on.settings.items() if name not in left_out})
    assert twin(AIMED[mode], mode).items() <= off.settings.items()
    result = run_seed(off, caught.seed, tmp_path, tmp_path)
    assert result.verdict == "valid", result.sentence


@pytest.mark.soak
@pytest.mark.requirement("F3", part=True)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_shared_database_is_fenced_without_the_lock_too(tmp_path: Path, seed: int) -> None:
    (case,) = cases_of("fiorano", MODES["shared, no lock"])
    result = run_seed(case, seed, tmp_path, tmp_path)
    assert result.verdict == "valid", result.sentence
