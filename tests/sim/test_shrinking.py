"""Schedules written down, and failing runs shrunk to a few lines that fail in the same way."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from simulated import simulated, small_test

from checkers.run_check import check_run
from checkers.verdict import Verdict
from harness.cli.app import app
from harness.run.cases import Case, JudgedRun
from harness.sim.campaign import run_seed
from harness.sim.shrink import Shrunk, faults_of, shrink, stretched, stretches, with_faults
from nemesis.explicit_schedule import ExplicitFault, read_schedule, write_schedule
from nemesis.partition import PartitionFault
from nemesis.process import KillFault, PauseFault
from nemesis.schedule import fault_generator
from nodes.reference.designs.joram.leader import Leader
from stormproof.errors import UsageError
from stormproof.generator.simulate import SimulatedOutcome, simulate
from stormproof.history.ledger import read_ledger
from stormproof.operation import INFO
from stormproof.test import Test
from workloads.reference.connection import ConnectionBroken, StompConnection
from workloads.reference.stomp_client import StompClient

FAMILIES = [PartitionFault(), PauseFault(), KillFault()]
FAILING = Case("joram", "queue", "partition,pause,kill", 3, 6.0, 30.0, {
    "fault_duration": "1.5", "fault_gap": "0.3", "detection_timeout": "0.5", "idle_timeout": "2", "min_ok": "20",
    "bug": "close-drops-unacked",
})  # fmt: skip

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.toml"))
"""What was left of failing runs when they had been shrunk; each told of a defect that is mended."""


def _forgets_how_far_it_got(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(self: StompConnection, reason: str, headers: Mapping[str, str]) -> ConnectionBroken:
        return real(self, reason, {name: value for name, value in headers.items() if name != "x-received"})

    real = StompConnection._closed_by_broker
    monkeypatch.setattr(StompConnection, "_closed_by_broker", closed)


def _never_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    async def flush(self: StompClient) -> None:
        pass

    monkeypatch.setattr(StompClient, "flush", flush)


def _takes_in_who_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leader, "_has_caught_up", Leader._may_join)


DEFECTS = {
    "closed-while-resuming": _forgets_how_far_it_got, "drained-before-settled": _never_settles,
    "grown-by-nobody": _takes_in_who_has_nothing,
}  # fmt: skip
"""What brings the defect of a scenario back."""


def scenario_test(scenario: Path) -> Test:
    """What ``stormproof test --backend sim --config SCENARIO`` runs."""
    tests: list[Test] = []

    def planned(test: Test, *_: Any, **__: Any) -> None:
        tests.append(test)
        raise typer.Exit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.run.repeat.run_test", planned)
        words = ["test", "--backend", "sim", "--config", str(scenario)]
        typer.main.get_command(app)(words, standalone_mode=False)
    (test,) = tests
    return test


def verdict_of_scenario(path: Path, folder: Path) -> Verdict:
    return check_run(simulated(scenario_test(path), folder))


def test_a_schedule_survives_being_written_and_read() -> None:
    faults = [ExplicitFault("partition", "one", 2.5, 4.25, 7), ExplicitFault("kill", "master", 3.0, 5.0, 8)]
    assert read_schedule(write_schedule(faults), FAMILIES, 10.0) == faults


@pytest.mark.parametrize(("text", "told"), [
    ("partition", "FAMILY.*FROM-TO"),
    ("flood:one:1-2:3", "'flood'"),
    ("kill:halves:1-2:3", "kinds of kill"),
    ("kill:one:2-2:3", "begin before"),
    ("kill:one:2-11:3", "within 10 s"),
    ("kill:one:1.2.3-4:3", "not a number"),
    ("kill:one:1-3:1 pause:one:2-4:2", "has ended"),
])  # fmt: skip
def test_a_schedule_that_makes_no_sense_is_refused(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        read_schedule(text, FAMILIES, 10.0)


def test_a_given_schedule_is_what_happens(tmp_path: Path) -> None:
    test = small_test(1, nemesis="kill,partition", settings={"schedule": "partition:one:2-3.5:7 kill:one:5-6:8"})
    windows = read_ledger(simulated(test, tmp_path) / "ledger.jsonl")
    assert [(window.fault, window.kind, window.confirmed) for window in windows] == [
        ("partition", "one", True), ("kill", "one", True),
    ]  # fmt: skip


def test_the_drawn_schedule_written_down_is_the_same_run(tmp_path: Path) -> None:
    drawn = faults_of(FAILING, 1)
    assert len(drawn) > 2
    assert faults_of(with_faults(FAILING, drawn), 1) == tuple(
        ExplicitFault(f.family, f.kind, float(f"{f.start:g}"), float(f"{f.end:g}"), f.seed) for f in drawn
    )
    assert with_faults(FAILING, ()).nemesis == "none"


@pytest.mark.parametrize("settings", [{}, {"fault_duration": "2"}, {"fault_gap": "0.4"}])
@pytest.mark.parametrize("seconds", [0.0, 0.4, 1.5, 3.0])
def test_a_slow_nemesis_does_the_same_with_the_schedule_written_down(settings: dict[str, str], seconds: float) -> None:
    drawn = Case("joram", "queue", "pause,kill,reboot,partition", 3, 30.0, 30.0, settings)
    given = with_faults(drawn, faults_of(drawn, 1))

    def carried_out(case: Case) -> dict[tuple[int, str], float]:
        faults = fault_generator(case.test(1), case.families(1))
        rows = simulate(faults, lambda *_: SimulatedOutcome(INFO, round(seconds * 1e9)))
        return {(op.value["id"], op.f): op.time / 1e9 for op in rows[::2]}

    assert len(carried_out(given)) >= 6
    assert carried_out(given) == pytest.approx(carried_out(drawn), abs=1e-3)


@pytest.mark.soak
@pytest.mark.requirement("H18", part=True)
def test_a_failing_run_shrinks_to_a_scenario_that_fails_in_the_same_way(tmp_path: Path) -> None:
    seed = next(seed for seed in range(1, 30) if run_seed(FAILING, seed, tmp_path, tmp_path).failed)
    before = faults_of(FAILING, seed)
    steps: list[int] = []
    shrunk = shrink(FAILING, seed, progress=lambda result, runs: steps.append(runs))
    assert steps and steps == sorted(steps) and steps[-1] <= shrunk.runs
    assert len(shrunk.faults) < len(before)
    assert shrunk.result.case.time_limit < FAILING.time_limit or shrunk.result.case.rate < FAILING.rate
    assert "lost" in shrunk.result.broken

    path = tmp_path / "scenario.toml"
    path.write_text(shrunk.scenario())
    assert len(path.read_text().splitlines()) < 25
    verdict = verdict_of_scenario(path, tmp_path)
    assert verdict.verdict == "invalid"
    assert verdict.sentence == shrunk.result.sentence


def pretend(case: Case, seed: int, store: Path, scratch: Path, keep: str) -> JudgedRun:
    """A run that takes its time and fails, with seed 7 or 9, under a kill and one of two partitions."""
    kinds = [(fault.family, fault.seed) for fault in faults_of(case, seed)]
    time.sleep(0.01 * (seed % 3))
    partition = {("partition", 1), ("partition", 2)} & set(kinds)
    fails = seed in (7, 9) and ("kill", 3) in kinds and partition and case.time_limit > 8.5 and case.rate > 9
    return JudgedRun(
        case, seed, "invalid" if fails else "valid", "", {}, ("lost",) if fails else (), {}, {}, "", 0.0, 0.0, ""
    )


def test_the_number_of_processes_does_not_change_what_is_left() -> None:
    faults = [ExplicitFault("partition", "one", 1, 2, 1), ExplicitFault("pause", "one", 2, 3, 5),
              ExplicitFault("partition", "one", 3, 4, 2), ExplicitFault("kill", "one", 5, 6, 3),
              ExplicitFault("partition", "one", 7, 8, 4)]  # fmt: skip
    case = with_faults(Case("joram", "queue", "partition,pause,kill", 3, 20.0, 30.0), faults)
    alone, spread = (shrink(case, 7, jobs=jobs, run=pretend) for jobs in (1, 3))
    assert (alone.scenario(), alone.runs, alone.faults) == (spread.scenario(), spread.runs, spread.faults)
    assert [(fault.family, fault.seed) for fault in alone.faults] == [("partition", 2), ("kill", 3)]
    assert (alone.result.case.time_limit, alone.result.case.rate) == (10.0, 15.0)
    assert alone.result.case.settings["producers"] == alone.result.case.settings["consumers"] == "1"


def stubborn(case: Case, seed: int, store: Path, scratch: Path, keep: str) -> JudgedRun:
    """A run whose steps wait for each other.

    The kill must last 2 s and begin 1 s after the pause. The pause can go once the load is thin; the load can be thin
    once there are two queues; there can be two once the run is short.
    """
    faults = {fault.family: fault for fault in faults_of(case, seed)}
    queues = int(case.settings.get("queues", 4))
    pause, kill = faults.get("pause"), faults.get("kill")
    fails = kill is not None and kill.end - kill.start >= 2 and (pause is None or kill.start >= pause.end + 1)
    fails = fails and (pause is not None or case.rate < 20) and (case.rate >= 20 or queues == 2)
    fails = fails and queues >= 2 and (queues == 4 or case.time_limit < 9)
    return JudgedRun(
        case, seed, "invalid" if fails else "valid", "", {}, ("lost",) if fails else (), {}, {}, "", 0.0, 0.0, ""
    )


def test_a_step_that_makes_another_one_possible_is_followed_by_it() -> None:
    faults = [ExplicitFault("pause", "one", 2, 6, 1), ExplicitFault("kill", "one", 8, 13, 3)]
    case = with_faults(Case("joram", "queue", "pause,kill", 3, 20.0, 33.3, {"queues": "4", "consumers": "4"}), faults)
    shrunk = shrink(case, 7, run=stubborn)
    (kill,) = shrunk.faults
    assert (kill.family, kill.seed) == ("kill", 3)
    assert kill.start <= 0.3 and 2 <= kill.end - kill.start < 4
    left = shrunk.result.case
    assert left.settings["queues"] == "2" and left.time_limit < 4
    assert left.rate == pytest.approx(8.33, abs=0.01), "hundredths survive being written down"


@pytest.mark.parametrize(("system", "workload"), [
    ("standalone", "queue"), ("joram", "queue"), ("joram", "store-and-forward"), ("joram", "clustered"),
    ("joram", "topic"), ("joram", "transaction"), ("joram", "processing"), ("icestorm", "subscriptions"),
    ("icestorm", "events"),
])  # fmt: skip
def test_a_scenario_is_the_run_that_failed(system: str, workload: str, tmp_path: Path) -> None:
    drawn = Case(system, workload, "kill", None, 12345.67, 41.63)
    case = with_faults(drawn, faults_of(drawn, 5)[:2])
    result = JudgedRun(case, 5, "invalid", "", {}, ("lost",), {}, {}, "", 0.0, 0.0, "")
    path = tmp_path / "scenario.toml"
    path.write_text(Shrunk(result, 1).scenario())
    assert scenario_test(path) == case.test(5)


@pytest.mark.parametrize(("old", "new"), [("reaction", "processing"), ("forward", "store-and-forward")])
def test_a_scenario_with_old_names_is_the_same_run(
    old: str, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Case("joram", new, "kill", None, 10.0, 30.0)
    result = JudgedRun(case, 5, "invalid", "", {}, ("lost",), {}, {}, "", 0.0, 0.0, "")
    path = tmp_path / "scenario.toml"
    text = Shrunk(result, 1).scenario()
    assert '\nsystem = "joram"\n' in text and f'\nworkload = "{new}"\n' in text
    path.write_text(text.replace("\nsystem = ", "\ndesign = ").replace(f'"{new}"', f'"{old}"'))
    assert scenario_test(path) == case.test(5)
    assert capsys.readouterr().err.splitlines() == [
        f"stormproof: {path}: the key 'design' is 'system' now",
        f"stormproof: the workload {old!r} is called {new!r} now",
    ]


SPANS = st.lists(st.tuples(st.integers(0, 9000), st.integers(50, 4000)), min_size=1, max_size=6)


@given(SPANS, st.data())
def test_stretched_faults_meet_the_same_others(spans: list[tuple[int, int]], data: st.DataObject) -> None:
    faults = [ExplicitFault("kill", "one", at / 100, (at + length) / 100, i) for i, (at, length) in enumerate(spans)]
    before = stretches(faults)
    factors = data.draw(st.lists(st.sampled_from([0.25, 1.0]), min_size=len(before), max_size=len(before)))
    wanted = [seconds * factor for (seconds, _), factor in zip(before, factors, strict=True)]
    closer = stretched(faults, wanted)

    def meetings(faults: Sequence[ExplicitFault]) -> set[tuple[int, int]]:
        pairs = itertools.permutations(faults, 2)
        return {(one.seed, other.seed) for one, other in pairs if one.start < other.end and other.start < one.end}

    assert meetings(closer) == meetings(faults)
    assert [fault.seed for fault in closer] == [fault.seed for fault in faults]
    after = stretches(closer)
    assert [busy for _, busy in after] == [busy for _, busy in before]
    assert [seconds for seconds, _ in after] == pytest.approx(wanted, abs=0.02)


def test_what_does_not_fail_is_not_shrunk(tmp_path: Path) -> None:
    settings = {name: value for name, value in FAILING.settings.items() if name != "bug"}
    with pytest.raises(UsageError, match="does not fail"):
        shrink(Case("joram", "queue", "partition", 3, 8.0, 30.0, settings), 1)


@pytest.mark.parametrize("path", SCENARIOS, ids=[path.stem for path in SCENARIOS])
def test_no_defect_that_was_found_comes_back(path: Path, tmp_path: Path) -> None:
    verdict = verdict_of_scenario(path, tmp_path)
    assert verdict.verdict == "valid", verdict.sentence


@pytest.mark.parametrize("path", SCENARIOS, ids=[path.stem for path in SCENARIOS])
def test_a_scenario_still_shows_its_defect(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DEFECTS[path.stem](monkeypatch)
    assert verdict_of_scenario(path, tmp_path).verdict == "invalid"
