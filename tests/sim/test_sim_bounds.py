"""Simulated groups that are late, or restless, are caught; a group that is neither is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from simulated import simulated, small_test

from checkers.checks import availability, stability
from checkers.run import load_run
from harness.run.describe import create_run
from nodes.reference.designs.fiorano import server
from nodes.reference.designs.fiorano.states import PASSIVE
from nodes.reference.designs.icestorm import election as icestorm_election
from nodes.reference.designs.joram.design import JoramDesign
from nodes.reference.designs.joram.election import Election
from stormproof.contracts.check import INVALID, VALID
from stormproof.run_folder import read_run

pytestmark = pytest.mark.requirement("H17", part=True)

TEST: dict[str, Any] = {"nemesis": "kill", "time_limit": 20.0,
                        "settings": {"kill_kind": "master", "fault_duration": 6.0, "fault_gap": 4.0,
                                     "invariants": False}}  # fmt: skip


def judged(folder: Path, **changes: Any) -> tuple[Any, Any, dict[str, Any]]:
    run_dir = simulated(small_test(5, **{**TEST, **changes}), folder)
    info = read_run(run_dir)
    run = load_run(run_dir)
    return availability.check(run), stability.check(run), info


def test_a_group_that_keeps_its_bounds(tmp_path: Path) -> None:
    available, stable, info = judged(tmp_path)
    assert {"availability", "stability"} <= set(info["guarantees"])
    assert info["bounds"]["serves"]["seconds"] == 4 * 0.5 + 1
    assert (available.verdict, stable.verdict) == (VALID, VALID)
    assert available.figures["longest_waits"].keys() == {"healthy", "serves", "serves-with-majority"}
    assert stable.figures["role_changes"] > 0


def test_an_election_that_takes_twenty_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = Election.turn_wait
    monkeypatch.setattr(Election, "turn_wait", lambda self: turn(self) + (20.0 if self._node.started else 0.0))
    available, _, _ = judged(tmp_path)
    assert available.verdict == INVALID
    assert {each.detail["bound"] for each in available.anomalies} >= {"serves-with-majority"}


def test_a_master_that_steps_down_every_three_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tick, since = JoramDesign._tick, dict[int, float]()

    def restless(self: JoramDesign, beat: bool) -> None:
        tick(self, beat)
        if self.leader is None:
            since.pop(id(self), None)
        elif self.replica.now() - since.setdefault(id(self), self.replica.now()) > 3.0:
            self._step_down("bored")

    monkeypatch.setattr(JoramDesign, "_tick", restless)
    _, stable, _ = judged(tmp_path)
    assert stable.verdict == INVALID
    assert "with no fault in force" in stable.summary


def test_replicas_that_take_twenty_seconds_to_find_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = {"system": "icestorm", "workload": "events"}
    available, stable, info = judged(tmp_path / "right", **events)
    assert {"healthy", "keeps-roles"} <= set(info["bounds"])
    assert (available.verdict, stable.verdict) == (VALID, VALID)
    delay = icestorm_election.merge_delay
    monkeypatch.setattr(icestorm_election, "merge_delay", lambda *of: delay(*of) + 20.0)
    available, stable, _ = judged(tmp_path / "late", **events)
    assert INVALID in (available.verdict, stable.verdict)


LONG: dict[str, Any] = {"time_limit": 36.0, "settings": {**TEST["settings"], "fault_duration": 14.0}}


@pytest.mark.parametrize("mode", ["replicated", "shared"])
def test_a_standby_that_never_takes_over(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = {"system": "fiorano", "nodes": 2, **LONG, "settings": {**LONG["settings"], "mode": mode}}
    available, _, info = judged(tmp_path / "right", **pair)
    assert available.verdict == VALID and "serves-with-one" in available.figures["longest_waits"], info["bounds"]
    wants = server.wants_lock
    monkeypatch.setattr(server, "wants_lock", lambda table, view: (
        view.state != PASSIVE or view.channel) and wants(table, view))
    available, _, _ = judged(tmp_path / "wrong", **pair)
    assert {each.detail["bound"] for each in available.anomalies} >= {"serves-with-one"}


def test_members_that_wait_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They never heard how many there are, and nobody can change a topic as long as one is away."""
    topics = {"system": "icestorm", "workload": "subscriptions", **LONG}
    assert judged(tmp_path / "right", **topics)[0].verdict == VALID
    kind = icestorm_election.InvitationElection
    form = kind._form
    monkeypatch.setattr(kind, "_form", lambda self, of, group, epoch, members, seen: form(
        self, of, group, epoch, members, seen if of == self.name else self.max_seen))
    available, _, _ = judged(tmp_path / "wrong", **topics)
    assert {each.detail["bound"] for each in available.anomalies} >= {"serves-with-majority"}


def test_bounds_that_a_test_says_nothing_about_are_not_claimed(tmp_path: Path) -> None:
    def claimed(name: str, **changes: Any) -> set[str]:
        return set(read_run(create_run(small_test(1, **changes), "test", tmp_path / name))["bounds"])

    every = {"healthy", "serves", "serves-with-majority", "keeps-roles"}
    assert claimed("plain") == every
    assert claimed("spares", nodes=4, settings={"spares": 1}) == every - {"serves-with-majority"}
    assert claimed("home", settings={"connect": "home"}) == {"healthy", "keeps-roles"}
    assert claimed("disk", nemesis="disk") == every
    assert claimed("clock", nemesis="clock") == every
    assert claimed("real", backend="local") == set(), "what a busy machine adds nobody knows"
