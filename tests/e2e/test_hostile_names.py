"""Whole runs whose folders have names that a shell would run if it were given them without quotes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import docker_works, left_behind, only_run

from harness.tools.bench.ssh_test_hosts import SshTestHosts

ROOT = Path(__file__).resolve().parents[2]
_TOUCH = "touch ${STORMPROOF_MARK}"
NASTY = f"a b;{_TOUCH};$({_TOUCH})`{_TOUCH}`&{_TOUCH}|{_TOUCH}\n{_TOUCH}\n'\"\\:=,*%é"


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["sim", "local", pytest.param("docker", marks=pytest.mark.docker)])
def test_a_run_among_hostile_names(backend: str, tmp_path: Path) -> None:
    if backend == "docker" and not docker_works():
        pytest.skip("no Docker daemon")
    place, mark = tmp_path / NASTY, tmp_path / "executed"
    place.mkdir()
    for name in ("two_tier.py", "two_tier_programs.py"):
        shutil.copy(ROOT / "tests/systems" / name, place)
    environment = {**os.environ, "TMPDIR": str(place), "STORMPROOF_MARK": str(mark), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "harness", "test", "--system", f"{place / 'two_tier.py'}:TwoTier",
               "--backend", backend, "--nemesis", "partition,kill,pause", "--time-limit", "8", "--seed", "3",
               "--store", str(place / "store")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False, env=environment,
                          cwd=place)  # fmt: skip
    assert done.returncode in (0, 1, 2), done.stderr  # judged: what the toy keeps is not the question
    run = only_run(place / "store")
    assert (run / "report.html").exists() and not left_behind(run)
    assert list(place.glob("stormproof-*")) == [] and not mark.exists()


@pytest.mark.soak
def test_a_host_with_a_hostile_name(ssh_hosts: SshTestHosts, tmp_path: Path) -> None:
    """In the list of hosts, and as who cuts power is called."""
    mark, name = tmp_path / "executed", f"a;{_TOUCH};$({_TOUCH})`{_TOUCH}`"
    listed = ssh_hosts.folder / "hostile.list"
    lines = (ssh_hosts.folder / "hosts.list").read_text().splitlines()[:3]
    listed.write_text("".join(f"'{name}{number}' {line.partition(' ')[2]}\n" for number, line in enumerate(lines)))
    store = tmp_path / NASTY
    command = [*ssh_hosts.enter, sys.executable, "-m", "harness", "test", "--system", "joram", "--store", str(store),
               "--hosts", str(listed), "--set", f"known_hosts={ssh_hosts.folder / 'known_hosts'}",
               "--nemesis", "kill,partition", "--time-limit", "6", "--seed", "3"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False,
                          env={**os.environ, "STORMPROOF_MARK": str(mark)})
    assert done.returncode == 0, done.stderr
    assert not left_behind(only_run(store)) and not mark.exists()
