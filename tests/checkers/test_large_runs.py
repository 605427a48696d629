"""Large runs go through Spark in parts, and within a bound on memory that is told when it is reached."""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkers import memory, run_check
from checkers.memory import MemoryBudget, TooLarge, budget_of, rows_of
from checkers.run_check import check_run
from checkers.spark import large_runs
from checkers.spark.failures import TaskDied
from checkers.spark.job import check_and_store, check_runs
from checkers.spark.large_runs import REST, units_of
from checkers.synthetic import Defects, write_run
from checkers.verdict_cache import judged_already
from stormproof.errors import UsageError
from stormproof.history import columns
from stormproof.run_folder import read_verdict, with_seal, write_json

pytestmark = pytest.mark.requirement("H23", part=True)

ROWS = 150_000
# Other processes of the tests may be at these same tests: each has budgets of its own.
OURS = f"test-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"
PLENTY = MemoryBudget(1 << 40, f"{OURS}-plenty")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that is large for this test, one that is damaged, and small ones."""
    monkeypatch.setenv(large_runs.VARIABLE, "30000")
    for number, defects in enumerate((Defects(lost=2, redelivered=3), Defects(), Defects(duplicated=1, phantom=1))):
        write_run(tmp_path / f"20260101T00000{number}-joram-queue-{number}-000{number}", ROWS, number, defects)
    for number in range(3, 6):
        write_run(tmp_path / f"20260101T00000{number}-joram-queue-{number}-000{number}", 500, number)
    (tmp_path / "20260101T000001-joram-queue-1-0001" / "ledger.jsonl").write_text("{}\n{}\n")
    return tmp_path


def runs_of(store: Path) -> list[Path]:
    return sorted(store.glob("2*"))


def left_over() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"stormproof-memory-{os.getuid()}-{OURS}-*"))


def test_in_parts_by_spark_as_a_whole(spark: Any, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    judge = large_runs.judge_units
    monkeypatch.setattr(large_runs, "CORES_PER_WHOLE_RUN", 1)
    monkeypatch.setattr("checkers.spark.job.judge_units", lambda *given: asked.extend(given[1]) or judge(*given))
    rows = check_runs(spark, runs_of(store))
    assert {Path(unit.run_dir).name[14:15] for unit in asked} == {"0", "1", "2"}
    for run_dir, row in zip(runs_of(store), rows, strict=True):
        whole = check_run(run_dir)
        assert (row.verdict, row.sentence, row.anomalies) == (whole.verdict, whole.sentence, whole.anomalies)
        stored = read_verdict(run_dir)
        del stored["judged"]
        assert stored == json.loads(json.dumps(whole.to_json()))
        assert (judged_already(run_dir) is None) == (row.damage is not None)
    assert [row.damage is not None for row in rows] == [False, True, False, False, False, False]
    assert left_over() == []


def test_a_part_at_which_its_process_dies_costs_no_verdict(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(large_runs.VARIABLE, "1")
    monkeypatch.setattr(memory, "_LOOK_AT", 1)
    monkeypatch.setattr(large_runs, "CORES_PER_WHOLE_RUN", 1)
    asked = []

    def die(*given: Any) -> Any:
        asked.extend(given[1])
        raise TaskDied(0, "Python worker exited unexpectedly")

    monkeypatch.setattr("checkers.spark.job.judge_units", die)
    write_run(tmp_path / "r", 500, 1, Defects(lost=1))
    (row,) = check_runs(spark, [tmp_path / "r"])
    assert asked and (row.verdict, row.damage) == ("invalid", None)


def test_threads_change_no_verdict(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = [check_run(run_dir).to_json() for run_dir in runs_of(store)]
    monkeypatch.setattr(run_check, "THREADED_ROWS", 1)
    monkeypatch.setattr(columns, "_PARALLEL_BYTES", 1)
    assert [check_run(run_dir).to_json() for run_dir in runs_of(store)] == plain
    info = json.loads((runs_of(store)[0] / "run.json").read_text())
    write_json(runs_of(store)[0] / "run.json", with_seal(info | {"history_sha256": "0" * 64}))
    assert "history_sha256" in str(check_run(runs_of(store)[0]).damage)


def test_which_runs_are_worth_it(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large, other, _, *small = runs_of(store)
    assert rows_of(large) > ROWS - 200 and rows_of(small[0]) == rows_of(store / "none") == 0
    assert units_of([large, *small], 2, PLENTY) == [], "as a whole it keeps two cores busy"
    assert {unit.number for unit in units_of([large, *small], 3, PLENTY)} == {REST, 0, 1}
    assert {unit.number for unit in units_of([large], 4, PLENTY)} == {REST, 0, 1, 2}
    assert len(units_of([large, other], 3, PLENTY)) == 6
    many = [store / f"copy{number}" for number in range(8)]
    for copy in many:
        copy.symlink_to(large)
    assert units_of(many, 3, PLENTY) == [], "the cores are busy with other runs"
    tight = MemoryBudget(memory.BASE + memory.REST_ROW * rows_of(large), f"{OURS}-tight")
    assert len([unit for unit in units_of([large], 1, tight) if unit.number != REST]) == 2, "for want of memory"
    assert units_of([large], 2, MemoryBudget(tight.total - 1000, f"{OURS}-tight")) == [], "it would not do"
    info = json.loads((large / "run.json").read_text())
    write_json(large / "run.json", with_seal({**info, "subject": "topics"}))
    assert units_of([large], 2, PLENTY) == []
    monkeypatch.setenv(large_runs.VARIABLE, "3 M")
    with pytest.raises(UsageError, match="a number of rows"):
        units_of([large], 2, PLENTY)


@pytest.mark.parametrize("parts", [pytest.param(True, marks=pytest.mark.soak), False])
def test_a_run_that_takes_too_much_is_named_and_the_others_are_judged(
    spark: Any, store: Path, monkeypatch: pytest.MonkeyPatch, parts: bool
) -> None:
    if not parts:
        monkeypatch.setenv(large_runs.VARIABLE, "30000000")
    monkeypatch.setenv(memory.VARIABLE, str(memory.BASE + 1000))
    rows = check_runs(spark, runs_of(store))
    for row in rows[:3]:
        assert row.verdict == "unknown" and row.damage is not None and "`--memory`" in row.damage
        assert str(row.run_dir) in row.damage and "\n" not in row.damage
        assert judged_already(row.run_dir) is None
    assert {row.verdict for row in rows[3:]} == {"valid"}
    monkeypatch.setenv(memory.VARIABLE, "1G")
    assert check_runs(spark, runs_of(store)[:1])[0].verdict == "invalid"
    assert left_over() == []


def test_what_takes_more_than_it_was_thought_to_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_LOOK_AT", 1)
    write_run(tmp_path / "r", 500, 1)
    monkeypatch.setattr("checkers.run_check.check_in_memory", lambda run_dir: np.ones(1 << 31))
    row = check_and_store(tmp_path / "r", budget=MemoryBudget(1 << 30, f"{OURS}-more"))
    assert row["verdict"] == "unknown" and "judging it took more than" in row["damage"]
    assert "judged" not in read_verdict(tmp_path / "r")
    assert np.ones(1 << 28, dtype=np.int8).sum() == 1 << 28, "the limit is gone"
    monkeypatch.setattr("checkers.run_check.check_in_memory", lambda run_dir: bytes(1 << 62))
    assert "not enough memory" in (check_run(tmp_path / "r").damage or "")


def hold(total: int, needed: int, seconds: float, told: Any) -> None:
    with MemoryBudget(total, f"{OURS}-processes").reserved(needed, "r"):
        told.put((time.monotonic(), needed))
        time.sleep(seconds)
        told.put((time.monotonic(), -needed))


def test_processes_wait_for_one_another() -> None:
    told = multiprocessing.get_context("fork").Queue()
    wanted = [600, 500, 400, 600, 100]
    children = [multiprocessing.get_context("fork").Process(target=hold, args=(1000, needed, 0.2, told))
                for needed in wanted]  # fmt: skip
    for child in children:
        child.start()
    events = sorted(told.get(timeout=60) for _ in range(2 * len(wanted)))
    for child in children:
        child.join()
    held = np.cumsum([needed for _, needed in events])
    assert max(held) <= 1000 and held[-1] == 0
    assert left_over() == []


def test_a_process_that_died_holds_nothing() -> None:
    context = multiprocessing.get_context("fork")
    told = context.Queue()
    child = context.Process(target=hold, args=(1000, 900, 600.0, told))
    child.start()
    told.get(timeout=60)
    got = threading.Event()

    def wait() -> None:
        with MemoryBudget(1000, f"{OURS}-processes").reserved(500, "r"):
            got.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert not got.wait(0.3)
    child.kill()
    child.join()
    assert got.wait(60)
    waiting.join()
    assert left_over() == []


def test_what_can_be_said_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert budget_of("x", "2G").total == 2 << 30
    assert budget_of("x", None).total > 1 << 28
    monkeypatch.delenv(memory.VARIABLE, raising=False)
    with pytest.raises(UsageError, match="--memory lots: write a size"):
        memory.set_memory("lots")
    with pytest.raises(TooLarge), MemoryBudget(10, f"{OURS}-10").reserved(11, "r"):
        pass
