"""The command's exit status: 1 is said with a witness only, and whatever is no verdict is 3 and one line on stderr."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import porcupine
from porcupine import CheckResult, Result, cli
from porcupine.cli import main

DATA = Path(__file__).parent / "data"
BAD = DATA / "knossos/rethink-fail-minimal.edn"
ILLEGAL = ["check", "--model", "cas-register", str(BAD)]
ROOT = str(Path(porcupine.__file__).parent.parent)

LAYERS = [
    "cli.parser", "cli._run", "cli._check_file", "cli._verdict_on", "cli._status", "cli._line", "cli._say",
    "cli._flush", "cli._say_minimal", "cli._write_html", "cli._escape_what_can_t_be_written",
    "formats.load_history", "formats._bytes", "formats.format_of", "formats.edn_items", "formats.row_of",
    "formats.rows.in_order", "formats.operations_of",
    "formats.edn._atom", "formats.rows._operation", "models.model_named", "models.registers.CasRegister.from_history",
    "models.registers.CasRegister.arguments", "models.registers.CasRegister.encode",
    "models.registers.CasRegister.kernel", "models.registers.CasRegister.step", "check.check_operations_verbose",
    "check.positions", "kernels.rows.rank_dense", "check.run_monitor", "check.describe", "check._search",
    "check.run_search", "check._explain", "check.operation_text", "compiled.prepare", "compiled.stopping",
    "compiled._searching", "kernels.search.ready_registers", "minimal.minimal_history", "visual.write_html",
]  # fmt: skip
ERRORS = [
    MemoryError(), RecursionError("deep"), ZeroDivisionError("no"), AssertionError("two\nlines"), OSError(28, "full"),
    ValueError("x" * 5000), KeyboardInterrupt(), SystemExit(1), OverflowError(), UnicodeEncodeError("a", "", 0, 1, "c"),
]  # fmt: skip


def run(arguments):
    try:
        return main(arguments)
    except SystemExit as exit:
        return exit.code


@pytest.mark.parametrize("layer", LAYERS)
def test_whatever_is_thrown_in_any_layer_is_no_verdict(layer, monkeypatch, capsys, tmp_path):
    # A history that no monitor takes, so that every layer is reached: its last read can't be placed.
    file = tmp_path / "h.edn"
    lines = [(0, "write", 1), (0, "write", 2), (0, "write", 1), (0, "cas", "[1 2]"), (0, "read", 1)]
    if layer in ("check.run_monitor", "check.describe"):
        lines = [(0, "write", 1), (0, "read", 2)]
    file.write_text("".join(
        f"{{:process {p}, :type {t}, :f :{f}, :value {v}}}\n" for p, f, v in lines for t in (":invoke", ":ok")
    ))  # fmt: skip
    command = ["check", "--model", "cas-register", "--minimal", "--html", str(tmp_path / "page"), str(file)]
    assert run(command) == 1
    capsys.readouterr()
    for error in ERRORS:

        def throw(*_, error=error, **__):
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(f"porcupine.{layer}", throw)
            status = run(command)
        told = capsys.readouterr().err
        assert status == 3, (layer, error)
        assert told.startswith("porcupine: ") and told.count("\n") == 1 and len(told) < 1100


def test_illegal_without_a_witness_is_no_verdict(monkeypatch, capsys):
    def nobody_saw(model, operations, **_):
        return Result(CheckResult.ILLEGAL, "cas-register", 1, [], 0, 0.0)

    monkeypatch.setattr("porcupine.check.check_operations_verbose", nobody_saw)
    assert main(ILLEGAL) == 3
    assert "illegal without a witness" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, ":1: nested too deeply"),
        ("{:process 0 :type :invoke :f :write :value " + "{:a " * 100_000, ":1: nested too deeply"),
        ('{"process": 0, "type": "invoke", "f": "write", "value": ' + "[" * 100_000, "nested too deeply"),
        ("INFO  jepsen.util - 0\t:invoke\t:write\t" + "[" * 100_000, ":1: nested too deeply"),
        ('{"process": 0, "type": "invoke", "f": "write", "value": ' + "1" * 6000 + "}", ":1: not JSON: Exceeds"),
        ("{:process 0 :type :invoke :f :write :value " + "1" * 6000 + "}", ":1: Exceeds the limit"),
        ('{"process": 0, "type": "invoke", "f": "write", "value": NaN}', "NaN is not a JSON value"),
    ],
)
def test_hostile_values_end_in_one_line(tmp_path, capsys, text, message):
    file = tmp_path / "history"
    file.write_text(text)
    assert main(["check", "--model", "register", str(file)]) == 3
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_what_no_terminal_can_show_is_escaped(tmp_path):
    file = tmp_path / "h.jsonl"
    value = '"\\ud800"'
    file.write_text("".join(
        f'{{"process": 0, "type": "{t}", "f": "read", "value": {value}}}\n' for t in ("invoke", "ok")
    ))  # fmt: skip
    done = command("check", "--model", "register", str(file))
    assert done.returncode == 1 and "\\ud800" in done.stdout


@pytest.mark.parametrize("option", ["--memory", "--timeout"])
@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "0", "-1", "1e999", "many"])
def test_limits_that_are_none_are_wrong_usage(option, value, capsys):
    assert run([*ILLEGAL, f"{option}={value}"]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_limits_as_large_as_you_like():
    assert run([*ILLEGAL, "--memory", "1e300", "--timeout", "1e300"]) == 1


def command(*arguments, path=ROOT, shell="", **rest):
    """The command in a process of its own; ``shell`` redirects it."""
    line = [sys.executable, "-m", "porcupine", *arguments]
    if shell:
        line = ["sh", "-c", f'"$@" {shell}', "sh", *line]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(line, capture_output=True, text=True, env=environment, check=False, **rest)


@pytest.mark.parametrize("shell", [">/dev/full", ">&-"])
def test_a_verdict_that_can_t_be_written_is_none(shell):
    done = command(*ILLEGAL, shell=shell)
    assert done.returncode == 3
    assert done.stderr.startswith("porcupine: stdout") and done.stderr.count("\n") == 1


def test_a_closed_pipe_is_no_verdict():
    read, write = os.pipe()
    os.close(read)
    line = [sys.executable, "-m", "porcupine", *ILLEGAL]
    environment = {**os.environ, "PYTHONPATH": ROOT}
    done = subprocess.run(line, stdout=write, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    os.close(write)
    assert done.returncode == 3
    assert done.stderr == "porcupine: stdout: Broken pipe\n"


@pytest.mark.parametrize("shell", ["2>/dev/full", "2>&-", ">/dev/full 2>/dev/full"])
def test_status_3_needs_no_stderr(shell):
    assert command("check", "--model", "register", "nowhere", shell=shell).returncode == 3


def test_help_that_can_t_be_written_is_status_3():
    assert command("--help").returncode == 0
    assert command("--help", shell=">/dev/full").returncode == 3


@pytest.mark.parametrize("thrown", ["MemoryError()", "SystemExit(1)", "ImportError('two\\nlines')"])
@pytest.mark.parametrize("module", ["numpy", "numba"])
def test_what_can_t_be_loaded_is_status_3(tmp_path, thrown, module):
    (tmp_path / f"{module}.py").write_text(f"raise {thrown}\n")
    done = command(*ILLEGAL, path=f"{tmp_path}:{ROOT}")
    assert done.returncode == 3
    assert done.stderr.startswith("porcupine: ") and done.stderr.count("\n") == 1


def test_the_console_script_is_the_same_function():
    import tomllib

    project = tomllib.loads((Path(ROOT) / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"porcupine": "porcupine.cli:main"} and cli.main is main


@pytest.mark.parametrize("limit", ["-d 20000", "-d 60000", "-d 100000", "-v 600000"])
def test_a_library_that_gets_no_memory_gives_no_verdict(limit):
    """OpenBLAS ends its process with status 1 then, which would read as illegal."""
    done = subprocess.run(
        ["sh", "-c", f'ulimit {limit}; exec "$@"', "sh", sys.executable, "-m", "porcupine", *ILLEGAL],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": ROOT},
    )  # fmt: skip
    told = [line for line in done.stderr.splitlines() if line.startswith("porcupine: ")]
    assert (done.returncode, len(told)) in ((1, 0), (3, 1)), done
    assert ("illegal" in done.stdout) == (done.returncode == 1), done


def test_a_status_that_nobody_attested_is_no_verdict(monkeypatch):
    from porcupine import supervised

    monkeypatch.setattr(supervised.resource, "getrlimit", lambda _: (1 << 40, 1 << 40))
    told = []
    ended = [supervised.supervised(lambda status=status: os._exit(status), told.append) for status in (0, 1, 2, 3)]
    assert ended == [0, 3, 2, 3]
    assert len(told) == 1 and "ulimit -d" in told[0]
    monkeypatch.setattr(supervised.os, "fork", lambda: 0)  # what the child does
    monkeypatch.setattr(supervised.os, "environ", {})
    monkeypatch.setattr(supervised.os, "write", lambda _, data: told.append(data))
    assert supervised.supervised(lambda: 1, told.append) == 1 and told[-1] == b"\x01"


@pytest.mark.parametrize("f", ["re\x1b[2Jad", "re\nad", "re\u202ead", "re\ud800ad"])
def test_what_a_file_says_moves_no_cursor(f, tmp_path, capsys):
    path, nemesis = tmp_path / "h.jsonl", tmp_path / "n.edn"
    path.write_text(json.dumps({"process": 0, "type": "invoke", "f": f, "value": None}) + "\n")
    line = f'{{:process :nemesis :type :info :f :x :value "{f.replace(chr(10), " ")}"}}\n'
    nemesis.write_text(line, encoding="utf-8", errors="replace")
    assert run(["check", "--model", "register", str(path), str(nemesis)]) == 3
    done = capsys.readouterr()
    assert len(done.err.splitlines()) == 1 == len(done.out.splitlines())
    assert (done.err + done.out).replace("\n", "").isprintable(), (done.err, done.out)
