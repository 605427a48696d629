"""Runs that are judged while Spark starts: by a fork of a real fork server, no JVM."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checkers.spark import head_start
from checkers.spark.fork_server import ForkServer
from checkers.spark.head_start import FewRuns, Fork, HeadStart, judge_all
from checkers.spark.job import check_and_store, check_runs
from checkers.synthetic import write_store
from checkers.verdict import VERDICT_FILE
from stormproof.run_folder import with_seal, write_json


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    started = ForkServer(tmp_path_factory.mktemp("s"), {})
    yield started
    started.stop()


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    list(write_store(tmp_path, 6, 200))
    return sorted(tmp_path.iterdir())


@pytest.fixture
def many(tmp_path: Path, runs: list[Path]) -> list[Path]:
    """More than can be judged in a moment."""
    found = [tmp_path / f"20260102T{number:06}-joram-queue-{number}-0000" for number in range(600)]
    for place in found:
        shutil.copytree(runs[0], place)
    return found


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def forks(server: ForkServer) -> list[int]:
    assert server._process is not None
    pid = server._process.pid
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def judged(runs: list[Path]) -> list[Path]:
    return [run for run in runs if (run / VERDICT_FILE).exists()]


def test_what_was_judged_ahead_is_as_the_job_would_have_it(server: ForkServer, runs: list[Path]) -> None:
    ahead = HeadStart(runs, server.place, os.environ)
    until(lambda: judged(runs) == runs)
    rows = {row["run_dir"]: row for row in ahead.stop().to_pylist()}
    assert set(rows) == set(map(str, runs)) and {row["verdict"] for row in rows.values()} == {"valid", "invalid"}
    for run in runs:
        row = check_and_store(run)
        assert {**rows[str(run)], "lake": ""} == {**row, "lake": ""}
    until(lambda: not forks(server))


def test_the_job_judges_the_others(server: ForkServer, runs: list[Path], spark: Any) -> None:
    ahead = HeadStart(runs[:4], server.place, os.environ)
    until(lambda: len(judged(runs)) == 4)
    before = [(run / VERDICT_FILE).stat().st_mtime_ns for run in runs[:4]]
    told: list[int] = []
    rows = check_runs(spark, runs, lambda done, total: told.append(done), ahead=ahead.stop())
    assert [row.run_dir for row in rows] == runs and judged(runs) == runs
    assert [(run / VERDICT_FILE).stat().st_mtime_ns for run in runs[:4]] == before
    assert min(told) >= 4 and told[-1] == 6


def test_all_may_have_been_judged_ahead(server: ForkServer, runs: list[Path]) -> None:
    ahead = HeadStart(runs, server.place, os.environ)
    until(lambda: judged(runs) == runs)
    assert [row.run_dir for row in check_runs(None, runs, ahead=ahead.stop())] == runs


def test_it_ends_at_once_when_spark_is_there(server: ForkServer, many: list[Path]) -> None:
    ahead = HeadStart(many, server.place, os.environ)
    until(lambda: judged(many))
    rows = ahead.stop()
    assert 0 < rows.num_rows == len(judged(many)) < len(many)
    until(lambda: not forks(server))


def test_one_that_dies_has_judged_nothing(server: ForkServer, many: list[Path]) -> None:
    ahead = HeadStart(many, server.place, os.environ)
    until(lambda: judged(many))
    (fork,) = forks(server)
    os.kill(fork, signal.SIGKILL)
    assert ahead.stop().num_rows == 0
    assert ahead.stop().num_rows == 0, "once more"
    assert len(judged(many)) < len(many)


def test_one_that_hangs_is_not_waited_for(
    server: ForkServer, many: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_start, "GRACE", 0.2)
    ahead = HeadStart(many, server.place, os.environ)
    until(lambda: judged(many))
    (fork,) = forks(server)
    os.kill(fork, signal.SIGSTOP)
    assert ahead.stop().num_rows == 0
    os.kill(fork, signal.SIGCONT)
    until(lambda: not forks(server))
    assert len(judged(many)) < len(many)


def test_all_cores_judge_what_is_little(server: ForkServer, many: list[Path]) -> None:
    told: list[tuple[int, int]] = []
    rows = judge_all(many, server.place, os.environ, lambda done, total: told.append((done, total)))
    assert sorted(rows.column("run_dir").to_pylist()) == sorted(map(str, many)) and judged(many) == many
    assert told[-1] == (600, 600) and told == sorted(told) and len(told) > 2
    until(lambda: not forks(server))
    assert [row.run_dir for row in check_runs(None, many, ahead=rows)] == many


def test_where_one_of_them_dies_its_share_is_left(server: ForkServer, many: list[Path]) -> None:
    killed: list[int] = []

    def kill(done: int, total: int) -> None:
        if not killed:
            killed.append(max(forks(server)))
            os.kill(killed[0], signal.SIGKILL)

    rows = judge_all(many, server.place, os.environ, kill)
    assert 0 < rows.num_rows < len(many)
    assert {Path(row) for row in rows.column("run_dir").to_pylist()} <= set(judged(many))


def test_whoever_interrupts_them_has_them_end(server: ForkServer, many: list[Path]) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge_all(many, server.place, os.environ, interrupt)
    until(lambda: not forks(server))
    assert 0 < len(judged(many)) < len(many)


def test_those_that_hang_are_waited_for_together(
    server: ForkServer, many: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_start, "GRACE", 1.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    stopped: list[int] = []
    steps: list[str] = []
    end, hear = Fork.end, head_start._hear
    monkeypatch.setattr(Fork, "end", lambda self: (steps.append("told to end"), end(self)))
    monkeypatch.setattr(head_start, "_hear", lambda *args, **more: (steps.append("heard"), hear(*args, **more)))

    def stop(done: int, total: int) -> None:
        stopped.extend(forks(server))
        for fork in stopped:
            os.kill(fork, signal.SIGSTOP)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge_all(many, server.place, os.environ, stop)
    assert stopped and steps == ["heard", *["told to end"] * 6, "heard"]
    for fork in stopped:
        os.kill(fork, signal.SIGCONT)
    until(lambda: not forks(server))


@pytest.mark.parametrize("words", [[], ["--master", "local[1]"]], ids=["few", "spark"])
def test_ctrl_c_ends_a_check_in_the_middle(
    tmp_path: Path, runs: list[Path], many: list[Path], words: list[str]
) -> None:
    command = [sys.executable, "-m", "harness", "check", "--all", "--store", str(tmp_path), *words]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until(lambda: judged(many))
    os.killpg(child.pid, signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert (child.returncode, said) == (130, "stormproof: interrupted\n")
    done = len(judged(many))
    assert done < len(many)
    time.sleep(0.5)
    assert len(judged(many)) == done, "nobody goes on"
    until(lambda: not list(Path("/proc").glob(f"{child.pid}/task/*")) and not of_session(child.pid))


def of_session(session: int) -> list[int]:
    """Processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[3]) == session:
                found.append(int(stat.parent.name))
        except OSError:
            continue
    return found


def test_few_runs_are_those_that_spark_is_not_worth_its_start(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [(run / "history.parquet").stat().st_size for run in runs]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(head_start, "LEAST_BYTES", 1)
    monkeypatch.setattr(head_start, "FEW_BYTES", sum(sizes[:3]) / 2)
    few = FewRuns()
    assert [few.take(run) for run in runs[:4]] == [True, True, True, False]
    monkeypatch.setattr(head_start, "FEW_BYTES", 1 << 30)
    assert all(map(FewRuns().take, runs))
    monkeypatch.setattr(head_start, "MOST_BYTES", max(sizes) - 1)
    assert not all(map(FewRuns().take, runs)), "a large one"
    monkeypatch.setattr(head_start, "MOST_BYTES", 1 << 30)
    info = json.loads((runs[0] / "run.json").read_text())
    write_json(runs[0] / "run.json", with_seal({**info, "subject": "registers"}))
    assert not FewRuns().take(runs[0]), "a search"
    assert not FewRuns().take(runs[0].parent / "gone")
    monkeypatch.setattr(head_start, "LEAST_BYTES", 1000)
    monkeypatch.setattr(head_start, "FEW_BYTES", 1000)
    monkeypatch.setattr(head_start, "history_size", lambda _: 10)
    few = FewRuns()
    assert [few.take(run) for run in runs[1:4]] == [True, True, False], "each has its files"


def test_it_ends_with_whoever_began_it(server: ForkServer, many: list[Path]) -> None:
    ahead = HeadStart(many, server.place, os.environ)
    until(lambda: judged(many))
    ahead._fork.close()
    until(lambda: not forks(server))
    assert len(judged(many)) < len(many)


def test_checks_of_another_version_judge_nothing(
    server: ForkServer, runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_start, "digest_of_checks", lambda: "another")
    ahead = HeadStart(runs, server.place, os.environ)
    head_start._hear([ahead._fork])  # until it has ended of itself
    assert ahead.stop().num_rows == 0 and judged(runs) == []


def test_searches_for_a_proof_are_left_to_spark(server: ForkServer, runs: list[Path]) -> None:
    info = json.loads((runs[0] / "run.json").read_text())
    write_json(runs[0] / "run.json", with_seal({**info, "subject": "registers"}))
    ahead = HeadStart(runs, server.place, os.environ)
    until(lambda: judged(runs) == runs[1:])
    assert ahead.stop().num_rows == len(runs) - 1


def test_a_run_that_is_named_twice_is_judged_once(spark: Any, server: ForkServer, runs: list[Path]) -> None:
    twice = [*runs[:2], runs[0]]
    assert [row.run_dir for row in check_runs(spark, twice)] == twice
    ahead = HeadStart(twice, server.place, os.environ)
    until(lambda: judged(runs[:2]) == runs[:2])
    assert [row.run_dir for row in check_runs(spark, twice, ahead=ahead.stop())] == twice


def test_large_runs_are_left_to_spark(server: ForkServer, runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = sorted((run / "history.parquet").stat().st_size for run in runs)
    monkeypatch.setattr(head_start, "MOST_BYTES", sizes[2])
    ahead = HeadStart(runs, server.place, os.environ)
    until(lambda: len(judged(runs)) == 3)
    assert ahead.stop().num_rows == 3


def test_without_a_server_nothing_is_judged_ahead(tmp_path: Path, runs: list[Path]) -> None:
    assert HeadStart(runs, tmp_path / "none", os.environ).stop().num_rows == 0
    server = ForkServer(tmp_path, {})
    server.stop()
    assert HeadStart(runs, server.place, os.environ).stop().num_rows == 0
