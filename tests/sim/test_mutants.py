"""Switchable bugs: each is caught, by a check that names what went wrong; none is on unless asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.registry import WORKLOADS
from harness.settings import make_test
from harness.sim.campaign import run_seed
from harness.sim.mutants import BASE, hunt, plan_of, run_mutants
from nodes.reference.api import ConfigError
from nodes.reference.bugs import BUGS, switched_on

BUDGET = 25


@pytest.mark.parametrize("bug", BUGS)
def test_every_bug_is_caught(bug: str, tmp_path: Path) -> None:
    catch = hunt(bug, 0, 1, BUDGET, tmp_path)
    assert catch.caught, f"{bug} escaped {BUDGET} seeds"
    assert set(catch.anomalies) <= {*WORKLOADS.load(BUGS[bug].workload).promises, "recovery"}
    assert f"bug={bug}" in catch.command


@pytest.mark.parametrize("exercise", [{}, {"ack": "majority", "log_keep": "5"}, {"max_down": "3"}])
def test_without_a_bug_the_same_campaign_finds_nothing(exercise: dict[str, str], tmp_path: Path) -> None:
    plan = replace(BASE, settings={**BASE.settings, **exercise})
    for seed in range(1, 5):
        result = run_seed(plan, seed, tmp_path, tmp_path)
        assert result.verdict == "valid", f"seed {seed}: {result.sentence}"


@pytest.mark.parametrize("bug", [name for name, bug in BUGS.items() if bug.design == "icestorm"])
def test_without_it_the_campaign_that_catches_a_bug_of_icestorm_finds_nothing(bug: str, tmp_path: Path) -> None:
    plan = plan_of(bug)
    plan = replace(plan, settings={name: value for name, value in plan.settings.items() if name != "bug"})
    result = run_seed(plan, 1, tmp_path, tmp_path)
    assert result.verdict == "valid", result.sentence


def test_a_bug_that_nothing_catches_is_a_gap(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodes.reference.joram.intake.RECEIPT_BEFORE_SYNC", "another")
    monkeypatch.setattr("nodes.reference.joram.leader.RECEIPT_BEFORE_SYNC", "another")
    assert run_mutants(["receipt-before-sync"], start=1, budget=2, rounds=1, jobs=1, as_json=True) == 1
    assert "gap: nothing caught receipt-before-sync" in capsys.readouterr().err


def test_bugs_are_off_by_default_and_unknown_ones_are_refused() -> None:
    assert switched_on({}) == frozenset()
    assert switched_on({"bug": "none"}) == frozenset()
    assert switched_on({"bug": "own-log-wins,requeued-twice"}) == {"own-log-wins", "requeued-twice"}
    with pytest.raises(ConfigError, match="own-log-wins"):
        switched_on({"bug": "own-log-win"})
    with pytest.raises(UsageError, match="there is no 'nonsense'"):
        make_test(design="joram", workload="queue", nemesis="none", backend="sim", nodes=3, time_limit=10.0, rate=10.0,
                  seed=1, settings={"bug": "nonsense"})  # fmt: skip
    assert plan_of("own-log-wins").settings["bug"] == "own-log-wins"
