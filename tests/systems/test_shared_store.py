"""The storage service on a helper node: brokers that share its database lose nothing, on every backend."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from system_runs import HERE, backends, run_of, simulated

SHARED_STORE = f"{HERE / 'shared_store.py'}:SharedStore"


@pytest.mark.parametrize("backend", backends(slow="real"))
def test_nothing_is_lost(tmp_path: Path, backend: str) -> None:
    """Brokers and the store are killed, paused and cut off from each other: what was confirmed is there."""
    words = {"fault_duration": "3", "min_ok": "20", "partition_kind": "one", "fault_network": "behind",
             "kill_kind": "master"}
    faults = "partition,kill,pause"
    if backend == "sim":
        ran = simulated(SHARED_STORE, tmp_path / "runs", faults, nodes=2, time_limit=15, **words)
    else:
        ran = run_of(SHARED_STORE, tmp_path / "runs", backend, "--nodes", "2", "--nemesis", faults,
                     "--time-limit", "15", "--rate", "60", **words)  # fmt: skip
    assert (ran.status, ran.verdict["verdict"]) == (0, "valid"), ran.out + ran.err
    assert ran.run is not None
    events = [json.loads(line) for line in (ran.run / "log-events.jsonl").read_text().splitlines()]
    assert all(-5 < event["time"] < 60 for event in events)
    assert len({event["node"] for event in events if event["role"] == "active"}) == 2, "the store was taken over"


@pytest.mark.soak
@pytest.mark.requirement("F6", part=True)
@pytest.mark.parametrize("backend", backends(slow="real")[1:])
def test_nothing_is_lost_with_postgresql_behind_the_service(tmp_path: Path, backend: str) -> None:
    """Its postmaster is killed again and again, with kill -9, and started again by the heal."""
    ran = run_of(SHARED_STORE, tmp_path / "runs", backend, "--nodes", "2", "--nemesis", "kill", "--time-limit", "15",
                 "--rate", "60", database="postgres", kill_kind="store", kill_program="postgres", fault_duration="2",
                 min_ok="20")  # fmt: skip
    assert (ran.status, ran.verdict["verdict"]) == (0, "valid"), ran.out + ran.err
    assert ran.run is not None
    told = (ran.run / "logs" / "vault.broker.log").read_text()
    assert "database lost" in told and "database open" in told


@pytest.mark.parametrize("seed", range(4))
def test_many_faults(tmp_path: Path, seed: int) -> None:
    """The store's machine is hit too: killed, and its power cut."""
    ran = simulated(SHARED_STORE, tmp_path / "runs", "partition,kill,pause,power", nodes=3, seed=seed, time_limit=20,
                    fault_duration="2", fault_retries="3", kill_kind="store", power_kind="store",
                    fault_network="behind")  # fmt: skip
    assert ran.verdict["verdict"] == "valid", ran.out
