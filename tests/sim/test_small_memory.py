"""A small /dev/shm, as in a container: campaigns, a whole run with its check, a browser that shows the report."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from harness.sim import pool
from stormproof.errors import StormproofError

Usage = namedtuple("Usage", "total used free")
SMALL = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=4k none /dev/shm && exec "$@"', "sh"]
CAMPAIGN = ["simulate", "--seeds", "2", "--time-limit", "10", "--set", "min_ok=10", "--collect"]


def test_scratch_folders_are_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_MEMORY", tmp_path / "memory")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "disk"))
    for name in ("memory", "disk"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 30, 0, 64 << 20))
    for jobs, place in ((1, "memory"), (4, "memory"), (5, "disk")):
        assert pool._scratch_place(jobs) in (str(tmp_path / place), None if place == "disk" else "")
    with pool.worker_pool(1) as (_, scratch):
        assert scratch.parent.name == "memory"
    left = tmp_path / "disk" / "stormproof-sim-left"
    left.mkdir()
    os.utime(left, (1, 1))
    assert pool.remove_left() == [f"folder {left}"], "folders are found in both places"


def test_too_little_for_several_processes_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(jobs: int) -> pool.Workers:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pool, "Workers", full)
    with pytest.raises(StormproofError, match=r"make /dev/shm larger, or use --jobs 1$"), pool.worker_pool(2):
        pass


@pytest.mark.soak
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="only root can mount a /dev/shm")
@pytest.mark.parametrize(("words", "status", "told"), [
    ([*CAMPAIGN, "--jobs", "2"], 3, "make /dev/shm larger, or use --jobs 1"),
    ([*CAMPAIGN, "--jobs", "1"], 0, "2 valid"),
    (["test", "--backend", "sim", "--time-limit", "10"], 0, "Valid: "),  # Spark checks it
])
def test_a_shared_memory_of_one_page(tmp_path: Path, words: list[str], status: int, told: str) -> None:
    command = [*SMALL, sys.executable, "-m", "harness", *words, "--store", str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode == status and told in done.stdout + done.stderr, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and [path.name for path in tmp_path.iterdir()] in (["store"], [])


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="only root can mount a /dev/shm")
def test_a_browser_shows_reports_where_shared_memory_is_small() -> None:
    """Playwright has Chromium use the folder for temporary files instead."""
    tests = Path(__file__).parents[1] / "reports" / "test_report_browser.py"
    done = subprocess.run([*SMALL, sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", str(tests)],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout
