"""Runs that are judged while Spark starts: by a fork of a real fork server, no JVM."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checkers import head_start
from checkers.fork_server import ForkServer
from checkers.head_start import HeadStart
from checkers.job import check_and_store, check_runs
from checkers.synthetic import write_store
from checkers.verdict import VERDICT_FILE


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
    found = [tmp_path / f"more-{number}" for number in range(600)]
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


def test_it_ends_with_whoever_began_it(server: ForkServer, many: list[Path]) -> None:
    ahead = HeadStart(many, server.place, os.environ)
    until(lambda: judged(many))
    assert ahead._server is not None
    ahead._server.close()
    until(lambda: not forks(server))
    assert len(judged(many)) < len(many)


def test_checks_of_another_version_judge_nothing(
    server: ForkServer, runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_start, "digest_of_checks", lambda: "another")
    ahead = HeadStart(runs, server.place, os.environ)
    until(lambda: forks(server))
    assert ahead.stop().num_rows == 0 and judged(runs) == []


def test_searches_for_a_proof_are_left_to_spark(server: ForkServer, runs: list[Path]) -> None:
    info = json.loads((runs[0] / "run.json").read_text())
    (runs[0] / "run.json").write_text(json.dumps({**info, "subject": "registers"}))
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
