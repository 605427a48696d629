"""Bad input of the design fiorano: one clear line, nothing lost, no second active server."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fiorano_sim import EnterpriseServer, simulate

from harness.run.cases import Case
from harness.sim.campaign import ALL, run_seed
from nodes.reference import wire
from nodes.reference.designs.fiorano.gateway.config import parse_gateway_config
from nodes.reference.designs.fiorano.gateway.protocol import PROTOCOL as GATEWAY_PROTOCOL
from nodes.reference.designs.fiorano.messages import Begin, ChangeSet, Complete, Page, ServerStatus, StoredUpTo, pack
from nodes.reference.designs.fiorano.states import ACTIVE, PASSIVE, STANDALONE
from nodes.reference.gateway import GatewayProcess
from nodes.reference.replication import handshake
from nodes.reference.replication.handshake import PROTOCOL, Handshake, LinkError, encode_frame
from nodes.reference.server.process import NodeProcess
from nodes.reference.storage.protocol import PROTOCOL as STORAGE_PROTOCOL
from nodes.reference.storage.protocol import SERVICE
from nodes.systems.reference.cluster import LINK_PORT
from nodes.systems.reference.fiorano.cluster import CHANNEL, DATABASE, DATABASE_PORT, GATEWAY_PORT
from nodes.systems.reference.fiorano.programs import SimulatedLockFile
from stormproof.contracts.cluster import MAIN
from stormproof.contracts.system import GATEWAY
from stormproof.contracts.topology import endpoint
from stormproof.history.columns import read_columns
from stormproof.run_folder import HISTORY
from workloads.reference.offline_client import ClientDisks

LAYER = {"Primary": True, "Lockfile": "lock", "BackupHAIPAddress": "127.0.0.1", "BackupHAPort": 2,
         "GatewayServerIPAddress": "127.0.0.1", "GatewayServerPort": 3}  # fmt: skip


# Configuration.


@pytest.mark.requirement("F2", part=True)
@pytest.mark.parametrize(("mode", "changes", "line"), [
    ("replicated", {"Lockfile": None}, "options.Lockfile: is missing; the HA layer needs it in both modes"),
    ("shared", {"LockFile": "x"}, "options.LockFile: the HA layer has no such parameter (it has: Primary, Lockfile, "),
])  # fmt: skip
def test_a_server_with_a_missing_or_an_unknown_name(
    tmp_path: Path, mode: str, changes: dict[str, Any], line: str
) -> None:
    """One line and status 3, as a program."""
    options = {name: value for name, value in {**LAYER, "mode": mode, **changes}.items() if value is not None}
    config = {"node": "n1", "design": "fiorano", "data": str(tmp_path / "data"), "host": "127.0.0.1", "port": 61613,
              "login": "a", "passcode": "b", "peers": {"n1": ["127.0.0.1", 1], "n2": ["127.0.0.1", 2]},
              "options": options}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = subprocess.run([sys.executable, "-m", "nodes.reference", str(tmp_path / "config.json")],
                          capture_output=True, text=True, timeout=30, check=False)  # fmt: skip
    assert done.returncode == 3 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ") and line in done.stderr


# The lock file.


class ReadOnly(SimulatedLockFile):
    async def write(self, content: bytes) -> None:
        raise PermissionError(13, "Permission denied")


@pytest.mark.requirement("F3", part=True)
def test_a_gateway_whose_lock_file_can_not_be_written() -> None:
    """It ends with one line; a healthy pair goes on without it, and has one active server."""

    async def scenario(server: EnterpriseServer) -> None:
        await server.begin()
        await server.send("n1", "one")
        await server.kill(GATEWAY)
        content = server.cluster._gateway_config()
        file = ReadOnly(server.backend, GATEWAY, content["Lockfile"])
        before = (await server.log(GATEWAY)).count("\n")
        await server.backend.launch(GATEWAY, MAIN, partial(GatewayProcess, parse_gateway_config(content), file),
                                    server.cluster.log_path(GATEWAY, MAIN))
        said = (await server.dead(GATEWAY)).splitlines()[before:]
        assert [line for line in said if "error: Lockfile: " in line and "can't be used (Permission denied)" in line]
        assert len(said) == 1
        await server.stays("n2", PASSIVE, 3.0)
        await server.until("n1", ACTIVE)
        await server.send("n1", "two")
        assert await server.drain("n1", 2) == ["one", "two"]

    simulate(scenario)


# Strangers, and peers that are damaged.


def fields(**changes: Any) -> ServerStatus:
    return ServerStatus("WAITING", "DEAD", False, True, 1, 0, 0.0, 0)._replace(**changes)


BEGIN = pack(Begin(1, 5, 0))
DAMAGED: dict[str, tuple[bytes, ...]] = {
    "noise": (b"\xff" * 200,), "HTTP": (b"GET / HTTP/1.1\r\nHost: n1\r\n\r\n",),
    "a frame of 4 GiB": (b"\xff\xff\xff\xff",), "no message": (encode_frame([1, 2]),),
    "a state that there is not": (pack(fields(state="KING")),),
    "numbers that can't be": (encode_frame(b"\x00" + wire.encode(list(fields(epoch=-7)))),),
    "the same profile": (pack(fields(primary=True)),),
    "a state of the other mode": (pack(fields(state="ACTIVATING")),),
    "what nobody asked for": (pack(StoredUpTo(9, 1 << 50, 1, True)), pack(Complete(3, 5, 9)), BEGIN,
                              pack(Page(1, "messages", [[1]])), pack(ChangeSet(1, 5, 7, 0.0, [["x", [], []]]))),
}  # fmt: skip


def told(log: str) -> list[str]:
    """The lines that are about connections that were refused or cut."""
    return [line for line in log.splitlines() if "refused" in line or "link down" in line]


async def say(server: EnterpriseServer, machine: str, target: tuple[str, int], data: tuple[bytes, ...],
              handshake: Handshake | None = None, peer: str = "") -> None:
    """A program on a machine that says this, as somebody who knows the secret or not."""

    async def talk(runtime: Any) -> None:
        reader, writer = await runtime.connect(*target)
        try:
            if handshake is not None:
                await handshake.dial(reader, writer, peer)
            for each in data:
                writer.write(each)
            async with asyncio.timeout(3.0):
                while await reader.read(1 << 16):
                    pass
        except (OSError, EOFError, TimeoutError, LinkError):
            pass
        finally:
            writer.transport.abort()

    await server.backend.launch(machine, "stranger", lambda runtime: NodeProcess(talk(runtime), runtime, "stranger"),
                                f"/{machine}/stranger.log")
    await asyncio.sleep(4.0)
    await server.backend.kill(machine, "stranger")


@pytest.mark.requirement("F10", part=True)
@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_peer_on_the_channel(what: str) -> None:
    """It has the secret and the name of the standby. It is cut off with one line, and the real one is back."""

    async def scenario(server: EnterpriseServer) -> None:
        await server.begin()
        await server.send("n1", "one")
        options = server.config("n2")["options"]
        handshake = Handshake(PROTOCOL, "fiorano, replicated mode", "n2", options["secret"], random.Random(1))
        address = server.backend.address(endpoint("n1", CHANNEL)), LINK_PORT
        # The real one dials, too: whoever comes last is the link.
        await say(server, "n2", address, DAMAGED[what], handshake, "n1")
        assert await server.cluster.await_healthy(20.0)
        log = await server.log("n1")
        assert "Traceback" not in log and "failed" not in log and "failed" not in await server.log("n2"), log
        serving = "n1" if await server.state("n1") == ACTIVE else "n2"
        await server.send(serving, "two")
        assert await server.drain(serving, 2) == ["one", "two"]

    simulate(scenario)


@pytest.mark.requirement("F10", part=True)
@pytest.mark.parametrize("secret", [False, True])
def test_strangers_on_all_ports(secret: bool) -> None:
    """Noise, HTTP, and somebody with another secret, at the channel, the gateway and the storage service."""

    async def scenario(server: EnterpriseServer) -> None:
        await server.cluster.start()
        assert await server.cluster.await_healthy(15.0)
        serving, other = ("n1", "n2") if await server.state("n1") == ACTIVE else ("n2", "n1")
        await server.send(serving, "one")
        backend = server.backend
        places = [("n1", (backend.address(endpoint("n1", CHANNEL)), LINK_PORT), PROTOCOL, "fiorano, shared mode"),
                  (GATEWAY, (backend.address(GATEWAY), GATEWAY_PORT), GATEWAY_PROTOCOL, "fiorano"),
                  (DATABASE, (backend.address(DATABASE), DATABASE_PORT), STORAGE_PROTOCOL, "fiorano")]
        for machine, address, protocol, cluster in places:
            before = told(await server.log(machine))
            claim = encode_frame([protocol, cluster, "n2", bytes(16)]) + encode_frame(bytes(32))
            for data in [(claim,)] if secret else [DAMAGED[what] for what in ("noise", "HTTP", "a frame of 4 GiB")]:
                await say(server, "n2", address, data)
            new = told(await server.log(machine))[len(before) :]
            assert len(new) == 1, new
            assert ("another secret" if secret else "no hello of a broker") in new[0]
            assert await server.state(serving) == ACTIVE and await server.state(other) == PASSIVE
        await server.send(serving, "two")
        assert await server.drain(serving, 2) == ["one", "two"]

    simulate(scenario, mode="shared")


# Damaged databases.


def rewrite(server: EnterpriseServer, statement: str) -> None:
    """Change what the storage service, which is dead, has stored."""
    disk = server.backend._node(DATABASE).disk
    database = disk.open_database(SERVICE, MAIN)
    database.execute("PRAGMA locking_mode=EXCLUSIVE")
    database.execute(statement)
    database.close()
    disk.abandon(MAIN)


async def nobody_serves(server: EnterpriseServer, seconds: float) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < deadline:
        assert await server.cluster.primary() is None
        await asyncio.sleep(0.05)


def unusable(log: str) -> list[str]:
    return [line for line in log.splitlines() if "database can't be used" in line]


@pytest.mark.requirement("F6", part=True)
@pytest.mark.parametrize(("statement", "why"), [
    ("DELETE FROM stored WHERE name = 'queues'", "a row of messages names a row of queues that is not there"),
    ("UPDATE stored SET columns = x'ff00' WHERE name = 'messages'", "the database is damaged: a row can't be read"),
    ("UPDATE stored SET columns = x'0700' WHERE name = 'queues'", "the database is damaged: "),
])  # fmt: skip
def test_a_damaged_shared_database(statement: str, why: str) -> None:
    """Both servers live on, one line each, and nobody serves; the right one in its place is used, and all is there."""

    async def scenario(server: EnterpriseServer) -> None:
        await server.cluster.start()
        assert await server.cluster.await_healthy(15.0)
        await server.send("n1" if await server.state("n1") == ACTIVE else "n2", "one")
        await server.kill(DATABASE)
        await server.until("n1", PASSIVE)
        await server.until("n2", PASSIVE)
        disk = server.backend._node(DATABASE).disk
        copies = {path: bytes(file.data) for path, file in disk._files.items()}
        rewrite(server, statement)
        await server.start(DATABASE)
        await nobody_serves(server, 8.0)
        for node in ("n1", "n2"):
            log = await server.log(node)
            lines = unusable(log)
            assert len(lines) <= 1 and "failed" not in log, log
            assert await server.state(node) == PASSIVE
        lines = unusable(await server.log("n1")) + unusable(await server.log("n2"))
        assert lines and all(why in line and "nobody serves until then" in line for line in lines), lines
        await server.kill(DATABASE)
        for path, data in copies.items():
            disk._files[path].data = bytearray(data)
        await server.start(DATABASE)
        assert await server.cluster.await_healthy(40.0)
        assert await server.drain("n1" if await server.state("n1") == ACTIVE else "n2", 1) == ["one"]

    simulate(scenario, mode="shared", invariants="false")


@pytest.mark.requirement("F16", part=True)
def test_as_documented_a_database_may_be_left_that_nobody_can_load() -> None:
    """What was made while it was out of reach is never written, and what comes later refers to it: one line tells."""

    async def scenario(server: EnterpriseServer) -> None:
        await server.start(DATABASE, GATEWAY, "n1")
        await server.until("n1", ACTIVE)
        await server.start("n2")
        await server.until("n2", PASSIVE)
        await server.cut(("n1", DATABASE))
        await asyncio.sleep(2.0)
        client = await server.connect("n1")
        await client.request("BEGIN", {"transaction": "t"}, b"", 5.0)  # in memory alone
        await server.heal()
        await asyncio.sleep(3.0)
        await client.request("SEND", {"destination": "/queue/q", "transaction": "t"}, b"one", 5.0)
        await server.kill("n1")
        await nobody_serves(server, 10.0)
        log = await server.log("n2")
        assert len(unusable(log)) == 1 and "names a row of transactions that is not there" in log
        assert "failed" not in log
        assert await server.state("n2") == PASSIVE

    simulate(scenario, mode="shared", as_documented="database")


# A damaged repository of a client.


@pytest.mark.requirement("F7", part=True)
def test_a_damaged_repository_of_a_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client says so in one line for each send, and leaves it as it is; the other clients lose nothing."""
    crash: Callable[..., None] = ClientDisks.crash
    damaged: list[bytes] = []

    def crash_and_damage(disks: ClientDisks, thread: int, storage: Any, rng: random.Random) -> None:
        crash(disks, thread, storage, rng)
        found = disks._memory[thread]
        if thread == 0 and len(found.read()) > 300:
            data = bytearray(found.read())
            data[60] ^= 0xFF
            found.replace(bytes(data))
            damaged.append(bytes(data))

    monkeypatch.setattr(ClientDisks, "crash", crash_and_damage)
    settings = {"min_ok": "20", "min_kept": "1", "fault_duration": "2", "kills": "10", "drain_limit": "20"}
    result = run_seed(Case("fiorano", "offline-send", "kill", 2, 15.0, 60.0, settings), 3, tmp_path, tmp_path, ALL)
    assert damaged and result.run_dir is not None
    assert result.verdict == "unknown" and "drain" in result.sentence, result.sentence
    assert not set(result.anomalies) & {"lost", "duplicated", "phantom"}
    errors = set(read_columns(result.run_dir / HISTORY).error.names)
    assert {error for error in errors if "client0: damaged at byte" in error and "it is left as it is" in error}


@pytest.mark.requirement("H26")
def test_an_active_server_outlives_a_change_set_that_no_frame_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several transactions that end in one turn; its standby gets it page by page, and the log says why."""
    async def scenario(server: EnterpriseServer) -> None:
        await server.begin()
        monkeypatch.setattr(handshake, "MAX_FRAME", 4000)
        client = await server.connect("n1")
        await client.request("BEGIN", {"transaction": "t"}, b"", 10.0)
        for _ in range(5):
            await client.request("SEND", {"destination": "/queue/q", "transaction": "t"}, b"x" * 1000, 10.0)
        await client.request("COMMIT", {"transaction": "t"}, b"", 10.0)
        assert "is longer than 4000" in await server.log("n1")
        await server.until("n1", ACTIVE)
        await server.until("n2", PASSIVE)
        await server.kill("n1")
        await server.until("n2", STANDALONE)
        assert await server.drain("n2", 5) == ["x" * 1000] * 5

    simulate(scenario, page=1000)
