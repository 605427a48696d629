"""Principals, rights and objects in simulation: the workload ``security``, and brokers that its check finds broken."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from simulated import simulated, small_test

from checkers.run_check import check_run
from checkers.verdict import Verdict
from nodes.reference.engine.security import Security
from nodes.systems.reference.joram.system import JORAM
from workloads.reference.security import rights as rights_of

pytestmark = pytest.mark.requirement("F8", part=True)


def judged(folder: Path, seed: int, system: str, nodes: int, nemesis: str) -> tuple[Verdict, Path]:
    test = small_test(seed, system=system, workload="security", nodes=nodes, nemesis=nemesis, rate=60.0)
    run_dir = simulated(test, folder)
    return check_run(run_dir), run_dir


@pytest.mark.parametrize(("system", "nodes", "nemesis"), [
    ("standalone", 1, "kill,power"), ("joram", 3, "partition,kill")])  # fmt: skip
def test_rights_hold_for_what_comes_later_whoever_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, nodes: int, nemesis: str
) -> None:
    """Any design that orders the engine's commands can have them; ``joram`` does not offer them, and is asked here."""
    monkeypatch.setattr(JORAM, "provides", JORAM.provides | {"security"})
    verdict, run_dir = judged(tmp_path, 3, system, nodes, nemesis)
    assert verdict.verdict == "valid", verdict.sentence
    rows = pq.read_table(run_dir / "history.parquet").to_pylist()
    rights = len(rights_of({"principals": 2, "queues": 2}))
    tried = Counter(row["value"] for row in rows if row["f"] == "look" and row["type"] == 1 and row["key"] < rights)
    assert min(tried[0], tried[1]) > 10, "rights were had, and not had"
    found = Counter(row["value"] for row in rows if row["f"] == "look" and row["type"] == 1 and row["key"] >= rights)
    assert min(found[0], found[1]) > 3
    told = "".join(path.read_text() for path in (run_dir / "logs").iterdir())
    assert "pass-p" not in told and "pass-loose" not in told


def unrevoked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A right that was taken away is still there for whoever had it."""
    held: set[tuple[str, str, str]] = set()

    def permits(self: Security, login: str, right: str, destination: str) -> bool:
        found = original(self, login, right, destination)
        held.update({(login, right, destination)} if found else ())
        return found or (login, right, destination) in held

    original = Security.permits
    monkeypatch.setattr(Security, "permits", permits)


def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules are kept in memory alone."""
    def flush(self: Any, changes: Any) -> None:
        self.table.forget()

    monkeypatch.setattr(Security, "flush", flush)


@pytest.mark.parametrize("broken", [unrevoked, forgotten])
def test_broken_brokers_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Any) -> None:
    broken(monkeypatch)
    verdict, _ = judged(tmp_path, 1, "standalone", 1, "kill")
    assert verdict.verdict == "invalid" and verdict.anomalies["metadata"] > 0, verdict.sentence
