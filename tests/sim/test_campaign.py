"""``stormproof simulate``: many seeds, failures kept and told with the command that repeats them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from harness.run.cases import Case, JudgedRun
from harness.sim import command
from harness.sim.campaign import campaign
from harness.sim.command import run_campaign
from harness.sim.shrink import Progress, Shrunk, shrink
from stormproof.errors import EXIT_INVALID, StormproofError
from stormproof.run_folder import read_run

ROOT = Path(__file__).resolve().parents[2]
COMMON = {"fault_duration": "1.5", "detection_timeout": "0.5", "idle_timeout": "2", "min_ok": "20"}
SAFE = Case("joram", "queue", "partition,kill", 3, 8.0, 30.0, COMMON)
UNSAFE = Case("joram", "queue", "partition", 3, 10.0, 30.0, {
    **COMMON, "partitions": "unspecified", "partition_kind": "master", "fault_duration": "4",
})  # fmt: skip


def run(cases: list[Case], seeds: range, store: Path, jobs: int = 1, collect: bool = False) -> list[JudgedRun]:
    results: list[JudgedRun] = []
    campaign(cases, seeds, store, jobs=jobs, collect=collect, report=results.append)
    return results


def test_the_page_of_visits_tells_which_states_met_which_faults(tmp_path: Path) -> None:
    page = tmp_path / "visits.md"
    leaders = replace(SAFE, nemesis="kill,clock", settings={**COMMON, "kill_kind": "master"})
    assert run_campaign([leaders], 1, 2, tmp_path / "store", jobs=1, master=None, collect=True, shrinking=False,
                        as_json=False, visits=page) == 0  # fmt: skip
    rows = {row[0]: row[1:] for line in page.read_text().splitlines() if line.startswith("| ")
            for row in [[cell.strip(" `") for cell in line.strip("|").split("|")]]}  # fmt: skip
    assert rows["state"] == ["clock", "kill"] and rows["runs with the fault"] == ["2", "2"]
    assert rows["failover"][1] == "2", "a leader was killed, and none took over under that fault"
    assert rows["two-masters"] == ["–", "–"]
    assert "`two-masters`" in page.read_text().splitlines()[-1]


def test_runs_that_keep_their_promises_leave_nothing_behind(tmp_path: Path) -> None:
    results = run([SAFE], range(1, 4), tmp_path)
    assert [(result.seed, result.verdict) for result in results] == [(1, "valid"), (2, "valid"), (3, "valid")]
    assert list(tmp_path.iterdir()) == []


def test_it_stops_at_the_first_failure_unless_told_to_collect(tmp_path: Path) -> None:
    assert len(run([UNSAFE], range(3, 6), tmp_path / "first")) == 1
    collected = run([UNSAFE], range(3, 6), tmp_path / "all", collect=True)
    assert [result.verdict for result in collected] == ["invalid"] * 3
    assert all(result.run_dir and (result.run_dir / "verdict.json").exists() for result in collected)


def test_processes_share_the_seeds_and_find_the_same(tmp_path: Path) -> None:
    serial = run([SAFE, UNSAFE], range(1, 3), tmp_path / "serial", collect=True)
    spread = run([SAFE, UNSAFE], range(1, 3), tmp_path / "spread", jobs=2, collect=True)
    assert len(serial) == 4

    def found(results: list[JudgedRun]) -> list[tuple[str, int, str, str]]:
        return sorted((r.case.nemesis, r.seed, r.verdict, r.history_sha256) for r in results)

    assert found(serial) == found(spread)


@pytest.mark.requirement("H4", part=True)
def test_the_command_line_names_the_failing_seed_and_the_command_repeats_it(tmp_path: Path) -> None:
    store = tmp_path / "store"
    words = ["simulate", "--seeds", "5", "--start", "3", "--jobs", "1", "--nemesis", "partition", "--time-limit", "10",
             "--rate", "30", "--store", str(store), "--json"]  # fmt: skip
    for name, value in UNSAFE.settings.items():
        words += ["--set", f"{name}={value}"]
    done = stormproof(*words)
    assert done.returncode == 1, done.stderr
    (failure,) = json.loads(done.stdout)["failures"]
    assert failure["seed"] == 3 and failure["verdict"] == "invalid"
    assert failure["command"] in done.stderr
    kept = store / failure["run"]
    assert (kept / "report.html").exists()

    program, *again = shlex.split(failure["command"])
    assert program == "stormproof"
    repeated = stormproof(*again, "--json")
    assert repeated.returncode == 1, repeated.stderr
    answer = json.loads(repeated.stdout)
    assert answer["anomalies"] == failure["anomalies"]
    assert read_run(store / answer["run"])["history_sha256"] == read_run(kept)["history_sha256"]


def test_a_failure_is_told_even_if_its_run_can_not_be_kept(tmp_path: Path) -> None:
    results: list[JudgedRun] = []
    store = tmp_path / "file"
    store.touch()
    with pytest.raises(StormproofError, match="can't keep a run"):
        campaign([UNSAFE], range(3, 6), store, jobs=1, collect=True, report=results.append)
    assert [(result.seed, result.verdict, result.run_dir) for result in results] == [(3, "invalid", None)]


@pytest.mark.parametrize("trouble", [KeyboardInterrupt(), StormproofError("a worker process died")])
def test_what_was_found_before_an_end_is_reported(
    trouble: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken_off(cases: list[Case], seeds: range, store: Path, *, report: Callable[[JudgedRun], None], **_: object
                   ) -> None:  # fmt: skip
        campaign(cases, seeds[:2], store, jobs=1, collect=True, report=report)
        raise trouble

    monkeypatch.setattr(command, "campaign", broken_off)
    monkeypatch.setattr(command, "_REPORTS", 1)
    with pytest.raises(type(trouble)):
        run_campaign([UNSAFE], 3, 5, tmp_path, jobs=1, master=None, collect=True, shrinking=False, as_json=True)
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["interrupted"] and [failure["seed"] for failure in told["failures"]] == [3, 4]
    assert (tmp_path / "index.html").exists()
    first, second = (tmp_path / failure["run"] for failure in told["failures"])
    assert (first / "report.html").exists() and not (second / "report.html").exists()
    assert "reports of the first 1 are written; `stormproof report RUN --store" in err


@pytest.mark.parametrize(("steps", "trouble"), [(0, KeyboardInterrupt()), (3, StormproofError("a worker died"))])
def test_a_shrinking_that_ends_early_keeps_what_it_had(
    steps: int, trouble: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    told: list[JudgedRun] = []

    def broken_off(case: Case, seed: int, *, jobs: int, progress: Progress) -> Shrunk:
        def tell(result: JudgedRun, runs: int) -> None:
            told.append(result)
            progress(result, runs)
            if len(told) == steps:
                raise trouble

        if not steps:
            raise trouble
        return shrink(case, seed, jobs=jobs, progress=tell)

    monkeypatch.setattr(command, "shrink", broken_off)
    interrupted = pytest.raises(KeyboardInterrupt) if isinstance(trouble, KeyboardInterrupt) else nullcontext()
    with interrupted:
        status = run_campaign(
            [UNSAFE], 3, 1, tmp_path, jobs=1, master=None, collect=False, shrinking=True, as_json=True
        )
        assert status == EXIT_INVALID
    out, err = capsys.readouterr()
    campaign = json.loads(out)
    assert not campaign["interrupted"]
    (failure,) = campaign["failures"]
    scenario = tmp_path / failure["run"] / command.SCENARIO
    assert (tmp_path / failure["run"] / "report.html").exists()
    assert ("interrupted; " if isinstance(trouble, KeyboardInterrupt) else "shrinking ended: a worker") in err
    if steps:
        assert scenario.read_text() == Shrunk(told[-1], 0).scenario()
        assert "may not be the smallest" in err and str(scenario) in err
    else:
        assert not scenario.exists() and "the run as it was is in" in err


def test_a_run_that_tells_nothing_can_be_repeated_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = replace(SAFE, settings={**COMMON, "min_ok": "100000"})
    assert run_campaign([case], 1, 1, tmp_path, jobs=1, master=None, collect=False, shrinking=False, as_json=True) == 2
    out, err = capsys.readouterr()
    (unknown,) = json.loads(out)["unknown"]
    assert unknown["seed"] == 1 and unknown["sentence"].startswith("Unknown")
    assert f"repeat with {unknown['command']}" in err


@pytest.mark.parametrize(("system", "nemesis", "schedule", "told"), [
    ("joram", "kill", "kill:one:1-2:3", "on real nodes, stormproof test --backend local --config s.toml --repeat 10"),
    ("joram", "reboot", "reboot:one:1-2:3", "stormproof test --backend ssh --hosts FILE --config s.toml"),
    ("joram", "reboot,disk", "reboot:one:1-2:3 disk:full:3-4:3", "no backend of real nodes has all of these faults"),
    ("fiorano", "reboot", "reboot:one:1-2:3", "no backend of real nodes has all of these faults"),
    ("joram", "packets", "packets:reset:1-2:3", "stormproof test --backend local --config s.toml --repeat 10"),
])  # fmt: skip
def test_a_scenario_is_recommended_to_a_backend_that_has_its_faults(
    system: str, nemesis: str, schedule: str, told: str
) -> None:
    case = Case(system, "queue", nemesis, None, 8.0, 30.0, {"schedule": schedule})
    result = JudgedRun(case, 1, "invalid", "", {}, ("lost",), {}, {}, "", 0.0, 0.0, "")
    assert told in command._on_real_nodes(result, "--config s.toml")


def test_nonsense_is_refused(tmp_path: Path) -> None:
    assert stormproof("simulate", "--seeds", "0").returncode == 3
    assert "below 2**63" in stormproof("simulate", "--seeds", "1", "--start", str(1 << 63)).stderr
    assert "--system joram is given twice" in stormproof("simulate", "--system", "joram", "--system", "joram").stderr
    same = stormproof("simulate", "--nemesis", "kill,pause", "--nemesis", "pause,kill")
    assert "--nemesis kill,pause is given twice" in same.stderr
    assert "did you mean" in stormproof("simulate", "--system", "jorm").stderr


def stormproof(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness", *words], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
