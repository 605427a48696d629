"""Simulated groups that send each other too much are caught, by that alone; groups that don't are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.run.cases import Case, JudgedRun
from harness.sim.campaign import ALL, run_seed
from harness.sim.draw import DrawnCase, Given
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.bounds import BYTES, FRAMES
from stormproof.contracts.invariant import INVARIANTS
from stormproof.run_folder import read_run

pytestmark = pytest.mark.requirement("H17", part=True)

DESIGNS = ("joram", "icestorm", "qpid", "fiorano")


def run(folder: Path, bug: str, seed: int, rate: float = 40.0) -> JudgedRun:
    case = Case("joram", "queue", "kill", 3, 12.0, rate, {
        "queues": 2, "consumers": 2, "client_heartbeat": 3.0, "fault_lengths": "0.95,4,6", "fault_gap": 0.3,
        "min_ok": 3, "surface": "false", "bug": bug, INVARIANTS: "false",
    })  # fmt: skip
    return run_seed(case, seed, folder, folder, ALL)


@pytest.mark.parametrize(("bug", "seed", "rate"), [("entries-twice", 2, 60.0), ("heartbeats-ten-times", 2, 10.0)])
def test_work_that_is_done_for_nothing_is_caught(bug: str, seed: int, rate: float, tmp_path: Path) -> None:
    """By that check alone, which has nothing to say of the same run without the bug."""
    found = run(tmp_path, bug, seed, rate)
    assert found.verdict == "invalid" and found.broken == ("work",), found.sentence
    assert "machines sent each other" in found.sentence
    assert run(tmp_path, "none", seed, rate).verdict == "valid"


@pytest.mark.parametrize("system", DESIGNS)
def test_each_design_claims_both(system: str, tmp_path: Path) -> None:
    assert {bound.name for bound in SYSTEMS.load(system).work} == {FRAMES, BYTES}
    workload = "subscriptions" if system == "icestorm" else "queue"
    result = run_seed(DrawnCase(system, Given((workload,), ("partition,kill",))), 6, tmp_path, tmp_path, ALL)
    assert result.run_dir is not None and result.verdict in ("valid", "unknown"), result.sentence
    info = read_run(result.run_dir)
    assert "work" in info["guarantees"] and set(info["work_bounds"]) == {FRAMES, BYTES}
    assert set(info["work"]["machines"]) >= set(result.case.test(6).node_names)
