"""Guided search: what a run has met is recorded without a trace in it, and what met something new is varied."""

from __future__ import annotations

import itertools
import random
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from harness.cli.app import app
from harness.reference.mutants import DRAWN, GUIDED, Catch, _side_by_side, hunt
from harness.run.cases import Case, JudgedRun
from harness.run.describe import create_run
from harness.run.settings import make_test
from harness.sim.campaign import ALL, repeating, run_seed
from harness.sim.draw import DrawnCase, Given, senseless
from harness.sim.explorer import FIRST_STEP, Explorer
from harness.sim.guided import FIRST_RUNS, Guide
from harness.sim.run import simulate
from harness.sim.shrink import faults_of
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.state_abstraction import Abstraction
from stormproof.errors import UsageError
from stormproof.run_folder import read_run
from stormproof.test import Test
from tests.sim.simulated import simulated, small_test, traces

DESIGNS = ("joram", "icestorm", "qpid", "fiorano")


class Seen(NamedTuple):
    """What a node shows."""

    role: str
    epoch: int
    last: int
    stored: int


ABSTRACTION = Abstraction(("role", "epoch"), kept=("role",), behind=("epoch", "last"), unequal=(("last", "stored"),))
MACHINES = {"n1": "n1", "n2": "n2"}


def state_of(seen: Mapping[str, Seen]) -> int:
    """The number of a state."""
    explorer = Explorer(ABSTRACTION)
    explorer.changed("g", seen, MACHINES)
    (found,) = (each for each in explorer.found if each < FIRST_STEP)
    return found


def test_states_that_differ_by_names_and_numbers_alone_are_one() -> None:
    one = {"n1": Seen("master", 3, 10, 10), "n2": Seen("slave", 3, 9, 9)}
    other = {"n2": Seen("master", 7, 55, 55), "n1": Seen("slave", 7, 2, 2)}
    assert state_of(one) == state_of(other)
    assert state_of(one) != state_of({**one, "n2": Seen("slave", 2, 9, 9)}), "one is behind in its epoch"
    assert state_of(one) != state_of({**one, "n2": Seen("slave", 3, 9, 8)}), "one has something that is not stored"
    assert state_of(one) != state_of({**one, "n2": Seen("electing", 3, 9, 9)})
    assert state_of(one) != state_of({"n1": one["n1"]}), "one does not run"


def test_steps_and_points_count_with_the_state_that_they_come_from() -> None:
    explorer = Explorer(ABSTRACTION)
    explorer.belongs("n1", "g")
    calm, after = {"n1": Seen("slave", 1, 1, 1)}, {"n1": Seen("master", 2, 1, 1)}
    explorer.changed("g", calm, MACHINES)
    explorer.came_by("n1", "here")
    before = len(explorer.found)
    explorer.came_by("n1", "here")
    assert len(explorer.found) == before
    explorer.changed("g", after, MACHINES)
    explorer.came_by("n1", "here")
    assert len(explorer.found) == before + 3  # the state, the step to it, and the point in it


@pytest.mark.parametrize("system", DESIGNS)
def test_what_is_recorded_changes_nothing_and_is_the_same_each_time(system: str, tmp_path: Path) -> None:
    workload = "subscriptions" if system == "icestorm" else "queue"
    test = small_test(5, system=system, workload=workload, nodes=2 if system == "fiorano" else 3, time_limit=8.0,
                      nemesis="kill,points")  # fmt: skip
    plain = traces(simulated(test, tmp_path / "plain"))
    found = []
    for name in ("first", "second"):
        abstraction = SYSTEMS.load(system).abstraction
        assert abstraction is not None
        explorer = Explorer(abstraction)
        run_dir = create_run(test, "test", tmp_path / name)
        simulate(run_dir, explorer=explorer)
        assert traces(run_dir) == plain
        found.append(explorer.found)
    assert found[0] == found[1] and sum(each < FIRST_STEP for each in found[0]) > 5


def result_of(case: Case, seed: int, *found: int) -> JudgedRun:
    """As if a run had met this."""
    return JudgedRun(case, seed, "valid", "", {}, (), {}, {}, "", 0.0, 0.0, "", explored=frozenset(found))


def guide(system: str = "joram", given: Given | None = None) -> Guide:
    return Guide(DrawnCase(system, given or Given()), itertools.count(1), random.Random(1))


def fed(steps: int, system: str = "joram", given: Given | None = None) -> tuple[Guide, list[tuple[Case, int]]]:
    """A guide, and what it has said when each run met something new."""
    guided, said = guide(system, given), []
    for number in range(steps):
        said.append(guided.next())
        guided.learn(result_of(*said[-1], number))
    return guided, said


def test_what_met_something_new_is_kept_and_the_rest_is_not() -> None:
    guided = guide()
    case, seed = guided.next()
    assert guided.learn(result_of(case, seed, 1, 2)) == 2
    assert guided.learn(result_of(case, seed, 2)) == 0
    assert guided.learn(result_of(case, seed, 2, 3)) == 1
    assert len(guided.kept) == 2 and guided.met == {1: 1, 2: 3, 3: 1}


def test_the_first_runs_are_drawn_and_the_next_are_variants_too() -> None:
    _, said = fed(40)
    assert said == fed(40)[1]
    drawn = DrawnCase("joram")
    assert said[:FIRST_RUNS] == [(drawn.of(seed), seed) for seed in range(1, FIRST_RUNS + 1)]
    variants = [case for case, _ in said if "schedule" in case.settings]
    assert 10 <= len(variants) < 40 - FIRST_RUNS
    assert len({(case.settings["schedule"], seed) for case, seed in said if case in variants}) == len(variants)


@pytest.mark.parametrize("system", DESIGNS)
def test_variants_are_tests_that_can_be_and_make_sense(system: str) -> None:
    workload = "subscriptions" if system == "icestorm" else "queue"
    _, said = fed(50, system, Given((workload,), ("disk,points",), 2 if system == "fiorano" else 3,
                                    settings={"disk_kind": "full"}))  # fmt: skip
    for case, seed in said:
        test = case.test(seed)
        assert not senseless(case) and test.system == system
        kinds = {fault.kind for fault in faults_of(case, seed) if fault.family == "disk"}
        assert kinds <= {"full"}


def test_a_variant_repeats_from_its_run_json_and_from_its_command(tmp_path: Path) -> None:
    case, seed = next((case, seed) for case, seed in fed(40)[1] if "schedule" in case.settings)
    case = replace(case, time_limit=max(fault.end for fault in faults_of(case, seed)) + 0.5)
    result = run_seed(case, seed, tmp_path, tmp_path / "first", ALL, explores=True)
    assert result.run_dir is not None and result.explored
    first = traces(result.run_dir)
    again = simulated(Test.from_json(read_run(result.run_dir)["test"]), tmp_path / "second")
    assert traces(again) == first
    words = shlex.split(repeating(case, seed, tmp_path))
    told = dict(zip(words[2::2], words[3::2], strict=False))
    settings = dict(word.split("=", 1) for name, word in itertools.pairwise(words) if name == "--set")
    test = make_test(system=told["--system"], workload=told["--workload"], nemesis=told["--nemesis"], backend="sim",
                     nodes=int(told["--nodes"]) if "--nodes" in told else None, seed=int(told["--seed"]),
                     time_limit=float(told["--time-limit"]), rate=float(told["--rate"]), settings=settings)  # fmt: skip
    assert traces(simulated(test, tmp_path / "third")) == first


def test_a_system_without_an_abstraction_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match="standalone declares no abstraction"):
        guide("standalone")
    for words in (["--no-draw"], ["--spark"]):
        done = CliRunner().invoke(app, ["simulate", "--guided", *words])
        assert isinstance(done.exception, UsageError)
    done = CliRunner().invoke(app, ["mutants", "--guided", "--compare"])
    assert isinstance(done.exception, UsageError)


def test_a_guided_campaign_tells_what_it_has_met(tmp_path: Path) -> None:
    words = ["simulate", "--guided", "--system", "icestorm", "--seeds", "2", "--jobs", "1", "--collect",
             "--workload", "events", "--nemesis", "kill", "--time-limit", "6", "--store", str(tmp_path)]  # fmt: skip
    done = CliRunner().invoke(app, words)
    assert done.exit_code in (0, 2), done.output
    assert "states met" in done.output


def test_a_guided_hunt_catches_a_bug(tmp_path: Path) -> None:
    catch = hunt("view-without-agreement", 0, 1, 5, tmp_path, GUIDED)
    assert catch.caught and catch.way == GUIDED


def test_hunts_stand_side_by_side_and_what_escaped_counts_as_more() -> None:
    def caught(way: str, seeds: int, *by: str) -> Catch:
        return Catch("a-bug", 0, seeds, 1.0, by, "", "", way=way)

    hunts = [caught(DRAWN, 7, "lost"), caught(DRAWN, 40), caught(DRAWN, 40), caught(GUIDED, 3, "lost")]
    table = _side_by_side({"a-bug": hunts}, (DRAWN, GUIDED), 40)
    cells: list[Any] = [list(column.cells) for column in table.columns]
    assert cells == [["a-bug"], ["1 of 3"], [">40"], ["1 of 1"], ["3"]]
