"""What the command tells about itself: help, version, completion, names; and progress."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from harness.cli import app as cli
from harness.cli.listing import known_bugs, listing
from harness.run.progress import RunQueue, duration, progress
from harness.sim.draw import DrawnCase
from stormproof.errors import StormproofError

ROOT = Path(__file__).resolve().parents[2]
WITH_JSON = {
    "test": "harness.run.repeat.run_test", "simulate": "harness.sim.command.run_campaign",
    "mutants": "harness.reference.mutants.run_mutants", "check --all": "harness.store.recheck.check_stored",
    "gc --keep 1d": "harness.store.housekeeping.collect",
    "nightly a.toml": "harness.nightly.command.run_nightly", "triage": "harness.nightly.command.run_triage",
    "trend": "harness.nightly.command.run_trend",
    "query x": "harness.store.query.run_query", "import x --workload register": "harness.store.exchange.import_run",
    "compare a b": "harness.analysis.run_diff.compare", "list": "harness.cli.listing.listing",
    "doctor": "harness.backends.probe.probe_all", "reproduce": "harness.reproductions.command.recipes",
    "systems": "harness.contract.command.systems", "systems check redis": "harness.contract.command.check_system",
    "assertions": "harness.store.assertions.answer", "fetch kafka": "stormproof.fetch.fetching.fetch",
}  # fmt: skip
"""Commands that print a JSON object, and where each does its work."""


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a command line, in this process."""
    monkeypatch.setattr(sys, "argv", ["stormproof", *words])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def stormproof(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with its own name."""
    program = "import sys; sys.argv[0] = 'stormproof'; from harness.cli.app import main; main()"
    return subprocess.run([sys.executable, "-c", program, *words], cwd=ROOT, env={**os.environ, **variables},
                          capture_output=True, text=True, timeout=60, check=False)  # fmt: skip


def commands_of(app: Any, *before: str) -> Iterator[tuple[str, ...]]:
    """Every command and every group of them."""
    yield before
    for name, command in getattr(app, "commands", {}).items():
        yield from commands_of(command, *before, name)


def test_every_command_has_help_by_two_names(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = list(commands_of(typer.main.get_command(cli.app)))
    commands += commands_of(typer.main.get_command(cli.admin_app(complete=True)), "admin")
    assert {("test",), ("list",), ("admin", "icestorm", "replica")} <= set(commands)
    for words in commands:
        texts = [run(capsys, monkeypatch, *words, option) for option in ("-h", "--help")]
        assert texts[0] == texts[1]
        status, text, _ = texts[0]
        assert status == 0 and f"{' '.join(('stormproof', *words))} " in text.splitlines()[0], words
    assert re.fullmatch(r"stormproof \d+\.\d+\.\d+\n", run(capsys, monkeypatch, "--version")[1])


@pytest.mark.parametrize(("typed", "found"), [
    ("stormproof te", ["test"]), ("stormproof test --sys", ["--system"]), ("stormproof admin ice", ["icestorm"]),
])  # fmt: skip
def test_a_shell_completes_what_is_typed(typed: str, found: list[str]) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    done = stormproof(_STORMPROOF_COMPLETE="complete_bash", **words)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, found, "")


def test_a_shell_is_given_its_completion(tmp_path: Path) -> None:
    # Named, not found out: nobody knows which shell, if any, runs the tests.
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    shown = stormproof("--show-completion", "bash", **named)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "complete -o default -F _stormproof_completion stormproof" in shown.stdout
    installed = stormproof("--install-completion", "bash", HOME=str(tmp_path), **named)
    assert (installed.returncode, installed.stderr) == (0, "")
    assert str(tmp_path / ".bash_completions") in (tmp_path / ".bashrc").read_text()


@pytest.mark.parametrize("command", WITH_JSON)
@pytest.mark.parametrize(("end", "status", "told"), [
    (KeyboardInterrupt(), 130, "interrupted"), (StormproofError("it broke"), 3, "it broke"),
])  # fmt: skip
def test_json_is_one_object_whatever_the_end(
    command: str, end: BaseException, status: int, told: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def broken(*_: object, **__: object) -> None:
        raise end

    monkeypatch.setattr(WITH_JSON[command], broken)
    options = ["--backend", "sim"] if command == "test" else []
    found, out, err = run(capsys, monkeypatch, *command.split(), *options, "--json")
    assert (found, json.loads(out)) == (status, {"verdict": None, "status": status, "error": told})
    assert err.splitlines()[-1] == f"stormproof: {told}"


def test_json_that_a_file_asks_for_is_printed_also_with_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.toml"
    path.write_text("json = true\nnodes = 1\n")
    status, out, err = run(capsys, monkeypatch, "test", "--config", str(path), "--backend", "sim")
    assert status == 3 and "--nodes 1" in json.loads(out)["error"] and len(err.splitlines()) == 1


def test_every_command_with_json_is_among_these() -> None:
    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    having = {name for name, command in commands.items() if any("--json" in each.opts for each in command.params)}
    assert having == {command.split()[0] for command in WITH_JSON}


@pytest.mark.parametrize("streams", ["stdout", "both"])
def test_a_run_that_nobody_reads_is_no_verdict(streams: str, tmp_path: Path) -> None:
    words = ["test", "--backend", "sim", "--time-limit", "1", "--nemesis", "none", "--store", str(tmp_path)]
    to = subprocess.STDOUT if streams == "both" else subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, "-m", "harness", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=to)
    assert process.stdout
    process.stdout.close()
    assert process.wait(60) == 3, "status 1 would read as `invalid`"


@pytest.mark.parametrize(("name", "kind", "shown"), [
    ("joram", "systems", "--set partitions="), ("queue", "workloads", "--set producers="),
    ("partition", "nemeses", "--set partition_kind="), ("lost", "checks", "confirmed, but never delivered"),
    ("own-log-wins", "bugs", "--bug own-log-wins"), ("local", "backends", "namespaces"),
    ("reaction", "workloads", "processing"),
])  # fmt: skip
def test_one_thing_is_listed_by_its_name(
    name: str, kind: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, _ = run(capsys, monkeypatch, "list", name)
    assert status == 0 and out.startswith(kind) and shown in out
    assert [len(entries) for entries in listing(name).values()] == [1]


@pytest.mark.parametrize(("name", "near"), [
    ("jorma", "did you mean 'joram'?"), ("partitions", "did you mean 'partition' or"), ("", "what these list"),
])  # fmt: skip
def test_a_name_that_is_not_known_is_told_with_those_near_it(
    name: str, near: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, err = run(capsys, monkeypatch, "list", name)
    assert (status, out, len(err.splitlines())) == (3, "", 1) and near in err


def test_the_command_of_a_bug_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = known_bugs()["requeued-twice"].command
    done = stormproof(*shlex.split(command)[1:], "--jobs", "1", "--store", str(tmp_path))
    assert done.returncode == 1 and "delivered again" in done.stdout, done.stderr
    seen: list[Any] = []
    monkeypatch.setattr("harness.sim.command.run_campaign", lambda cases, *_, **__: seen.extend(cases) or 1)
    for bug in known_bugs().values():
        status, _, err = run(capsys, monkeypatch, *shlex.split(bug.command)[1:])
        assert (status, err) == (1, ""), bug.command
        case = seen.pop()  # one that is drawn has what is given, and the rest by seed
        assert (case.given.settings if isinstance(case, DrawnCase) else case.settings)["bug"] == bug.name


def test_combinations_that_can_not_be_are_left_out_and_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--nemesis", "none", "--seeds", "1", "--time-limit", "1", "--jobs", "1", "--store", str(tmp_path)]
    status, out, err = run(
        capsys, monkeypatch, "simulate", "--system", "standalone,icestorm", "--workload", "queue", *words, "--json")
    told = "icestorm, queue, none: --workload queue needs queues"
    assert f"left out: {told}" in err
    assert status == 2 and json.loads(out)["left_out"][0].startswith(told) and json.loads(out)["runs"] == 1
    status, _, err = run(capsys, monkeypatch, "simulate", "--system", "icestorm", "--workload", "queue", *words)
    assert status == 3 and len(err.splitlines()) == 1 and "--workload queue needs queues" in err


def test_progress_tells_the_time_that_is_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(100, 1000, 10))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    counts = {"ok": 7, "fail": 0, "info": 1}
    with progress(True, 30.0) as show:
        show({"event": "phase", "name": "main", "time": 2_000_000_000})
        show({"event": "progress", "time": 12_000_000_000, **counts})
        show({"event": "progress", "time": 33_000_000_000, **counts})
        show({"event": "phase", "name": "drain", "time": 34_000_000_000})
        show({"event": "progress", "time": 35_000_000_000, **counts})
    assert capsys.readouterr().err.splitlines() == [
        "load and faults", " 12.0 s  20 s left  7 ok, 0 fail, 1 unknown", " 33.0 s  7 ok, 0 fail, 1 unknown",
        "reading to the end", " 35.0 s  7 ok, 0 fail, 1 unknown"]  # fmt: skip


def test_which_of_several_runs_it_is_and_what_is_left_of_them() -> None:
    times = iter([0.0, 600.0])
    queue = RunQueue(20, lambda: next(times))
    assert queue.line(1) == "run 1 of 20"
    assert queue.line(3) == "run 3 of 20, about 90 min left"
    assert [duration(seconds) for seconds in (-1, 0.4, 99, 100, 5900, 12_600)] == [
        "0 s", "0 s", "99 s", "2 min", "98 min", "3.5 h"]  # fmt: skip
