"""``stormproof demo fiorano``: a link failure without the lock and with it, and a gateway that dies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.coverage import note_log_events
from harness.run.cases import Case
from harness.sim.campaign import ALL, run_seed
from harness.tools.demo import DEMOS, SAFE, SCENE, UNSAFE, role_changes
from reports.roles import role_lanes

DEMO = replace(DEMOS["fiorano"], rate=40.0)


def shown(store: Path, part: str) -> tuple[str, Path]:
    """The verdict and the folder of one part, simulated."""
    test = DEMO.test(part, 7, "sim")
    faults = ",".join(test.nemesis)
    case = Case(test.system, test.workload, faults, test.nodes, test.time_limit, test.rate, test.options)
    result = run_seed(case, 7, store, store, ALL)
    assert result.run_dir is not None, result.sentence
    note_log_events(result.run_dir)
    return str(json.loads((result.run_dir / "verdict.json").read_text())["verdict"]), result.run_dir


def standalone(run: Path) -> set[str]:
    return {lane.node for lane in role_lanes(run, [], 60.0) for each in lane.stretches if each.role == "STANDALONE"}


@pytest.mark.requirement("F3", part=True)
def test_both_servers_serve_without_the_lock_and_one_with_it(tmp_path: Path) -> None:
    verdict, run = shown(tmp_path, UNSAFE)
    assert (verdict, standalone(run)) == ("invalid", {"n1", "n2"})
    verdict, run = shown(tmp_path, SAFE)
    assert verdict == "valid" and len(standalone(run)) == 1
    assert "became STANDALONE" in role_changes(run)


@pytest.mark.requirement("F3", part=True)
def test_a_dead_gateway_costs_a_healthy_pair_nothing(tmp_path: Path) -> None:
    verdict, run = shown(tmp_path, SCENE)
    assert verdict == "valid" and role_changes(run) == ""
    gap = json.loads((run / "verdict.json").read_text())["figures"]["longest_gap_s"]
    assert gap < 0.5, "clients were served all the time"
