"""Runs the command line as a person does, and looks for what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.tools.bench.ssh_test_hosts import SshTestHosts

STORMPROOF = [sys.executable, "-m", "harness"]
QUICK = ["--set", "min_ok=20", "--seed", "7"]
SYSTEMS = {"joram": ["--system", "joram", "--set", "idle_timeout=1"], "qpid": ["--system", "qpid"]}


@dataclass(frozen=True)
class Where:
    """A backend to run on: what goes before the command, what goes into it, and the hosts, if they outlive a run."""

    words: Sequence[str]
    within: Sequence[str] = ()
    hosts: SshTestHosts | None = None

    def stormproof(self, *words: str, timeout: float = 150) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        argv = [*self.within, *STORMPROOF, *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False)

    def start_test(self, store: Path, *words: str, system: str = "joram") -> subprocess.Popen[str]:
        """Start ``stormproof test`` in the background, its output in ``store/out``."""
        store.mkdir(parents=True, exist_ok=True)
        with (store / "out").open("w") as out:
            argv = [*self.within, *STORMPROOF, "test", "--store", str(store), *QUICK, *SYSTEMS[system], *self.words,
                    *words]  # fmt: skip
            return subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, text=True)

    def left_behind(self, run: Path) -> list[str]:
        """What of a run is still there, on this machine and on hosts that outlive it."""
        found = left_behind(run)
        if self.hosts is not None:
            found += ["the note of its hosts"] if (run / "remote.json").exists() else []
            for number in range(1, self.hosts.count + 1):
                look = f"ls -d /var/lib/stormproof/runs/{run.name} /var/lib/stormproof/busy; nft list tables inet"
                inside = [*self.hosts.inside(number), "sh", "-c", look]
                done = subprocess.run(inside, capture_output=True, text=True, check=False)
                found += [f"n{number}: {line}" for line in done.stdout.splitlines()]
            ours = [*self.hosts.enter, "ip", "-4", "-o", "address", "show", "secondary"]
            found += subprocess.run(ours, capture_output=True, text=True, check=False).stdout.splitlines()
        return found


def on(backend: str, hosts: SshTestHosts | None = None, first: int = 1) -> Where:
    """A backend; ``ssh`` takes the test hosts from number ``first`` on."""
    if hosts is None:
        return Where(["--backend", backend])
    listed = hosts.folder / f"from-{first}.list"
    listed.write_text("\n".join((hosts.folder / "hosts.list").read_text().splitlines()[first - 1 :]) + "\n")
    return Where(["--hosts", str(listed), "--set", f"known_hosts={hosts.folder / 'known_hosts'}"], hosts.enter, hosts)


def stormproof(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end that needs no nodes."""
    return Where(()).stormproof(*words)


def only_run(store: Path) -> Path:
    """The folder of the one run in a store."""
    (run,) = (path.parent for path in store.glob("*/run.json"))
    return run


def run_info(run: Path) -> dict[str, Any]:
    """A run's run.json."""
    return dict(json.loads((run / "run.json").read_text()))


def await_fault(store: Path, limit: float = 60.0) -> Path:
    """Wait until a fault is in effect; returns the run's folder."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        for ledger in store.glob("*/ledger.jsonl"):
            if '"inject"' in ledger.read_text():
                return ledger.parent
        time.sleep(0.05)
    raise AssertionError(f"no fault within {limit} s: {(store / 'out').read_text()}")


def left_behind(run: Path) -> list[str]:
    """Processes, containers, networks and folders of a run that are still there."""
    found = [f"process {pid}: {words}" for pid, words in processes() if run.name in words]
    scratch = Path(tempfile.gettempdir()) / f"stormproof-{run.name}"
    found += [str(scratch)] if scratch.exists() else []
    return found + _docker_things(run)


def processes() -> Iterator[tuple[int, str]]:
    """(pid, command line) of every process."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                yield int(folder.name), words
            except OSError:
                continue


def children(pid: int) -> list[int]:
    """All descendants of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            names = task.read_text().split()
        except OSError:  # it has ended
            continue
        for child in map(int, names):
            found += [child, *children(child)]
    return found


def docker_works() -> bool:
    """Whether a Docker daemon answers."""
    import docker
    from docker.errors import DockerException

    try:
        docker.from_env(timeout=5).ping()
    except DockerException:
        return False
    return True


def _docker_things(run: Path) -> list[str]:
    if not os.access("/var/run/docker.sock", os.W_OK) or not docker_works():
        return []
    import docker

    client = docker.from_env(timeout=30)
    mine = {"label": f"stormproof.run={run.name}"}
    things = [*client.api.containers(all=True, filters=mine), *client.api.networks(filters=mine)]
    client.close()
    return [str(thing.get("Names") or thing.get("Name")) for thing in things]
