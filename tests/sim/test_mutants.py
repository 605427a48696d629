"""Switchable bugs: each is caught, by a check that names what went wrong; none is on unless asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import nodes.reference
import workloads
from harness.reference import mutants
from harness.reference.mutants import BASE, DRAWN, Catch, case_of, hunt, run_mutants
from harness.run.cases import JudgedRun
from harness.run.settings import make_test
from harness.sim.campaign import run_seed
from nodes.reference.api import ConfigError
from nodes.reference.bugs import BUGS, switched_on
from nodes.reference.bugs import edits as bug_edits
from nodes.reference.bugs.bug import Bug
from stormproof.errors import UsageError
from workloads.catalog import WORKLOADS

BUDGET = 25
SLOW = {"transaction-half-applied", "prepared-forgotten", "invitation-twice", "reemission-taken", "receipt-before-sync",
        "remote-ack-on-arrival", "remote-end-untold",
        "coordinator-stamp-ignored", "conflicting-tail-kept", "moved-and-kept", "own-log-wins", "change-before-slaves",
        "filter-lost-at-failover", "forgotten-when-sent", "stamp-lost-at-start", "close-drops-unacked",
        "completed-before-signal", "inquorate-broker-lives", "majority-too-small", "collocated-contexts-kept",
        "state-behind-log", "transfer-misses-changes", "promoted-in-catchup", "generation-not-stored",
        "catch-up-misses-changes", "dead-backup-holds", "complete-too-early", "passive-serves", "stale-standby-serves",
        "repository-forgotten", "lock-not-rechecked", "database-not-loaded", "dequeue-not-sent", "reset-not-sent",
        "dirty-store-starts", "acl-not-replicated", "branches-forgotten", "read-on-arrival"}  # fmt: skip
"""Bugs whose hunts take many seeds, or long ones."""


@pytest.mark.requirement("H17", part=True)
@pytest.mark.parametrize("bug", [
    pytest.param(bug, marks=pytest.mark.soak) if bug in SLOW else bug for bug in BUGS if not BUGS[bug].drawn
])  # fmt: skip
def test_every_bug_is_caught(bug: str, tmp_path: Path) -> None:
    catch = hunt(bug, 0, 1, BUDGET, tmp_path)
    assert catch.caught, f"{bug} escaped {BUDGET} seeds"
    judged_by = WORKLOADS.load(BUGS[bug].workload).judged_by(case_of(bug).test(1).options)
    assert set(catch.anomalies) <= {*judged_by, "recovery", "availability", "stability", "growth", "work"}
    assert f"bug={bug}" in catch.command


@pytest.mark.requirement("H17", part=True)
@pytest.mark.parametrize("exercise", [
    {}, {"surface": "true"}, pytest.param({"ack": "majority", "log_keep": "5"}, marks=pytest.mark.soak),
    pytest.param({"max_down": "3"}, marks=pytest.mark.soak),
])  # fmt: skip
def test_without_a_bug_the_same_campaign_finds_nothing(exercise: dict[str, str], tmp_path: Path) -> None:
    case = replace(BASE, settings={**BASE.settings, **exercise})
    for seed in range(1, 5):
        result = run_seed(case, seed, tmp_path, tmp_path)
        assert result.verdict == "valid", f"seed {seed}: {result.sentence}"


@pytest.mark.requirement("H17", part=True)
@pytest.mark.parametrize("bug", [
    name if name in ("links-left-behind", "two-holders") else pytest.param(name, marks=pytest.mark.soak)
    for name, bug in BUGS.items() if bug.design in ("icestorm", "fiorano") and not bug.drawn
])  # fmt: skip
def test_without_it_the_campaign_that_catches_a_bug_finds_nothing(bug: str, tmp_path: Path) -> None:
    case = case_of(bug)
    case = replace(case, settings={name: value for name, value in case.settings.items() if name != "bug"})
    result = run_seed(case, 1, tmp_path, tmp_path)
    assert result.verdict == "valid", result.sentence


def test_a_bug_that_nothing_catches_is_a_gap(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bug_edits, "codes_of", lambda name: ())
    assert run_mutants(["receipt-before-sync"], start=1, budget=2, rounds=1, jobs=1, as_json=True) == 1
    assert "gap: nothing caught receipt-before-sync" in capsys.readouterr().err


@pytest.mark.requirement("H17", part=True)
def test_the_default_campaign_tells_the_invariant_that_caught_a_bug(tmp_path: Path) -> None:
    catch = hunt("view-without-agreement", 0, 1, 5, tmp_path, DRAWN)
    assert catch.caught and catch.without == ()
    assert any(name.startswith("invariant ") for name in catch.anomalies), catch.anomalies


def test_what_fails_without_the_bug_as_well_does_not_catch_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    controls: list[JudgedRun] = []

    def still_there(result: JudgedRun, _: Path) -> JudgedRun:
        controls.append(result)
        return result

    monkeypatch.setattr(mutants, "_without_bug", still_there)
    status = run_mutants(["view-without-agreement"], start=1, budget=2, rounds=1, jobs=1, as_json=True,
                         ways=(DRAWN,))  # fmt: skip
    told = capsys.readouterr()
    (catch,) = json.loads(told.out)["view-without-agreement"]
    assert status == 1 and not catch["caught"] and catch["seeds"] == 2
    assert controls and catch["without"] == [result.command for result in controls]
    assert f"fails without any bug, not counted: {controls[0].command}" in told.err


def test_bugs_are_off_by_default_and_unknown_ones_are_refused() -> None:
    assert switched_on({}) == frozenset()
    assert switched_on({"bug": "none"}) == frozenset()
    assert switched_on({"bug": "own-log-wins,requeued-twice"}) == {"own-log-wins", "requeued-twice"}
    with pytest.raises(ConfigError, match="own-log-wins"):
        switched_on({"bug": "own-log-win"})
    with pytest.raises(UsageError, match="there is no 'nonsense'"):
        make_test(system="joram", workload="queue", nemesis="none", backend="sim", nodes=3, time_limit=10.0, rate=10.0,
                  seed=1, settings={"bug": "nonsense"})  # fmt: skip
    assert case_of("own-log-wins").settings["bug"] == "own-log-wins"


@pytest.mark.parametrize(("system", "workload", "bug", "having"), [
    ("joram", "queue", "max-kept", "icestorm"),
    ("icestorm", "events", "requeued-twice", "joram and standalone"),
    ("standalone", "queue", "commit-unsynced,own-log-wins", "joram"),
])  # fmt: skip
def test_a_bug_that_the_design_does_not_have_is_refused(system: str, workload: str, bug: str, having: str) -> None:
    with pytest.raises(UsageError, match=f"{bug.split(',')[-1]}: design '{system}' does not have it, only {having}"):
        make_test(system=system, workload=workload, nemesis="none", backend="sim", nodes=None, time_limit=10.0,
                  rate=10.0, seed=1, settings={"bug": bug})  # fmt: skip


@pytest.mark.parametrize("bug", [bug for bug in BUGS.values() if not bug.drawn], ids=lambda bug: bug.name)
def test_a_bug_s_designs_are_those_whose_code_names_it(bug: Bug) -> None:
    constant = bug.name.replace("-", "_").upper()
    if bug.client:
        assert any(constant in path.read_text() for path in Path(workloads.__file__).parent.rglob("*.py"))
        return
    folder = Path(nodes.reference.__file__).parent
    places = {tuple(edit.module.strip(".").split(".")) for edit in bug.edits} or {
        path.relative_to(folder).parts for path in folder.rglob("*.py")
        if constant in path.read_text() and path.parent.name != "bugs"}  # fmt: skip
    assert places, "it is nowhere"
    own = {place[1] for place in places if place[0] == "designs"}
    own |= {"joram" for place in places if place[0] == "replication"}  # who else feeds a log of commands?
    everywhere = {"joram", "standalone", "icestorm"} if bug.name == "commit-unsynced" else {"joram", "standalone"}
    assert set(bug.designs) == (own or everywhere)


def test_what_was_caught_so_far_is_told_when_a_hunt_is_interrupted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hunts = iter([Catch("requeued-twice", 0, 1, 0.5, ("duplicated",), "Invalid", "stormproof test")])

    def interrupted(*_: object) -> Iterator[Catch]:
        yield from hunts
        raise KeyboardInterrupt

    monkeypatch.setattr(mutants, "_hunts", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_mutants(["requeued-twice", "own-log-wins"], start=1, budget=2, rounds=1, jobs=1, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert [catch["seeds"] for catch in told["requeued-twice"]] == [1] and told["own-log-wins"] == []
