"""Durable connections in simulation: the workload ``offline-send``, and what its checks make of broken clients."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from simulated import simulated, small_test

from checkers.run_check import check_run
from checkers.verdict import Verdict
from workloads.reference.durable.connection import DurableConnection
from workloads.reference.durable.repository import MessageRepository

pytestmark = pytest.mark.requirement("F7")


def judged(folder: Path, seed: int, system: str, nodes: int, nemesis: str) -> tuple[Verdict, Path]:
    test = small_test(seed, system=system, workload="offline-send", nodes=nodes, nemesis=nemesis, rate=50.0,
                      settings={"kills": 15, "fault_retries": 3})
    run_dir = simulated(test, folder)
    return check_run(run_dir), run_dir


@pytest.mark.parametrize(("system", "nodes", "nemesis", "seed"), [
    ("standalone", 1, "kill,power", 1), ("joram", 3, "partition,kill", 2)])  # fmt: skip
def test_what_clients_accepted_arrives_in_order_though_brokers_and_clients_die(
    tmp_path: Path, system: str, nodes: int, nemesis: str, seed: int
) -> None:
    verdict, run_dir = judged(tmp_path, seed, system, nodes, nemesis)
    assert verdict.verdict == "valid", verdict.sentence
    rows = pq.read_table(run_dir / "history.parquet").to_pylist()
    sends = Counter((row["error"] or "").split(":")[0] for row in rows if row["f"] == "enqueue" and row["type"] > 0)
    assert sends["kept in the repository"] > 50 and sends["the client was killed"] > 3
    failed = [row for row in rows if row["f"] == "enqueue" and row["type"] == 2]
    assert not failed, "no operation fails through a durable connection"


def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that a message is kept before it is on disk."""
    monkeypatch.setattr(MessageRepository, "sync", lambda self: None)


def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """It transfers what it has kept in the wrong order."""
    def upside_down(self: Any, *arguments: Any, **more: Any) -> None:
        original(self, *arguments, **more)
        self._line.reverse()

    original = DurableConnection.__init__
    monkeypatch.setattr(DurableConnection, "__init__", upside_down)


def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not say that a copy may not be the first."""
    monkeypatch.setattr("workloads.reference.durable.connection.SENT_AGAIN", "x-not-read")


@pytest.mark.parametrize(("broken", "check"), [
    (forgetful, "lost"), (hasty, "transfer-order"), (silent, "untold-duplicate")])  # fmt: skip
def test_a_broken_client_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Any, check: str) -> None:
    broken(monkeypatch)
    verdict, _ = judged(tmp_path, 1, "standalone", 1, "kill")
    assert verdict.verdict == "invalid" and verdict.anomalies[check] > 0, verdict.sentence
