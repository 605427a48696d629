"""ActiveMQ's pair: who is the master, what is refused; and a real one whose lock file is deleted."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from system_runs import run_of

from harness.run.settings import make_test
from nodes.systems.activemq.system import ACTIVEMQ
from stormproof.contracts.backend import Credentials
from stormproof.contracts.cluster import NodeStatus
from stormproof.errors import UsageError

LOG = {
    "2026-11-23 19:07:12,266 | INFO  | Apache ActiveMQ 5.17.2 (pair, ID:n1-1) started": ("master", True),
    "2026-11-23 19:07:18,964 | INFO  | Apache ActiveMQ 5.17.2 (pair, ID:n1-1) is shutting down": ("stopping", False),
    "2026-11-23 19:07:19,053 | INFO  | Database /s/lock is locked by another server. This broker is now in slave "
    "mode waiting a lock to be acquired": ("slave", False),
}


def machine(mode: str, process: str, port: int) -> Any:
    async def state(_node: str, _program: str) -> Any:
        return SimpleNamespace(state=process)

    backend = SimpleNamespace(process=state)
    return SimpleNamespace(name="n1", address="127.0.0.1", port=port, option={"mode": mode}.get,
                           credentials=Credentials(), cluster=SimpleNamespace(backend=backend))  # fmt: skip


async def asked(monkeypatch: pytest.MonkeyPatch, answer: bytes | None, mode: str = "pair",
                process: str = "running") -> NodeStatus:  # fmt: skip
    """What a broker's status is that answers CONNECT like this; None: there is nothing at its port."""
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\0")
        writer.write(answer or b"")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setattr("nodes.systems.activemq.system.ANSWER_SECONDS", 0.3)
    if answer is None:
        server.close()
        await server.wait_closed()
    try:
        return await ACTIVEMQ.status(machine(mode, process, port))
    finally:
        server.close()


@pytest.mark.requirement("H12", part=True)
async def test_who_lets_clients_in_is_the_master(monkeypatch: pytest.MonkeyPatch) -> None:
    status = await asked(monkeypatch, b"CONNECTED\nversion:1.2\n\n\0")
    assert (status.role, status.serving) == ("master", True)


async def test_who_runs_without_a_port_is_the_slave(monkeypatch: pytest.MonkeyPatch) -> None:
    status = await asked(monkeypatch, None)
    assert (status.role, status.reachable, status.serving) == ("slave", True, False)


@pytest.mark.parametrize(("answer", "mode", "process"), [
    (b"", "pair", "running"),  # stopped: the kernel takes its connections
    (None, "pair", "paused"), (None, "pair", "dead"), (None, "single", "running"),
])  # fmt: skip
async def test_others_are_out_of_reach(
    monkeypatch: pytest.MonkeyPatch, answer: bytes | None, mode: str, process: str
) -> None:
    with pytest.raises((ConnectionRefusedError, TimeoutError)):
        await asked(monkeypatch, answer, mode, process)


def test_a_pair_is_healthy_with_one_master() -> None:
    master, slave = NodeStatus("n1", True, "master", serving=True), NodeStatus("n2", True, "slave")
    assert ACTIVEMQ.healthy([master, slave]) and ACTIVEMQ.healthy([master])
    assert not ACTIVEMQ.healthy([master, master])
    assert not ACTIVEMQ.healthy([slave, slave])
    assert not ACTIVEMQ.healthy([master, NodeStatus("n2", False)])


def test_roles_are_read_from_the_log() -> None:
    for line, (role, serving) in LOG.items():
        change = ACTIVEMQ.role_change(ACTIVEMQ.parse_line(line).text)
        assert change is not None and (change.role, change.serving) == (role, serving)
    assert ACTIVEMQ.role_change("Connector stomp started") is None


@pytest.mark.parametrize(("mode", "nodes"), [("single", 2), ("pair", 1), ("pair", 3)])
def test_a_pair_is_two(mode: str, nodes: int) -> None:
    with pytest.raises(UsageError, match=f"--nodes {nodes}: activemq takes .* with --set mode={mode}"):
        make_test(system="activemq", workload="queue", nemesis="kill", backend="local", nodes=nodes, time_limit=30,
                  rate=10, seed=1, settings={"mode": mode})  # fmt: skip


@pytest.mark.soak
def test_the_slave_takes_over_when_the_lock_file_is_deleted(tmp_path: Path) -> None:
    if not shutil.which("activemq"):
        pytest.skip("activemq is not installed (apt-get install activemq)")
    ran = run_of("activemq", tmp_path, "local", "--nemesis", "lockfile", "--time-limit", "16", "--rate", "60",
                 mode="pair", schedule="lockfile:delete:4-10:1")  # fmt: skip
    assert ran.status == 0, ran.err + ran.out
    assert all(line["proven"] for line in ran.faults() if line["phase"] == "heal")
    assert "giving up being a master" in (ran.run / "logs" / "n1.log").read_text() + (
        ran.run / "logs" / "n2.log").read_text()  # fmt: skip
