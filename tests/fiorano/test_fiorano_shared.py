"""Two servers that share a database, in simulation."""

from __future__ import annotations

import asyncio
import math

import pytest
from fiorano_sim import EnterpriseServer, simulate

from nodes.reference.designs.fiorano.lock import GatewayLock
from nodes.reference.designs.fiorano.shared import SharedPair
from nodes.reference.designs.fiorano.states import ACTIVE, PASSIVE
from nodes.reference.storage.shared_state import SharedState
from nodes.systems.reference.fiorano.cluster import DATABASE
from stormproof.contracts.cluster import MAIN
from stormproof.contracts.system import GATEWAY
from workloads.reference.connection import ConnectionBroken


@pytest.mark.requirement("F6", part=True)
@pytest.mark.requirement("F14", part=True)
def test_a_server_that_starts_alone_serves_and_its_peer_takes_over() -> None:
    """It takes the lock without waiting; ACTIVE comes after ACTIVATING; the database is what both have."""

    async def scenario(server: EnterpriseServer) -> None:
        await server.start(DATABASE, GATEWAY, "n2")
        await server.until("n2", ACTIVE)
        assert "present=ACTIVATING previous=PASSIVE" in await server.log("n2")
        await server.send("n2", "one", "two")
        await server.start("n1")
        await server.until("n1", PASSIVE)
        await server.stays("n1", PASSIVE, 3.0)
        await server.kill("n2")
        await server.until("n1", ACTIVE)
        assert await server.drain("n1", 2) == ["one", "two"]

    simulate(scenario, mode="shared")


@pytest.mark.requirement("F6", part=True)
@pytest.mark.requirement("F16")
@pytest.mark.parametrize("documented", ["", "database"])
def test_the_database_goes_out_of_reach(documented: str) -> None:
    """The active server stops, says so, and lets the other one serve; as documented it goes on, and loses messages."""

    async def scenario(server: EnterpriseServer) -> None:
        await server.start(DATABASE, GATEWAY, "n1")
        await server.until("n1", ACTIVE)
        await server.start("n2")
        await server.until("n2", PASSIVE)
        await server.send("n1", "one")
        await server.cut(("n1", DATABASE))
        if not documented:
            await server.until("n2", ACTIVE)
            assert "database unreachable" in await server.log("n1")
            assert "lock released" in await server.log(GATEWAY)
            await server.stays("n1", PASSIVE, 2.0)
            assert await server.drain("n2", 1) == ["one"]
            return
        client = await server.connect("n1")
        await client.request("SEND", {"destination": "/queue/q"}, b"two", 10.0)
        await server.stays("n1", ACTIVE, 3.0)
        await server.kill("n1")
        await server.until("n2", ACTIVE)
        assert await server.holds("n2") == 1, "the second message was confirmed, and is nowhere"

    simulate(scenario, mode="shared", as_documented=documented)


@pytest.mark.requirement("F13", part=True)
def test_the_database_is_killed_or_lost() -> None:
    """Nobody serves without it, and what was confirmed is there when it is back; a lost one is lost."""

    async def scenario(server: EnterpriseServer) -> None:
        await server.cluster.start()
        await server.until("n1", ACTIVE, PASSIVE)
        assert await server.cluster.await_healthy(15.0)
        serving = "n1" if await server.state("n1") == ACTIVE else "n2"
        await server.send(serving, "one")
        await server.kill(DATABASE)
        await server.until(serving, PASSIVE)
        await asyncio.sleep(3.0)
        assert {await server.state(node) for node in ("n1", "n2")} == {PASSIVE}
        await server.start(DATABASE)
        assert await server.cluster.await_healthy(15.0)
        serving = "n1" if await server.state("n1") == ACTIVE else "n2"
        assert await server.holds(serving) == 1
        await server.kill(DATABASE)
        await server.until(serving, PASSIVE)
        await server.replace_disk(DATABASE)
        await server.start(DATABASE)
        assert await server.cluster.await_healthy(15.0)
        serving = "n1" if await server.state("n1") == ACTIVE else "n2"
        assert await server.holds(serving) == 0

    simulate(scenario, mode="shared", invariants="false")


@pytest.mark.requirement("F13", part=True)
def test_a_replicated_pair_outlives_the_loss_of_either_database() -> None:
    async def scenario(server: EnterpriseServer) -> None:
        await server.begin()
        await server.send("n1", "one")
        for lost, other in (("n1", "n2"), ("n2", "n1")):
            await server.kill(lost)
            await server.replace_disk(lost)
            await server.start(lost)
            await server.until(other, ACTIVE)
            await server.until(lost, PASSIVE)
        await server.kill("n1")
        await server.until("n2", "STANDALONE")
        assert await server.drain("n2", 1) == ["one"]

    simulate(scenario, invariants="false")


@pytest.mark.requirement("F3", part=True)
def test_the_database_refuses_a_holder_that_was_paused() -> None:
    """What it was sent before its lock was lost is not confirmed, and is nowhere."""

    async def scenario(server: EnterpriseServer) -> None:
        await server.start(DATABASE, GATEWAY, "n1")
        await server.until("n1", ACTIVE)
        await server.start("n2")
        await server.until("n2", PASSIVE)
        client = await server.connect("n1")
        await server.backend.pause("n1", MAIN)
        late = asyncio.ensure_future(client.request("SEND", {"destination": "/queue/q"}, b"late", 30.0))
        await server.until("n2", ACTIVE)
        await server.send("n2", "one")
        await server.backend.resume("n1", MAIN)
        await server.until("n1", PASSIVE)
        late.cancel()
        with pytest.raises((asyncio.CancelledError, ConnectionBroken)):
            await late
        assert await server.drain("n2", 1) == ["one"] and await server.holds("n2") == 0

    simulate(scenario, mode="shared")


@pytest.mark.requirement("F3", part=True)
def test_a_dead_gateway_and_a_shared_database() -> None:
    """The active server loses the lock, and serves no longer: only the lock says that it may."""

    async def scenario(server: EnterpriseServer) -> None:
        await server.start(DATABASE, GATEWAY, "n1", "n2")
        assert await server.cluster.await_healthy(15.0)
        await server.kill(GATEWAY)
        await server.until("n1", PASSIVE)
        await server.until("n2", PASSIVE)
        await server.start(GATEWAY)
        assert await server.cluster.await_healthy(15.0)

    simulate(scenario, mode="shared")


@pytest.mark.requirement("F6", part=True)
def test_a_load_that_takes_longer_than_the_lease_is_not_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is renewed afterwards, as nobody else has had it; what was loaded is what the database holds."""
    loads = []
    load = SharedState.take_over
    activate = SharedPair._activate

    async def slow(self: SharedPair, epoch: int) -> None:
        async def take_over(epoch: int) -> None:
            await load(self.store, epoch)
            loads.append((self._broker.config.node, epoch))
            assert isinstance(self.lock, GatewayLock)
            self.lock.until = -math.inf

        monkeypatch.setattr(self.store, "take_over", take_over)
        await activate(self, epoch)

    monkeypatch.setattr(SharedPair, "_activate", slow)

    async def scenario(server: EnterpriseServer) -> None:
        await server.start(GATEWAY, DATABASE, "n1")
        await server.until("n1", ACTIVE)
        await server.send("n1", "one", "two")
        await server.start("n2")
        await server.until("n2", PASSIVE)
        assert [node for node, _ in loads] == ["n1"]
        await server.kill("n1")
        await server.until("n2", ACTIVE)
        assert await server.drain("n2", 2) == ["one", "two"]
        assert [node for node, _ in loads] == ["n1", "n2"]

    simulate(scenario, mode="shared")
