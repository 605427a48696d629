"""What a person decides where neither server may go on by itself."""

from __future__ import annotations

import asyncio

import pytest
from fiorano_sim import EnterpriseServer, simulate

from nodes.reference.designs.fiorano.states import ACTIVE, PASSIVE, STANDALONE, WAITING
from nodes.systems.fiorano.admin import describe
from nodes.systems.fiorano.cluster import GATEWAY


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

    simulate(scenario)


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
        assert "there is no channel" in (await server.administer("n2", op="accept"))["error"]
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
