"""``stormproof admin`` against real processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback import free_ports

from harness.admin import replica_lines

SHORT = {"election_timeout": 0.3, "master_timeout": 0.3, "response_timeout": 0.5}


def stormproof(*words: str) -> subprocess.CompletedProcess[str]:
    code = "from harness.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60, check=False)


class Replicas:
    """Three brokers on loopback."""

    def __init__(self, folder: Path) -> None:
        ports = free_ports(6)
        self.servers = [f"127.0.0.1:{port}" for port in ports[:3]]
        names = ["n1", "n2", "n3"]
        self.processes: list[subprocess.Popen[bytes]] = []
        for place, name in enumerate(names):
            config = {
                "node": name, "design": "icestorm", "data": str(folder / name), "port": ports[place],
                "peers": {peer: ["127.0.0.1", ports[3 + other]] for other, peer in enumerate(names)},
                "client_addresses": dict(zip(names, self.servers, strict=True)), "options": SHORT,
            }  # fmt: skip
            path = folder / f"{name}.json"
            path.write_text(json.dumps(config))
            with (folder / f"{name}.log").open("wb") as log:
                self.processes.append(subprocess.Popen(
                    [sys.executable, "-m", "nodes.reference", str(path)], stdout=log, stderr=log, env=dict(os.environ)
                ))  # fmt: skip

    def until_normal(self, server: str, count: int) -> str:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            done = stormproof("admin", "replica", "--server", server)
            if done.returncode == 0 and done.stdout.count("normal") == count:
                return done.stdout
            time.sleep(0.2)
        raise AssertionError(done.stdout + done.stderr)


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    started = Replicas(tmp_path)
    yield started
    for process in started.processes:
        process.kill()
        process.wait()


@pytest.mark.requirement("I7")
def test_replicas_are_listed_as_the_documentation_shows_them() -> None:
    up = {"coord": 3, "group": "3:191131CC703A41D6", "state": "normal", "up": [1, 2], "max": 3}
    assert replica_lines({3: up, 1: None}) == [
        "replica count: 2",
        "1: id:         1",
        "1: state:      unreachable",
        "3: id:         3",
        "3: coord:      3",
        "3: group name: 3:191131CC703A41D6",
        "3: state:      normal",
        "3: group:      1,2",
        "3: max:        3",
    ]


@pytest.mark.requirement("I7")
@pytest.mark.requirement("I14")
def test_an_administrator_sees_an_election_and_makes_topics(replicas: Replicas) -> None:
    first, second, third = replicas.servers
    shown = replicas.until_normal(first, 3)
    assert re.search(r"^3: group name: 3:[0-9A-F]{16}$", shown, re.MULTILINE)
    assert "1: coord:      3" in shown and "3: group:      1,2" in shown and "2: max:        3" in shown
    assert stormproof("admin", "topic", "create", "a", "b", "--server", first).returncode == 0
    assert stormproof("admin", "topic", "link", "a", "b", "--cost", "2", "--server", second).returncode == 0
    assert stormproof("admin", "topic", "list", "--server", third).stdout.split() == ["a", "b"]
    assert stormproof("admin", "topic", "list", "a", "--server", third).stdout == "b with cost 2\n"
    twice = stormproof("admin", "topic", "create", "a", "--server", first)
    assert (twice.returncode, twice.stderr) == (
        3, "stormproof: create a: there is a topic of that name already\n"
    )  # fmt: skip
    replicas.processes[2].kill()
    replicas.processes[2].wait()
    shown = replicas.until_normal(first, 2)
    assert "2: coord:      2" in shown and "3: state:      unreachable" in shown
    gone = stormproof("admin", "replica", "--server", third)
    assert gone.returncode == 3 and gone.stderr.startswith(f"stormproof: {third} does not answer: ")
    assert stormproof("admin", "replica", "--server", "nowhere").returncode == 3
