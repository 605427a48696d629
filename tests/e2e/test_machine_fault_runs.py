"""Whole runs with faults of disks, power and clocks on real nodes: evidence, verdicts, and what is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from command import children, docker_works, left_behind, on, only_run

from harness.backends.clock_machines import has_library
from harness.backends.disk_control import can_mount
from stormproof.history.ledger import read_ledger
from stormproof.history.undo import pending_undos
from stormproof.run_folder import UNDO_FILE

pytestmark = [
    pytest.mark.soak,
    pytest.mark.requirement("H5", part=True),
    pytest.mark.skipif(not (can_mount().available and has_library().available), reason="no FUSE or no libfaketime"),
    pytest.mark.parametrize("backend", ["local", pytest.param("docker", marks=pytest.mark.docker)]),
]

BACKLOG = ("--set", "producers=5", "--set", "consumers=1")
"""There is something to lose."""
SHARED = ("--system", "fiorano", "--nemesis", "shared-db", "--set", "mode=shared")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("words", "kinds", "verdict", "anomalies"), [
    (("--system", "qpid", "--nemesis", "disk", "--set", "disk_target=backup", "--set", "disk_kind=sync-error"),
     {"sync-error"}, "valid", set()),
    ((*SHARED, "--set", "shared_db_kind=slow"), {"slow"}, "valid", set()),
    ((*SHARED, *BACKLOG, "--set", "shared_db_kind=damage"), {"damage"}, "invalid", {"lost"}),
    (("--system", "joram", "--nemesis", "power", "--set", "power_kind=all"), {"all"}, "valid", set()),
    (("--system", "joram", "--nemesis", "clock", "--set", "clock_kind=skew"), {"skew"}, "valid", set()),
    (("--system", "standalone", *BACKLOG, "--nemesis", "disk", "--set", "disk_kind=lose-unsynced",
      "--bug", "commit-unsynced"), {"lose-unsynced"}, "invalid", {"lost"}),
], ids=["qpid-store", "fiorano-slow", "fiorano-damage", "joram-power", "joram-clock", "standalone"])  # fmt: skip
def test_a_run(
    tmp_path: Path, backend: str, words: Sequence[str], kinds: set[str], verdict: str, anomalies: set[str]
) -> None:
    if backend == "docker" and not docker_works():
        pytest.skip("no Docker here")
    given = ["--backend", backend, "--store", str(tmp_path), "--time-limit", "40", "--rate", "60", "--json"]
    done = on(backend).stormproof("test", *words, *given, "--set", "min_ok=20", "--seed", "3", timeout=350)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    answer = json.loads(done.stdout)
    run = only_run(tmp_path)
    found = [window for window in read_ledger(run / "ledger.jsonl") if window.confirmed]
    assert {window.kind for window in found} == kinds, (run / "ledger.jsonl").read_text()
    assert answer["verdict"] == verdict and set(answer["anomalies"]) >= anomalies, answer
    assert left_behind(run) == []


@pytest.mark.timeout(400)
def test_a_killed_harness_leaves_no_disk_and_no_clock(tmp_path: Path, backend: str) -> None:
    """``stormproof heal`` unmounts, removes the folders, and closes the journal."""
    if backend == "docker" and not docker_works():
        pytest.skip("no Docker here")
    where = on(backend)
    faults = ["--nemesis", "disk,clock", "--set", "disk_kind=slow", "--set", "fault_duration=100", "--time-limit",
              "200", "--set", "quiet_before=0.02", "--set", "quiet_after=0.02"]  # fmt: skip
    with where.start_test(tmp_path, *faults) as harness:
        deadline = time.monotonic() + 120
        while sum(len(pending_undos(path.parent)) for path in tmp_path.glob(f"*/{UNDO_FILE}")) < 2:
            assert time.monotonic() < deadline and harness.poll() is None, (tmp_path / "out").read_text()
            time.sleep(0.2)
        for pid in [harness.pid, *children(harness.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    run = only_run(tmp_path)
    healed = where.stormproof("heal", "--store", str(tmp_path))
    assert healed.returncode == 0, healed.stdout + healed.stderr
    assert pending_undos(run) == [] and left_behind(run) == []
    assert run.name not in Path("/proc/mounts").read_text()
