"""Healing and recovering a store in which something is damaged."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from harness.cli.app import main
from harness.run import healing
from harness.run.healing import recover_store
from harness.run.recovery import EMPTY
from harness.store.recheck import check_stored
from stormproof import store
from stormproof.errors import HistoryError, StormproofError, UsageError
from stormproof.history.journal import JournalWriter
from stormproof.history.undo import NETWORK, UndoJournal, pending_undos
from stormproof.operation import INVOKE, Op
from stormproof.run_folder import JOURNAL, being_made, read_run, write_text
from stormproof.store import Store
from stormproof.test import Test


@pytest.mark.requirement("H15")
def test_one_damaged_run_does_not_keep_the_others_from_being_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(healing, "cleanup", lambda **_: [])
    damaged, other = (Store(tmp_path).create(Test("joram", "queue", seed=seed)) for seed in (1, 2))
    for run_dir in (damaged, other):
        journal = UndoJournal(run_dir)
        journal.begin(NETWORK, ("n1",))
        journal.close()
    (damaged / "run.json").write_text("{")
    lines = healing.heal_store(tmp_path)
    assert [name for name in (damaged.name, other.name) if any("undone" in line for line in lines if name in line)] == [
        damaged.name, other.name]  # fmt: skip
    assert pending_undos(damaged) == pending_undos(other) == []
    assert [line.split(":")[0] for line in healing.recover_store(tmp_path, [])] == [other.name, "not recovered"]
    assert read_run(other)["status"] == "broken"


@pytest.mark.requirement("H15")
def test_no_fault_counts_as_undone_while_no_docker_can_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    monkeypatch.setattr(healing, "cleanup", lambda **_: [])
    run_dir = Store(tmp_path).create(Test("joram", "queue", backend="docker"))
    journal = UndoJournal(run_dir)
    journal.begin(NETWORK, ("n1",))
    journal.close()
    assert any("may still be in force" in line for line in healing.heal_store(tmp_path))
    assert len(pending_undos(run_dir)) == 1


def test_a_run_that_can_not_be_described_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: object) -> None:
        raise StormproofError("no space left")

    monkeypatch.setattr(store, "write_json", full)
    with pytest.raises(StormproofError, match="no space left"):
        Store(tmp_path).create(Test("joram", "queue"))
    assert list(tmp_path.iterdir()) == []


def test_what_was_being_written_when_the_harness_was_killed_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file under its preliminary name, and a run that has no description yet; not those of a process that lives."""
    monkeypatch.setattr(healing, "cleanup", lambda **_: [])
    run_dir = Store(tmp_path).create(Test("joram", "queue"))
    places = [tmp_path / "index.html.7.partial", run_dir / "run.json.1.partial"]
    for place in places:
        place.write_text("{")
    unborn, used, young = (tmp_path / f"20260101T000000-joram-queue-1-000{number}" for number in range(3))
    for folder in (unborn, used, young):
        (folder / "logs").mkdir(parents=True)
    (unborn / "run.json.5.partial").touch()
    (used / "notes").touch()
    seen: list[list[str]] = []

    def meanwhile(fd: int) -> None:
        seen.append(healing.heal_store(tmp_path))

    with being_made(young):
        monkeypatch.setattr(os, "fsync", meanwhile)
        write_text(run_dir / "verdict.json", "{}")
        monkeypatch.undo()
        assert young.exists()
    (lines,) = seen
    assert {line.split(":")[0] for line in lines if line.startswith("removed")} == {
        f"removed {place}" for place in (*places, unborn)}
    assert not any(place.exists() for place in (*places, unborn)) and used.exists()
    assert (run_dir / "verdict.json").read_text() == "{}" and read_run(run_dir)["status"] == "running"
    monkeypatch.setattr(healing, "cleanup", lambda **_: [])
    healing.heal_store(tmp_path)
    assert not young.exists(), "nobody makes it any more"


def test_a_run_that_was_killed_before_its_first_operation_has_one_name_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = Store(tmp_path).create(Test("joram", "queue", backend="local"))
    for _ in range(2):
        with pytest.raises(UsageError, match=EMPTY):
            check_stored(tmp_path, [run_dir.name], master=None, as_json=False)
        with pytest.raises(UsageError, match="holds no recorded runs"):
            check_stored(tmp_path, [], master=None, as_json=False)
        assert f"not checked: {run_dir}: {EMPTY}" in capsys.readouterr().err
        assert recover_store(tmp_path, [run_dir.name]) == [f"{run_dir.name}: {EMPTY}"]
    assert recover_store(tmp_path, []) == []


def test_a_run_that_was_killed_before_it_was_described_is_named_by_every_command(tmp_path: Path) -> None:
    run_dir = Store(tmp_path).create(Test("joram", "queue", backend="local"))
    (run_dir / "run.json").unlink()
    for ask in (lambda: check_stored(tmp_path, [run_dir.name], master=None, as_json=False),
                lambda: recover_store(tmp_path, [run_dir.name])):
        with pytest.raises(HistoryError, match="killed before the first write"):
            ask()
    (line,) = recover_store(tmp_path, [])
    assert line.startswith(f"not recovered: {run_dir} is not a run")


def test_runs_that_can_not_be_recovered_are_named_and_the_status_is_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged, undescribed, good = (Store(tmp_path).create(Test("joram", "queue", seed=seed)) for seed in (1, 2, 3))
    writer = JournalWriter(damaged / JOURNAL, damaged.name)
    for number in range(2):
        writer.record(Op(INVOKE, "enqueue", (number, 1), 0, number, 1))
        writer.flush()
    writer.close()
    data = bytearray((damaged / JOURNAL).read_bytes())
    data[30] ^= 0xFF
    (damaged / JOURNAL).write_bytes(data)
    (undescribed / "run.json").write_text("[]")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["stormproof", "recover", "--store", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert ended.value.code == 3
    assert out.splitlines() == [f"{good.name}: {EMPTY}"]
    told = err.splitlines()
    assert len(told) == 2 and all(line.startswith("not recovered: ") for line in told), err
    assert all(any(run.name in line for line in told) for run in (damaged, undescribed))
    assert read_run(good)["status"] == "broken"
