"""A JVM that is killed, and a harness that is killed beside it: one line, and one folder that heal knows."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from checkers.spark import _reason
from stormproof.made import folders

_DEAD_JVM = """
import os, signal
from checkers.job import check_runs
from checkers.spark import start_spark, stop_spark
from stormproof.errors import SparkFailed
spark = start_spark()
process = spark.sparkContext._gateway.proc
process.kill(); process.wait()
try:
    check_runs(spark, [__import__("pathlib").Path("/nowhere")])
except SparkFailed as error:
    print("failed in one line:", "\\n" not in str(error))
stop_spark()
stop_spark()
"""
_DEAD_HARNESS = """
from checkers.spark import start_spark
spark = start_spark()
print(spark.sparkContext._gateway.proc.pid, flush=True)
__import__("time").sleep(600)
"""


def start(code: str, place: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code], text=True, env={**os.environ, "TMPDIR": str(place)},
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip


@pytest.mark.soak
def test_a_jvm_that_is_gone_is_told_in_one_line(tmp_path: Path) -> None:
    output, errors = start(_DEAD_JVM, tmp_path).communicate(timeout=120)
    assert output.strip() == "failed in one line: True" and "Traceback" not in errors, errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak
def test_what_spark_leaves_lies_in_one_folder_that_tells_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(_DEAD_HARNESS, tmp_path)
    assert process.stdout is not None
    jvm = int(process.stdout.readline())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (left,) = folders()
    assert left.owner is not None and not left.owner.fate(left.lock).dead
    os.kill(process.pid, signal.SIGKILL)
    os.kill(jvm, signal.SIGKILL)
    process.communicate(timeout=60)
    assert [path.name for path in tmp_path.iterdir()] == [Path(left.what.removeprefix("folder ")).name]
    (left,) = folders()
    assert left.owner is not None and left.owner.fate(left.lock).dead and left.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("log", "error", "told"), [
    (b"warn\njava.io.IOException: no room\n  at a.b\n  ... 21 more\n", "x", "java.io.IOException: no room"),
    (b"", ": a.LoginException: nobody\n\tat x\nCaused by: b.NullPointerException: name\n\t... 21 more\n",
     "Caused by: b.NullPointerException: name"),
    (b"warn\n", "plain", "plain"), (b"", "", "Exception"),
])  # fmt: skip
def test_why_spark_did_not_start_is_its_last_complaint(log: bytes, error: str, told: str) -> None:
    assert _reason(Exception(error), io.BytesIO(log)) == told
