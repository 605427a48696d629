"""Which runs of a store stay: rules, pins, and what happens when `gc` is killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.store.housekeeping import collect
from stormproof.errors import StormproofError, UsageError
from stormproof.history.undo import NETWORK, UndoJournal
from stormproof.retention import (
    RetainedRun,
    RetentionRules,
    pin,
    pinned,
    plan,
    read_age,
    remove_rests,
    remove_run,
    survey,
    unpin,
)
from stormproof.run_folder import RUN_SCHEMA, RunLock
from stormproof.store import Store

NOW = datetime(2026, 11, 30, tzinfo=UTC)
DAY = 86_400.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "runs").mkdir()
    return Store(tmp_path / "runs")


def add(store: Store, day: int, verdict: str = "valid", size: int = 0) -> Path:
    """A run of a day of November."""
    run_dir = store.path / f"202611{day:02}T000000-joram-queue-{day}-00{day:02}"
    run_dir.mkdir()
    (run_dir / "run.json").write_text(json.dumps({"schema": RUN_SCHEMA, "run": run_dir.name, "status": "checked"}))
    (run_dir / "verdict.json").write_text(json.dumps({"schema": 1, "verdict": verdict}))
    (run_dir / "history.parquet").write_bytes(bytes(size))
    return run_dir


def going(store: Store, rules: RetentionRules) -> list[str]:
    return [run.run_dir.name[6:8] for run in plan(list(survey(store, NOW)), rules)]


def test_valid_runs_and_others_are_kept_for_times_of_their_own(store: Store) -> None:
    add(store, 1)
    add(store, 2, "invalid")
    add(store, 3, "unknown")
    add(store, 28)
    assert going(store, RetentionRules(keep=10 * DAY)) == ["01"]
    assert going(store, RetentionRules(keep_failures=27.5 * DAY)) == ["02"]
    assert going(store, RetentionRules(keep=1 * DAY, keep_failures=1 * DAY)) == ["01", "28", "02", "03"]


def test_a_run_without_verdict_counts_as_a_failure(store: Store) -> None:
    (add(store, 1) / "verdict.json").unlink()
    assert going(store, RetentionRules(keep=DAY)) == []
    assert going(store, RetentionRules(keep_failures=DAY)) == ["01"]


def test_a_store_that_is_too_large_loses_valid_runs_first(store: Store) -> None:
    add(store, 1, "invalid", 1_000_000)
    add(store, 2, "valid", 1_000_000)
    add(store, 3, "valid", 1_000_000)
    assert going(store, RetentionRules(max_size=2_500_000)) == ["02"]
    assert going(store, RetentionRules(max_size=1_500_000)) == ["02", "03"]
    assert going(store, RetentionRules(max_size=1)) == ["02", "03", "01"]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans(), st.booleans()), max_size=8),
    st.none() | st.integers(0, 9), st.none() | st.integers(0, 9), st.none() | st.integers(0, 40),
)  # fmt: skip
def test_a_plan_keeps_its_rules(runs: list[tuple[int, int, bool, bool]], keep: int | None, failures: int | None,
                                most: int | None) -> None:
    kept = [RetainedRun(Path(str(number)), age, size, passed, "pinned" if stays else "")
            for number, (age, size, passed, stays) in enumerate(runs)]
    gone = plan(kept, RetentionRules(keep, failures, most))
    assert len(set(gone)) == len(gone)
    assert not any(run.why for run in gone)
    left = [run for run in kept if run not in gone]
    for run in left:
        limit = keep if run.passed else failures
        assert run.why or limit is None or run.age <= limit
    if most is not None:
        assert sum(run.size for run in left) <= most or all(run.why for run in left)
    # Nothing goes without need: the last one to go was too old, or the store too large with it.
    if gone:
        last = gone[-1]
        limit = keep if last.passed else failures
        assert (limit is not None and last.age > limit) or (
            most is not None and sum(run.size for run in (*left, last)) > most)


@pytest.mark.requirement("H22")
def test_who_is_alive_pinned_or_not_healed_stays(store: Store) -> None:
    alive, pinned_one, unhealed, damaged, old = (add(store, day) for day in range(1, 6))
    pin(pinned_one, "issue 7")
    journal = UndoJournal(unhealed)
    journal.begin(NETWORK)
    journal.close()
    (damaged / "run.json").write_text("{")
    with RunLock(alive):
        found = collect(store.path, RetentionRules(keep=DAY, keep_failures=DAY), dry_run=False)
    assert [run.run_dir for run in found.going] == [old]
    assert store.runs() == [alive, pinned_one, unhealed, damaged]
    why = {run.run_dir: run.why for run in found.staying}
    assert why[alive] == "it is under way"
    assert why[pinned_one] == "it is pinned"
    assert "not healed" in why[unhealed]
    assert "can't be read" in why[damaged]
    assert found.left == 4
    assert not found.failed


def test_a_dry_run_removes_nothing(store: Store) -> None:
    add(store, 1)
    found = collect(store.path, RetentionRules(keep=DAY), dry_run=True)
    assert len(found.going) == 1
    assert found.left == 0
    assert len(store.runs()) == 1
    assert not (store.path / "index.html").exists()


def test_a_run_that_comes_to_life_or_is_pinned_meanwhile_is_not_removed(store: Store) -> None:
    run_dir = add(store, 1)
    with RunLock(run_dir), pytest.raises(StormproofError, match="in use"):
        remove_run(run_dir)
    pin(run_dir)
    with pytest.raises(StormproofError, match="pinned"):
        remove_run(run_dir)
    assert run_dir.exists()
    assert unpin(run_dir)
    assert not unpin(run_dir)
    remove_run(run_dir)
    assert not run_dir.exists()


def test_pins_are_told_with_their_reasons(store: Store) -> None:
    first, second = add(store, 1), add(store, 2)
    pin(first, "shows LM1\nwell")
    pin(second)
    assert list(pinned(store.runs())) == [(first, "shows LM1\\nwell"), (second, "")]


_REMOVE = """
import shutil, sys, time
from pathlib import Path
from stormproof import retention as keeping
def slow(path):
    (path / "run.json").unlink()
    print("half", flush=True)
    time.sleep(60)
keeping.shutil.rmtree = slow
keeping.remove_run(Path(sys.argv[1]))
"""


def test_a_removal_that_was_killed_leaves_no_run_and_is_finished_later(store: Store) -> None:
    run_dir, other = add(store, 1), add(store, 2)
    child = subprocess.Popen([sys.executable, "-c", _REMOVE, str(run_dir)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "half\n"
    assert store.runs() == [other]
    assert remove_rests(store) == [], "somebody is at work"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert remove_rests(store) == [run_dir]
    assert [path.name for path in store.path.iterdir()] == [other.name]


_GC = """
import sys, time
from harness.cli.app import main
from stormproof import retention as keeping
remove = keeping.shutil.rmtree
def slow(path):
    (path / "run.json").unlink()
    print("half", flush=True)
    time.sleep(0.02)
    remove(path)
keeping.shutil.rmtree = slow
sys.argv = ["stormproof", "gc", "--keep", "1d", "--store", sys.argv[1]]
main()
"""


@pytest.mark.requirement("H22")
def test_gc_that_is_killed_in_the_middle_harms_no_live_or_pinned_run(store: Store) -> None:
    runs = [add(store, day) for day in range(1, 29)]
    free, pinned_ones, alive = runs[:18], runs[18:23], runs[23:]
    for run_dir in pinned_ones:
        pin(run_dir, "issue 7")
    before = {path: path.read_bytes() for run_dir in runs for path in run_dir.iterdir()}
    with contextlib.ExitStack() as locks:
        for run_dir in alive:
            locks.enter_context(RunLock(run_dir))
        for halves in (5, 4):  # killed twice, and each time it had begun with one more
            child = subprocess.Popen([sys.executable, "-c", _GC, str(store.path)], stdout=subprocess.PIPE, text=True)
            assert child.stdout is not None
            assert [child.stdout.readline() for _ in range(halves)] == ["half\n"] * halves
            child.kill()
            child.wait()
            child.stdout.close()
            left = store.runs()
            assert len(left) <= len(free) - halves + len(pinned_ones) + len(alive) and free[-1] in left
            assert set(left) >= {*pinned_ones, *alive}
            for run_dir in left:
                assert {path.name for path in run_dir.iterdir()} >= {"run.json", "verdict.json", "history.parquet"}
                assert all(path.read_bytes() == before[path] for path in run_dir.iterdir() if path in before)
        found = collect(store.path, RetentionRules(keep=DAY), dry_run=False)
        assert found.left == len(pinned_ones) + len(alive) and not found.failed
    assert store.runs() == [*pinned_ones, *alive] and not list(store.path.glob(".gone-*"))
    assert {path: path.read_bytes() for path in before if path.parent not in free} == {
        path: content for path, content in before.items() if path.parent not in free}


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("2h", 7200), ("1.5d", 129_600), ("2w", 1_209_600)])
def test_ages(text: str, seconds: float) -> None:
    assert read_age(text, "--keep") == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1y", "1e3d", "nan"])
def test_what_is_no_age_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="--keep"):
        read_age(text, "--keep")
