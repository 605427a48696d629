"""Whole runs in simulation: they end, they repeat exactly, and they tell safe settings from unsafe ones."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from simulated import simulated, small_test, stormy_test, traces

from checkers.run_check import check_run
from harness.sim.clock import EPOCH
from nemesis.catalog import FAULTS
from nodes.reference.engine.engine import StoreEngine
from reports.run_page import write_report
from stormproof.history.ledger import read_ledger
from stormproof.history.log_timestamps import read_moments
from stormproof.run_folder import HARNESS_LOG, read_run
from workloads.reference.stomp_client import StompClient

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def test_a_run_exercises_every_fault_and_confirms_it(tmp_path: Path) -> None:
    run_dir = simulated(small_test(3), tmp_path)
    windows = read_ledger(run_dir / "ledger.jsonl")
    assert {window.fault for window in windows if window.confirmed} == {"partition", "pause", "kill"}
    verdict = check_run(run_dir)
    assert verdict.verdict == "valid", verdict.sentence
    assert verdict.figures["enqueue_ok"] >= 20
    log = (run_dir / "logs" / "n1.log").read_text()
    assert "2000-01-01T00:00" in log and "promoted" in log


@pytest.mark.requirement("H5", part=True)
@pytest.mark.parametrize("family", ["stop", "power", "reboot", "packets", "clock", "disk"])
def test_each_kind_of_a_fault_is_confirmed_and_survived(family: str, tmp_path: Path) -> None:
    kinds = FAULTS.load(family).kinds
    settings = {"fault_duration": 1.5, "fault_gap": 1.0, "quiet_before": 0.05, "quiet_after": 0.05}
    test = small_test(2, nemesis=family, time_limit=5.0 + 4.0 * len(kinds), rate=12.0, settings=settings)
    run_dir = simulated(test, tmp_path)
    windows = read_ledger(run_dir / "ledger.jsonl")
    assert {window.kind for window in windows if window.confirmed and not window.error} == set(kinds)
    verdict = check_run(run_dir)
    assert verdict.verdict == "valid", verdict.sentence


def test_what_the_harness_logs_is_in_the_runs_folder_at_simulated_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(self: StompClient) -> None:
        raise ConnectionError("the close was refused")

    assert not (simulated(small_test(3), tmp_path) / HARNESS_LOG).exists(), "there was nothing to say"
    monkeypatch.setattr(StompClient, "close", refuse)
    lines = (simulated(small_test(3), tmp_path) / HARNESS_LOG).read_text().splitlines()
    assert len(lines) >= 6
    for line in lines:
        assert re.fullmatch(
            r"\d+\.\d{6} stormproof\.interpreter closing a client failed: ConnectionError: the close was refused", line
        )


@pytest.mark.requirement("H5", part=True)
def test_all_faults_together_are_survived(tmp_path: Path) -> None:
    for seed in (1, 2):
        run_dir = simulated(stormy_test(seed), tmp_path)
        verdict = check_run(run_dir)
        assert verdict.verdict == "valid", verdict.sentence
        logs = sorted((run_dir / "logs").glob("*.log"))
        assert [log.name for log in logs] == ["n1.log", "n2.log", "n3.log"]
        for log in logs:
            moments = read_moments(log, len(log.read_text().splitlines()))
            assert moments and moments == sorted(moments), "no clock fault moves them"
            assert 0.0 < moments[0] - EPOCH.timestamp() < 1.0


@pytest.mark.requirement("H15", part=True)
def test_planned_faults_that_had_no_time_are_told(tmp_path: Path) -> None:
    settings = {"fault_duration": "0.6", "fault_gap": "0.1"}
    for nemesis, all_took_place in (("power,reboot", False), ("pause", True)):
        run_dir = simulated(small_test(1, nemesis=nemesis, settings=settings), tmp_path)
        planned, begun = read_run(run_dir)["faults_planned"], len(read_ledger(run_dir / "ledger.jsonl"))
        assert begun >= 3 and (begun == planned) == all_took_place and begun <= planned
        page = write_report(run_dir).read_text()
        assert (f"{begun} of {planned} planned faults were injected" in page) == (not all_took_place)
        assert (f">{begun} of {planned}<" in page) == (not all_took_place)


def test_a_broker_whose_disk_fails_ends_and_says_why(tmp_path: Path) -> None:
    settings = {"disk_kind": "sync-error", "fault_duration": 1.5}
    run_dir = simulated(small_test(3, nemesis="disk", time_limit=6.0, settings=settings), tmp_path)
    (window,) = read_ledger(run_dir / "ledger.jsonl")
    log = (run_dir / "logs" / f"{window.targets[0]}.log").read_text()
    assert "broker failed" in log and "simulated sync error" in log
    assert window.heal_evidence["broker"] == "dead" and window.heal_evidence["after"] == "running"
    assert check_run(run_dir).verdict == "valid"


def test_two_masters_lose_messages_where_the_settings_allow_two(tmp_path: Path) -> None:
    settings = {"partitions": "unspecified", "partition_kind": "master", "fault_duration": 4.0}
    verdicts = [
        check_run(simulated(small_test(seed, nemesis="partition", settings=settings), tmp_path)) for seed in (3, 4, 5)
    ]
    assert all(verdict.verdict == "invalid" for verdict in verdicts)
    assert all(verdict.anomalies.get("lost") or verdict.anomalies.get("duplicated") for verdict in verdicts)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_while_a_broker_writes_ends_the_run_early_and_keeps_its_history(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    flush, writes = StoreEngine.flush, itertools.count(1)

    def interrupted(engine: StoreEngine) -> None:
        if next(writes) == 300:
            signal.raise_signal(number)
        flush(engine)

    monkeypatch.setattr(StoreEngine, "flush", interrupted)
    # Spark, in another test of this process, may have left a handler of its own.
    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            simulated(small_test(3), tmp_path)
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    (run_dir,) = tmp_path.iterdir()
    assert read_run(run_dir)["history_sha256"]
    assert 50 < pq.read_metadata(run_dir / "history.parquet").num_rows < 500
    assert "Traceback" not in capfd.readouterr().err
    assert "broker failed" not in "".join(log.read_text() for log in (run_dir / "logs").iterdir())


def test_other_seeds_give_other_runs(tmp_path: Path) -> None:
    assert traces(simulated(small_test(1), tmp_path)) != traces(simulated(small_test(2), tmp_path))


@pytest.mark.requirement("H4")
@pytest.mark.parametrize("count", [8, pytest.param(100, marks=pytest.mark.soak)])
def test_seeds_repeat_to_the_byte_in_another_process_with_another_hash_seed(count: int, tmp_path: Path) -> None:
    _compare(tmp_path, 1, count, 3.0)


@pytest.mark.soak
def test_a_hundred_longer_runs_repeat_to_the_byte(tmp_path: Path) -> None:
    _compare(tmp_path, 1000, 100, 30.0)


def test_a_run_that_follows_others_in_a_process_is_the_same_as_alone(tmp_path: Path) -> None:
    alone = _digests(_replaying(tmp_path / "a", "1", 5, 1, 10.0))
    assert _digests(_replaying(tmp_path / "b", "1", 3, 3, 10.0))[-1:] == alone


def _compare(folder: Path, first: int, count: int, seconds: float) -> None:
    """Two processes at once, in surroundings that differ, must do the same."""
    both = [_replaying(folder / hash_seed, hash_seed, first, count, seconds) for hash_seed in ("1", "random")]
    one, other = (_digests(process) for process in both)
    assert one == other
    assert len({run["history"] for run in one}) == count


def _replaying(folder: Path, hash_seed: str, first: int, count: int, seconds: float) -> subprocess.Popen[str]:
    # Nothing of the surroundings may matter: not the folder, not the environment.
    environment = {
        "PATH": os.environ.get("PATH", ""), "PYTHONHASHSEED": hash_seed, "TZ": "Asia/Tokyo" if hash_seed == "1" else "",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]), "HOME": str(folder),
        "STORMPROOF_SLOW": "3" if hash_seed == "1" else "1",
    }  # fmt: skip
    arguments = [str(folder), str(first), str(count), str(seconds)]
    return subprocess.Popen(
        [sys.executable, str(HERE / "replayed.py"), *arguments], env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _digests(process: subprocess.Popen[str]) -> list[dict[str, str]]:
    with process:
        output, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors
    assert errors == ""
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.requirement("J7", part=True)
@pytest.mark.parametrize("seed", [1, 14, 38])
def test_what_was_confirmed_early_is_brought_back_when_its_connection_is_closed(seed: int, tmp_path: Path) -> None:
    settings = {"propagation": "asynchronous", "fault_duration": 0.6, "fault_gap": 0.1, "settle_timeout": 30.0,
                "detection_timeout": 0.5, "idle_timeout": 1.0, "min_ok": 10, "fault_retries": 3}
    test = small_test(seed, nemesis="partition,pause,kill,power,reboot,packets", time_limit=14.0, settings=settings)
    verdict = check_run(simulated(test, tmp_path))
    assert verdict.verdict == "valid", verdict.sentence
