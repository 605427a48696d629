"""What a person decides where neither server may go on by itself."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fiorano_sim import EnterpriseServer, simulate
from loopback import free_ports
from typer.testing import CliRunner

from harness.cli.admin import admin_app
from nodes.reference.designs.fiorano.states import ACTIVE, PASSIVE, STANDALONE, WAITING
from nodes.systems.reference.fiorano.admin import describe
from nodes.systems.reference.fiorano.cluster import GATEWAY
from stormproof.errors import StormproofError

PATIENCE = 30.0


@pytest.mark.requirement("F12", part=True)
def test_no_repository_is_whole() -> None:
    """One disk is lost while the other server is being synchronised: both wait, until a person accepts what is left."""

    async def scenario(server: EnterpriseServer) -> None:
        await server.begin()
        await server.send("n1", "one", "two")
        await server.kill("n2")
        await server.until("n1", STANDALONE)
        await server.send("n1", *(f"{number} {'x' * 60_000}" for number in range(60)))
        assert "only one that is WAITING" in (await server.administer("n1", op="accept"))["error"]
        await server.slow_channel(0.1)
        begun = (await server.log("n2")).count("synchronisation begins")
        await server.start("n2")
        while (await server.log("n2")).count("synchronisation begins") == begun:  # noqa: ASYNC110 - only the log tells
            await asyncio.sleep(0.01)
        await server.kill("n1")
        await server.replace_disk("n1")
        await server.start("n1")
        await server.until("n1", WAITING)
        await server.until("n2", WAITING)
        await server.stays("n2", WAITING, 4.0)
        told = describe("n2", await server.administer("n2", op="status"))
        assert "WAITING" in told and "not whole" in told and "peer WAITING" in told
        assert (await server.administer("n2", op="accept"))["ok"]
        await server.until("n2", ACTIVE)
        await server.until("n1", PASSIVE)
        assert await server.drain("n2", 2) == ["one", "two"], "as it was before the synchronisation"
        await server.send("n2", "four")
        await server.kill("n2")
        await server.until("n1", STANDALONE)
        assert await server.drain("n1", 1) == ["four"]

    simulate(scenario, invariants="false")


@pytest.mark.requirement("F14", part=True)
def test_the_server_that_served_alone_is_gone_for_good() -> None:
    """The other one may lack what was confirmed meanwhile: it goes on only when it is told that nobody else will."""

    async def scenario(server: EnterpriseServer) -> None:
        await server.begin()
        await server.send("n1", "one")
        await server.kill("n2")
        await server.until("n1", STANDALONE)
        await server.send("n1", "two")
        await server.kill("n1")
        await server.start("n2")
        await server.until("n2", WAITING)
        await server.stays("n2", WAITING, 4.0)
        assert "no channel to the other server" in (await server.administer("n2", op="accept"))["error"]
        assert (await server.administer("n2", op="accept", alone=True))["ok"]
        await server.until("n2", STANDALONE)
        assert await server.drain("n2", 1) == ["one"]
        await server.start("n1")
        await server.until("n2", ACTIVE)
        await server.until("n1", PASSIVE)

    simulate(scenario)


@pytest.mark.requirement("F12", part=True)
def test_a_newer_repository_is_not_passed_over() -> None:
    async def scenario(server: EnterpriseServer) -> None:
        await server.begin()
        await server.kill("n2")
        await server.until("n1", STANDALONE)
        await server.send("n1", "one")
        await server.kill("n1", GATEWAY)
        await server.start("n1", "n2")
        await server.until("n1", WAITING)
        await server.until("n2", WAITING)
        await server.stays("n1", WAITING, 2.0)
        assert "whole and newer" in (await server.administer("n2", op="accept"))["error"]
        assert "no such request" in (await server.administer("n2", op="nonsense"))["error"]
        await server.start(GATEWAY)
        await server.until("n1", ACTIVE)

    simulate(scenario)


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[str]:
    """A primary as a process, with a gateway, and without its secondary: where it serves clients."""
    client, channel, other, lock = free_ports(4)
    layer = {"Primary": True, "Lockfile": str(tmp_path / "lock"), "BackupHAIPAddress": "127.0.0.1",
             "BackupHAPort": other, "GatewayServerIPAddress": "127.0.0.1", "GatewayServerPort": lock}  # fmt: skip
    peers = {"n1": ["127.0.0.1", channel], "n2": ["127.0.0.1", other]}
    server = {"node": "n1", "design": "fiorano", "data": str(tmp_path / "n1"), "port": client, "peers": peers,
              "client_addresses": {"n1": f"127.0.0.1:{client}"}, "options": layer}  # fmt: skip
    gateway = {"host": "127.0.0.1", "port": lock, "Lockfile": layer["Lockfile"], "servers": ["n1", "n2"]}
    running = []
    for module, config in (("nodes.reference.gateway", gateway), ("nodes.reference", server)):
        path = tmp_path / f"{module}.json"
        path.write_text(json.dumps(config))
        with Path(f"{path}.log").open("wb") as log:
            running.append(subprocess.Popen([sys.executable, "-m", module, str(path)], stdout=log, stderr=log))
    try:
        yield f"127.0.0.1:{client}"
    finally:
        for program in running:
            program.kill()
            program.wait()


@pytest.mark.requirement("F12", part=True)
def test_commands_at_a_real_server(primary: str) -> None:
    def admin(command: str, *words: str) -> str:
        done = CliRunner().invoke(admin_app(complete=True), ["fiorano", command, *words, "--server", primary])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.output

    def until(state: str) -> str:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                if state in (told := admin("status")):
                    return told
            except StormproofError:
                told = "it does not answer"
            assert time.monotonic() < deadline, told
            time.sleep(0.1)

    assert until("n1: WAITING") == (
        "n1: WAITING, was DEAD; primary; no lock; no channel; repository whole, epoch 0, change 0\n")
    with pytest.raises(StormproofError, match="no channel to the other server"):
        admin("accept")
    assert "its repository is accepted" in admin("accept", "--alone", "1")
    assert "lock held" in until("n1: STANDALONE")
