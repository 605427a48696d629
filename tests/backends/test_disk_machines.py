"""Disks that fail and power that is cut, on real backends; after each, nothing may be left on the machine."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from places import HERE, NASTY, Place, make_place

from harness.backends.cleanup import cleanup
from harness.backends.disk_control import can_mount
from harness.backends.disk_machines import PROGRAM, program_files

pytestmark = pytest.mark.skipif(not can_mount().available, reason=can_mount().detail)


@pytest.mark.requirement("H5", part=True)
def test_what_is_synced_survives_a_power_cut() -> None:
    """And what is not does not."""
    with make_place(HERE) as place:
        place.env["STORMPROOF_TEST_NEMESIS"] = "power"
        place.check("power", "adapter_files")


@pytest.mark.requirement("H5", part=True)
@pytest.mark.parametrize("name", [HERE, pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.soak])])
@pytest.mark.parametrize("check", ["disk", "elsewhere", "mapped", "setup"])
def test_faults_of_a_disk_count_only_what_they_did_to_the_system(check: str, name: str) -> None:
    """What it stores elsewhere is found there. Programs that map files meet no deadlock."""
    with make_place(name) as place:
        place.env["STORMPROOF_TEST_NEMESIS"] = "disk power"
        place.check(check)


def test_the_file_system_runs_where_this_project_is_not_installed(tmp_path: Path) -> None:
    """As over SSH: its files are in one folder there, and Python finds nothing else of the project."""
    for path in program_files():
        shutil.copy(path, tmp_path)
    point = tmp_path / "disk"
    point.mkdir()
    words = [sys.executable, "-S", str(tmp_path / PROGRAM), str(point), str(tmp_path / "kept"), "1"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path,
                          env={"PATH": os.environ["PATH"]}) as disk:  # fmt: skip
        assert disk.stdin is not None and disk.stdout is not None
        assert json.loads(disk.stdout.readline() or "{}") == {"ready": True}
        (point / "file").write_bytes(b"text")
        answer, _ = disk.communicate('{"do": "sync"}\n', timeout=60)
    assert json.loads(answer) == {"shown": 0, "cuts": 0, "lost": 0, "unsynced": 0}
    assert not list(point.iterdir()), "it is unmounted at the end of its input"


@pytest.mark.soak
@pytest.mark.requirement("H5", part=True)
@pytest.mark.parametrize("name", [HERE, pytest.param("docker", marks=pytest.mark.docker)])
def test_disks_fail_and_power_is_cut(name: str) -> None:
    """What the checks of disk_checks say, one after the other."""
    with make_place(name) as place:
        place.env["STORMPROOF_TEST_NEMESIS"] = "disk power"
        place.check("disk", "power")


@pytest.mark.soak
@pytest.mark.parametrize("victims", ["harness", "harness and disks"])
@pytest.mark.docker
def test_disks_are_unmounted_after_a_kill(victims: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk ends with the harness; one that was killed as well leaves a mount that `heal` removes with its folder."""
    with make_place("docker") as place:
        place.env["STORMPROOF_TEST_NEMESIS"] = "disk"
        child, pid = place.waiting()
        assert mounted(place) == 3
        disks = [each for each in place.processes() if b"fuse_disk" in Path(f"/proc/{each}/cmdline").read_bytes()]
        assert len(disks) == 3
        os.kill(pid, signal.SIGSTOP)  # else a disk may see that the harness is gone before it is killed itself
        for each in (*(disks if "disks" in victims else ()), pid):
            os.kill(each, signal.SIGKILL)
        child.wait(30)
        asyncio.run(gone(place))
        assert mounted(place) == (3 if "disks" in victims else 0)
        place.lock.close()
        monkeypatch.setattr("tempfile.tempdir", str(place.tmp))
        removed = cleanup([place.run])
        assert any(line.startswith("removed folder") for line in removed), removed
        assert mounted(place) == 0


def mounted(place: Place) -> int:
    """How many disks of a run are mounted."""
    return Path("/proc/mounts").read_text().count(f"stormproof {place.tmp}")


async def gone(place: Place) -> None:
    """Wait until what a killed process started has ended."""
    for _ in range(500):
        if not place.processes():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"processes are left: {place.processes()}")


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.requirement("H5", part=True)
@pytest.mark.parametrize("name", [HERE, pytest.param("docker", marks=pytest.mark.docker)])
@pytest.mark.parametrize(("bug", "lost_at"), [("", 0), ("commit-unsynced", 1)])
def test_a_broker_loses_what_it_did_not_sync(name: str, bug: str, lost_at: int) -> None:
    """Fifty power cuts under load lose nothing; with the syncs switched off the first one does."""
    with make_place(name) as place:
        place.env |= {"STORMPROOF_TEST_NEMESIS": "power", "STORMPROOF_TEST_CUTS": "50", "STORMPROOF_TEST_BUG": bug}
        figures = place.check("power_cuts", timeout=900)
    print(name, bug, figures)
    assert figures["lost_at"] == lost_at and figures["confirmed"] > figures["cuts"]


@pytest.mark.soak
@pytest.mark.parametrize("name", [HERE, pytest.param("docker", marks=pytest.mark.docker)])
def test_disks_and_clocks_in_a_folder_with_a_nasty_name(name: str) -> None:
    """Neither FUSE nor Docker nor libfaketime takes it for anything but a path."""
    with make_place(name, NASTY) as place:
        place.env["STORMPROOF_TEST_NEMESIS"] = "disk power clock"
        place.check("power", "clock")
