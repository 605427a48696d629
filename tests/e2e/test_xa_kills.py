"""Two-phase transactions (XA) while brokers are killed, clients crash when they have prepared, or the harness dies."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from command import await_fault, children, on, run_info

from harness.run.cases import Case
from harness.sim.campaign import run_seed

XA = {"transactions": "xa", "crash_share": "0.2", "min_ok": "5"}
QUICK = {"fault_duration": "0.6", "fault_gap": "0.2", "settle_timeout": "30", "detection_timeout": "0.5"}
WORDS = ["--system", "joram", "--workload", "transaction", "--nemesis", "kill", "--time-limit", "12", "--rate", "60",
         *(word for name, value in XA.items() for word in ("--set", f"{name}={value}"))]  # fmt: skip


def simulated(folder: Path, seeds: range) -> list[str]:
    case = Case(system="joram", workload="transaction", nemesis="kill,power", nodes=3, time_limit=8.0, rate=30.0,
                settings={**XA, **QUICK, "idle_timeout": "1"})
    scratch, kept = folder / "scratch", folder / "kept"
    for place in (scratch, kept):
        place.mkdir()
    return [run_seed(case, seed, scratch, kept, "none").verdict for seed in seeds]


def test_branches_survive_kills_and_losses_of_power(tmp_path: Path) -> None:
    assert simulated(tmp_path, range(1, 2)) == ["valid"]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_branches_survive_them_in_many_runs(tmp_path: Path) -> None:
    found = simulated(tmp_path, range(100, 160))
    assert found.count("invalid") == 0 and found.count("valid") > 50, found


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("killed", [False, True], ids=["brokers", "harness too"])
def test_a_real_run(tmp_path: Path, killed: bool) -> None:
    where = on("local")
    process = where.start_test(tmp_path, *WORDS)
    run = await_fault(tmp_path)
    if killed:  # all clients at once, in the middle of whatever they have prepared
        time.sleep(2)
        for pid in [process.pid, *children(process.pid)]:
            with suppress(ProcessLookupError):  # a client may have ended meanwhile
                os.kill(pid, signal.SIGKILL)
    status = process.wait(300)
    assert status == (-signal.SIGKILL if killed else 0), (tmp_path / "out").read_text()
    assert where.stormproof("heal", "--store", str(tmp_path)).returncode == 0
    assert where.stormproof("recover", "--store", str(tmp_path)).returncode == 0
    checked = where.stormproof("check", run.name, "--store", str(tmp_path), "--json")
    verdict = json.loads(checked.stdout)["verdict"]
    assert verdict == ("unknown" if killed else "valid"), checked.stdout
    assert where.left_behind(run) == [] and run_info(run)["status"] == "recorded"
