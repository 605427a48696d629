"""Stores that are damaged or can't be written: one line for each thing that is wrong, and all other verdicts."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from checker_histories import depth, drained, sent, store_run, taken
from object_server import object_server

from checkers.lake.object_store import ObjectStore, object_store
from checkers.spark.job import check_and_store
from checkers.spark.object_job import check_object
from checkers.synthetic import write_store
from harness.store.copying import push
from harness.store.query import query
from stormproof.errors import StormproofError

pytestmark = [pytest.mark.requirement("H23", part=True), pytest.mark.requirement("H9", part=True)]

CHECK = [sys.executable, "-m", "harness", "check", "--all", "--json"]
GOOD = [*sent(0, (0, 0)), *taken(1, (0, 0)), *drained(), *depth()]
NAME = "20260101T000000-joram-queue-0-0000"


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_one_damaged_history_among_a_thousand(tmp_path: Path) -> None:
    written = {run.name: defects.verdict for run, defects in write_store(tmp_path, 1000, 200)}
    damaged = sorted(written)[::333]
    for number, run in enumerate(damaged):
        history = tmp_path / run / "history.parquet"
        content = history.read_bytes()
        half = len(content) // 2
        history.write_bytes((b"", content[:half], b"\0" * half + content[half:], content[:half] + content[half + 9 :])
                            [number])  # fmt: skip
    done = subprocess.run([*CHECK, "--store", str(tmp_path)], capture_output=True, text=True, check=False)
    found = {run["run"]: run for run in json.loads(done.stdout)["runs"]}
    assert {run: row["verdict"] for run, row in found.items()} == {
        run: "unknown" if run in damaged else verdict for run, verdict in written.items()}  # fmt: skip
    lines = done.stderr.splitlines()
    assert len(lines) == len(damaged) and all(line.startswith("not judged: ") for line in lines), done.stderr
    for run in damaged:
        assert sum(str(tmp_path / run) in line for line in lines) == 1


def read_only(store: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    """A command to which a store can't be written, whoever runs it."""
    place = shlex.quote(str(store))
    script = f"mount --bind {place} {place} && mount -o remount,ro,bind {place} && exec {shlex.join(words)}"
    return subprocess.run(["unshare", "--mount", "--propagation", "private", "sh", "-c", script], capture_output=True,
                          text=True, check=False)  # fmt: skip


MOUNTS = os.geteuid() == 0 and shutil.which("unshare") is not None


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not MOUNTS, reason="to mount takes root and unshare")
def test_a_store_that_cannot_be_written_is_judged_all_the_same(tmp_path: Path) -> None:
    written = {run.name: defects.verdict for run, defects in write_store(tmp_path, 14, 200)}
    done = read_only(tmp_path, [*CHECK, "--store", str(tmp_path)])
    said = done.stderr.splitlines()
    assert len(said) == 11 and all("Read-only file system" in line or line.endswith("more") for line in said), said
    assert all(line.startswith("not stored: ") for line in said)
    assert done.returncode == 1, "there are violations, which is worse"
    assert {run["run"]: run["verdict"] for run in json.loads(done.stdout)["runs"]} == written


@pytest.mark.skipif(not MOUNTS, reason="to mount takes root and unshare")
def test_a_lake_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    check_and_store(store_run(tmp_path / NAME, GOOD))
    done = read_only(tmp_path, [sys.executable, "-m", "harness", "query", "FROM runs", "--store", str(tmp_path)])
    assert done.returncode == 3 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and "Read-only file system" in done.stderr, done.stderr


def test_objects_that_cannot_be_written_are_judged_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with object_server() as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        store = object_store("s3://bucket/readonly")
        store_run(tmp_path / NAME, GOOD)
        assert push(tmp_path, store, [], again=False) == 0

        def refuse(self: ObjectStore, run: str, files: object) -> None:
            with self.told(f"{self}/{run}/verdict.json"):
                raise OSError("AWS Error ACCESS_DENIED during PutObject operation: no (Request ID: 1)")

        monkeypatch.setattr(ObjectStore, "put", refuse)
        (row,) = check_object(store, NAME, store.runs()[NAME]).to_pylist()
        assert row["verdict"] == "valid" and row["taken"] is None
        assert row["trouble"].startswith(f"{store}/{NAME}/verdict.json: access is denied: whoever asks needs rights")


def test_a_service_that_does_not_know_who_asks_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    # Moto asks who one is after so many requests, which make the bucket.
    with object_server(variables={"INITIAL_NO_AUTH_ACTION_COUNT": "2"}) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(StormproofError) as refused:
            query(object_store("s3://bucket/x"), "FROM runs")
        said = str(refused.value)
        assert said.startswith("s3://bucket/x: ") and "access" in said and "\n" not in said, said
        assert all(value not in said for name, value in variables.items() if "ACCESS" in name)
