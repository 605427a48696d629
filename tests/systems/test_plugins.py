"""Systems, workloads, faults and checks from a user's own file, and from an installed package."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from system_runs import HERE, TWO_TIER, Ran, possible, stormproof

from harness.run import plugins
from stormproof.errors import HistoryError
from stormproof.run_folder import with_seal, write_json

QUICK = ("--time-limit", "5", "--set", "fault_duration=1", "--nodes", "2", "--seed", "4")
REAL = next((name for name in possible() if name != "sim"), None)


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    """A folder away from the repository with a user's file, and a run of all that is in it."""
    if REAL is None:
        pytest.skip("no backend with real machines works here")
    folder = tmp_path_factory.mktemp("outside")
    shutil.copy(HERE / "outside.py", folder / "mine.py")
    return folder, stormproof("test", "--system", "./mine.py:Echo", "--workload", "mine.py:Says", "--nemesis",
                              "./mine.py:Stumble", "--check", "mine.py:Parrot", "--backend", REAL, "--store", "runs",
                              *QUICK, cwd=folder)  # fmt: skip


def again(folder: Path, run: Path, *words: str) -> Ran:
    return stormproof("check", run.name, "--store", "runs", *words, cwd=folder)


NAMED = ("--system", "mine.py:Echo", "--workload", "mine.py:Says", "--nemesis", "mine.py:Stumble",
         "--check", "mine.py:Parrot")  # fmt: skip


@pytest.mark.requirement("H20", part=True)
def test_all_kinds_from_one_file(outside: tuple[Path, Ran]) -> None:
    """They reach the process that holds the machines, and Spark's workers; run.json names the file with its digest, and
    the command that repeats the run."""
    _, ran = outside
    assert ran.status == 0, ran.err
    assert {(plugin["kind"], plugin["name"]) for plugin in ran.info["plugins"]} == {
        ("system", "echo"), ("workload", "says"), ("nemesis", "stumble"), ("check", "parrot")
    }  # fmt: skip
    (check,) = [check for check in ran.verdict["checks"] if check["check"] == "parrot"]
    assert check["decides"] and check["verdict"] == "valid" and not check["summary"].startswith("0 answers")
    assert any(line["fault"] == "stumble" and line["proven"] for line in ran.faults())
    assert "mine.py:Echo" in ran.info["command"] and "mine.py:Parrot" in ran.info["command"]


@pytest.mark.requirement("H20", part=True)
def test_checked_again_with_the_same_file_only(outside: tuple[Path, Ran], tmp_path: Path) -> None:
    """Without the plug-in, or with a changed one, a run is not judged: status 3 and one line that says what to type."""
    folder, ran = outside
    assert ran.run is not None
    run = folder / ran.run
    checked = again(folder, run, *NAMED)
    assert checked.status == 0, checked.err
    missing = again(folder, run)
    assert missing.status == 3 and "--system FILE:Echo" in missing.err and missing.err.count("\n") == 1, missing.err
    every = stormproof("check", "--all", "--store", "runs", cwd=folder)
    assert every.status == 3 and "not checked" in every.err, every.err
    file = folder / "mine.py"
    kept = file.read_bytes()
    try:
        file.write_bytes(kept + b"# changed\n")
        changed = again(folder, run, *NAMED)
    finally:
        file.write_bytes(kept)
    assert changed.status == 3 and "its digest differs" in changed.err and changed.err.count("\n") == 1, changed.err


@pytest.mark.requirement("H20", part=True)
def test_a_packed_run_is_checked_by_its_copies_elsewhere(outside: tuple[Path, Ran], tmp_path: Path) -> None:
    """The copies of plug-ins come along; `check` imports none of them until somebody pastes the command it names."""
    folder, ran = outside
    assert ran.run is not None
    packed = stormproof("pack", str(folder / ran.run), "--output", str(tmp_path / "run.zip"), cwd=folder)
    assert packed.status == 0, packed.err
    assert stormproof("unpack", "run.zip", "--store", "their runs", cwd=tmp_path).status == 0
    (tmp_path / "mine.py").write_bytes((folder / "mine.py").read_bytes() + b"# edited\n")
    refused = stormproof("check", "latest", "--store", "their runs", *NAMED, cwd=tmp_path)
    assert refused.status == 3 and "its digest differs" in refused.err and refused.err.count("\n") == 1, refused.err
    command = refused.err.partition("is run by: ")[2].strip()
    pasted = f"{shlex.join([sys.executable, '-m', 'harness'])} {command.removeprefix('stormproof ')}"
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    checked = subprocess.run(["sh", "-c", pasted], cwd=tmp_path, env=environment, capture_output=True, text=True,
                             check=False)  # fmt: skip
    assert command.startswith("stormproof check ") and "plugins/echo/mine.py:Echo" in command
    assert checked.returncode == 0 and checked.stdout.startswith("valid"), checked.stderr


@pytest.mark.requirement("H26", part=True)
def test_a_run_folder_loads_nothing(outside: tuple[Path, Ran], tmp_path: Path) -> None:
    """What a folder that came from a stranger names is not executed, whatever is done with it."""
    folder, ran = outside
    assert ran.run is not None
    store = tmp_path / "runs"
    run = store / ran.run.name
    shutil.copytree(folder / ran.run, run)
    marker = tmp_path / "executed"
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(marker)!r}, 'w')\n")
    info = json.loads((run / "run.json").read_text())
    info["plugins"] = [{**plugin, "target": f"{trap}:Echo"} for plugin in info["plugins"]]
    write_json(run / "run.json", with_seal(info))
    for words in (("check", run.name), ("report", run.name), ("recover", run.name), ("list", "systems")):
        done = stormproof(*words, *(("--store", str(store)) if words[0] != "list" else ()), cwd=tmp_path)
        assert done.status in (0, 3), (words, done.err)
        assert "Traceback" not in done.err, done.err
        assert not marker.exists(), words


@pytest.mark.requirement("H20", part=True)
def test_from_python(outside: tuple[Path, Ran]) -> None:
    """``stormproof.run`` takes the classes themselves; ``check`` and ``load`` find the run."""
    folder, _ = outside
    done = subprocess.run([sys.executable, "mine.py"], cwd=folder, capture_output=True, text=True, timeout=150,
                          check=False, env={**os.environ, "PYTHONPATH": str(HERE.parents[1])})  # fmt: skip
    assert done.returncode == 0, done.stderr
    *_, verdict, sentence, rows = done.stdout.splitlines()
    assert verdict.startswith("valid from-python/") and sentence.startswith("Valid: ") and int(rows) > 100


@pytest.mark.requirement("H20", part=True)
def test_an_installed_package(tmp_path: Path) -> None:
    """An entry point of an installed package is a name like ours; the processes of a campaign know it, too."""
    info = tmp_path / "site" / "toy-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[stormproof.systems]\ntoy = two_tier:TwoTier\n")
    path = os.pathsep.join([str(HERE.parents[1]), str(tmp_path / "site"), str(HERE)])
    done = stormproof("simulate", "--system", "toy", "--nemesis", "kill", "--seeds", "4", "--jobs", "2", "--nodes", "2",
                      "--set", "min_ok=5", "--set", "kill_kind=one", "--time-limit", "10", "--json", "--store", "runs",
                      cwd=tmp_path, env={"PYTHONPATH": path})  # fmt: skip
    assert done.status == 0, done.err + done.out
    assert json.loads(done.out)["verdicts"] == {"valid": 4}, done.out
    listed = stormproof("list", "systems", cwd=tmp_path, env={"PYTHONPATH": path})
    assert listed.status == 0 and "toy" in listed.out, listed.err
    helped = stormproof("admin", "toy", "--help", cwd=tmp_path, env={"PYTHONPATH": path})
    assert helped.status == 0 and "release" in helped.out, helped.err


def test_a_run_of_an_installed_package_is_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The very same one needs no naming; one that has changed is not even loaded."""
    info, module = tmp_path / "toy-1.dist-info", tmp_path / "toy_module.py"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[stormproof.systems]\ntoy = toy_module:Toy\n")
    module.write_text("import two_tier\nclass Toy(two_tier.TwoTier):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    same = {"kind": "system", "name": "toy", "target": "toy_module:Toy",
            "sha256": hashlib.sha256(module.read_bytes()).hexdigest()}  # fmt: skip
    try:
        for other in ({"sha256": "0"}, {"target": "os:Toy"}, {"name": "toys"}, {"kind": "evil"}):
            with pytest.raises(HistoryError, match="not in use here"):
                plugins.demand_same({"plugins": [{**same, **other}]}, "it")
            assert "toy_module" not in sys.modules
        plugins.demand_same({"plugins": [same]}, "it")
        (found,) = plugins.named()
        assert {field: found[field] for field in same} == same
    finally:
        plugins.forget()


def test_mistakes_in_hooks(tmp_path: Path) -> None:
    """Logs that can't be read cost a run nothing. Where leaders can't be told, faults that aim at them do not count. A
    repair that fails is told with a line that says where, and the run is judged all the same."""
    (tmp_path / "hooks.py").write_text(
        f"import sys; sys.path.append({str(HERE)!r})\nimport two_tier\n"
        "class Base(two_tier.TwoTier):\n    name = 'base'\n"
        "    def parse_line(self, line):\n        return line.split('|')[7]\n"
        "    def states_reached(self, logs):\n        raise KeyError('x')\n"
        "    async def leaders(self, cluster):\n        raise OSError('no')\n"
        "class Repairs(two_tier.TwoTier):\n    name = 'repairs'\n"
        "    async def repair(self, cluster):\n        return 1 / 0\n"
    )
    words = ("--backend", "sim", "--nodes", "2", "--nemesis", "kill", "--set", "kill_kind=leader-of-q0", "--set",
             "fault_duration=1", "--time-limit", "6", "--seed", "3", "--store", "runs")  # fmt: skip
    done = stormproof("test", "--system", "hooks.py:Base", *words, cwd=tmp_path)
    assert done.status == 2 and "can't read its nodes' logs: IndexError" in done.err, done.err
    assert "kill:leader-of-q0 never found the state that it expects (nobody leads q0)" in done.out, done.out
    assert "Traceback" not in done.err, done.err
    failed = stormproof("test", "--system", "hooks.py:Repairs", *words, cwd=tmp_path)
    assert failed.status != 3 and "repairing it failed: ZeroDivisionError" in failed.out, failed.out
    assert failed.run is not None and len(failed.info["recovery"]["repair_errors"]) == 1
    assert "defect in the harness" not in failed.err


def test_kinds_that_lack_something(tmp_path: Path) -> None:
    """Classes of workloads and faults are made in a run only: what they lack is told before. Our own checks are always
    asked, so that naming one is a mistake."""
    (tmp_path / "half.py").write_text(
        "import stormproof\nclass Load(stormproof.Workload):\n    pass\nclass Harm(stormproof.Fault):\n    pass\n"
    )
    for words, why in ((("--workload", "half.py:Load"), "lacks client, concurrency, main"),
                       (("--nemesis", "half.py:Harm"), "lacks heal, inject, plan"),
                       (("--check", "order"), "always asked")):  # fmt: skip
        done = stormproof("test", *words, "--backend", "sim", "--store", "runs", cwd=tmp_path)
        assert done.status == 3 and why in done.err and done.err.count("\n") == 1, done.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("named", "words"), [
    ("nowhere.py:Echo", "nowhere.py: no such Python file"),
    ("mine.py:Missing", "has no 'Missing'"),
    ("mine.py:Says", "is no system"),
    ("broken.py:Echo", "broken.py can't be loaded: SyntaxError"),
    ("raises.py:Echo", "raises.py can't be loaded: ZeroDivisionError"),
    ("abstract.py:Half", "can't be made"),
    ("mine.py:", "write --system FILE:CLASS"),
    ("mine.py", "write it as FILE.py:CLASS"),
    ("./mine", "write it as FILE.py:CLASS"),
    ("exits.py:Echo", "exits.py can't be loaded: SystemExit"),
    ("names.py:Outside", "'../x' can't be its name"),
    ("names.py:Raises", "can't be made: ValueError: no"),
])
def test_bad_input(tmp_path: Path, named: str, words: str) -> None:
    """One line: which file, what is wrong."""
    shutil.copy(HERE / "outside.py", tmp_path / "mine.py")
    (tmp_path / "broken.py").write_text("class Echo(:\n")
    (tmp_path / "raises.py").write_text("1 / 0\n")
    (tmp_path / "abstract.py").write_text("import stormproof\nclass Half(stormproof.System):\n    pass\n")
    (tmp_path / "exits.py").write_text("raise SystemExit(1)\n")
    (tmp_path / "names.py").write_text(
        "import mine\nclass Outside(mine.Echo):\n    name = '../x'\n"
        "class Raises(mine.Echo):\n    def __init__(self):\n        raise ValueError('no')\n"
    )
    done = stormproof("test", "--system", named, "--backend", "sim", "--store", "runs", cwd=tmp_path)
    assert done.status == 3 and words in done.err and done.err.count("\n") == 1, done.err
    assert not (tmp_path / "runs").exists()


def test_one_that_can_not_be_simulated(outside: tuple[Path, Ran]) -> None:
    """A system of commands alone has no simulation: refused before anything is made."""
    folder, _ = outside
    done = stormproof("test", "--system", "mine.py:Echo", "--workload", "mine.py:Says", "--nemesis", "none",
                      "--backend", "sim", "--store", "others", cwd=folder)  # fmt: skip
    assert done.status == 3 and "can be simulated" in done.err and not (folder / "others").exists(), done.err


def test_same_name_as_ours(tmp_path: Path) -> None:
    """A plug-in does not take the place of what is there under its name."""
    (tmp_path / "mine.py").write_text(
        f"import sys; sys.path.append({str(HERE)!r})\n"
        "import two_tier\nclass Joram(two_tier.TwoTier):\n    name = 'joram'\n"
    )
    done = stormproof("test", "--system", "mine.py:Joram", "--backend", "sim", "--store", "runs", cwd=tmp_path)
    assert done.status == 3 and "joram" in done.err and done.err.count("\n") == 1, done.err
    assert TWO_TIER.endswith(":TwoTier")


@pytest.mark.requirement("H20", part=True)
@pytest.mark.parametrize("edited", ["mine.py", "late_helper.py"])
def test_files_that_are_edited_while_a_run_goes_on(edited: str, tmp_path: Path) -> None:
    """What was loaded at its start judges the run, in every process, also a helper that is imported late. `check` then
    names the command that judges by the copy in the run's folder, and imports nothing from there by itself."""
    if REAL is None:
        pytest.skip("no backend with real machines works here")
    (tmp_path / "mine.py").write_text((HERE / "outside.py").read_text() + (
        "\n\nclass Late(Echo):\n    name = 'late'\n\n    async def repair(self, cluster):\n"
        "        import late_helper\n        return late_helper.WORD\n"
    ))
    (tmp_path / "late_helper.py").write_text("WORD = 'as it was'\n")
    named = ("--system", "mine.py:Late", "--workload", "mine.py:Says", "--check", "mine.py:Parrot")
    argv = [sys.executable, "-m", "harness", "test", *named, "--nemesis", "none", "--backend", REAL, "--store", "runs",
            *QUICK[:2], *QUICK[4:]]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(argv, cwd=tmp_path, env=environment, stdout=out, stderr=out, text=True)
    while "load and faults" not in (tmp_path / "out").read_text() and process.poll() is None:
        time.sleep(0.05)
    (tmp_path / edited).write_text("1 / 0  # edited\n")
    assert process.wait(150) == 0, (tmp_path / "out").read_text()
    assert "repair: as it was" in (tmp_path / "out").read_text()
    (run,) = (path.parent for path in (tmp_path / "runs").glob("*/run.json"))
    assert (run / "plugins" / "late" / "late_helper.py").read_text() == "WORD = 'as it was'\n"
    if edited == "mine.py":
        refused = stormproof("check", run.name, "--store", "runs", cwd=tmp_path)
        assert refused.status == 3 and "--system FILE:Late" in refused.err, refused.err
        shutil.copy(run / "plugins" / "late" / "mine.py", tmp_path)
        (tmp_path / "mine.py").write_bytes((tmp_path / "mine.py").read_bytes() + b"# edited\n")
    refused = stormproof("check", run.name, "--store", "runs", *named, cwd=tmp_path)
    assert refused.status == 3 and "its digest differs" in refused.err and refused.err.count("\n") == 1, refused.err
    command = shlex.split(refused.err.partition("is run by: ")[2])
    assert command[:2] == ["stormproof", "check"], refused.err
    assert f"runs/{run.name}/plugins/late/mine.py:Late" in command, refused.err
    checked = stormproof(*command[1:], cwd=tmp_path)
    assert checked.status == 0, checked.err
