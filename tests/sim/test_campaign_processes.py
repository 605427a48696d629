"""Campaigns over processes and Spark: the same results, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from checkers.lake.table import read_lake
from harness.run.cases import Case, JudgedRun
from harness.run.healing import heal_store
from harness.sim.campaign import campaign
from harness.sim.pool import Workers, remove_left, worker_pool
from harness.sim.spark import spark_campaign
from stormproof.errors import StormproofError
from stormproof.run_folder import LOCK_FILE, read_run
from stormproof.store import Store

ROOT = Path(__file__).resolve().parents[2]
COMMON = {"fault_duration": "1.5", "detection_timeout": "0.5", "idle_timeout": "2", "min_ok": "20"}
SAFE = Case("joram", "queue", "partition,kill", 3, 6.0, 30.0, COMMON)
UNSAFE = Case("joram", "queue", "partition", 3, 10.0, 30.0, {
    **COMMON, "partitions": "unspecified", "partition_kind": "master", "fault_duration": "4",
})  # fmt: skip


def slow_square(number: int) -> int:
    time.sleep(0.05 if number % 2 else 0.0)
    return number * number


def die() -> None:
    os._exit(7)


def test_the_first_task_that_is_accepted_is_the_same_for_any_number_of_processes() -> None:
    tasks = [(number,) for number in (3, 1, 8, 9, 4, 10)]
    with worker_pool(2) as (several, _):
        for workers in (Workers(1), several):
            assert workers.first(slow_square, tasks, lambda result: result > 60) == (2, 64)
            assert workers.first(slow_square, tasks, lambda result: result > 100) == (6, None)
        assert sorted(several.each(slow_square, tasks)) == [1, 9, 16, 64, 81, 100]
        with pytest.raises(StormproofError, match="worker process"):
            several.first(die, [()], bool)


@pytest.mark.soak
def test_spark_finds_the_same_and_stores_every_run(tmp_path: Path) -> None:
    pooled: list[JudgedRun] = []
    campaign([SAFE, UNSAFE], range(1, 2), tmp_path / "pooled", jobs=1, collect=True, report=pooled.append)
    store, spread, steps = tmp_path / "spread", [], []  # type: Path, list[JudgedRun], list[int]
    spark_campaign([SAFE, UNSAFE], range(1, 2), store, master="local[2]", collect=True, report=spread.append,
                   progress=lambda done, total: steps.append(done))  # fmt: skip
    assert [_found(result) for result in spread] == [_found(result) for result in pooled]
    assert {result.verdict for result in spread} == {"valid", "invalid"}
    assert steps[-1] == 2

    assert sorted(Store(store).runs()) == sorted(result.run_dir for result in spread if result.run_dir)
    assert [path.name for path in store.iterdir() if path.name.startswith(".")] == []
    for result in spread:
        assert result.run_dir
        assert read_run(result.run_dir)["history_sha256"] == result.history_sha256
        assert json.loads((result.run_dir / "verdict.json").read_text())["verdict"] == result.verdict
        assert pq.read_metadata(result.run_dir / "history.parquet").num_rows > 100
    table = read_lake(store).to_pylist()
    assert {(row["run"], row["verdict"]) for row in table} == {
        (result.run_dir.name, result.verdict) for result in spread if result.run_dir
    }


def _found(result: JudgedRun) -> tuple[object, ...]:
    return (result.case, result.seed, result.verdict, result.history_sha256, result.anomalies, result.coverage)


def test_an_interrupted_campaign_leaves_nothing_but_a_summary(tmp_path: Path) -> None:
    campaigns = {number: _endless(tmp_path / number.name) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, process in campaigns.items():
        memory = tmp_path / number.name
        with process:
            assert process.stderr
            assert "runs" in process.stderr.readline()
            children = _children(process.pid)
            assert len(children) >= 2
            assert len(list(memory.iterdir())) == 1
            process.send_signal(number)
            output, errors = process.communicate(timeout=60)
        assert process.returncode == 130, errors
        answer = json.loads(output)
        assert answer["interrupted"]
        *_, summary, last = errors.splitlines()
        assert summary.startswith(f"interrupted after {answer['runs']} of ") and last == "stormproof: interrupted"
        assert list(memory.iterdir()) == []
        for child in children:
            assert _ends(child), f"process {child} is still there"


def test_what_a_killed_campaign_left_is_healed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = tmp_path / "memory"
    process = _endless(memory)
    monkeypatch.setattr("harness.sim.pool._MEMORY", memory)
    monkeypatch.setattr("harness.run.healing.cleanup", lambda **_: [])
    young = [memory / "stormproof-sim-newborn", memory / "stormproof-sim-unlocked"]
    for folder in young:
        folder.mkdir()
    (young[1] / LOCK_FILE).touch()
    with process:
        assert process.stderr
        assert "runs" in process.stderr.readline()
        children = _children(process.pid)
        assert remove_left() == [], "it lives, and the others are young"
        with monkeypatch.context() as patch:
            patch.setattr("harness.sim.pool._LOCKING_SECONDS", -1.0)
            assert remove_left() == [f"folder {folder}" for folder in young], "it lives"
        process.kill()
    assert all(map(_ends, children))
    (left,) = memory.iterdir()
    long_ago = time.time() - 61
    os.utime(left / LOCK_FILE, (long_ago, long_ago))
    assert f"removed folder {left}" in heal_store(tmp_path / "runs")
    assert list(memory.iterdir()) == []


def _endless(memory: Path) -> subprocess.Popen[str]:
    """A campaign with two processes, whose scratch folder is made in ``memory``."""
    memory.mkdir()
    words = "simulate --seeds 100000 --time-limit 5 --rate 30 --jobs 2 --collect --json --set min_ok=1"
    words += " --set fault_duration=1"
    program = (
        "import sys, pathlib, harness.sim.command as command, harness.sim.pool as pool\n"
        "from harness.cli.app import main\n"
        f"pool._MEMORY = pathlib.Path({str(memory)!r})\n"
        "command._LOG_INTERVAL = 0.0\n"
        f"sys.argv = ['stormproof', *{words.split()!r}, '--store', {str(memory.with_suffix('.store'))!r}]\n"
        "main()\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def _children(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children]


def _ends(pid: int) -> bool:
    """Whether a process that has lost its parent ends by itself (the resource tracker of multiprocessing does)."""
    for _ in range(200):
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.05)
    return False
