"""Whole runs of design fiorano: in simulation with each workload and mode, and with real processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.coverage import note_log_events
from harness.backends.probe import choose_backend
from harness.run.cases import Case, JudgedRun
from harness.sim.campaign import ALL, run_seed
from nodes.reference.designs.fiorano.configuration import MODES
from reports.disk_writes import disk_facts
from reports.run_page import write_report
from stormproof.errors import StormproofError


def simulated(store: Path, workload: str, nemesis: str, seed: int, **settings: Any) -> JudgedRun:
    """One simulated run of twenty seconds of load."""
    given = {"fault_duration": "2", "min_ok": "20", **{name: str(value) for name, value in settings.items()}}
    result = run_seed(Case("fiorano", workload, nemesis, 2, 20.0, 60.0, given), seed, store, store, ALL)
    assert result.run_dir is not None, result.sentence
    return result


@pytest.mark.requirement("F4", part=True)
@pytest.mark.requirement("F8", part=True)
@pytest.mark.parametrize(("mode", "workload"), [
    ("replicated", "queue"), ("replicated", "security"), ("shared", "transaction"),
    *(pytest.param("replicated", workload, marks=pytest.mark.soak) for workload in ("topic", "transaction")),
    *(pytest.param("shared", workload, marks=pytest.mark.soak) for workload in ("queue", "topic", "security")),
    *(pytest.param(mode, "offline-send", marks=pytest.mark.soak) for mode in MODES),
])  # fmt: skip
def test_no_guarantee_is_broken(tmp_path: Path, mode: str, workload: str) -> None:
    result = simulated(tmp_path, workload, "partition,pause,kill,power", 3, mode=mode)
    assert result.verdict == "valid", result.sentence
    assert result.coverage["failover"], "another server has served"


@pytest.mark.requirement("F3", part=True)
@pytest.mark.parametrize(("mode", "role"), [
    ("replicated", "gateway"), pytest.param("shared", "shared-db", marks=pytest.mark.soak)])  # fmt: skip
def test_the_machines_that_both_need_are_hit(tmp_path: Path, mode: str, role: str) -> None:
    """Killed, and cut off from everybody."""
    result = simulated(tmp_path, "queue", "partition,kill", 3, mode=mode, kill_kind=role, partition_kind=role)
    assert result.verdict == "valid", result.sentence


@pytest.mark.soak
@pytest.mark.requirement("F4", part=True)
@pytest.mark.requirement("F6", part=True)
@pytest.mark.parametrize("backend", ["local", "docker"])
@pytest.mark.parametrize("mode", MODES)
def test_real_processes(tmp_path: Path, backend: str, mode: str) -> None:
    """Servers, gateway and storage service as processes of their own, the HA channel a network of its own."""
    try:
        choose_backend(backend)
    except StormproofError as error:
        pytest.skip(str(error))
    done = subprocess.run([sys.executable, "-m", "harness", "test", "--system", "fiorano", "--backend", backend,
                           "--seed", "3", "--nemesis", "kill,pause,partition", "--time-limit", "25", "--rate", "60",
                           "--store", str(tmp_path), "--set", f"mode={mode}"], capture_output=True, text=True,
                          timeout=300, check=False)  # fmt: skip
    (verdict,) = tmp_path.glob("*/verdict.json")
    found = json.loads(verdict.read_text())
    assert done.returncode in (0, 2) and found["verdict"] != "invalid", done.stdout[-3000:]


@pytest.mark.requirement("F11", part=True)
@pytest.mark.parametrize(("mode", "least", "most"), [("replicated", 1.8, 2.3), ("shared", 0.8, 1.2)])
def test_disk_writes_are_counted_and_in_the_report(tmp_path: Path, mode: str, least: float, most: float) -> None:
    """Two for each store operation in the replicated mode, one in the shared one."""
    case = Case("fiorano", "queue", "none", 2, 8.0, 60.0, {"mode": mode, "producers": "1", "consumers": "1"})
    result = run_seed(case, 3, tmp_path, tmp_path, ALL)
    assert result.run_dir is not None
    note_log_events(result.run_dir)
    ((label, figure, remark),) = disk_facts(result.run_dir)
    assert label == "Disk writes" and least <= float(re.findall(r"[\d.]+", remark)[0]) <= most, (figure, remark)
    page = write_report(result.run_dir).read_text()
    assert figure in page and remark.partition(";")[0] in page
