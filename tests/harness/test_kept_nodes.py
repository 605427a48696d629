"""Nodes that are kept after a run: faults by hand, a shell, their end; which runs keep theirs."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli.kept import fault, with_policy
from harness.run import kept_nodes as kept
from harness.run.kept_nodes import KeptNodes, ask, check_keeping, find_kept, is_kept, sentences, wanted
from stormproof.errors import StormproofError, UsageError
from stormproof.history.ledger import UNMET
from stormproof.run_folder import RunLock
from stormproof.test import Test
from tests.nemesis.nemesis_fakes import FakeCluster

pytestmark = pytest.mark.requirement("H28", part=True)
COMMAND = [sys.executable, "-m", "harness"]


def by_hand(run_dir: Path, person: Callable[[FakeCluster], Any]) -> Any:
    """What a person finds who asks from another thread while the nodes of a run are kept; then they are let go."""
    cluster = FakeCluster(Test(system="joram", workload="queue", nodes=3))

    async def both() -> Any:
        listens = asyncio.Event()
        serving = asyncio.create_task(KeptNodes(cluster, run_dir).serve(listens.set))
        await listens.wait()
        try:
            return await asyncio.to_thread(person, cluster)
        finally:
            await asyncio.to_thread(ask, run_dir, {"do": "down"})
            await asyncio.wait_for(serving, 10)

    return asyncio.run(both())


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A folder whose path is longer than that of a socket may be."""
    folder = tmp_path / ("a" * 100) / "20260101T000000-joram-queue-1-abcd"
    folder.mkdir(parents=True)
    return folder


def test_a_fault_by_hand_is_in_effect_until_it_is_healed(run_dir: Path) -> None:
    def person(cluster: FakeCluster) -> None:
        (line,) = ask(run_dir, {"do": "fault", "name": "kill:leader"})["lines"]
        assert line["targets"] == ["n1"] and line["proven"] and cluster.backend.states["n1"] == "dead"
        (cut,) = ask(run_dir, {"do": "fault", "name": "partition:bridge", "seed": 3})["lines"]
        assert cluster.backend.cut and "is the bridge" in cut["evidence"]["note"]
        with pytest.raises(StormproofError, match="a fault of kill is in effect"):
            ask(run_dir, {"do": "fault", "name": "kill"})
        lines = ask(run_dir, {"do": "heal"})["lines"]
        assert [(each["fault"], each["phase"]) for each in lines] == [("kill", "heal"), ("partition", "heal")]
        assert not cluster.backend.cut and set(cluster.backend.states.values()) == {"running"}
        assert ask(run_dir, {"do": "heal"})["lines"] == []

    by_hand(run_dir, person)
    assert [json.loads(line)["phase"] for line in (run_dir / "by-hand/kill/ledger.jsonl").open()] == ["inject", "heal"]
    assert not (run_dir / "kept.sock").exists(), "nobody listens any more"
    with pytest.raises(StormproofError, match="no process keeps the nodes"):
        ask(run_dir, {"do": "heal"})


def test_the_same_seed_draws_the_same(run_dir: Path) -> None:
    def person(_: FakeCluster) -> list[Any]:
        found = []
        for _ in range(3):
            (line,) = ask(run_dir, {"do": "fault", "name": "pause,partition", "seed": 11})["lines"][:1]
            found.append((line["kind"], line["targets"]))
            ask(run_dir, {"do": "heal"})
        return found

    first, second, third = by_hand(run_dir, person)
    assert first == second == third


def test_letting_nodes_go_heals_them(run_dir: Path) -> None:
    clusters = []

    def person(cluster: FakeCluster) -> None:
        ask(run_dir, {"do": "fault", "name": "partition:one"})
        clusters.append(cluster)
        assert cluster.backend.cut

    by_hand(run_dir, person)
    assert not clusters[0].backend.cut


@pytest.mark.parametrize(("order", "words"), [
    ({"do": "fault", "name": "kil"}, "did you mean 'kill'"),
    ({"do": "fault", "name": "kill:ledaer"}, "can't inject kill_kind=ledaer"),
    ({"do": "fault", "name": "clock"}, "'fake' can't inject the fault 'clock'"),
    ({"do": "shell", "node": "n9"}, "unknown node 'n9' (known: n1, n2, n3)"),
    ({"do": "dance"}, "not understood"),
    ({}, "not understood"),
    ({"do": "fault"}, "not understood"),
])
def test_what_makes_no_sense_is_told(run_dir: Path, order: dict[str, Any], words: str) -> None:
    def person(_: FakeCluster) -> None:
        with pytest.raises(StormproofError) as caught:
            ask(run_dir, order)
        assert words in str(caught.value)

    by_hand(run_dir, person)


class Shell:
    """A channel to a shell that says in capital letters what it is told."""

    def __init__(self) -> None:
        self._said: asyncio.Queue[bytes] = asyncio.Queue()

    async def read(self) -> bytes:
        return await self._said.get()

    async def write(self, data: bytes) -> None:
        await self._said.put(b"" if b"exit" in data else data.upper())

    async def destroy(self) -> None:
        pass


def test_a_shell_s_bytes_go_to_and_fro(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def person(cluster: FakeCluster) -> bytes:
        async def connect(node: str) -> Shell:
            return Shell()

        cluster.backend.open_shell = connect
        with kept.connect(run_dir) as sock:
            ask(run_dir, {"do": "shell", "node": "n1"}, sock)
            sock.sendall(b"hello\n")
            assert kept.read_line(sock) == b"HELLO\n"
            sock.sendall(b"exit\n")
            return sock.recv(10)

    monkeypatch.setattr(kept, "ShellBackend", object)
    assert by_hand(run_dir, person) == b""


def test_who_keeps_nodes_is_found(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no nodes are kept in"):
        find_kept(tmp_path)
    for name in ("20260101T000000-joram-queue-1-aaaa", "20260102T000000-joram-queue-1-bbbb"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "run.json").write_text("{}")
        (folder / "kept.sock").touch()
    first, second = sorted(tmp_path.iterdir())
    assert not is_kept(first), "whoever kept them is dead"
    with RunLock(first):
        assert find_kept(tmp_path) == find_kept(tmp_path, first.name) == first
        with pytest.raises(UsageError, match=f"the nodes of {second.name} are not kept"):
            find_kept(tmp_path, second.name)


def test_which_runs_keep_their_nodes() -> None:
    assert [wanted(policy, verdict) for policy in ("always", "on-failure", "never")
            for verdict in ("valid", "unknown", "invalid", "")] == [True] * 4 + [False, True, True, True] + [False] * 4
    assert with_policy(["test", "--keep-nodes", "--json"]) == ["test", "--keep-nodes=always", "--json"]
    assert with_policy(["test", "--keep-nodes=on-failure"]) == ["test", "--keep-nodes=on-failure"]
    check_keeping("never", "sim", several=True)
    for policy, backend, several, words in (("sometimes", "local", False, "one of always, on-failure, never"),
                                            ("always", "sim", False, "has no nodes that could be kept"),
                                            ("always", "local", True, "not with --repeat")):  # fmt: skip
        with pytest.raises(UsageError, match=words):
            check_keeping(policy, backend, several=several)


def test_lines_tell_what_was_done() -> None:
    line = {"fault": "kill", "kind": "one", "targets": ["n1"], "phase": "inject", "proven": True, "error": None,
            "evidence": {"a": 1}}  # fmt: skip
    assert sentences([line, {**line, "phase": "heal", "proven": False}, {**line, "targets": [], "error": "skipped: no"}]
                     ) == ['kill one n1 injected (proven: {"a": 1})', 'kill one n1 healed (not proven: {"a": 1})',
                           "kill one injected: skipped: no"]  # fmt: skip
    assert sentences([{**line, "evidence": {UNMET: "nobody leads"}}]) == [
        'kill one n1 injected (does not count, since nobody leads: {"unmet": "nobody leads"})']


@pytest.mark.soak
def test_a_person_breaks_and_mends_what_a_run_left(tmp_path: Path) -> None:
    """The whole way on `local`: kept, broken by hand, looked at, healed, removed."""
    def stormproof(*words: str, said: str = "") -> str:
        done = subprocess.run([*COMMAND, *words, "--store", str(tmp_path)], input=said, capture_output=True, text=True,
                              check=False, timeout=240)  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    told = stormproof("test", "--backend", "local", "--nemesis", "none", "--time-limit", "4", "--keep-nodes")
    assert "kept: stormproof fault|shell|heal|down" in told
    assert "kill master" in stormproof("fault", "kill:leader") and "proven" in stormproof("fault", "packets:loss")
    assert stormproof("shell", "n2", said="hostname\nexit\n") == "n2\n"
    assert "packets loss" in (healed := stormproof("heal")) and "kill master" in healed
    (run_dir,) = [path.parent for path in tmp_path.glob("*/run.json")]
    assert "removed the nodes of" in stormproof("down") and not is_kept(run_dir)
    assert stormproof("down") == "no nodes are kept\n"


def test_ctrl_c_ends_a_fault_that_was_for_some_seconds(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.cli.kept.time.sleep", interrupt)
    monkeypatch.setattr(kept, "find_kept", lambda store, name: run_dir)

    def person(cluster: FakeCluster) -> None:
        with pytest.raises(KeyboardInterrupt):
            fault(["partition:one"], seconds=5.0)
        assert not cluster.backend.cut and cluster.backend.log == ["cut", "uncut"]

    by_hand(run_dir, person)
