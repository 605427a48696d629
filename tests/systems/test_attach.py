"""Tests attached to systems that run already: what is touched there, what is left, what is refused."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from system_runs import Ran, stormproof

from harness.backends import foreign
from harness.backends.attach import AttachBackend, read_places
from harness.backends.process import parse_state
from harness.tools.bench.ssh_test_hosts import running_hosts, why_not
from stormproof.contracts.backend import Attached, Backend
from stormproof.errors import UsageError

SECRET = "open-sesame-42"
pytestmark = pytest.mark.requirement("H28")


@contextmanager
def redis(folder: Path) -> Iterator[int]:
    """A server with a password and somebody else's stream; its port."""
    if not shutil.which("redis-server"):
        pytest.skip("redis-server is not installed (apt-get install redis-server)")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = int(sock.getsockname()[1])
    server = subprocess.Popen(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir",
                               folder, "--requirepass", SECRET], stdout=subprocess.DEVNULL)  # fmt: skip
    try:
        while ask(port, "PING") != b"+PONG\r\n":
            time.sleep(0.05)
        assert ask(port, "XADD q0 1-1 body theirs").startswith(b"$3")
        yield port
    finally:
        server.kill()
        server.wait()


def ask(port: int, command: str) -> bytes:
    """What a server answers an administrator."""
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as sock:
            sock.sendall(f"AUTH {SECRET}\r\n{command}\r\n".encode())
            told = b""
            while told.count(b"\r\n") < (3 if command.startswith(("XADD", "KEYS")) else 2):
                told += sock.recv(4096)
            return told.removeprefix(b"+OK\r\n")
    except OSError:
        return b""


def attach(port: int, store: Path, *words: str, passcode: str = SECRET) -> Ran:
    """A short test of a server at that port."""
    return stormproof("test", "--system", "redis", "--attach", f"127.0.0.1:{port}", "--time-limit", "2", "--rate", "80",
                      "--set", "min_ok=20", "--store", str(store), *words,
                      env={"STORMPROOF_PASSCODE": passcode})  # fmt: skip


def test_a_server_is_tested_and_left_as_it_was_found(tmp_path: Path) -> None:
    with redis(tmp_path) as port:
        ran = attach(port, tmp_path / "runs")
        assert ran.status == 0, ran.err + ran.out
        assert ran.verdict["verdict"] == "valid" and ran.info["test"]["nemesis"] == []
        assert ask(port, "XLEN q0") == b":1\r\n" and ask(port, "DBSIZE") == b":1\r\n"  # their own, and nothing else
        refused = attach(port, tmp_path / "runs", passcode="no-such-word")
        assert refused.status == 3
        (line,) = [line for line in refused.err.splitlines() if line.startswith("stormproof: ")]
        assert f"can't attach: n1 at 127.0.0.1:{port}: " in line and "password" in line
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert files and not [path for path in files if any(word in path.read_bytes() for word in
                                                        (SECRET.encode(), b"no-such-word"))]  # fmt: skip


def test_nobody_there(tmp_path: Path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # taken, and nobody listens
        ran = attach(sock.getsockname()[1], tmp_path)
    assert ran.status == 3
    assert "can't attach: n1 at 127.0.0.1:" in ran.err and "nothing was done there" in ran.err


@pytest.mark.parametrize(("words", "told"), [
    (["--attach", "me:secret@host:1"], "user and password come from STORMPROOF_LOGIN"),
    (["--attach", "redis://host:1"], "takes HOST:PORT alone"),
    (["--attach", "host"], "write it as HOST:PORT"),
    (["--attach", "host:0"], "write it as HOST:PORT"),
    (["--attach", ""], "say where the system runs"),
    (["--attach", "host:1,host:1"], "named twice"),
    (["--attach", "host:1", "--nodes", "2"], "leave out --nodes"),
    (["--attach", "host:1", "--backend", "local"], "leave out --backend"),
    (["--attach", "host:1", "--nemesis", "kill"], "name its hosts: --hosts FILE"),
    (["--attach", "host:1", "--keep-nodes"], "left as they were found"),
    (["--backend", "attach"], "say where the system runs"),
])
def test_what_is_refused(words: list[str], told: str, tmp_path: Path) -> None:
    ran = stormproof("test", "--system", "redis", *words, "--store", str(tmp_path / "runs"))
    assert ran.status == 3 and not (tmp_path / "runs").exists()
    (line,) = ran.err.splitlines()
    assert told in line and "secret" not in line


def test_a_system_may_refuse(tmp_path: Path) -> None:
    words = ("--system", "zeroc-icestorm", "--workload", "events", "--attach", "host:1", "--store", str(tmp_path))
    ran = stormproof("test", *words)
    assert ran.status == 3 and "zeroc-icestorm can't be attached to" in ran.err


def test_places() -> None:
    assert read_places("a.lab:1, 10.0.0.2:65535") == (("a.lab", 1), ("10.0.0.2", 65535))
    with pytest.raises(UsageError):
        read_places("a:65536")


def test_only_attached_backends_are() -> None:
    from harness.backends.catalog import BACKENDS

    attached = [entry.name for entry in BACKENDS if issubclass(BACKENDS.load(entry.name), Attached)]
    assert attached == ["attach", "attach-ssh"]
    assert isinstance(AttachBackend(), Backend)
    with pytest.raises(Exception, match="give --hosts FILE"):
        asyncio.run(AttachBackend().kill("n1", "broker"))


@pytest.mark.skipif(not shutil.which("ss"), reason="no ss here (apt-get install iproute2)")
def test_whoever_listens_is_hit_and_nobody_else(tmp_path: Path) -> None:
    """The one beside it is in the same process group, as when a script has started both."""
    listening = ("import socket, time\ns = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n"
                 "print(s.getsockname()[1], flush=True)\ntime.sleep(60)")
    command = f"sleep 60 & exec {shlex.quote(sys.executable)} -c {shlex.quote(listening)}"
    started = subprocess.Popen(["sh", "-c", f"echo $$; {command}"], stdout=subprocess.PIPE, text=True,
                               start_new_session=True)  # fmt: skip
    assert started.stdout is not None
    leader, port = int(started.stdout.readline()), int(started.stdout.readline())
    beside = int(Path(f"/proc/{leader}/task/{leader}/children").read_text().split()[0])

    def run(script: str) -> str:
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def state() -> str:
        return parse_state(run(foreign.state_script(port))).state

    def is_stopped(pid: int) -> bool:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    folder = str(tmp_path)
    try:
        assert state() == "running"
        run(foreign.pause_script(port, folder))
        assert state() == "paused" and not is_stopped(beside)
        run(foreign.resume_script(port, folder))
        assert state() == "running"
        run(foreign.pause_script(port, folder))
        assert "a stopped process" in run(foreign.resume_left_script(folder))  # as `stormproof heal` does
        assert state() == "running" and not run(foreign.resume_left_script(folder))
        run(foreign.pause_script(port, folder))
        run(foreign.end_script(port, "TERM", 2.0))  # also one that is stopped
        started.wait(10)
        assert state() == "dead" and not is_stopped(beside)
        assert not run(foreign.resume_left_script(folder)).startswith("process")
        refused = subprocess.run(["sh", "-c", foreign.pause_script(port, folder)], capture_output=True, text=True,
                                 timeout=20, check=False)  # fmt: skip
        assert refused.returncode == 1 and f"nobody listens at port {port}" in refused.stdout
    finally:
        os.kill(beside, 9)
        started.kill()


@pytest.mark.soak
def test_faults_over_ssh(tmp_path: Path) -> None:
    """A server on a host, which a script there starts again whenever it ends."""
    if (reason := why_not()) or not shutil.which("redis-server"):
        pytest.skip(reason or "redis-server is not installed")
    server = ("while :; do redis-server --bind 0.0.0.0 --save '' --appendonly yes --appendfsync always --dir /tmp "
              f"--requirepass {SECRET} >/dev/null; sleep 0.5; done")  # fmt: skip
    with running_hosts(tmp_path, 1) as hosts:
        there = subprocess.Popen([*hosts.inside(1), "sh", "-c", server], start_new_session=True)
        try:
            time.sleep(2)
            words = ["--attach", f"{hosts.address(1)}:6379", "--hosts", hosts.options["hosts"], "--time-limit", "15"]
            settings = [f"known_hosts={hosts.options['known_hosts']}", "supervised=true", "max_down=1",
                        "appendonly=yes", "appendfsync=always"]  # fmt: skip
            command = [*hosts.enter, sys.executable, "-m", "harness", "test", "--system", "redis", *words, "--rate",
                       "60", "--nemesis", "pause,kill,packets", "--store", str(tmp_path / "runs"),
                       *(word for each in settings for word in ("--set", each))]  # fmt: skip
            env = {**os.environ, "STORMPROOF_PASSCODE": SECRET, "PYTHONPATH": ":".join(sys.path)}
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=170, check=False)
            left = subprocess.run([*hosts.inside(1), "find", "/var/lib/stormproof", "-mindepth", "2"], check=False,
                                  capture_output=True, text=True, timeout=20)  # fmt: skip
        finally:
            there.kill()
    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stdout.partition("confirmed fault")[2]
    assert "kill" in told and "pause" in told and "packets" in told
    assert left.stdout == ""
