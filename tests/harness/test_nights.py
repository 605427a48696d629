"""Nights: what a file says, whose turn it is, what is new, and that nothing is lost or judged twice."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from junitparser import JUnitXml

from harness.cli.outcomes import Outcomes
from harness.nightly import command
from harness.nightly.command import run_nightly
from harness.nightly.judgement import judge
from harness.nightly.known import read_known
from harness.nightly.notify import Notify
from harness.nightly.plan_file import Cell, Plan, read_plan
from harness.nightly.record import RUNNING, Night, NightResult, begin, find_night, new_id, open_night, unfinished
from harness.nightly.run import NightBudget, rounds
from harness.nightly.triage import KNOWN, NEW, OVERDUE, SEEN
from harness.run.cases import BROKEN
from nodes.reference.bugs import BUGS
from nodes.systems.catalog import SYSTEMS
from stormproof.errors import StormproofError, UsageError
from stormproof.store import Store

ROOT = Path(__file__).resolve().parents[2]
PLAN = """
[defaults]
time_limit = 6
rate = 20
seeds = "1-2"
set = { min_ok = 20 }

[[case]]
name = "plain"
system = "standalone"
nemeses = ["none", "kill"]

[[case]]
name = "other"
design = ["standalone", "icestorm"]
backends = ["sim"]
workloads = ["queue"]
nemesis = "kill"
seeds = "fresh:3"
time-limit = 14
set = { bug = "requeued-twice", min_ok = 5 }
"""


def plan_of(tmp_path: Path, text: str = PLAN, salt: str = "salt") -> Plan:
    path = tmp_path / "night.toml"
    path.write_text(text)
    return read_plan(path, salt)


@pytest.mark.requirement("H11")
def test_a_file_is_a_matrix(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert [cell.name for cell in plan.cells] == [
        "plain: standalone queue none on sim", "plain: standalone queue kill on sim",
        "other: standalone queue kill on sim with requeued-twice"]
    assert [line.partition(" on sim")[0] for line in plan.left_out] == ["other: icestorm queue kill"]
    first, _, last = plan.cells
    assert (list(first.seeds), dict(first.settings), first.expected) == (
        [1, 2], {"min_ok": 20, "surface": "true"}, "valid")
    assert dict(last.settings) == {"bug": "requeued-twice", "min_ok": 5}
    assert len(set(last.seeds)) == 3
    assert plan_of(tmp_path).cells[2].seeds == last.seeds
    assert plan_of(tmp_path, salt="another").cells[2].seeds != last.seeds


def test_our_own_night_has_every_design_and_a_twin_of_each_everywhere() -> None:
    plan = read_plan(ROOT / "nightly.toml", "salt")
    # The real IceStorm's client is in an extra of its own.
    assert [line for line in plan.left_out if "stormproof[icestorm]" not in line] == []
    cells = [cell for cell in plan.cells if cell.case != "mutants"]
    for backend in ("sim", "local", "docker"):
        for expected in ("valid", "invalid"):
            found = {cell.system for cell in cells if (cell.backend, cell.expected) == (backend, expected)}
            assert found >= {name for name in SYSTEMS.names() if SYSTEMS.load(name).simulated}, (backend, expected)
    assert {cell.settings["bug"] for cell in plan.cells if cell.case == "mutants"} == {
        name for name, bug in BUGS.items() if not bug.drawn}  # fmt: skip


def test_mutants_are_twins_of_the_campaigns_that_exercise_them(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "[[case]]\nname = 'm'\nmutants = 'all'\nseeds = '1-3'")
    assert len(plan.cells) == len({cell.name for cell in plan.cells})
    assert len(plan.cells) == sum(not bug.drawn for bug in BUGS.values())
    assert {cell.expected for cell in plan.cells} == {"invalid"}
    (one,) = plan_of(tmp_path, "[[case]]\nname = 'm'\nmutants = 'max-kept'").cells
    assert one.name == "m: icestorm subscriptions partition,pause,kill on sim with max-kept"
    assert one.test(1).options["bug"] == "max-kept"
    with pytest.raises(UsageError, match="did you mean 'max-kept'"):
        plan_of(tmp_path, "[[case]]\nname = 'm'\nmutants = 'max-kep'")


@pytest.mark.parametrize(("text", "told"), [
    ("", r"no \[\[case\]\]"),
    ("x = 1", "unknown key 'x'"),
    ("[[case]]\nsystem = 'joram'", "name"),
    ("[[case]]\nname = 'a/b'", "name"),
    ("[[case]]\nname = 'a'\n[[case]]\nname = 'a'", "two of that name"),
    ("[[case]]\nname = 'a'\nsytem = 'joram'", "did you mean 'system'"),
    ("[[case]]\nname = 'a'\nseeds = '5-1'", "case a: seeds"),
    ("[[case]]\nname = 'a'\nseeds = 'fresh:0'", "at least one"),
    ("[[case]]\nname = 'a'\nseeds = 5", "must be a string"),
    ("[[case]]\nname = 'a'\nexpected = 'unknown'", "expected"),
    ("[[case]]\nname = 'a'\nsystem = 'nosuch'", "no system 'nosuch'"),
    ("[[case]]\nname = 'a'\nset = { ack = [1] }", "must be a string, a number or a boolean"),
    ("[case]\nname = 'a'", "any number of"),
    ("case = 3", "any number of"),
    ("[[case", "not TOML"),
])  # fmt: skip
def test_a_file_that_makes_no_sense_is_told(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=told):
        plan_of(tmp_path, text)


def cell(name: str, *, backend: str = "sim", seeds: Sequence[int] = (1, 2), expected: str = "valid") -> Cell:
    return Cell("joram", "queue", "kill", None, 5.0, 10.0, {}, backend, name, expected, seeds)


def test_every_cell_gets_a_turn_before_any_gets_another() -> None:
    one, two, real = cell("one", seeds=(1, 2, 3)), cell("two", seeds=(5,)), cell("real", backend="local")
    order = [[(each.case, seed) for each, seed in [*simulated, *others]]
             for simulated, others in rounds([real, one, two], {(one.name, 2)})]
    assert order == [[("one", 1), ("two", 5), ("real", 1)], [("real", 2)], [("one", 3)]]


def test_every_case_gets_a_turn_before_any_gets_another() -> None:
    many = [replace(cell(f"many-{number}"), case="many", nemesis=f"kill,pause{number}") for number in range(3)]
    real = [replace(cell("real", backend=backend), case="real") for backend in ("local", "docker")]
    cells = [*many, *real, cell("last", seeds=(1,))]
    order = [[(each.case, each.nemesis, each.backend, seed) for each, seed in [*simulated, *others]]
             for simulated, others in rounds(cells, set())]
    assert [len(portion) for portion in order] == [3, 3, 5]
    assert [each[0] for each in order[0]] == ["many", "last", "real"]
    assert [each[0] for each in order[1]] == ["many", "many", "real"]
    assert len({each for portion in order for each in portion}) == 11


def test_a_budget_is_spent() -> None:
    now = [0.0]
    budget = NightBudget(10.0, lambda: now[0])
    assert budget.has(9.9)
    now[0] = 4.0
    assert not budget.has(6.0)
    now[0] = 10.0
    assert not budget.has()
    assert NightBudget(None).has(1e9)


def result(where: Cell, seed: int, verdict: str = "valid", code: str = "", run: str = "") -> NightResult:
    words = f"words of {code}" if code else ""
    return NightResult(where.name, seed, verdict, verdict, 1.0, "stormproof test", run, code, words)


def night(folder: Path, results: Sequence[NightResult], name: str = "20261123T000000-0001",
          cells: Sequence[Cell] = ()) -> Night:
    told = [{"name": each.name, "expected": each.expected} for each in cells]
    return Night(folder / name, {"status": "complete", "cells": told}, list(results))


TODAY = date(2026, 11, 23)


@pytest.mark.requirement("H22")
def test_a_night_tells_what_is_new(tmp_path: Path) -> None:
    case, twin, idle = cell("case"), cell("twin", expected="invalid"), cell("idle", expected="invalid", seeds=(1, 2, 3))
    path = tmp_path / "known.toml"
    path.write_text('[[known]]\nfingerprint = "000000000a"\nuntil = 2026-11-22\n'
                    '[[known]]\nfingerprint = "000000000b"\nuntil = 2026-11-23\nissue = "#7"\n')
    earlier = night(tmp_path, [result(case, 9, "invalid", "c")], "20261122T000000-0001")
    now = night(tmp_path, [
        result(case, 1, "invalid", "000000000a"), result(case, 2, "invalid", "000000000b"),
        result(case, 3, "invalid", "c"), result(case, 4, "invalid", "d"), result(case, 5, "invalid", "d"),
        result(case, 6, "unknown"), result(twin, 1, "invalid", "e"), result(twin, 2), result(idle, 1),
        result(idle, 2),
    ], cells=[case, twin, idle])
    found = judge(now, [case, twin, idle], [earlier], read_known(path), TODAY)
    assert [(kind.fingerprint, kind.status, len(kind.runs)) for kind in found.kinds] == [
        ("d", NEW, 2), ("000000000a", OVERDUE, 1), ("c", SEEN, 1), ("000000000b", KNOWN, 1)]
    assert found.kinds[2].first == earlier.name
    assert found.unfailing == [], "the last one has not had all its runs"
    assert len(found.unknown) == 1
    assert found.status == 1


@pytest.mark.parametrize(("results", "status"), [
    ([], 0), ([("case", "valid", "")], 0), ([("case", "unknown", "")], 2), ([("case", "invalid", "x")], 1),
    ([("case", BROKEN, "y")], 1), ([("twin", "invalid", "x")], 0), ([("twin", "valid", "")], 1),
    ([("twin", "unknown", "")], 1), ([("twin", BROKEN, "y")], 1), ([("case", "invalid", "seen")], 0),
    ([("case", "invalid", "seen"), ("case", "unknown", "")], 2),
])  # fmt: skip
def test_the_status_of_a_night(results: list[tuple[str, str, str]], status: int, tmp_path: Path) -> None:
    cells = {"case": cell("case", seeds=(1,)), "twin": cell("twin", seeds=(1,), expected="invalid")}
    now = night(tmp_path, [result(cells[name], 1, verdict, code) for name, verdict, code in results],
                cells=list(cells.values()))
    earlier = night(tmp_path, [result(cells["case"], 1, "invalid", "seen")], "20261122T000000-0001")
    assert judge(now, list(cells.values()), [earlier], {}, TODAY).status == status


@pytest.mark.parametrize(("text", "told"), [
    ("[[known]]\nfingerprint = 'x'", "ten of"), ("[[known]]", "ten of"), ("[known]", "once for each"), ("y = 1", "'y'"),
    ("[[known]]\nfingerprint = '0123456789'\nuntil = '2026-01-01'", "without quotes"),
    ("[[known]]\nfingerprint = '0123456789'\nuntil = 2026-01-01T10:00:00", "without quotes"),
    ("[[known]]\nfingerprint = '0123456789'\nuntill = 2026-01-01", "did you mean 'until'"),
    ("[[known]]\nfingerprint = '0123456789'\nissue = 7", "issue: a string"),
    ("[[known]]\nfingerprint = '0123456789'\n" * 2, "twice"),
])  # fmt: skip
def test_a_file_of_known_failures_that_makes_no_sense_is_told(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=told):
        read_known(path)


def test_what_ended_is_kept_and_what_was_cut_off_is_not(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    first = begin(tmp_path, plan, "20261123T000000-0001", "build=1")
    where = plan.cells[0]
    first.add(result(where, 1), 2.5)
    first.spend(0.5)
    with (first.folder / "results.jsonl").open("ab") as file:
        file.write(b'{"result": {"cell": "cut')
    again = open_night(first.folder)
    again.add(result(where, 2, "invalid", "c", "run"))
    again.confirm("c", 2, 3)
    whole = open_night(first.folder)
    assert whole.done == {(where.name, 1), (where.name, 2)}
    assert whole.used == 3.0 and whole.confirmed == {"c": (2, 3)} and whole.head["tag"] == "build=1"
    found = unfinished(tmp_path, plan.digest)
    assert found is not None and found.name == first.name
    whole.end("complete")
    assert unfinished(tmp_path, plan.digest) is None
    assert unfinished(tmp_path, "another") is None
    assert find_night(tmp_path, "latest").name == find_night(tmp_path, "2026").name == first.name
    with pytest.raises(UsageError, match="there is none"):
        find_night(tmp_path, "1999")


def nightly(folder: Path, *words: str) -> subprocess.Popen[str]:
    program = (sys.executable, "-m", "harness", "nightly", str(folder / "night.toml"))
    words = words if "--store" in words else (*words, "--store", str(folder / "runs"))
    return subprocess.Popen((*program, *words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(process: subprocess.Popen[str], seconds: float = 170) -> tuple[int, str]:
    out, _ = process.communicate(timeout=seconds)
    return process.returncode, out


def results_in(store: Path) -> int:
    """How many runs of a store's nights are on disk, whole: a full disk cuts the last line off."""
    lines = [line for path in store.glob("nights/*/results.jsonl") for line in path.read_bytes().splitlines()]
    return sum(line.startswith(b'{"result": ') and line.endswith(b"}") for line in lines)


def wait_for(process: subprocess.Popen[str], store: Path, count: int) -> None:
    """Until so many runs are on disk, or the process has ended."""
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline and results_in(store) < count:
        time.sleep(0.02)


def fill(folder: Path) -> Path:
    """A file that takes all the room that is left."""
    path = folder / "ballast"
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of its own, of 16 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", folder], capture_output=True,
                             check=False)
    if mounted.returncode:
        pytest.skip("mounting a file system is root's")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def told_runs(out: str) -> list[str]:
    """The runs that a night said had ended: cell and seed."""
    return re.findall(r"^\d+ of \d+: \w+(?: \(as expected\))?: (.*?, seed \d+): ", out, re.MULTILINE)


def goes_through(folder: Path, store: Path, ends: Sequence[str], words: Sequence[str]) -> None:
    """A night that is cut short in each of these ways, after two more runs each time, ends whole in the end."""
    total, outputs, kept = 11, [], []
    for number, end in enumerate(ends):
        process = nightly(folder, "--store", str(store), *words)
        wait_for(process, store, len(kept) + 2)
        if end == "disk":
            ballast = fill(store.parent)
            status, out = ended(process)
            ballast.unlink()
            assert status == 3 and re.search(r"No space left on device\)?; free some space", out.splitlines()[-1]), out
            assert "Traceback" not in out
        else:
            process.send_signal(signal.SIGINT if end == "ctrl-c" else signal.SIGKILL)
            status, out = ended(process)
            assert status == (130 if end == "ctrl-c" else -signal.SIGKILL), out
        outputs.append(out)
        (cut,) = (store / "nights").iterdir()
        assert number == 0 or f"night {cut.name} goes on: {len(kept)} of {total} runs" in out
        assert json.loads((cut / "night.json").read_text())["status"] == RUNNING
        assert open_night(cut).used > 0, "also where it was killed"
        found = open_night(cut).results
        assert found[:len(kept)] == kept and len(kept) + 2 <= len(found) < total, "moments that are in the middle"
        kept = found
    status, out = ended(nightly(folder, "--store", str(store), *words))
    outputs.append(out)
    whole = open_night(cut)
    assert whole.results[:len(kept)] == kept and whole.head["status"] == "complete"
    assert len(whole.results) == len(whole.done) == total
    assert status == 1 and "NEW " in out and "1 new kind of failure" in out.splitlines()[-1]
    judged = [run for out in outputs for run in told_runs(out)]
    assert len(judged) == len(set(judged)), "a run was judged twice"
    assert set(judged) <= {f"{each.cell}, seed {each.seed}" for each in whole.results}
    for each in whole.results:
        assert each.verdict != "invalid" or (store / each.run / "verdict.json").exists()
    assert not list(store.glob(".2*")), "nothing that was moved is left half"


@pytest.mark.requirement("H22")
def test_a_night_goes_on_after_ctrl_c_a_kill_and_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    plan_of(tmp_path, PLAN.replace("1-2", "1-4").replace("fresh:3", "1-2,4"))
    goes_through(tmp_path, small_disk / "runs", ["kill", "ctrl-c", "disk"], ["--jobs", "1"])


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ends", [["disk", "disk", "kill"], ["kill", "kill", "ctrl-c"], ["ctrl-c", "disk", "kill"]])
def test_a_night_goes_on_after_anything_in_any_order(ends: list[str], small_disk: Path, tmp_path: Path) -> None:
    plan_of(tmp_path, PLAN.replace("1-2", "1-4").replace("fresh:3", "1-2,4"))
    goes_through(tmp_path, small_disk / "runs", ends, ["--jobs", "2"])


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_a_night_goes_on_after_its_run_on_real_nodes_was_cut_short(end: signal.Signals, tmp_path: Path) -> None:
    plan_of(tmp_path, """
[[case]]
name = "real"
system = "standalone"
nemesis = "kill"
backend = "local"
time-limit = 12
rate = 40
seeds = "3"
""")
    store = tmp_path / "runs"
    process = nightly(tmp_path)
    deadline = time.monotonic() + 200
    while process.poll() is None and time.monotonic() < deadline:
        if any(path.stat().st_size for path in store.glob("*-standalone-*/ledger.jsonl")):  # a fault is in force
            break
        time.sleep(0.05)
    process.send_signal(end)
    status, out = ended(process)
    assert status == (130 if end == signal.SIGINT else -end), out
    (cut,) = Store(store).runs()
    healed = subprocess.run((sys.executable, "-m", "harness", "heal", "--store", str(store)), check=False,
                            capture_output=True, text=True, timeout=120)  # fmt: skip
    assert healed.returncode == 0, healed.stdout + healed.stderr
    status, out = ended(nightly(tmp_path), 300)
    assert "goes on: 0 of 1 runs are done" in out and status in (0, 2), out
    (only,) = find_night(store, "latest").results
    assert only.run != cut.name and not (cut / "verdict.json").exists(), "what was cut short is not judged"
    assert {run.name for run in Store(store).runs()} == {cut.name, only.run}


BUGGY = """
[defaults]
time-limit = 8
rate = 20
set = { min_ok = 20 }

[[case]]
name = "clean"
system = ["standalone", "joram"]
nemesis = "none"
time-limit = 4
seeds = "1"

[[case]]
name = "buggy"
system = "standalone"
nemesis = "kill"
time-limit = 14
seeds = "1-2"
bug = "requeued-twice"
"""
TWIN = """
[[case]]
name = "twin"
system = "standalone"
nemesis = "none"
expected = "invalid"
time-limit = 4
seeds = "1"
"""


@pytest.mark.requirement("H22")
def test_cases_with_a_combination_in_common_have_a_run_each(tmp_path: Path,
                                                            capsys: pytest.CaptureFixture[str]) -> None:
    """The same combination has to fail in one case, and must not in the other."""
    one = '[[case]]\nname = "{}"\nsystem = "standalone"\nnemeses = ["kill", "kill"]\nbug = "requeued-twice"\n{}\n'
    plan_of(tmp_path, '[defaults]\nset = { min_ok = 10 }\ntime-limit = 14\nrate = 20\nseeds = "1"\n'
            + one.format("fine", "") + one.format("twin", 'expected = "invalid"'))
    status = run_nightly(tmp_path / "night.toml", tmp_path / "runs", budget=None, tag="", fresh=False, jobs=1,
                         confirm=0, known=None, outcomes=Outcomes(), notify=Notify(), as_json=True)
    night = json.loads(capsys.readouterr().out)
    assert status == 1 and [kind["status"] for kind in night["failures"]] == [NEW], night
    (name,) = (folder.name for folder in (tmp_path / "runs" / "nights").iterdir())
    cells = [result.cell for result in find_night(tmp_path / "runs", name).results]
    assert sorted(cell.partition(":")[0] for cell in cells) == ["fine", "twin"]


@pytest.mark.requirement("H22")
@pytest.mark.requirement("H29", part=True)
def test_a_bug_is_new_the_first_night_and_known_the_second(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(text: str, confirm: int = 0) -> tuple[int, dict[str, Any]]:
        plan_of(tmp_path, text)
        with Outcomes(tmp_path / "junit.xml") as outcomes:
            status = run_nightly(tmp_path / "night.toml", tmp_path / "runs", budget=None, tag="", fresh=False, jobs=1,
                                 confirm=confirm, known=None, outcomes=outcomes, notify=Notify(), as_json=True)
        (suite,) = JUnitXml.fromfile(str(tmp_path / "junit.xml"))
        junit.append((suite.tests, suite.failures, suite.errors, suite.skipped))
        return status, json.loads(capsys.readouterr().out)

    junit: list[tuple[int, ...]] = []
    status, first = run(BUGGY, confirm=2)
    (kind,) = first["failures"]
    assert status == 1 and kind["status"] == NEW and kind["words"].startswith("standalone queue: ")
    assert kind["confirmed"] == [2, 2]
    status, second = run(BUGGY.replace("1-2", "4-5"))
    assert status == 0 and [(each["fingerprint"], each["status"]) for each in second["failures"]] == [
        (kind["fingerprint"], SEEN)]
    known = f'[[known]]\nfingerprint = "{kind["fingerprint"]}"\nissue = "#7"\nuntil = '
    for until, expected, word in (("2999-12-31", 0, KNOWN), ("2020-01-31", 1, OVERDUE)):
        (tmp_path / "known.toml").write_text(known + until)
        status, night = run(BUGGY.replace("1-2", "6"))
        assert (status, [each["status"] for each in night["failures"]]) == (expected, [word])
    (tmp_path / "known.toml").unlink()
    status, last = run(BUGGY.partition("[[case]]")[0] + TWIN)
    assert status == 1 and last["unfailing"] == ["twin: standalone queue none on sim"] and last["failures"] == []
    told_by_junit = [(4, 2, 0, 0), (4, 0, 0, 2), (3, 0, 0, 1), (3, 1, 0, 0), (2, 1, 0, 0)]
    assert junit == told_by_junit, "failures: what is new or overdue, and a twin that did not fail"


def test_nights_of_the_same_second_are_in_order() -> None:
    """What is known the second night is what an earlier one has seen."""
    names = []
    for _ in range(50):
        names.append(new_id())
        time.sleep(0.002)
    assert names == sorted(names)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.requirement("H29", part=True)
def test_a_failure_of_real_nodes_is_run_again_and_says_how_often(tmp_path: Path) -> None:
    plan_of(tmp_path, """
[[case]]
name = "real"
system = "joram"
nemesis = "partition"
backend = "local"
time-limit = 15
rate = 100
seeds = "7"
set = { partitions = "unspecified", partition_kind = "master", fault_duration = 6 }
""")
    status, out = ended(nightly(tmp_path, "--confirm", "2"), 580)
    found = re.search(r"^again: (\d) of 2: joram queue \(partitions=unspecified\): ", out, re.MULTILINE)
    assert status == 1 and found is not None, out
    assert f"first in {find_night(tmp_path / 'runs', 'latest').name}" in out and f"; again {found[1]} of 2" in out
    assert len(list((tmp_path / "runs").glob("*-joram-*"))) == 3


def test_a_night_without_time_says_so(tmp_path: Path) -> None:
    plan_of(tmp_path)
    status, out = ended(nightly(tmp_path, "--budget", "0.001s"))
    assert status == 0 and out.count("not run, no time was left") == 3, out
    (folder,) = (tmp_path / "runs" / "nights").iterdir()
    assert json.loads((folder / "night.json").read_text())["status"] == "budget spent"


def test_a_night_that_nobody_was_told_of_is_told_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                      capsys: pytest.CaptureFixture[str]) -> None:
    plan_of(tmp_path, BUGGY.partition("[[case]]")[0] + TWIN)
    store = tmp_path / "runs"

    def run() -> int:
        return run_nightly(tmp_path / "night.toml", store, budget=None, tag="", fresh=False, jobs=1, confirm=0,
                           known=None, outcomes=Outcomes(), notify=Notify(), as_json=True)

    def full(*_: object) -> None:
        raise StormproofError("can't write trend.html: No space left on device")

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(command, "lines_of", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        run()
    before = find_night(store, "latest")
    assert before.head["status"] == RUNNING and len(before.results) == 1
    with monkeypatch.context() as patch:
        patch.setattr(command, "write_pages", full)
        assert run() == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["night"] == before.name and "goes on: 1 of 1 runs" in err and "No space left" in err
    after = find_night(store, "latest")
    assert (after.name, after.results, after.head["status"]) == (before.name, before.results, "complete")


def test_triage_without_nights_is_told(tmp_path: Path) -> None:
    words = (sys.executable, "-m", "harness", "triage", "--store", str(tmp_path))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 3 and "holds no nights" in done.stderr


def test_reproductions_are_a_failing_arm_and_a_twin_each(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "[[case]]\nname = 'r'\nreproductions = ['redis-D2', 'mosquitto-m1']\nbackend = 'local'")
    assert [(cell.case, cell.system, cell.expected, cell.backend) for cell in plan.cells] == [
        ("r-redis-D2-fails", "redis", "invalid", "local"), ("r-redis-D2-twin", "redis", "valid", "local"),
        ("r-mosquitto-M1-fails", "mosquitto", "invalid", "local"),
        ("r-mosquitto-M1-twin", "mosquitto", "valid", "local"),
    ]  # fmt: skip
    with pytest.raises(UsageError, match="case r: reproductions: unknown reproduction 'redis-D9'"):
        plan_of(tmp_path, "[[case]]\nname = 'r'\nreproductions = 'redis-D9'")
