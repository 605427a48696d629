"""Limitations of the document, each on and off under the same schedules: histories catch it when it is on. Those that
no history shows are switched on and off by scripted tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import test_qpid_configuration
import test_qpid_copies
import test_qpid_sections

from harness.analysis.guarantee_matrix import cases_of
from harness.sim.campaign import run_seed
from nodes.reference.designs.qpid.options import LIMITATIONS
from nodes.systems.reference.qpid.modes import AIMED
from stormproof.contracts.invariant import INVARIANTS

SEEDS = 4
"""One of these has to catch it."""
SLOW = {"LM1", "LM3", "LM5", "LC6"}
"""Those whose seeds take long."""
CAUGHT_BY = {
    "LM1": {"lost"}, "LM2": {"lost", "duplicated"}, "LM3": {"atomic"}, "LM4": {"duplicated"}, "LM5": {"lost"},
    "LC2c": {"metadata"}, "LC3": {"metadata"}, "LC4": {"metadata"}, "LC6": {"metadata"},
}  # fmt: skip


SCRIPTED = {
    "LM6a": test_qpid_copies.test_a_store_picked_at_random_lacks_what_the_best_has,
    "LM6b": test_qpid_sections.test_as_documented_a_dirty_store_does_not_start,
    "LC2a": test_qpid_configuration.test_queues_made_on_demand,
    "LC2b": test_qpid_configuration.test_a_script_asks_what_has_propagated,
    "LC5": test_qpid_configuration.test_patterns_say_what_is_propagated,
}


@pytest.mark.requirement("Q13", part=True)
def test_every_limitation_has_its_twin() -> None:
    assert {*AIMED, *SCRIPTED} == set(LIMITATIONS) and not set(AIMED) & set(SCRIPTED)
    for limitation, test in SCRIPTED.items():
        assert limitation in Path(str(test.__code__.co_filename)).read_text()


@pytest.mark.requirement("Q13")
@pytest.mark.parametrize("limitation", [pytest.param(name, marks=pytest.mark.soak) if name in SLOW else name
                                         for name in AIMED])  # fmt: skip
def test_histories_catch_a_limitation_that_is_left_as_documented(tmp_path: Path, limitation: str) -> None:
    (on,) = cases_of("qpid", {"as_documented": limitation})
    judged = replace(on, settings={**on.settings, INVARIANTS: "false"})  # else these may see it first
    results = (run_seed(judged, seed, tmp_path, tmp_path) for seed in range(1, SEEDS + 1))
    caught = next((result for result in results if result.verdict == "invalid"), None)
    assert caught is not None, f"{SEEDS} seeds did not catch {limitation}"
    assert set(caught.broken) & CAUGHT_BY[limitation], caught.sentence
    off = replace(on, settings={name: value for name, value in on.settings.items() if name != "as_documented"})
    result = run_seed(off, caught.seed, tmp_path, tmp_path)
    assert result.verdict == "valid", result.sentence
