"""Deadlines: what has been pending for too long in a node ends the run; only the time counts that the node had."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path

import pytest

from harness.sim.campaign import ALL, Case, run_and_judge
from harness.sim.deadlines import Deadlines
from nodes.reference.bugs import BUGS
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.deadline import Deadline, Pending
from stormproof.contracts.invariant import INVARIANTS
from stormproof.run_folder import read_run

ALWAYS = Deadline("own", {"timeout": 2}, 0.5, "a paper", what="it waits")
CALM = Deadline("calm", {"timeout": 2}, 0.5, "a paper", what="it waits for others", calm=True)


class Program:
    """What is pending in it is what a test says."""

    def __init__(self) -> None:
        self.waits: Pending = {}

    def pending(self) -> Pending:
        return self.waits


def looks(program: Program, times: list[float], *, ran_on: float = 0.0, calm_since: float | None = 0.0) -> str:
    """What is wrong in the end, with a deadline of 1.5 seconds."""
    watch = Deadlines((ALWAYS, CALM), {"timeout": 0.5})
    for time in times:
        if late := watch.look(program, time, ran_on, calm_since):
            return f"{late[0].name}: {late[1]}"
    return ""


@pytest.mark.requirement("H17", part=True)
def test_what_is_pending_for_too_long_is_late() -> None:
    program = Program()
    program.waits = {"own": ["a", "b"]}
    assert looks(program, [0.0, 1.0, 1.5]) == ""
    assert looks(program, [0.0, 1.0, 1.7]) == "own: it waits for 1.7 s, and may be for 1.5 s (a)"
    assert looks(program, [0.0, 1.0, 1.7], ran_on=0.5) == "", "it was paused until then"
    assert looks(program, [0.0, 1.0, 1.7], calm_since=None), "faults are no excuse"


def test_what_depends_on_others_counts_without_faults_only() -> None:
    program = Program()
    program.waits = {"calm": ["a"]}
    assert looks(program, [0.0, 1.0, 1.7]).startswith("calm: ")
    assert looks(program, [0.0, 1.0, 1.7], calm_since=None) == ""
    assert looks(program, [0.0, 1.0, 1.7], calm_since=0.9) == ""


def test_what_moves_on_has_its_time_anew() -> None:
    program, watch = Program(), Deadlines((ALWAYS,), {"timeout": 0.5})
    for time in range(9):
        program.waits = {"own": [("a", time // 2)]}
        assert watch.look(program, float(time), 0.0, 0.0) is None
    program.waits = {}
    assert watch.look(program, 20.0, 0.0, 0.0) is None


@pytest.mark.requirement("H17", part=True)
def test_what_a_program_plans_too_far_ahead_is_late_at_once() -> None:
    class Planning(Program):
        def planned(self) -> Mapping[str, Mapping[Hashable, float]]:
            return {"own": {"b": 1.5}}

    program = Planning()
    program.waits = {"own": ["a", "b"]}
    assert looks(program, [0.0]) == ""
    assert looks(program, [0.0, 0.2]) == "own: it waits for 1.7 s by its own plan, and may be for 1.5 s (b)"


def test_names_are_told_apart_and_settings_are_there() -> None:
    for name in SYSTEMS.names():
        system = SYSTEMS.load(name)
        deadlines = [each.name for each in system.deadlines]
        assert len({*deadlines, *(each.name for each in system.invariants)}) == len(deadlines) + len(system.invariants)
        if deadlines:
            options = {option.name for option in system.options}
            assert {setting for each in system.deadlines for setting in each.times} <= options


@pytest.mark.requirement("H17", part=True)
@pytest.mark.parametrize(("bug", "deadline", "nemesis", "seed"), [
    ("idle-by-parts", "idle-connection", "kill,pause", 3), ("dials-rarely", "link", "partition", 3),
    ("renews-late", "renewal", "kill", 1),
    ("merges-lowest-first", "merge", "kill", 1), ("turns-of-twenty", "turn-1", "kill", 1),
    ("hello-late", "greeting", "kill,partition", 12), ("ballots-rarely", "candidacy", "kill", 1),
    ("idle-timer-goes-on", "idle-client", "points", 3),
    ("election-without-end", "election", "points,kill", 4),
    pytest.param("heartbeats-late", "silent-master", "kill", 1, marks=pytest.mark.soak),
    pytest.param("expected-for-long", "expected", "kill", 3, marks=pytest.mark.soak),
])  # fmt: skip
def test_a_broker_that_is_late_ends_the_run(bug: str, deadline: str, nemesis: str, seed: int, tmp_path: Path) -> None:
    workload = "subscriptions" if BUGS[bug].design == "icestorm" else "queue"
    settings = {"bug": bug, "min_ok": "5"} | ({"election_timeout": "0.3"} if workload == "subscriptions" else {})
    case = Case(BUGS[bug].design, workload, nemesis, None, 22.0, 17.0, settings)
    found, *_ = run_and_judge(case, seed, tmp_path, tmp_path, ALL)
    assert found.broken == (INVARIANTS,) and BUGS[bug].edited, found.sentence
    assert found.run_dir is not None
    told = read_run(found.run_dir)["invariant_broken"]
    assert told["name"] == deadline and told["source"] and "for at most" in told["rule"]
