"""Spark's JVM by the command that was noted, and without one."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from checkers.spark.jvm_launcher import note_command, noted_command, start_jvm

_START = """
import os, sys
from checkers.spark import session as starting
from checkers.spark.jvm_launcher import note_command
from checkers.spark.java import find_java

def started():
    spark = starting.start_spark("local[1]")
    words = open(f"/proc/{spark._gateway.proc.pid}/cmdline").read().split("\\0")
    print(*[word for word in words if word.startswith("org.apache")], spark.parallelize(range(4), 2).sum())
    return spark

spark, java = started(), find_java()
note = starting.note_of(starting.archive_path(java))
note_command(spark._gateway.proc.pid, starting._driver_options(java, None), note)
starting.stop_spark()
started()
print("secrets:", [name for name in os.environ if "SECRET" in name], len(list(starting.spark_folder().glob("tmp*"))))
starting.stop_spark()
os.environ["SPARK_DRIVER_MEMORY"] = "2g"
started()
starting.stop_spark()
"""


def test_a_command_is_noted_without_what_was_asked_for(tmp_path: Path) -> None:
    words = ["-c", "input()", "-Dours=1", "--add-opens=java.base/java.lang=ALL-UNNAMED", "-Dours=2"]
    submitted = ["org.apache.spark.deploy.SparkSubmit", "--conf", "a=b", "pyspark-shell"]
    with subprocess.Popen([sys.executable, *words, *submitted], stdin=subprocess.PIPE) as process:
        while b"pyspark-shell" not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
            time.sleep(0.01)  # the kernel has not come so far in starting it
        note_command(process.pid, ["-Dours=1", "-Dours=2"], tmp_path / "note")
        process.communicate(b"\n")
    assert noted_command(tmp_path / "note") == [sys.executable, "-c", "input()", words[3]]


def test_a_process_of_another_kind_is_not_noted(tmp_path: Path) -> None:
    note_command(os.getpid(), [], tmp_path / "note")
    note_command(0, [], tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "{", "{}", "[1]", "\0"])
def test_a_note_that_is_none_is_done_without(content: str, tmp_path: Path) -> None:
    (tmp_path / "note").write_text(content)
    assert noted_command(tmp_path / "note") == noted_command(tmp_path / "missing") == []


def test_a_command_that_ends_at_once_is_no_gateway(tmp_path: Path) -> None:
    with tempfile.TemporaryFile("w+b") as log:
        assert start_jvm([sys.executable, "-c", "print('no')"], [], tmp_path, log) is None
        log.seek(0)
        assert io.BytesIO(log.read()).getvalue() == b"no\n"


@pytest.mark.parametrize("note", [
    ["/nonexistent/java"], pytest.param([sys.executable, "-c", "1/0"], marks=pytest.mark.soak),
    pytest.param(None, marks=pytest.mark.soak),
])  # fmt: skip
def test_spark_starts_by_the_note_or_as_ever(note: list[str] | None, tmp_path: Path) -> None:
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    where = ("from checkers.spark.session import archive_path, find_java, note_of; "
             "print(note_of(archive_path(find_java())))")
    place = Path(subprocess.check_output([sys.executable, "-c", where], env=environ, text=True).strip())
    place.parent.mkdir(parents=True, exist_ok=True)
    if note is not None:
        place.write_text(json.dumps(note))
    told = subprocess.run([sys.executable, "-c", _START], env=environ, capture_output=True, text=True, timeout=120)
    submitted = "org.apache.spark.deploy.SparkSubmit 6"
    assert told.stdout.splitlines() == [submitted, "org.apache.spark.api.python.PythonGatewayServer 6", "secrets: [] 0",
                                        submitted], told.stderr  # fmt: skip


@pytest.mark.parametrize("name", ["SPARK_DRIVER_MEMORY", "SPARK_SUBMIT_OPTS", "SPARK_CONF_DIR", "HADOOP_CONF_DIR"])
def test_what_changes_the_command_is_heeded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "note").write_text('["java"]')
    assert noted_command(tmp_path / "note") == ["java"]
    monkeypatch.setenv(name, "x")
    assert noted_command(tmp_path / "note") == []
