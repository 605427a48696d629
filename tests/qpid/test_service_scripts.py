"""The service scripts, as a manager that is not ours calls them, on brokers that are real processes."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from loopback import free_ports

from nodes.reference.designs.qpid import service

PATIENCE = 20.0
"""Seconds in which brokers have found each other, on any machine."""


class Node:
    """One node's scripts and broker, all of them on loopback."""

    def __init__(self, name: str, folder: Path, clients: dict[str, int], links: dict[str, int]) -> None:
        self.name, self.port = name, clients[name]
        self.pid_file, self.log = folder / f"{name}.pid", folder / f"{name}.log"
        broker, self.config = folder / f"{name}.json", folder / f"{name}-service.json"
        broker.write_text(json.dumps({
            "node": name, "design": "qpid", "data": str(folder / name), "host": "127.0.0.1", "port": clients[name],
            "peers": {each: ["127.0.0.1", port] for each, port in links.items()},
            "client_addresses": {each: f"127.0.0.1:{port}" for each, port in clients.items()},
            "options": {"manager": "none", "secret": "s", "catchup_timeout": 1.0},
        }))  # fmt: skip
        self.settings: dict[str, Any] = {
            "node": name, "brokers": {each: ["127.0.0.1", port] for each, port in clients.items()},
            "command": [sys.executable, "-m", "nodes.reference", str(broker)], "pid_file": str(self.pid_file),
            "log": str(self.log),
        }  # fmt: skip
        self.configure()

    def configure(self, **changes: Any) -> None:
        self.config.write_text(json.dumps({**self.settings, **changes}))

    def script(self, name: str, action: str) -> subprocess.Popen[str]:
        """A script, as a process."""
        command = [sys.executable, "-m", "nodes.reference.designs.qpid.service", name, action, str(self.config)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, name: str, action: str) -> tuple[int, str]:
        """What a script exits with, and what it says; in this process, which is faster."""
        with redirect_stdout(StringIO()) as said:
            status = service.main([name, action, str(self.config)])
        return status, said.getvalue().strip()

    @property
    def pid(self) -> int:
        return int(self.pid_file.read_text().split()[0])

    def signal(self, number: int) -> None:
        os.killpg(self.pid, number)

    def state(self) -> str:
        """The last state that the broker's log tells."""
        states = ("connecting", "catchup", "ready", "primary", "stopped")
        events = [words[2] for words in map(str.split, self.log.read_text().splitlines()) if len(words) > 2]
        return next((event for event in reversed(events) if event in states), "")

    def until(self, state: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while (found := self.state()) != state:
            assert time.monotonic() < deadline, f"{self.name} is {found}: {self.log.read_text()}"
            time.sleep(0.02)


def lives(pid: int) -> bool:
    """Whether a process is more than an entry that nobody has reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    names = ["n1", "n2", "n3"]
    clients, links = dict(zip(names, free_ports(3), strict=True)), dict(zip(names, free_ports(3), strict=True))
    made = [Node(name, tmp_path, clients, links) for name in names]
    yield made
    for node in made:
        node.configure()
        assert node.run("backup", "stop")[0] == 0


@pytest.mark.requirement("Q4", part=True)
def test_a_manager_needs_no_more_than_the_scripts(nodes: list[Node]) -> None:
    """First start, failover to another node after one refuses, the role's end, everything's end."""
    n1, n2, n3 = nodes
    assert n1.run("backup", "status") == (3, "")
    scripts = [node.script("backup", "start") for node in nodes]
    assert [(script.wait(60), script.communicate()[0]) for script in scripts] == [(0, "")] * 3
    for node in nodes:
        assert node.run("backup", "start") == (0, ""), "it runs already"
        assert (node.run("backup", "status"), node.run("primary", "status")) == ((0, ""), (3, ""))
    assert n1.run("primary", "start") == (0, ""), "all stores are empty: anybody may be first"
    assert n1.run("primary", "start") == (0, ""), "it is primary already"
    assert n1.run("primary", "status") == (0, "")
    n2.until("ready")
    n3.until("ready")
    assert n2.run("primary", "start") == (1, "primary start: n1 is primary: it has to be stopped first")

    n1.signal(signal.SIGKILL)
    assert (n1.run("backup", "status"), n1.run("primary", "status")) == ((3, ""), (3, ""))
    assert n1.run("primary", "start") == (
        1, "primary start: the broker does not run: start the service backup first")  # fmt: skip
    assert n1.run("backup", "start") == (0, "")
    status, line = n1.run("primary", "start")
    assert status == 1 and line.startswith("primary start: n1 is not eligible as primary: ")
    assert n2.run("primary", "start") == (0, "")
    n1.until("ready")
    n3.until("ready")

    before = n2.pid
    assert n2.run("primary", "stop") == (0, "")
    assert n2.pid != before, "the role ends with the process"
    assert (n2.run("primary", "status"), n2.run("backup", "start")) == ((3, ""), (0, "")), "another one is a backup"
    assert n3.run("primary", "stop") == (0, ""), "a backup is left alone"
    assert n3.run("primary", "start") == (0, "")
    assert n3.run("backup", "stop") == (0, "")
    assert (n3.run("backup", "stop"), n3.run("primary", "stop")) == ((0, ""), (0, "")), "there is nothing to stop"
    assert (n3.run("backup", "status"), n3.run("primary", "status")) == ((3, ""), (3, ""))


@pytest.mark.requirement("Q15", part=True)
def test_a_first_start_takes_the_word_of_all(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    n1, n2, n3 = nodes
    assert (n1.run("backup", "start"), n2.run("backup", "start")) == ((0, ""), (0, ""))
    with monkeypatch.context() as patched:
        patched.setattr(service, "GATHERING_SECONDS", 0.2)
        assert service.main(["primary", "start", str(n1.config)]) == 1
    assert capsys.readouterr().out == (
        "primary start: n1 is not eligible as primary: it has not been ready since it was started\n")
    waiting = n1.script("primary", "start")
    assert n3.run("backup", "start") == (0, "")
    assert (waiting.wait(60), waiting.communicate()[0]) == (0, ""), "it waits a while for those that do not answer"


@pytest.mark.requirement("Q4", part=True)
def test_a_broker_that_hangs_is_neither_running_nor_stopped(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody can tell whether it is primary; the scripts that stop it do."""
    n1 = nodes[0]
    assert n1.run("backup", "start") == (0, "")
    n1.signal(signal.SIGSTOP)
    monkeypatch.setattr(service, "ANSWER_SECONDS", 0.3)
    for name, action, status in (("backup", "status", 4), ("primary", "status", 4), ("primary", "start", 1)):
        assert service.main([name, action, str(n1.config)]) == status
        assert capsys.readouterr().out.startswith(
            f"{name} {action}: the broker runs, but does not answer: no answer within 0.")
    for name in ("primary", "backup"):
        hung = n1.pid
        assert service.main([name, "stop", str(n1.config)]) == 0
        assert not lives(hung)
        assert n1.run("backup", "start") == (0, "")
        n1.signal(signal.SIGSTOP)


def test_one_line_says_what_is_wrong(
    nodes: list[Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    n1 = nodes[0]
    for arguments, statuses in ((["backup"], 2), (["backup", "restart"], 2), (["primary", "status", "a", "b"], 4)):
        assert service.main(arguments) == statuses
        assert capsys.readouterr().out.startswith("usage: ")
    for action, status in (("start", 6), ("status", 4)):
        assert service.main(["backup", action, str(tmp_path / "none.json")]) == status
        assert capsys.readouterr().out == f"backup {action}: {tmp_path}/none.json: can't be read (No such file or " \
                                          "directory)\n"
    for change, line in (
        ({"port": 1}, "port: unknown setting (known: node, pid_file, log, login, passcode, brokers, "
                      "command)"),
        ({"command": []}, "command: is missing"),
        ({"command": "x"}, "command: is not a list of words"),
        ({"brokers": {"n2": ["h", 1]}}, "brokers: is not an object of names and [host, port] with 'n1', this node"),
        ({"brokers": {"n1": ["h", 0]}}, "brokers.n1: is not [host, port]"),
        ({"log": 3}, "log: is not a text of printable characters"),
    ):  # fmt: skip
        n1.configure(**change)
        assert n1.run("primary", "start") == (6, f"primary start: {n1.config}: {line}")
    n1.configure(command=["sh", "-c", "echo no disk; exit 1"])
    assert n1.run("backup", "start") == (1, "backup start: the broker has ended: no disk")
    n1.configure(command=["/no/such/program"])
    status, line = n1.run("backup", "start")
    assert status == 1 and line.startswith("backup start: the broker has ended: ") and "/no/such/program" in line
    n1.configure(command=["sleep", "60"])
    monkeypatch.setattr(service, "START_SECONDS", 0.3)
    assert service.main(["backup", "start", str(n1.config)]) == 1
    assert capsys.readouterr().out == "backup start: the broker runs, but does not answer: [Errno 111] Connect call " \
                                      f"failed ('127.0.0.1', {n1.port})\n"
    monkeypatch.setattr(service, "_TURN_SECONDS", 0.2)
    with Path(f"{n1.pid_file}.lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert service.main(["backup", "stop", str(n1.config)]) == 1
    assert capsys.readouterr().out == "backup stop: another script has been at work for 0.2 s\n"
