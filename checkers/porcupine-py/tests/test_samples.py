import gzip
from pathlib import Path

import pytest

from porcupine import CheckResult, check_operations_verbose, model_named
from porcupine.cli import main
from porcupine.formats import read_history
from porcupine.minimal import minimal_history

DATA = Path(__file__).parent / "data"
OK, ILLEGAL = CheckResult.OK, CheckResult.ILLEGAL
SAMPLES = [
    ("cas-register", "porcupine/etcd_000.log", ILLEGAL),
    ("cas-register", "porcupine/etcd_002.log", OK),
    ("cas-register", "porcupine/etcd_005.log", OK),
    ("cas-register", "porcupine/etcd_007.log", OK),
    ("cas-register", "porcupine/etcd_040.log", ILLEGAL),
    ("kv", "porcupine/c01-bad.txt", ILLEGAL),
    ("kv", "porcupine/c01-ok.txt", OK),
    ("kv", "porcupine/c10-bad.txt", ILLEGAL),
    ("kv", "porcupine/c10-ok.txt", OK),
    ("cas-register", "knossos/cas-failure.edn", ILLEGAL),
    ("cas-register", "knossos/rethink-fail-minimal.edn", ILLEGAL),
    ("cas-register", "knossos/cas-register-bug.edn", OK),
    ("cas-register", "knossos/memstress3-0.edn", OK),
]


@pytest.mark.parametrize(("name", "file", "verdict"), SAMPLES)
def test_known_histories_come_out_as_known(name, file, verdict):
    model = model_named(name)
    operations = read_history(DATA / file, model)
    result = check_operations_verbose(model, operations)
    assert result.verdict is verdict
    if verdict is ILLEGAL:
        assert result.illegal.reason and result.illegal.culprits


@pytest.mark.parametrize("file", ["porcupine/etcd_000.log", "porcupine/etcd_040.log", "knossos/cas-failure.edn"])
def test_minimal_histories_of_samples_are_illegal_and_small(file):
    model = model_named("cas-register")
    operations = read_history(DATA / file, model)
    smallest = minimal_history(model, operations, timeout=20)
    left = [operations[i] for i in smallest.operations]
    assert smallest.proven and 1 < len(left) < 12
    assert check_operations_verbose(model, left).verdict is ILLEGAL


def test_the_command_prints_a_verdict_per_file_and_gives_the_worst_as_status(capsys, tmp_path):
    packed = tmp_path / "h.edn.gz"
    packed.write_bytes(gzip.compress((DATA / "knossos/memstress3-0.edn").read_bytes()))
    assert main(["check", "--model", "cas-register", str(packed)]) == 0
    assert f"{packed}: ok  231 operations" in capsys.readouterr().out
    assert main(["check", "--model", "cas-register", str(packed), str(DATA / "knossos/cas-failure.edn")]) == 1
    assert "cas-failure.edn: illegal" in capsys.readouterr().out
    assert main(["check", "--model", "nothing", str(packed)]) == 3
    assert 'unknown model "nothing"' in capsys.readouterr().err
    with pytest.raises(SystemExit) as exit:
        main(["check"])
    assert exit.value.code == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"process": 0, "type": "invoke", "f": "read", "value": null}\n{"process": 0, "type"', ":2: not JSON"),
        (
            '{"process": 0, "type": "ok", "f": "read", "value": 1}\n',
            ":1: process 0 completes read, but has invoked nothing",
        ),
        (
            '{"process": 0, "type": "invoke", "f": "read"}\n{"process": 0, "type": "invoke", "f": "read"}\n',
            ":2: process 0 invokes read while its operation of line 1 is open",
        ),
        (
            '{"process": 0, "type": "invoke", "f": "read"}\n{"process": 0, "type": "ok", "f": "write"}\n',
            ":2: process 0 completes write, but invoked read in line 1",
        ),
        ('{"process": 0, "type": "invoke", "f": "pop"}\n', ':1: model register: unknown f "pop"'),
        ('{"process": 0, "type": "maybe", "f": "read"}\n', ':1: type is "maybe"'),
        ('{"process": 0, "f": "read"}\n', ':1: "type" is missing'),
        ("[1]\n", ":1: a map is expected"),
        ("[{:process 0 :type :invoke\n :f :read :value nil}\n", ":1: '[' is never closed"),
        ("{:process 0 :type :invoke :f :read :value \n", ":1: '{' is never closed"),
        ("INFO  jepsen.util - 0\t:invoke\t:read\n", ":1: the value is missing"),
        ("hello\n", ":1: neither JSON lines"),
    ],
)
def test_bad_files_end_in_an_error_with_the_line(tmp_path, capsys, text, message):
    file = tmp_path / "history"
    file.write_text(text)
    assert main(["check", "--model", "register", str(file)]) == 3
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
