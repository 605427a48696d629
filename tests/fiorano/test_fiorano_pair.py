"""Two replicated servers in simulation: who serves when something breaks, and with what."""

from __future__ import annotations

import asyncio
import re

import pytest
from fiorano_sim import EnterpriseServer, simulate

from nodes.reference.designs.fiorano.active import ActiveSide
from nodes.reference.designs.fiorano.messages import ServerStatus
from nodes.reference.designs.fiorano.server import HAServer
from nodes.reference.designs.fiorano.states import ACTIVE, ACTIVE_TRANSITION, DEAD, PASSIVE, STANDALONE, WAITING
from nodes.systems.reference.fiorano.cluster import CHANNEL
from nodes.systems.reference.fiorano.probes import miscounted_sets
from stormproof.contracts.cluster import MAIN
from stormproof.contracts.system import GATEWAY
from workloads.reference.connection import ConnectionBroken, NotSent


@pytest.mark.requirement("F1", part=True)
@pytest.mark.requirement("F9")
def test_the_standby_takes_over_and_the_primary_comes_back_as_passive() -> None:
    """What was confirmed is there, once; the passive lets no client in and says who serves."""

    async def scenario(server: EnterpriseServer) -> None:
        await server.begin()
        with pytest.raises((ConnectionBroken, NotSent, OSError, TimeoutError)):
            await server.connect("n2", 1.0)
        assert "this server does not serve now" in await server.log("n2")
        await server.send("n1", "one", "two", "three")
        assert await server.drain("n1", 1) == ["one"]
        await server.kill("n1")
        await server.until("n2", STANDALONE)
        assert await server.drain("n2", 1) == ["two"]
        await server.start("n1")
        await server.until("n2", ACTIVE)
        await server.until("n1", PASSIVE)
        await server.kill("n2")
        await server.until("n1", STANDALONE)
        assert await server.drain("n1", 1) == ["three"] and await server.holds("n1") == 0

    simulate(scenario)


@pytest.mark.requirement("F3", part=True)
@pytest.mark.requirement("F10", part=True)
def test_a_link_failure_between_the_servers() -> None:
    """On their private network: clients notice nothing, the standby may not serve, and is brought up to date later."""

    async def scenario(server: EnterpriseServer) -> None:
        await server.begin()
        client = await server.connect("n1")
        await server.cut_channel()
        await client.request("SEND", {"destination": "/queue/q"}, b"one", 10.0)
        assert await server.state("n1") == STANDALONE
        await server.stays("n2", PASSIVE, 4.0)
        await server.heal()
        await server.until("n1", ACTIVE)
        await server.until("n2", PASSIVE)
        await client.request("SEND", {"destination": "/queue/q"}, b"two", 10.0)
        await server.kill("n1")
        await server.until("n2", STANDALONE)
        assert await server.drain("n2", 2) == ["one", "two"]

    simulate(scenario)


@pytest.mark.requirement("F3", part=True)
def test_without_the_lock_both_serve() -> None:
    async def scenario(server: EnterpriseServer) -> None:
        await server.begin()
        await server.cut_channel()
        await server.until("n1", STANDALONE)
        await server.until("n2", STANDALONE)
        await server.send("n1", "one")
        await server.send("n2", "another")
        await server.heal()
        await server.until("n1", ACTIVE, PASSIVE)
        await server.until("n2", ACTIVE, PASSIVE)
        serves = "n1" if await server.state("n1") == ACTIVE else "n2"
        assert await server.holds(serves) == 1, "what the other one had confirmed is gone"

    simulate(scenario, lock="false")


@pytest.mark.requirement("F3", part=True)
def test_a_dead_gateway_costs_a_healthy_pair_nothing() -> None:
    """ACTIVE serves on without the lock; when the channel breaks too it waits, until both are in touch and have it."""

    async def scenario(server: EnterpriseServer) -> None:
        await server.begin()
        await server.kill(GATEWAY)
        await server.stays("n1", ACTIVE, 4.0)
        assert "lock lost" in await server.log("n1")
        await server.send("n1", "one")
        await server.cut_channel()
        await server.until("n1", WAITING)
        await server.stays("n2", PASSIVE, 3.0)
        await server.heal()
        await server.until("n2", WAITING)
        await server.stays("n1", WAITING, 3.0)
        await server.start(GATEWAY)
        await server.until("n1", ACTIVE)
        await server.until("n2", PASSIVE)
        assert await server.drain("n1", 1) == ["one"]

    simulate(scenario)


@pytest.mark.requirement("F3", part=True)
@pytest.mark.parametrize("fencing", ["true", "false"])
def test_a_server_that_served_alone_is_paused(fencing: str) -> None:
    """The lock's epoch keeps the standby from serving without what was confirmed meanwhile; a plain lock does not."""

    async def scenario(server: EnterpriseServer) -> None:
        await server.begin()
        client = await server.connect("n1")
        await server.cut_channel()
        await server.until("n1", STANDALONE)
        await client.request("SEND", {"destination": "/queue/q"}, b"one", 10.0)
        await server.backend.pause("n1", MAIN)
        if fencing == "true":
            await server.stays("n2", PASSIVE, 5.0)
            assert "the lock was held since this repository was up to date" in await server.log("n2")
            await server.backend.resume("n1", MAIN)
            await server.heal()
            await server.until("n2", PASSIVE)
            await server.until("n1", ACTIVE)
            assert await server.holds("n1") == 1
        else:
            await server.until("n2", STANDALONE)
            assert await server.holds("n2") == 0, "it serves, and lacks a message that was confirmed"
            await server.backend.resume("n1", MAIN)
            await server.until("n1", WAITING)

    simulate(scenario, fencing=fencing)


@pytest.mark.requirement("F3", part=True)
def test_a_paused_holder_confirms_nothing_that_its_successor_lacks() -> None:
    """A client's message waits in the socket of the active server, which is paused until its lock is another's."""

    async def scenario(server: EnterpriseServer) -> None:
        await server.begin()
        client = await server.connect("n1")
        await server.backend.pause("n1", MAIN)
        late = asyncio.ensure_future(client.request("SEND", {"destination": "/queue/q"}, b"late", 30.0))
        await server.until("n2", STANDALONE)
        await server.send("n2", "one")
        await server.backend.resume("n1", MAIN)
        await server.until("n2", ACTIVE)
        await server.until("n1", PASSIVE)
        late.cancel()
        with pytest.raises((asyncio.CancelledError, ConnectionBroken)):
            await late
        assert await server.drain("n2", 1) == ["one"] and await server.holds("n2") == 0

    simulate(scenario)


@pytest.mark.requirement("F14", part=True)
def test_a_server_that_starts_alone() -> None:
    """It waits, unless it is told not to; and even then it does not serve when its peer may have, meanwhile."""

    async def alone(server: EnterpriseServer) -> None:
        await server.start(GATEWAY, "n1")
        await server.until("n1", WAITING)
        await server.stays("n1", WAITING, 5.0)

    async def told(server: EnterpriseServer) -> None:
        await server.start(GATEWAY, "n1")
        await server.until("n1", STANDALONE)
        await server.start("n2")
        await server.until("n2", PASSIVE)
        await server.kill("n1")
        await server.until("n2", STANDALONE)
        await server.send("n2", "one")
        await server.kill("n2")
        await server.start("n1")
        await server.until("n1", WAITING)
        await server.stays("n1", WAITING, 4.0)
        await server.kill("n1")
        await server.start("n2")
        await server.until("n2", STANDALONE)
        assert await server.holds("n2") == 1

    simulate(alone)
    simulate(told, start_alone="true")


@pytest.mark.requirement("F5", part=True)
@pytest.mark.requirement("F12", part=True)
@pytest.mark.parametrize("replaced", [False, True])
def test_both_wait_and_the_newer_repository_wins(replaced: bool) -> None:
    """Whoever is primary, and whoever starts first; a replacement server has an empty repository, and is passive."""

    async def scenario(server: EnterpriseServer) -> None:
        await server.begin()
        await server.kill("n1")
        await server.until("n2", STANDALONE)
        await server.send("n2", "one")
        await server.kill("n2")
        if replaced:
            await server.replace_disk("n1")
        await server.start("n1")
        await server.until("n1", WAITING)
        await server.start("n2")
        await server.until("n2", ACTIVE)
        await server.until("n1", PASSIVE)
        await server.kill("n2")
        await server.until("n1", STANDALONE)
        assert await server.drain("n1", 1) == ["one"]

    simulate(scenario, invariants="false")


@pytest.mark.requirement("F4", part=True)
def test_every_change_of_state_is_told_to_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the state before it, while the channel carries: each line of a server's log was heard by the other one."""
    heard: list[tuple[bool, str, str]] = []
    take = HAServer.take_hello

    def noted(self: HAServer, hello: ServerStatus) -> None:
        heard.append((hello.primary, hello.state, hello.before))
        take(self, hello)

    monkeypatch.setattr(HAServer, "take_hello", noted)

    async def scenario(server: EnterpriseServer) -> None:
        await server.begin()
        await server.kill("n2")
        await server.until("n1", STANDALONE)
        await server.start("n2")
        await server.until("n1", ACTIVE)
        await server.until("n2", PASSIVE)
        await server.stays("n1", ACTIVE, 1.0)
        for node in ("n1", "n2"):
            changes = re.findall(r"state present=(\w+) previous=(\w+).* peer=(\w+)", await server.log(node))
            told = [(node == "n1", state, before) for state, before, peer in changes if peer != DEAD]
            assert len(told) >= 4
            assert set(told) <= set(heard)

    simulate(scenario)


@pytest.mark.requirement("F5", part=True)
def test_the_newer_one_without_the_lock_stays_waiting() -> None:
    async def scenario(server: EnterpriseServer) -> None:
        await server.cut(("n1", GATEWAY))
        await server.cluster.start()
        await server.until("n1", WAITING)
        await server.until("n2", WAITING)
        await server.stays("n1", WAITING, 3.0)
        assert await server.state("n2") == WAITING
        await server.heal()
        await server.until("n1", ACTIVE)

    simulate(scenario)


@pytest.mark.requirement("F5", part=True)
@pytest.mark.requirement("F4", part=True)
def test_synchronisation_while_clients_are_served() -> None:
    """What is sent and taken meanwhile is in the standby's repository, too; one that is broken off is worth nothing."""

    async def scenario(server: EnterpriseServer) -> None:
        await server.begin()
        await server.kill("n2")
        await server.until("n1", STANDALONE)
        body = "x" * 20_000
        for part in range(4):
            await server.send("n1", *(f"{part}-{number} {body}" for number in range(30)))
        await server.cut_channel()
        await server.start("n2")
        await server.until("n2", WAITING)
        client = await server.connect("n1")
        await server.heal()
        sent = 0
        while await server.state("n2") != PASSIVE:
            await client.request("SEND", {"destination": "/queue/q"}, f"late-{sent}".encode(), 10.0)
            sent += 1
        assert sent > 1 and await server.state("n1") == ACTIVE
        assert len(await server.drain("n1", 20)) == 20
        await server.kill("n1")
        await server.until("n2", STANDALONE)
        assert await server.holds("n2") == 4 * 30 + sent - 20
        await server.slow_channel(0.1)
        begun = (await server.log("n1")).count("synchronisation begins")
        await server.start("n1")
        while (await server.log("n1")).count("synchronisation begins") == begun:  # noqa: ASYNC110 - only the log tells
            await asyncio.sleep(0.01)
        await server.kill("n2")
        await server.until("n1", WAITING)
        assert "present=WAITING previous=PASSIVE_TRANSITION" in await server.log("n1")
        await server.stays("n1", WAITING, 4.0)
        await server.start("n2")
        await server.until("n2", ACTIVE)
        assert await server.holds("n2") == 4 * 30 + sent - 20

    simulate(scenario)


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_synchronisation_that_is_broken_off_ends(goes_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that goes on all the same is noticed: nobody takes what it sends."""
    sides: list[ActiveSide] = []
    synchronise, part = ActiveSide.synchronise, ActiveSide.part

    def begun(self: ActiveSide, sync: int) -> None:
        sides.append(self)
        synchronise(self, sync)

    def parted(self: ActiveSide) -> None:
        if self.standing is not None and goes_on:
            self.standing.task = None
        part(self)

    monkeypatch.setattr(ActiveSide, "synchronise", begun)
    monkeypatch.setattr(ActiveSide, "part", parted)

    async def scenario(server: EnterpriseServer) -> None:
        await server.begin()
        await server.kill("n2")
        await server.until("n1", STANDALONE)
        await server.send("n1", *map(str, range(20)))
        await server.slow_channel(0.05)
        await server.start("n2")
        await server.until("n1", ACTIVE_TRANSITION)
        await server.kill("n2")
        await server.until("n1", STANDALONE)
        assert miscounted_sets(sides[-1]) == "synchronisations that are over: 2 goes on" * goes_on

    simulate(scenario, page=24, page_window=4)


@pytest.mark.requirement("F3", part=True)
def test_the_lock_file_is_deleted() -> None:
    """The lock counts as lost, and is had again in a later epoch; a healthy pair goes on, and so does its standby."""

    async def scenario(server: EnterpriseServer) -> None:
        await server.begin()
        before = await server.epoch("n1")
        await server.backend.upload(GATEWAY, b"", f"{server.backend.node_dir(GATEWAY)}/lockfile")
        await server.stays("n1", ACTIVE, 4.0)
        assert "lock file is gone" in await server.log(GATEWAY)
        assert await server.epoch("n1") > before
        await server.send("n1", "one")
        await server.kill("n1")
        await server.until("n2", STANDALONE)
        assert await server.drain("n2", 1) == ["one"]

    simulate(scenario)


@pytest.mark.requirement("F2", part=True)
def test_a_peer_of_the_other_mode_or_of_the_same_profile_is_refused() -> None:
    """In one line each, and nobody serves."""

    async def same_profile(server: EnterpriseServer) -> None:
        config = server.config("n2")
        config["options"]["Primary"] = True
        await server.start(GATEWAY, "n1")
        await server.launch("n2", config)
        await server.until("n2", WAITING)
        await server.stays("n1", WAITING, 3.0)
        assert "Primary is true on both servers" in await server.log("n1") + await server.log("n2")

    async def other_mode(server: EnterpriseServer) -> None:
        config = server.config("n2")
        config["options"] |= {"mode": "shared", "database": ["10.0.0.99", 1]}
        await server.start(GATEWAY, "n1")
        await server.launch("n2", config)
        await server.until("n2", PASSIVE)
        await server.stays("n1", WAITING, 3.0)
        assert "shared mode" in await server.log("n1") + await server.log("n2")

    simulate(same_profile)
    simulate(other_mode, invariants="false")


@pytest.mark.requirement("F10", part=True)
def test_the_channel_is_a_network_of_its_own() -> None:
    """Cutting the servers off from each other on the clients' network is no link failure."""

    async def scenario(server: EnterpriseServer) -> None:
        await server.begin()
        await server.cut(("n1", "n2"))
        await server.stays("n1", ACTIVE, 3.0)
        assert server.cluster.topology.on(CHANNEL) == ("n1", "n2")

    simulate(scenario)
