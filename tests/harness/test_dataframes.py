"""Runs, ledgers and verdicts as DataFrames."""

from __future__ import annotations

from pathlib import Path

import pytest

import stormproof
from checkers.run_check import check_run
from checkers.synthetic import write_run
from checkers.verdict import write_verdict
from stormproof.errors import HistoryError, UsageError

NAMES = [f"2026010{day}T000000-joram-queue-{day}-abcd" for day in (1, 2)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for seed, name in enumerate(NAMES):
        write_run(tmp_path / name, events=200, seed=seed)
    write_verdict(tmp_path / NAMES[0], check_run(tmp_path / NAMES[0]))
    return tmp_path


@pytest.mark.requirement("H19")
def test_a_store_loads_as_data_frames(store: Path) -> None:
    opened = stormproof.load(store)
    runs = opened.runs()
    assert list(runs["run"]) == NAMES and list(runs["seed"]) == [0, 1]
    assert runs["verdict"].notna().tolist() == [True, False]
    history = opened.run(NAMES[1]).history()
    assert len(history) >= 200 and history["time"].is_monotonic_increasing
    assert set(history["type"]) <= {"invoke", "ok", "fail", "info"}
    ledger = opened.run(NAMES[0]).ledger()
    assert ledger["fault"].tolist() == ["partition"] and (ledger["end"] > ledger["start"]).all()
    verdicts = opened.verdicts()
    assert set(verdicts["run"]) == {NAMES[0]} and "lost" in set(verdicts["check"])


def test_what_is_missing_is_named(store: Path) -> None:
    with pytest.raises(UsageError, match="no run"):
        stormproof.load(store).run("2030")
    with pytest.raises(HistoryError):
        stormproof.load(store).run(NAMES[1]).verdict()
    assert stormproof.load(store / "none").runs().empty
