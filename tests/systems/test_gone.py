"""What is gone as a whole is lost; a cluster that never serves again breaks a promise; a repair that fails costs no
verdict."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from pathlib import Path

import pytest
from system_runs import HERE, Ran, backends, run_of, simulated

from stormproof.unnamed_takes import UNNAMED_TAKES, live

FORGETFUL = f'''
import sys
sys.path.append({str(HERE)!r})
import stormproof
import two_tier

class Connection(two_tier.Connection):
    prefetch = 1
    async def _ask(self, line):
        try:
            return await super()._ask(line)
        except stormproof.NotDone as error:
            raise stormproof.NotFound(f"{{error}}") if "undeclared" in str(error) else error

class Forgets(two_tier.TwoTier):
    """Its store keeps nothing, and nobody declares its queues anew."""
    name = "forgets"
    def connection(self, cluster):
        return Connection()
    async def repair(self, cluster):
        return ""

class Undecided(Forgets):
    """The same, with clients that can't tell that a queue is gone from other refusals."""
    name = "undecided"
    def connection(self, cluster):
        return two_tier.Connection()

class Repairs(Forgets):
    name = "repairs"
    async def repair(self, cluster):
        return 1 / 0

class NeverAgain(Forgets):
    """It does not serve without its queues."""
    name = "never-again"
    prepared = False
    async def prepare(self, cluster):
        await super().prepare(cluster)
        NeverAgain.prepared = True
    async def status(self, machine):
        answer = await two_tier.request(machine.address, self.port, "DEPTH q0")
        fine = answer.startswith("OK") or bool(answer and not self.prepared)
        return stormproof.NodeStatus(machine.name, fine, "active", serving=fine, detail={{"error": answer}})

class RepairsAndNeverAgain(NeverAgain, Repairs):
    name = "repairs-and-never-again"
    async def repair(self, cluster):
        return await Repairs.repair(self, cluster)
'''

QUICK = {"drain_limit": "6", "settle_timeout": "3", "kill_kind": "store", "fault_duration": "1", "min_ok": "5"}


def forgetful(folder: Path, name: str) -> Ran:
    """A simulated run in which the store, which keeps nothing, is killed."""
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(FORGETFUL)
    return simulated(f"{folder / 'mine.py'}:{name}", folder / "runs", "kill", nodes=2, workload="consume-last", **QUICK)


def outcome(ran: Ran, check: str) -> dict:
    return next(each for each in ran.verdict["checks"] if each["check"] == check)


@pytest.mark.requirement("H8", part=True)
def test_a_queue_that_is_gone_as_a_whole_is_lost(tmp_path: Path) -> None:
    """All nodes are well, and say to the drain's end that there is no such queue."""
    ran = forgetful(tmp_path, "Forgets")
    lost = outcome(ran, "lost")
    assert lost["verdict"] == "invalid" and lost["figures"]["gone"] == [0], lost["summary"]
    assert "queue 0 no longer exists, by every answer of the drain" in lost["summary"]
    assert "never delivered (queue 0 is gone as a whole) under " in ran.verdict["sentence"]
    # Who can't tell a queue that is gone from another refusal proves nothing.
    assert outcome(forgetful(tmp_path / "other", "Undecided"), "lost")["verdict"] == "unknown"


def test_a_repair_that_fails_ends_no_run_without_a_verdict(tmp_path: Path) -> None:
    ran = forgetful(tmp_path, "Repairs")
    assert outcome(ran, "lost")["verdict"] == "invalid"
    recovery = outcome(ran, "recovery")
    assert recovery["verdict"] == "valid" and "a repair failed: repairs: repairing it failed: ZeroDivisionError" in (
        recovery["summary"]), recovery["summary"]


def test_losses_of_a_cluster_that_never_serves_again_are_undecided(tmp_path: Path) -> None:
    ran = forgetful(tmp_path, "NeverAgain")
    assert outcome(ran, "lost")["verdict"] == "unknown"
    assert outcome(ran, "recovery")["verdict"] == "invalid"
    assert ran.verdict["sentence"].startswith("Invalid: the cluster never served again under ")
    assert "ERROR undeclared" in ran.verdict["sentence"] and ran.info["failure"] is None


def test_a_stream_of_nats_that_is_gone(tmp_path: Path) -> None:
    """A real server's answer to who asks for a stream that it has not, told from one about a consumer."""
    pytest.importorskip("nats", reason="its client is not installed")
    from nats.js.errors import ServiceUnavailableError

    from nodes.systems.nats.system import server_program
    from stormproof.clients.nats import NatsConnection
    from stormproof.contracts.client import NotFound
    from stormproof.contracts.protocol_client import Access
    from stormproof.errors import UsageError

    try:
        program = server_program()
    except UsageError as error:
        pytest.skip(str(error))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    async def ask() -> None:
        for _ in range(200):
            connection = NatsConnection(Access())
            try:
                await connection.connect("127.0.0.1", port, "127.0.0.1")
                break
            except Exception:
                await asyncio.sleep(0.05)
        with pytest.raises(NotFound, match="stream not found"):
            await connection.take("q0", 0.1)
        with pytest.raises(NotFound, match="stream not found"):
            await connection.depth("q0")
        with pytest.raises(NotFound, match="stream not found"):
            await connection.read("log0", 0, 5)
        await connection._streams.add_stream(name="q0", subjects=["q0"])
        assert await connection.depth("q0") == 0
        with pytest.raises(ServiceUnavailableError):  # the stream is there, and may hold messages
            await connection.take("q0", 0.1)
        await connection.close()

    server = subprocess.Popen([str(program), "-js", "-sd", str(tmp_path), "-a", "127.0.0.1", "-p", str(port)],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        asyncio.run(ask())
    finally:
        server.terminate()
        server.wait(20)


@pytest.mark.requirement("H8", part=True)
@pytest.mark.parametrize("backend", backends(slow="docker")[1:2])
def test_on_real_nodes(tmp_path: Path, backend: str) -> None:
    """By default it is promised that a cluster serves again; the node's own words are the headline."""
    (tmp_path / "mine.py").write_text(FORGETFUL)
    ran = run_of(f"{tmp_path / 'mine.py'}:RepairsAndNeverAgain", tmp_path / "runs", backend, "--nodes", "2",
                 "--workload", "consume-last", "--nemesis", "kill", "--time-limit", "8", "--rate", "60",
                 **QUICK)  # fmt: skip
    assert ran.status == 1, ran.err + ran.out
    assert ran.verdict["sentence"].startswith("Invalid: the cluster never served again under ")
    assert "ERROR undeclared" in ran.verdict["sentence"] and "ZeroDivisionError" in ran.verdict["sentence"]
    assert outcome(ran, "lost")["verdict"] == "unknown" and "recovery" in ran.info["guarantees"]
    assert ran.info[UNNAMED_TAKES] == live(prefetch=1), "its connection says so"
