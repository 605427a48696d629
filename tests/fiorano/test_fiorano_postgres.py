"""Mode shared with PostgreSQL behind the storage service, as real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.run.settings import make_test
from stormproof.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]


def test_postgresql_is_not_simulated() -> None:
    with pytest.raises(UsageError, match="store=postgres asks for programs that can't be simulated"):
        make_test(system="fiorano", workload="queue", nemesis="kill", backend="sim", nodes=None, time_limit=5.0,
                  rate=5.0, seed=1, settings={"mode": "shared", "store": "postgres"})


@pytest.mark.soak
@pytest.mark.requirement("F6", part=True)
@pytest.mark.parametrize("backend", ["local", pytest.param("docker", marks=pytest.mark.docker)])
def test_a_database_server_that_is_killed_costs_nothing_that_was_confirmed(tmp_path: Path, backend: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stormproof", "test", "--system", "fiorano", "--set", "mode=shared",
         "--set", "store=postgres", "--workload", "queue", "--nemesis", "kill", "--set", "kill_kind=shared-db",
         "--set", "kill_program=postgres", "--backend", backend, "--time-limit", "15", "--rate", "60", "--seed", "3",
         "--set", "fault_duration=2", "--set", "min_ok=20", "--store", str(tmp_path / "runs"), "--json"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["verdict"] == "valid"
    (log,) = (tmp_path / "runs").glob("*/logs/shared-db.broker.log")
    assert "database lost" in log.read_text() and "database open" in log.read_text()
