"""Where the backend tests run: each backend, as each user, and what such a run may not leave behind."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import docker
import pytest

from harness.backends import docker_networks
from stormproof.run_folder import LOCK_FILE

PROJECT = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).with_name("backend_child.py")
NOBODY = 65534
MARK = "STORMPROOF_TEST_RUN"
_TOUCH = "touch ${STORMPROOF_MARK}"
NASTY = f"a b;{_TOUCH};$({_TOUCH})`{_TOUCH}`&{_TOUCH}|{_TOUCH}\n{_TOUCH}\n'\"\\\\:=,*%\u00e9"
"""A folder's name that makes the file STORMPROOF_MARK when a shell is given it without quotes."""

_ASK = """
import json
from harness.backends.local import LocalBackend
print(json.dumps(LocalBackend.launch_prefix()))
"""

# The tests run as root already.
_SUDO = """#!/bin/sh
[ "$1 $2" = "-n --preserve-env" ] || exit 1
shift 2
unset TMPDIR
exec "$@"
"""

# What a user of that number who may call sudo would be told.
_ASK_SUDO = f"""
import json, os
os.geteuid = os.getuid = os.getgid = lambda: {NOBODY}
from harness.backends import launch
print(json.dumps(dict(launch._ways())[launch.BY_SUDO]))
"""


@dataclass
class Place:
    """One backend as one user, with a run folder of its own."""

    backend: str
    run: str
    tmp: Path
    run_dir: Path
    python: str
    env: dict[str, str]
    become: list[str]
    lock: IO[str]
    user: str
    tmpdir: Path

    def command(self, *arguments: str) -> list[str]:
        """How the harness starts its child."""
        prefix: list[str] = []
        if self.backend == "local":
            question = ["-c", _ASK_SUDO] if self.user == "sudo" else ["-c", _ASK]
            asked = self.spawn([self.python, *question], stdout=subprocess.PIPE)
            prefix = json.loads(asked.communicate(timeout=20)[0])
        return [*prefix, self.python, str(self.tmp / "backend_child.py"), self.backend, str(self.run_dir), *arguments]

    def spawn(self, command: list[str], **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen([*self.become, *command], env=self.env, text=True, cwd=self.tmp,
                                start_new_session=True, **options)

    def check(self, *names: str, timeout: float = 120) -> dict[str, Any]:
        """Run checks in a child; the figures it printed."""
        child = self.spawn(self.command(*names), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE)
        output, errors = child.communicate(timeout=timeout)
        assert child.returncode == 0, errors
        return {key: value for line in output.splitlines() for key, value in json.loads(line).items()}

    def waiting(self) -> tuple[subprocess.Popen[str], int]:
        """A child that has brokers up and a link cut, and the pid of its own Python process."""
        child = self.spawn(self.command("wait"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert "waiting" in child.stdout.readline()
        pids = [pid for pid in self.processes() if f"{CHILD.name}\0{self.backend}\0" in cmdline(pid)]
        return child, max(pids)  # the child of `unshare` came after it

    def processes(self) -> list[int]:
        """Processes with this run's mark in their environment: the child and all that it started."""
        mark = f"{MARK}={self.run}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                continue
        return sorted(found)

    def leftovers(self) -> list[str]:
        """Everything of this run that can be seen on the machine."""
        found = [f"process {pid}: {cmdline(pid)}" for pid in self.processes()]
        found += [f"mount {line}" for line in Path("/proc/mounts").read_text().splitlines() if self.run in line]
        found += [f"folder {path}" for path in self.tmpdir.glob("stormproof-*")]
        found += [f"link {path.name}" for path in Path("/sys/class/net").iterdir()
                  if path.name in (docker_networks.bridge_name(self.run), "stormproof0")]
        found += [f"netns {path}" for path in Path("/run/netns").glob("*") if "stormproof" in path.name]
        if self.backend == "docker":
            label = {"label": f"stormproof.run={self.run}"}
            client = docker.from_env()
            found += [f"container {each['Names']}" for each in client.api.containers(all=True, filters=label)]
            found += [f"network {each['Name']}" for each in client.api.networks(filters=label)]
            found += [f"volume {each['Name']}" for each in client.api.volumes(filters=label)["Volumes"] or ()]
            client.close()
        return found


def cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


PLACES = [
    pytest.param("local-root", marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root")),
    "local-user",
    pytest.param("local-sudo", marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root")),
    pytest.param("docker", marks=pytest.mark.docker),
]


HERE = "local-root" if os.geteuid() == 0 else "local-user"
"""This machine, as whoever runs the tests."""


@contextmanager
def make_place(name: str, below: str = "") -> Iterator[Place]:
    """A place with folders that its user can reach; afterwards nothing of the run may be left.

    ``below`` is where below it the folder for temporary files and the store are.
    """
    backend, _, user = name.partition("-")
    other = user != "root" and backend == "local" and os.geteuid() == 0
    run = f"test-{uuid.uuid4().hex[:12]}"
    tmp = Path(tempfile.mkdtemp(prefix="backends-"))  # pytest's own folders are closed to other users
    try:
        tmpdir = tmp / below
        run_dir = tmpdir / "store" / run
        run_dir.mkdir(parents=True)
        for package in ("harness", "nemesis", "nodes", "stormproof"):
            shutil.copytree(PROJECT / package, tmp / package, ignore=shutil.ignore_patterns("__pycache__"))
        for path in (CHILD, *CHILD.parent.glob("*_checks.py")):
            shutil.copy(path, tmp)
        env = {**os.environ, "PYTHONPATH": str(tmp), "TMPDIR": str(tmpdir), MARK: run,
               "PYTHONDONTWRITEBYTECODE": "1"}
        become: list[str] = []
        python = sys.executable
        if other:
            env["HOME"] = str(tmp)
            # setpriv looks for its program with root's capabilities still; env doesn't.
            become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env"]
            python = open_python(become)
            if user == "sudo":
                become = []
                (tmp / "sudo").write_text(_SUDO)
                (tmp / "sudo").chmod(0o755)
                env["PATH"] = f"{tmp}:{env['PATH']}"
            for path in (tmp, *tmp.rglob("*")):
                os.chown(path, NOBODY, NOBODY)
        # As the harness does for as long as it lives: else a cleanup beside this test takes the run away.
        with (run_dir / LOCK_FILE).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            place = Place(backend, run, tmp, run_dir, python, env, become, lock, user, tmpdir)
            yield place
        left = place.leftovers()
        assert left == [], left
    finally:
        shutil.rmtree(tmp)


def open_python(become: list[str]) -> str:
    """An interpreter that another user may run: the project's own may lie in root's home."""
    for candidate in (sys.executable, "/usr/bin/python3"):
        command = [*become, candidate, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        if Path(candidate).exists() and subprocess.run(command, capture_output=True).returncode == 0:
            return candidate
    pytest.skip("no Python 3.11 that an ordinary user can run")


if __name__ == "__main__":
    # Figures for docs/reference/benchmarks.md: python tests/backends/places.py local-root
    with make_place(sys.argv[1]) as measured:
        print(json.dumps(measured.check("measure"), indent=1))
