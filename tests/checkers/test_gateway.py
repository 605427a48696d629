"""Spark's JVM by the command that was noted, and without one."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from checkers.gateway import note_command, noted_command, start_jvm
from checkers.java import find_java
from checkers.spark import archive_path

_START = """
from checkers.spark import start_spark, stop_spark
spark = start_spark("local[1]")
print(open(f"/proc/{spark._gateway.proc.pid}/cmdline").read().replace("\\0", " "))
print(spark.parallelize(range(4), 2).sum())
stop_spark()
"""


def test_a_command_is_noted_without_what_was_asked_for(tmp_path: Path) -> None:
    words = ["-c", "input()", "-Dours=1", "--add-opens=java.base/java.lang=ALL-UNNAMED", "-Dours=2"]
    submitted = ["org.apache.spark.deploy.SparkSubmit", "--conf", "a=b", "pyspark-shell"]
    with subprocess.Popen([sys.executable, *words, *submitted], stdin=subprocess.PIPE) as process:
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


def test_a_context_is_started_by_the_note(spark: Any) -> None:
    archive = archive_path(find_java())
    assert archive is not None
    command = Path(f"/proc/{spark._gateway.proc.pid}/cmdline").read_text().split("\0")
    noted = noted_command(archive.with_suffix(".json"))
    assert bool(noted) == ("org.apache.spark.api.python.PythonGatewayServer" in command)
    assert command[: len(noted)] == noted
    assert not any(name.startswith("PYSPARK_GATEWAY") for name in os.environ)


def test_spark_starts_where_the_note_is_wrong(tmp_path: Path) -> None:
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    where = "from checkers.spark import archive_path, find_java; print(archive_path(find_java()).with_suffix('.json'))"
    place = Path(subprocess.check_output([sys.executable, "-c", where], env=environ, text=True).strip())
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps([sys.executable, "-c", "1/0"]))
    told = subprocess.run([sys.executable, "-c", _START], env=environ, capture_output=True, text=True, timeout=120)
    command, total = told.stdout.splitlines()
    assert "SparkSubmit" in command and total == "6", told.stderr
