"""``stormproof admin`` against real processes."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from icestorm_processes import Replicas

from nodes.systems.reference.icestorm.admin import COMMANDS, replica_lines
from nodes.systems.reference.icestorm.prompt import run_prompt
from stormproof.contracts.system import AdminAccess, AdminCommand


def stormproof(*words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    code = "from harness.cli.app import main; main()"
    return subprocess.run([sys.executable, "-c", code, *words], input=typed, capture_output=True, text=True,
                          timeout=60, check=False)  # fmt: skip


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    started = Replicas(tmp_path)
    started.start()
    yield started
    started.kill()


def until_normal(server: str, count: int, coordinator: int) -> str:
    """What ``server`` shows when ``count`` replicas are normal in ``coordinator``'s group.

    Replicas are normal in their old group, too, until they notice that its coordinator has died.
    """
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        done = stormproof("admin", "icestorm", "replica", "--server", server)
        normal = done.stdout.count("state:      normal") == done.stdout.count(f"coord:      {coordinator}") == count
        if done.returncode == 0 and normal:
            return done.stdout
        time.sleep(0.2)
    raise AssertionError(done.stdout + done.stderr)


@pytest.mark.requirement("I7")
def test_replicas_are_listed_as_the_documentation_shows_them() -> None:
    up = {"coord": 3, "group": "3:191131CC-703A-41D6-8B80-D19F0D5F0410", "state": "normal", "up": [1, 2], "max": 3}
    assert replica_lines({3: up, 1: None}) == [
        "replica count: 2",
        "1: id:         1",
        "1: state:      unreachable",
        "3: id:         3",
        "3: coord:      3",
        "3: group name: 3:191131CC-703A-41D6-8B80-D19F0D5F0410",
        "3: state:      normal",
        "3: group:      1,2",
        "3: max:        3",
    ]


@pytest.mark.requirement("I7", part=True)
def test_the_prompt_says_what_is_wrong_and_goes_on() -> None:
    asked: list[tuple[str, object]] = []

    def noted(name: str) -> AdminCommand:
        def run(access: AdminAccess, given: Mapping[str, Any]) -> Iterator[str]:
            asked.append((name, dict(given)))
            yield name

        return AdminCommand(name, "", run)

    ours = [noted(command.name) for command in COMMANDS]
    access = AdminAccess("h:1", "guest", "guest")
    execute = "link a b; dance; create; link a b x; replica;; subscribers 'a; unsubscribe t s; exit; topics"
    assert list(run_prompt(access, ours, execute)) == [
        "topic link", "error: unknown command 'dance'; `help` lists all", "error: write it as: create TOPIC...",
        "error: a cost is a whole number, not 'x'", "replica", "error: No closing quotation", "topic unsubscribe",
    ]  # fmt: skip
    assert asked == [("topic link", {"topic": "a", "target": "b", "cost": 0}), ("replica", {}),
                     ("topic unsubscribe", {"topic": "t", "subscriber": "s"})]  # fmt: skip
    helped = list(run_prompt(access, ours, "", io.StringIO("help\n")))
    assert {line.split()[0].rstrip(",") for line in helped} >= {"create", "links", "replica", "help"}


@pytest.mark.requirement("I7")
@pytest.mark.requirement("I14")
def test_an_administrator_sees_an_election_and_makes_topics(replicas: Replicas) -> None:
    first, second, third = replicas.servers
    shown = until_normal(first, 3, coordinator=3)
    names = re.findall(r"^\d: group name: 3:([0-9A-F]{8}(?:-[0-9A-F]{4}){3}-[0-9A-F]{12})$", shown, re.MULTILINE)
    assert len(names) == 3 and len(set(names)) == 1
    assert "1: coord:      3" in shown and "3: group:      1,2" in shown and "2: max:        3" in shown
    assert stormproof("admin", "icestorm", "topic", "create", "a", "b", "--server", first).returncode == 0
    assert stormproof("admin", "icestorm", "topic", "link", "a", "b", "--cost", "2", "--server", second).returncode == 0
    assert stormproof("admin", "icestorm", "topic", "list", "--server", third).stdout.split() == ["a", "b"]
    assert stormproof("admin", "icestorm", "topic", "list", "a", "--server", third).stdout == "b with cost 2\n"
    twice = stormproof("admin", "icestorm", "topic", "create", "a", "--server", first)
    assert (twice.returncode, twice.stderr) == (
        3, "stormproof: create a: there is a topic of that name already\n"
    )  # fmt: skip
    typed = "create c\n\nlink a c 3 # a comment\ntopics\nlinks a\nlink a\ncreate 'c'\ntopics\nexit\ntopics\n"
    prompt = stormproof("admin", "icestorm", "prompt", "--server", second, typed=typed)
    assert (prompt.returncode, prompt.stdout.splitlines()) == (0, [
        "a", "b", "c", "b with cost 2", "c with cost 3", "error: write it as: link FROM TO [COST]",
        "error: create c: there is a topic of that name already", "a", "b", "c"])  # fmt: skip
    replicas.kill("n3")
    shown = until_normal(first, 2, coordinator=2)
    assert "2: group:      1\n" in shown and "3: state:      unreachable" in shown
    gone = stormproof("admin", "icestorm", "replica", "--server", third)
    assert gone.returncode == 3 and gone.stderr.startswith(f"stormproof: {third} does not answer: ")
    assert stormproof("admin", "icestorm", "replica", "--server", "nowhere").returncode == 3
    untold = stormproof("admin", "replica", "--server", second)
    assert untold.returncode == 0 and "2: state:      normal" in untold.stdout
    assert untold.stderr == "stormproof: `admin replica` is `admin icestorm replica` now\n"
