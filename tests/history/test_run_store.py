"""The store: folders, locks, naming, recovery."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.backends.catalog import BACKENDS
from harness.run.recovery import recover
from stormproof.errors import HistoryError, StormproofError, UsageError
from stormproof.history.journal import JournalWriter
from stormproof.history.seal import read_history
from stormproof.operation import INVOKE, OK, Op
from stormproof.run_folder import RUN_ID, RUN_SCHEMA, SEALED_SINCE, RunLock, is_alive, read_run, update_run, upgraded
from stormproof.store import Store
from stormproof.test import Test
from workloads.catalog import WORKLOADS

TEST = Test("joram", "queue", ("partition",), seed=7)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


def fake_run(store: Store, name: str, started: str = "", schema: int = RUN_SCHEMA) -> Path:
    run_dir = store.path / name
    run_dir.mkdir(parents=True)
    description = {"schema": schema, "run": name, "started": started, "status": "checked"}
    (run_dir / "run.json").write_text(json.dumps(description))
    return run_dir


def record(run_dir: Path, ops: int) -> None:
    writer = JournalWriter(run_dir / "journal.bin", run_dir.name)
    for i in range(ops):
        writer.record(Op((INVOKE, OK)[i % 2], "enqueue", (0, i // 2), 0, 0, i))
    writer.close()


def test_a_run_is_created_with_its_description(store: Store) -> None:
    run_dir = store.create(TEST, backend={"name": "local"})
    run = read_run(run_dir)
    assert RUN_ID.fullmatch(run_dir.name)
    assert "-joram-queue-7-" in run_dir.name
    assert run["run"] == run_dir.name
    assert run["status"] == "running"
    assert run["backend"] == {"name": "local"}
    assert Test.from_json(run["test"]) == TEST
    assert (run_dir / "logs").is_dir()


def test_runs_of_one_second_have_folders_of_their_own(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    hexes = iter(["aaaa", "aaaa", "aaaa", "bbbb", "cccc"])
    monkeypatch.setattr("stormproof.store.secrets.token_hex", lambda size: next(hexes))
    assert len({store.create(TEST) for _ in range(3)}) == 3


def test_updates_are_whole_and_keep_the_rest(store: Store) -> None:
    run_dir = store.create(TEST)
    assert update_run(run_dir, status="recorded", history_sha256="00")["status"] == "recorded"
    assert read_run(run_dir)["history_sha256"] == "00"
    assert read_run(run_dir)["test"]["seed"] == 7
    assert sorted(p.name for p in run_dir.iterdir()) == ["logs", "run.json"]


OLD = {
    "schema": 1,
    "run": "r",
    "test": {"design": "joram", "workload": "queue", "nemesis": ["partition", "kill"], "backend": "sim", "nodes": 5,
             "seed": 7, "time_limit": 30.0, "rate": 200.0, "concurrency": 6, "options": {"design": "x"}},
    "status": "recorded",
    "failure": None,
    "backend": {"name": "sim", "why": "asked for"},
    "promises": ["lost"],
    "standings": {"lost": {"standing": "gap", "where": "4.2", "why": "because"},
                  "order": {"standing": "promised", "where": "ours", "why": ""}},
    "excused": {"gaps": ["missed-by-time"]},
    "gates": {"drain": True, "faults_proven": True, "min_ok": {"commit": 3}},
    "history_sha256": "00",
}  # fmt: skip


def old_run(run_dir: Path, **test: Any) -> dict[str, Any]:
    """What is read of a run whose description has schema 1."""
    run_dir.mkdir(parents=True)
    (run_dir / "run.json").write_text(json.dumps({**OLD, "test": {**OLD["test"], **test}}))
    return read_run(run_dir)


def test_a_description_of_schema_1_is_read_in_todays_words(tmp_path: Path) -> None:
    run = old_run(tmp_path / "r")
    test = Test("joram", "queue", ("partition", "kill"), "sim", 5, 7, options={"design": "x"})
    assert Test.from_json(run["test"]) == test
    assert run["guarantees"] == ["lost"]
    assert run["statuses"] == {"lost": {"status": "known violation", "where": "4.2", "why": "because"},
                               "order": {"status": "promised", "where": "ours", "why": ""}}  # fmt: skip
    assert run["exemptions"] == {"gaps": ["missed-by-time"]}
    assert run["gates"] == {"drain": True, "faults_confirmed": True, "min_ok": {"commit": 3}}
    assert run["backend"] == {"name": "sim", "why": "asked for", "lateness": 0.25, "in_process": True}
    assert not {"promises", "standings", "excused", "subject"} & set(run)
    assert (run["schema"], run["status"], run["history_sha256"]) == (SEALED_SINCE - 1, "recorded", "00")


@pytest.mark.parametrize(
    ("workload", "name", "subject"),
    [("reaction", "processing", None), ("forward", "store-and-forward", None), ("events", "events", "events")],
)
def test_an_old_workload_has_todays_name_and_subject(
    workload: str, name: str, subject: str | None, tmp_path: Path
) -> None:
    run = old_run(tmp_path / "r", workload=workload)
    assert (run["test"]["workload"], run.get("subject")) == (name, subject)
    assert WORKLOADS.load(name).subject == (subject or "")


def test_an_old_description_that_is_updated_is_one_of_today(tmp_path: Path) -> None:
    read = old_run(tmp_path / "r")
    assert update_run(tmp_path / "r", status="checked") == read | {"status": "checked"}
    stored = json.loads((tmp_path / "r" / "run.json").read_text())
    assert stored == read | {"status": "checked"} == read_run(tmp_path / "r")


@pytest.mark.parametrize("backend", sorted(set(BACKENDS.names()) - {"compose"}))  # it is younger than schema 1
def test_old_runs_know_of_their_backend_what_new_ones_store(backend: str) -> None:
    found = upgraded({"schema": 1, "backend": {"name": backend}})["backend"]
    known = BACKENDS.load(backend)
    assert found == {"name": backend, "lateness": known.lateness, "in_process": known.in_process}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 99}'])
def test_a_damaged_description_is_told(store: Store, text: str) -> None:
    run_dir = store.create(TEST)
    (run_dir / "run.json").write_text(text)
    with pytest.raises(HistoryError, match=r"run\.json"):
        read_run(run_dir)


def test_a_folder_that_is_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="is not a run"):
        read_run(tmp_path)


def test_a_store_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StormproofError, match="choose another --store"):
        Store(tmp_path / "file").create(TEST)


def test_runs_are_listed_oldest_first_and_nothing_else_is(store: Store) -> None:
    assert store.runs() == []
    names = [f"20261120T2000{i:02}-joram-queue-7-00a{i % 10}" for i in (5, 3, 11)]
    for name in names:
        fake_run(store, name)
    (store.path / "notes").mkdir()
    (store.path / "20261120T200000-joram-queue-7-00aa").write_text("a file")
    assert [run.name for run in store.runs()] == sorted(names)


def test_a_listing_reads_no_run(store: Store) -> None:
    run_dir = fake_run(store, "20261120T200000-joram-queue-7-00aa")
    (run_dir / "run.json").unlink()
    assert store.runs() == [run_dir]


def test_a_run_is_found_by_id_prefix_path_and_latest(store: Store) -> None:
    old = fake_run(store, "20261120T200000-joram-queue-7-00aa")
    new = fake_run(store, "20261120T200001-joram-queue-7-00bb")
    elsewhere = fake_run(Store(store.path.parent), "20261120T200001-joram-queue-7-00cc")
    assert store.resolve(old.name) == old
    assert store.resolve("20261120T200000") == old
    assert store.resolve("latest") == new
    assert store.resolve(str(elsewhere)) == elsewhere
    assert store.resolve(str(new)) == new


@pytest.mark.parametrize("schema", [1, RUN_SCHEMA])
def test_the_latest_of_one_second_is_the_one_started_last(store: Store, schema: int) -> None:
    last = fake_run(store, "20261120T200000-joram-queue-7-00aa", "2026-11-20T20:00:00.9", schema)
    fake_run(store, "20261120T200000-joram-queue-7-ffff", "2026-11-20T20:00:00.1", schema)
    assert store.resolve("latest") == last


def test_an_ambiguous_and_an_unknown_run_are_told(store: Store) -> None:
    for i in range(7):
        fake_run(store, f"20261120T20000{i}-joram-queue-7-00aa")
    with pytest.raises(UsageError, match=r"beginning of 7 runs: .* and 2 more"):
        store.resolve("20261120T2")
    with pytest.raises(UsageError, match="no run 'nonsense'"):
        store.resolve("nonsense")
    with pytest.raises(UsageError, match="no run ''"):
        store.resolve("")
    with pytest.raises(UsageError, match="holds no runs yet"):
        Store(store.path / "empty").resolve("latest")


def test_the_lock_tells_who_is_alive(store: Store) -> None:
    run_dir = store.create(TEST)
    assert not is_alive(run_dir)
    with RunLock(run_dir):
        assert is_alive(run_dir)
        with pytest.raises(StormproofError, match="in use by another process"):
            RunLock(run_dir)
    assert not is_alive(run_dir)


def test_the_lock_ends_with_its_process(store: Store) -> None:
    run_dir = store.create(TEST)
    script = (
        "import sys, time; from pathlib import Path; from stormproof.run_folder import RunLock\n"
        "lock = RunLock(Path(sys.argv[1])); print('locked', flush=True); time.sleep(600)"
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(run_dir)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == b"locked\n"
        assert is_alive(run_dir)
        with pytest.raises(UsageError, match="still running"):
            recover(run_dir)
        child.kill()
        child.wait(30)
    assert not is_alive(run_dir)


@pytest.mark.requirement("H15")
def test_recover_seals_what_a_dead_harness_left(store: Store) -> None:
    run_dir = store.create(TEST)
    record(run_dir, 11)
    journal = run_dir / "journal.bin"
    with journal.open("ab") as file:
        file.write(b"SPJ1 cut off")
    found = recover(run_dir)
    assert (found.rows, found.dropped_bytes, found.changed) == (11, 12, True)
    run = read_run(run_dir)
    assert run["status"] == "recorded"
    assert "12 bytes of a torn last write were dropped" in run["failure"]
    assert read_history(run_dir).num_rows == 11
    assert not journal.exists()


def test_recover_is_idempotent(store: Store) -> None:
    run_dir = store.create(TEST)
    record(run_dir, 4)
    assert recover(run_dir).changed
    before = read_run(run_dir)
    assert not recover(run_dir).changed
    assert read_run(run_dir) == before


def test_recover_leaves_a_finished_run_alone(store: Store) -> None:
    run_dir = store.create(TEST)
    record(run_dir, 4)
    recover(run_dir)
    update_run(run_dir, status="checked", failure=None)
    assert not recover(run_dir).changed
    assert read_run(run_dir)["status"] == "checked"


@pytest.mark.parametrize("journal", [None, b"", b"SPJ1", b"SPJ1\x20\0\0\0abcd{"])
def test_a_run_that_died_before_its_first_operation_is_broken(store: Store, journal: bytes | None) -> None:
    run_dir = store.create(TEST)
    if journal is not None:
        (run_dir / "journal.bin").write_bytes(journal)
    assert recover(run_dir).changed
    assert read_run(run_dir)["status"] == "broken"
    assert "there is no history" in read_run(run_dir)["failure"]
    assert not recover(run_dir).changed


def test_a_description_that_cannot_be_written_is_told_and_stays(store: Store) -> None:
    run_dir = store.create(TEST)
    before = read_run(run_dir)
    (run_dir / f"run.json.{os.getpid()}.partial").mkdir()
    with pytest.raises(StormproofError, match=r"can't write .*run\.json"):
        update_run(run_dir, status="recorded")
    assert read_run(run_dir) == before
