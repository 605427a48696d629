"""The default campaign: what a seed draws, and that it can be repeated from the command that is told."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli.app import app
from harness.reference.mutants import drawn_case_of
from harness.sim.campaign import ALL, repeating, run_seed
from harness.sim.command import drawn_cases
from harness.sim.draw import CHANCES, LEAST_SECONDS, LONG, LONGEST, SHORTEST, DrawnCase, Given, _settings
from harness.sim.drawn_settings import drawn_settings_page, settings_of
from nemesis.catalog import FAULTS
from nemesis.schedule import LENGTHS, lengths_of
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.bounds import bounds_of
from stormproof.contracts.draw import Draw, Never
from stormproof.errors import UsageError
from workloads.catalog import WORKLOADS

DESIGNS = ("standalone", "joram", "icestorm", "qpid", "fiorano")
SEEDS = range(60)


@pytest.mark.parametrize("system", DESIGNS)
def test_each_seed_draws_a_test_that_can_be(system: str) -> None:
    cases = [DrawnCase(system).of(seed) for seed in SEEDS]
    assert cases == [DrawnCase(system).of(seed) for seed in SEEDS]
    assert {case.system for case in cases} == {system}
    assert {case.workload for case in cases} == set(DrawnCase(system).workloads())
    assert len({case.nemesis for case in cases}) > 20
    for case, seed in zip(cases, SEEDS, strict=True):
        lengths = lengths_of(case.test(seed))
        assert all(length >= SHORTEST for length in lengths) and sum(length > LONGEST for length in lengths) <= 1
        assert lengths or case.nemesis == "none"


@pytest.mark.parametrize("system", ["joram", "icestorm", "fiorano"])
def test_some_faults_outlast_the_time_to_serve(system: str) -> None:
    """Who waits for a node that is away is late only when that is away for longer than anybody may wait."""
    found = 0
    for seed in range(200):
        case = DrawnCase(system).of(seed)
        test = case.test(seed)
        lengths = [float(length) for length in case.settings.get(LENGTHS.name, "1").split(",")]
        claimed = bounds_of(SYSTEMS.load(system).bounds, test)
        bound = max((each["seconds"] for name, each in claimed.items() if name.startswith("serves-with-")), default=0.0)
        if lengths[-1] > bound > 0:
            found += 1
            assert lengths[-1] == pytest.approx(LONG * bound, abs=0.06) or lengths[-1] <= LONGEST
            assert case.time_limit > lengths[-1] + LEAST_SECONDS or lengths[-1] <= LONGEST
            assert "," not in case.nemesis or lengths[-1] <= LONGEST
    assert found >= 5
    given = Given(settings={LENGTHS.name: "0.5"})
    assert {DrawnCase(system, given).of(seed).settings[LENGTHS.name] for seed in range(30)} == {"0.5"}


def test_what_is_drawn_is_declared() -> None:
    of_systems: set[str] = set()
    of_workloads = {option.name for entry in WORKLOADS for option in WORKLOADS.load(entry.name).options}
    of_faults = {option.name for name in FAULTS.names() for option in FAULTS.load(name).options}
    for system in DESIGNS:
        tested = SYSTEMS.load(system)
        known = {option.name for option in tested.options}
        assert {draw.name for draw in tested.drawing.draws} <= known | of_faults | of_workloads
        assert set(tested.drawing.timeouts) <= known
        of_systems |= known
    assert {draw.name for entry in WORKLOADS for draw in WORKLOADS.load(entry.name).draws} <= of_workloads | of_systems


def test_what_is_given_stays() -> None:
    given = Given(("topic",), ("kill,pause",), 3, 12.0, 20.0, {"ack": "majority", "fault_duration": "1"})
    for seed in SEEDS:
        case = DrawnCase("joram", given).of(seed)
        assert (case.workload, case.nemesis, case.nodes, case.time_limit, case.rate) == (
            "topic", "kill,pause", 3, 12.0, 20.0)
        assert (case.settings["ack"], case.settings["fault_duration"]) == ("majority", "1")
        assert "fault_lengths" not in case.settings
    assert drawn_case_of("own-log-wins").of(3).settings["bug"] == "own-log-wins"


def test_what_leaves_nothing_is_told() -> None:
    with pytest.raises(UsageError, match=r"no test of standalone can be drawn .*: one broker has no link"):
        DrawnCase("standalone", Given(nemeses=("partition",))).of(1)
    with pytest.raises(UsageError, match="joram is given twice"):
        drawn_cases(["joram", "joram"], Given())


def test_a_share_of_runs_draws_a_setting_where_it_makes_sense() -> None:
    draws = (Draw("a", (1, 2), 0.5), Draw("b", (3,), 1.0, {"a": 2}), Draw("c", (4,), 1.0))
    found = [_settings(draws, random.Random(seed), {"c": 5}) for seed in range(400)]
    assert all("c" not in each for each in found)
    assert 150 < sum("a" in each for each in found) < 250
    assert all(("b" in each) == (each.get("a") == 2) for each in found)


def test_a_draw_for_faults_is_made_where_all_of_them_strike() -> None:
    cases = [DrawnCase("joram", Given(nemeses=nemeses)).of(seed) for nemeses in (("points",), ("points,membership",))
             for seed in range(20)]
    assert {case.settings.get("points_kind") for case in cases[:20]}.isdisjoint({"cut", "cut,partial"})
    aimed = [case for case in cases[20:] if case.settings.get("points_at") == "joram.regrouped"]
    assert 5 < len(aimed) < 20


@pytest.mark.parametrize(("never", "covered"), [
    (Never("x", {"a": (1,)}), True), (Never("x", {"a": (2,)}), False), (Never("x", {"missing": (1,)}), False),
    (Never("x", workloads=("queue",)), True), (Never("x", workloads=("topic",)), False),
    (Never("x", {"a": (1,)}, faults=("kill",)), True), (Never("x", {"a": (1,)}, faults=("power",)), False),
])  # fmt: skip
def test_combinations_that_are_never_drawn(never: Never, covered: bool) -> None:
    assert never.covers("queue", ["pause", "kill"], {"a": 1}) is covered


def test_a_workload_that_can_not_be_with_what_is_given_gives_way_to_another() -> None:
    """Servers of two replicas each have no majority when one has lost its disk."""
    given = Given(nemeses=("disk",), settings={"disk_kind": "empty"})
    for seed in range(40):
        case, free = DrawnCase("joram", given).of(seed), DrawnCase("joram").of(seed)
        assert case.nemesis == "disk" and case.settings["disk_kind"] == "empty"
        assert case == DrawnCase("joram", given).of(seed)
        assert case.workload == free.workload or free.workload in ("clustered", "clustered-topic", "store-and-forward")
    impossible = Given(workloads=("clustered",), nemeses=("disk",), settings={"disk_kind": "empty"})
    with pytest.raises(UsageError, match="no test of joram can be drawn with the given options"):
        DrawnCase("joram", impossible).of(1)


def test_a_shape_of_partitions_that_takes_more_nodes_is_not_drawn() -> None:
    cases = [DrawnCase("fiorano", Given(nemeses=("partition",))).of(seed) for seed in range(60)]
    assert {case.settings.get("partition_kind") for case in cases}.isdisjoint({"majority-ring", "bridge"})
    assert {case.settings["fault_retries"] for case in cases} == {CHANCES}


@pytest.mark.parametrize("system", ["joram", "qpid", "fiorano"])
@pytest.mark.parametrize("workload", ["lock", "lease"])
def test_who_asks_for_the_lock_at_the_end_may_go_to_all_nodes(system: str, workload: str) -> None:
    cases = [DrawnCase(system, Given(workloads=(workload,))).of(seed) for seed in range(60)]
    assert {case.settings.get("connect") for case in cases} == {None}
    others = [DrawnCase(system, Given(workloads=("register",))).of(seed) for seed in range(60)]
    assert {case.settings.get("connect") for case in others} == {None, "home"}


def output(words: Sequence[str]) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.stdout


def test_simulate_draws_where_nothing_is_given_and_tells_what_repeats_a_run(tmp_path: Path) -> None:
    case = DrawnCase("fiorano")
    result = run_seed(case, 4, tmp_path, tmp_path, ALL)
    assert result.case == case.of(4) and result.command == repeating(case.of(4), 4, tmp_path)
    words = shlex.split(result.command)
    assert "--no-draw" not in words and words[:2] == ["stormproof", "test"]
    status, told = output(["simulate", "--system", "fiorano", "--seeds", "1", "--start", "4", "--jobs", "1", "--json",
                           "--store", str(tmp_path / "s")])
    assert status == 0 and json.loads(told)["verdicts"] == {"valid": 1}
    assert result.run_dir is not None
    tested = json.loads((result.run_dir / "run.json").read_text())["test"]
    assert (tested["workload"], tested["seed"]) == (result.case.workload, 4)


@pytest.mark.soak
@pytest.mark.parametrize("system", DESIGNS)
def test_drawn_runs_break_nothing(system: str, tmp_path: Path) -> None:
    results = [run_seed(DrawnCase(system), seed, tmp_path, tmp_path) for seed in range(1000, 1100)]
    assert [(result.seed, result.sentence) for result in results if result.failed] == []


@pytest.mark.parametrize("place", sorted({each.place for each in settings_of()}))
def test_a_setting_is_drawn_or_the_page_says_why_not(place: str) -> None:
    silent = [each.option.name for each in settings_of() if each.place == place and not each.draws and not each.why]
    assert not silent, f"{place}: draw these, or say in `undrawn` why not"


def test_no_reason_is_given_for_what_is_drawn_or_does_not_exist() -> None:
    names = {each.option.name for each in settings_of()}
    for system in DESIGNS:
        drawing = SYSTEMS.load(system).drawing
        assert not set(drawing.undrawn) & {draw.name for draw in drawing.draws}, system
        assert not set(drawing.undrawn) - names, system


def test_the_page_of_drawn_settings_is_up_to_date() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "drawn-settings.md").read_text(encoding="utf-8")
    assert page == drawn_settings_page(), "run `make docs`"
    assert "never: it is given by a person for one run" in page
