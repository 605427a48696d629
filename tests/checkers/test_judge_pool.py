"""Runs that are judged by processes of this machine, without Spark: real processes, no JVM."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checkers import judge_pool
from checkers.judge_pool import FewRuns, JudgePool
from checkers.spark.job import check_and_store, check_runs
from checkers.synthetic import write_store
from checkers.verdict import VERDICT_FILE
from stormproof.run_folder import with_seal, write_json


@pytest.fixture
def pool() -> Iterator[JudgePool]:
    started = JudgePool()
    yield started
    started.end()


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


def judged(runs: list[Path]) -> list[Path]:
    return [run for run in runs if (run / VERDICT_FILE).exists()]


def workers(pool: JudgePool) -> list[int]:
    pid = pool._process.pid
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def ignore(done: int, total: int) -> None:
    """No progress is shown."""


def ended(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_what_is_judged_is_as_the_job_would_have_it(pool: JudgePool, runs: list[Path]) -> None:
    rows = {row["run_dir"]: row for row in pool.judge(runs, ignore).to_pylist()}
    assert set(rows) == set(map(str, runs)) and {row["verdict"] for row in rows.values()} == {"valid", "invalid"}
    for run in runs:
        row = check_and_store(run)
        assert {**rows[str(run)], "lake": ""} == {**row, "lake": ""}


def test_the_job_judges_the_others(pool: JudgePool, runs: list[Path], spark: Any) -> None:
    ahead = pool.judge(runs[:4], ignore)
    before = [(run / VERDICT_FILE).stat().st_mtime_ns for run in runs[:4]]
    told: list[int] = []
    rows = check_runs(spark, runs, lambda done, total: told.append(done), ahead=ahead)
    assert [row.run_dir for row in rows] == runs and judged(runs) == runs
    assert [(run / VERDICT_FILE).stat().st_mtime_ns for run in runs[:4]] == before
    assert min(told) >= 4 and told[-1] == 6


def test_all_cores_judge(pool: JudgePool, many: list[Path]) -> None:
    told: list[tuple[int, int]] = []
    at_once: list[int] = []

    def tell(done: int, total: int) -> None:
        told.append((done, total))
        at_once.append(len(workers(pool)))

    rows = pool.judge(many, tell)
    assert sorted(rows.column("run_dir").to_pylist()) == sorted(map(str, many)) and judged(many) == many
    assert told[-1] == (600, 600) and told == sorted(told) and len(told) > 2
    assert max(at_once) == len(os.sched_getaffinity(0))
    assert [row.run_dir for row in check_runs(None, many, ahead=rows)] == many


def test_where_one_of_them_dies_its_share_is_left(pool: JudgePool, many: list[Path]) -> None:
    killed: list[int] = []

    def kill(done: int, total: int) -> None:
        if not killed:
            killed.append(max(workers(pool)))
            os.kill(killed[0], signal.SIGKILL)

    rows = pool.judge(many, kill)
    assert 0 < rows.num_rows < len(many)
    assert {Path(row) for row in rows.column("run_dir").to_pylist()} <= set(judged(many))


def test_whoever_interrupts_them_has_them_end(pool: JudgePool, many: list[Path]) -> None:
    begun: list[int] = []

    def interrupt(done: int, total: int) -> None:
        begun.extend(workers(pool))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pool.judge(many, interrupt)
    until(lambda: ended(begun))
    done = len(judged(many))
    assert begun and 0 < done < len(many)
    time.sleep(0.5)
    assert len(judged(many)) == done, "nobody goes on"


def test_an_interrupt_in_the_middle_of_a_row_stays_an_interrupt(
    pool: JudgePool, runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of the row is dropped, and not read as the beginning of another one."""
    received = judge_pool.Connection._recv  # type: ignore[attr-defined]

    def interrupted(self: Any, size: int, *rest: Any) -> Any:
        if size == 4:  # the length of the message that follows
            received(self, size, *rest)
            raise KeyboardInterrupt
        return received(self, size, *rest)

    monkeypatch.setattr(judge_pool.Connection, "_recv", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.judge(runs, lambda done, total: None)
    assert pool._process.poll() is not None and not pool._readers


def test_no_more_workers_than_runs(pool: JudgePool, runs: list[Path]) -> None:
    assert pool.judge(runs[:1], lambda done, total: None).num_rows == 1 and len(judged(runs)) == 1


def test_those_that_hang_are_waited_for_together_and_not_long(
    many: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_pool, "GRACE_SECONDS", 1.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    pool = JudgePool()
    stopped: list[int] = []
    in_vain: list[int] = []
    wait = judge_pool.wait

    def counted(readers: list[Any], timeout: float | None = None) -> Any:
        ready = wait(readers, timeout)
        if not ready:
            in_vain.append(len(readers))
        return ready

    monkeypatch.setattr(judge_pool, "wait", counted)

    def stop(done: int, total: int) -> None:
        stopped.extend(workers(pool))
        for worker in stopped:
            os.kill(worker, signal.SIGSTOP)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pool.judge(many, stop)
    assert len(stopped) == 6 and len(in_vain) == 1, "for all of them at once"
    for worker in stopped:
        os.kill(worker, signal.SIGCONT)
    until(lambda: ended(stopped))
    assert len(judged(many)) < len(many)


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
    monkeypatch.setattr(judge_pool, "MIN_COUNTED_BYTES", 1)
    monkeypatch.setattr(judge_pool, "MAX_BYTES_PER_CORE", sum(sizes[:3]) / 2)
    few = FewRuns()
    assert [few.take(run) for run in runs[:4]] == [True, True, True, False]
    monkeypatch.setattr(judge_pool, "MAX_BYTES_PER_CORE", 1 << 30)
    assert all(map(FewRuns().take, runs))
    monkeypatch.setattr(judge_pool, "MAX_RUN_BYTES", max(sizes) - 1)
    assert not all(map(FewRuns().take, runs)), "a large one"
    monkeypatch.setattr(judge_pool, "MAX_RUN_BYTES", 1 << 30)
    info = json.loads((runs[0] / "run.json").read_text())
    write_json(runs[0] / "run.json", with_seal({**info, "subject": "registers"}))
    assert not FewRuns().take(runs[0]), "a search"
    assert not FewRuns().take(runs[0].parent / "gone")
    monkeypatch.setattr(judge_pool, "MIN_COUNTED_BYTES", 1000)
    monkeypatch.setattr(judge_pool, "MAX_BYTES_PER_CORE", 1000)
    monkeypatch.setattr(judge_pool, "history_size", lambda _: 10)
    few = FewRuns()
    assert [few.take(run) for run in runs[1:4]] == [True, True, False], "each has its files"


def test_checks_of_another_version_judge_nothing(
    pool: JudgePool, runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_pool, "digest_of_checks", lambda: "another")
    assert pool.judge(runs, ignore).num_rows == 0 and judged(runs) == []


def test_a_run_that_is_named_twice_is_judged_once(pool: JudgePool, spark: Any, runs: list[Path]) -> None:
    twice = [*runs[:2], runs[0]]
    assert [row.run_dir for row in check_runs(spark, twice)] == twice
    ahead = pool.judge(twice, ignore)
    assert ahead.num_rows == 2 and [row.run_dir for row in check_runs(None, twice, ahead=ahead)] == twice


def test_a_pool_that_has_died_judges_nothing(pool: JudgePool, runs: list[Path]) -> None:
    pool._process.kill()
    pool._process.wait()
    assert pool.judge(runs, ignore).num_rows == 0 and judged(runs) == []


def pools(folder: Path) -> list[int]:
    """The pools whose temporary folder that is."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (b"checkers.judge_pool" in (process / "cmdline").read_bytes()
                    and f"TMPDIR={folder}".encode() in (process / "environ").read_bytes().split(b"\0")):  # fmt: skip
                found.append(int(process.name))
        except OSError:  # it has ended, or is none of ours
            pass
    return found


def check(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "stormproof", "check", *words], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(folder)})  # fmt: skip


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pool-") as name:
        yield Path(name)


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_a_command_that_is_ended_while_it_is_imported(
    folder: Path, runs: list[Path], by: signal.Signals
) -> None:
    process = check(folder, "--all", "--store", str(runs[0].parent))
    deadline = time.monotonic() + 60
    while not pools(folder):
        assert process.poll() is None and time.monotonic() < deadline
    process.send_signal(by)
    process.communicate(timeout=60)
    while pools(folder):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_judges_needs_no_pandas(tmp_path: Path) -> None:
    """Arrow looks for it; the verdicts are the same without."""
    store = tmp_path / "runs"
    expected = [defects.verdict for _, defects in write_store(store, 6, 200)]
    code = ("import sys; from pathlib import Path; from checkers.judge_pool import _NoPandas; "
            "sys.meta_path.insert(0, _NoPandas()); from checkers.spark.job import VERDICT_ROWS, check_and_store; "
            "import pyarrow as pa; "
            "rows = pa.RecordBatch.from_pylist([check_and_store(run) for run in sorted(Path(sys.argv[1]).iterdir())], "
            "VERDICT_ROWS).to_pylist(); "
            "print(*(row['verdict'] for row in rows), 'pandas' in sys.modules)")  # fmt: skip
    told = subprocess.run([sys.executable, "-c", code, str(store)], capture_output=True, text=True, check=True).stdout
    assert told.split() == [*expected, "False"]
