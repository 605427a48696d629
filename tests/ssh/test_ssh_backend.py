"""Backend ``ssh`` against real sshd: what every backend does, what it refuses, what it leaves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.backends.clock_machines import has_library
from harness.backends.disk_control import can_mount
from harness.tools.bench.ssh_test_hosts import SshTestHosts, running_hosts, why_not

PROJECT = Path(__file__).resolve().parents[2]
ANY_BACKEND = PROJECT / "tests" / "backends" / "backend_child.py"
CHILD = Path(__file__).with_name("ssh_child.py")

pytestmark = pytest.mark.requirement("H2", part=True)


def child(hosts: SshTestHosts, script: Path, *words: str) -> str:
    """What a script prints that runs where the hosts can be reached."""
    env = {**os.environ, "STORMPROOF_TEST_OPTIONS": json.dumps(hosts.options), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([*hosts.enter, sys.executable, str(script), *words], env=env, capture_output=True, text=True,
                          timeout=160, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("checks", [
    ("commands", "shell_death", "limits", "files"),
    ("process", "process_leftovers"),
    ("network", "cut", "cut_while_paused", "keep_other_rules"),
    pytest.param(("usage", "usage_killed"), marks=pytest.mark.requirement("H29")),
    pytest.param(("packets", "packets_program_killed"), marks=pytest.mark.soak),
], ids=["shell", "process", "network", "usage", "packets"])
def test_it_passes_what_every_backend_passes(ssh_hosts: SshTestHosts, tmp_path: Path, checks: Sequence[str]) -> None:
    run_dir = tmp_path / f"test-{uuid.uuid4().hex[:8]}"
    run_dir.mkdir()
    assert "up_ms" in child(ssh_hosts, ANY_BACKEND, "ssh", str(run_dir), *checks)
    assert list(run_dir.iterdir()) == []


@pytest.mark.soak
@pytest.mark.skipif(not (can_mount().available and has_library().available), reason="no FUSE or no libfaketime here")
@pytest.mark.parametrize("checks", [("disk", "clock", "clock_that_does_not_show"), ("elsewhere", "setup")],
                         ids=lambda checks: checks[0])  # fmt: skip
def test_disks_and_clocks_over_ssh(
    ssh_hosts: SshTestHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checks: Sequence[str]
) -> None:
    """On hosts that share a kernel, and with it its clock."""
    monkeypatch.setenv("STORMPROOF_TEST_NEMESIS", "disk clock")
    assert "up_ms" in child(ssh_hosts, ANY_BACKEND, "ssh", str(tmp_path), *checks)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("checks", [
    ("refusals", "ssh_config", "outside"),
    ("machine_faults", "power_provider"),
    ("nothing_hangs_on", "one_run_a_host", "unreachable_host_is_healed_later", "control_is_never_cut"),
    ("code_is_reused", "missing_packages"),
    ("stall",),
], ids=lambda checks: checks[0])
def test_over_ssh(ssh_hosts: SshTestHosts, tmp_path: Path, checks: Sequence[str]) -> None:
    """See the checks in ssh_child."""
    folder = own_folder(ssh_hosts, tmp_path)
    assert child(ssh_hosts, CHILD, str(folder), *checks).split() == list(checks)


def test_hosts_that_lack_something_and_how_they_are_prepared(tmp_path: Path) -> None:
    """Host 1 has no marker, 2 no Python, 3 an old one, 4 no sudo, 5 no nft, 6 a disk of 64 KiB."""
    if reason := why_not():
        pytest.skip(reason)
    if not shutil.which("sudo"):
        pytest.skip("no sudo here")
    troubles = ["unmarked", "nopython", "oldpython", "nosudo", "nonft", "fulldisk"]
    with running_hosts(tmp_path, 6, troubles) as hosts:
        checks = ["lacks", "disk_full", "own_key", "prepare", "packages"]
        assert child(hosts, CHILD, str(tmp_path), *checks).split() == checks


def test_the_command_line_refuses_an_unknown_host_in_one_line(ssh_hosts: SshTestHosts, tmp_path: Path) -> None:
    known = f"known_hosts={tmp_path / 'none'}"
    words = ["test", "--hosts", ssh_hosts.options["hosts"], "--set", known, "--store", "runs"]
    done = subprocess.run([*ssh_hosts.enter, sys.executable, "-m", "harness", *words], cwd=tmp_path, text=True,
                          env={**os.environ, "PYTHONPATH": ":".join(sys.path)}, capture_output=True, check=False,
                          timeout=120)  # fmt: skip
    assert done.returncode == 3, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("stormproof: ")]
    assert "(tester@10.78.0.1" in line and "its host key" in line and "stormproof prepare" in line
    assert not list(tmp_path.glob("runs/*/remote.json"))


def own_folder(hosts: SshTestHosts, tmp_path: Path) -> Path:
    """The hosts' files with the first three of them, which a check may change."""
    for name in ("key", "known_hosts", "hosts.list", "ssh_config"):
        shutil.copy(hosts.folder / name, tmp_path)
    hosts = tmp_path / "hosts.list"
    hosts.write_text("\n".join(hosts.read_text().splitlines()[:3]) + "\n")
    return tmp_path
