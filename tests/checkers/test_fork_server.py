"""Spark's daemon as a fork of a server that has imported everything; real processes, no JVM."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkers.spark.fork_server import VARIABLE, ForkServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ForkServer]:
    started = ForkServer(tmp_path, {"OMP_NUM_THREADS": "1"})
    until(started.place.exists)
    yield started
    started.stop()


def until(what: object) -> None:
    assert callable(what)
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def daemon(place: Path, **variables: str) -> subprocess.Popen[bytes]:
    """As the JVM starts it."""
    return subprocess.Popen([sys.executable, "-m", "checkers.spark.daemon", "pyspark.worker"], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env={**os.environ, VARIABLE: str(place), **variables})  # fmt: skip


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def forks(server: ForkServer) -> list[int]:
    assert server._process is not None
    return children(server._process.pid)


def port_of(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    port: int = struct.unpack("!i", process.stdout.read(4))[0]
    return port


def ended(process: subprocess.Popen[bytes]) -> None:
    """The JVM closes the daemon's standard input: it ends, having said nothing else."""
    output, _ = process.communicate(timeout=60)  # a worker whose connection was cut complains
    assert output == b""


def test_a_daemon_is_a_fork_that_serves_on_the_streams_of_whoever_asked(server: ForkServer) -> None:
    process = daemon(server.place)
    port = port_of(process)
    (fork,) = forks(server)
    assert fork != process.pid
    with socket.create_connection(("127.0.0.1", port)) as asked:
        worker = struct.unpack("!i", asked.recv(4))[0]
        assert children(fork) == [worker] and children(process.pid) == []
    ended(process)
    until(lambda: not forks(server))


def test_each_daemon_is_another_fork(server: ForkServer) -> None:
    first, second = daemon(server.place), daemon(server.place)
    assert port_of(first) != port_of(second) and len(forks(server)) == 2
    ended(first)
    until(lambda: len(forks(server)) == 1)
    ended(second)


def test_a_fork_that_fails_says_why_where_the_daemon_would(server: ForkServer) -> None:
    process = daemon(server.place, PYTHON_UNIX_DOMAIN_ENABLED="true")  # without the folder that goes with it
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and b"AssertionError" in errors


def test_a_daemon_without_a_server_does_it_all_itself(server: ForkServer, tmp_path: Path) -> None:
    server.stop()
    for place in (server.place, tmp_path / "none"):
        process = daemon(place)
        with socket.create_connection(("127.0.0.1", port_of(process))) as asked:
            worker = struct.unpack("!i", asked.recv(4))[0]
            assert children(process.pid) == [worker]
        ended(process)


def test_a_server_that_dies_when_it_is_asked_is_done_without(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "dies"))
        listener.listen()
        process = daemon(tmp_path / "dies")
        asking, _ = listener.accept()
        asking.close()
    assert port_of(process) > 0
    ended(process)


def test_a_server_ends_with_whoever_started_it(tmp_path: Path) -> None:
    code = ("import sys, time, pathlib; from checkers.spark.fork_server import ForkServer; "
            "server = ForkServer(pathlib.Path(sys.argv[1]), {}); "
            "print(server._process.pid, flush=True); time.sleep(99)")
    starter = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert starter.stdout is not None
    server = Path("/proc") / starter.stdout.readline().decode().strip()
    until((tmp_path / "fork-server").exists)
    starter.kill()
    starter.communicate()
    until(lambda: not server.exists() or "\nState:\tZ" in (server / "status").read_text())


def test_a_place_with_too_long_a_name_has_no_server(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    server = ForkServer(folder, {})
    assert server._process is None
    server.stop()
    process = daemon(server.place)
    assert port_of(process) > 0
    ended(process)
