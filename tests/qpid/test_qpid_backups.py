"""Backups that come, go and lag, and what clients may expect when a primary is lost [New backups, Failover, store]."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from qpid_sim import LIMIT, Group, simulate

from nodes.reference.designs.qpid.browsing import Browsing
from nodes.reference.designs.qpid.messages import Attach
from nodes.systems.reference.qpid.probes import miscounted_catch_up
from stormproof.contracts.backend import DiskFault
from workloads.reference.connection import ConnectionBroken

SLOW = DiskFault("slow", 0.15)


@pytest.mark.requirement("Q9")
@pytest.mark.parametrize("slow", [False, True])
def test_completions_wait_for_a_backup_that_catches_up_for_so_long(tmp_path: Path, slow: bool) -> None:
    """One that is too slow is given up; one that was restarted discards its dirty store, but not before a primary has
    taken it."""
    async def scenario(group: Group) -> None:
        await group.begin()
        await group.send("n1", *map(str, range(200)))
        loop = asyncio.get_running_loop()
        await group.kill("n3")
        await group.cut_off("n3")
        await group.start("n3")
        await group.until("n3", "connecting")
        assert (await group.ask("n3", "status"))["store"]["state"] == "dirty" and await group.depth("n3") == 200
        await group.send("n1", "new")
        if slow:
            await group.backend.set_disk("n3", SLOW)
        await group.cut_off()
        while "n3" not in (await group.ask("n1", "status"))["backups"]:  # noqa: ASYNC110 - another process's state
            await asyncio.sleep(0.01)
        began = loop.time()
        await group.send("n1", "waits")
        if slow:
            assert 0.5 < loop.time() - began < 2
            assert (await group.ask("n1", "status"))["backups"]["n3"] == "catchup"
            assert "backup given up backup=n3" in await group.log("n1")
            await group.backend.set_disk("n3", None)
        else:
            assert await group.state("n3") == "ready" and "given up" not in await group.log("n1")
        await group.until("n3", "ready")
        assert await group.depth("n3") == 202

    simulate(scenario, tmp_path, catchup_chunk=1, catchup_timeout=1.0)


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_backup_that_is_gone_is_sent_nothing(goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That it is all the same is noticed: what comes of it would reach the same backup when it is back."""
    primaries: list[Browsing] = []
    attached, detached = Browsing.attached, Browsing.detached

    def come(self: Browsing, name: str, message: Attach) -> None:
        primaries.append(self)
        attached(self, name, message)

    def gone(self: Browsing, name: str) -> None:
        if goes_on and name in self.browsers:
            self.browsers[name].task = None
        detached(self, name)

    monkeypatch.setattr(Browsing, "attached", come)
    monkeypatch.setattr(Browsing, "detached", gone)

    async def scenario(group: Group) -> None:
        await group.begin()
        await group.send("n1", *map(str, range(50)))
        await group.kill("n3")
        await group.backend.set_disk("n3", SLOW)
        await group.start("n3")
        while (await group.ask("n1", "status"))["backups"].get("n3") != "catchup":  # noqa: ASYNC110 - another process's state
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        await group.kill("n3")
        while "n3" in (await group.ask("n1", "status"))["backups"]:  # noqa: ASYNC110 - another process's state
            await asyncio.sleep(0.01)
        assert miscounted_catch_up(primaries[-1]) == "backups that are gone: n3 is still sent what it lacks" * goes_on

    simulate(scenario, tmp_path, catchup_chunk=1)


@pytest.mark.requirement("Q10")
def test_failure_during_failback(tmp_path: Path) -> None:
    """A backup that catches up refuses to become primary, also when it has lost the one that it caught up with; the
    one that was ready takes over; where there is none, only a person's word helps."""
    async def scenario(group: Group) -> None:
        await group.begin()
        await group.send("n1", *map(str, range(40)))
        await group.kill("n3")
        await group.backend.set_disk("n3", SLOW)
        await group.start("n3")
        await group.until("n3", "catchup")
        refused = await group.ask("n3", "promote")
        assert not refused["ok"] and "it is catching up" in refused["error"]
        await group.kill("n1")
        await group.until("n3", "connecting")
        refused = await group.ask("n3", "promote")
        assert not refused["ok"] and "it has not been ready since it was started" in refused["error"]
        await group.backend.set_disk("n3", None)
        await group.kill("n2")
        assert not (await group.ask("n3", "promote", bootstrap=True))["ok"], "its store is neither empty nor clean"
        assert (await group.ask("n3", "promote", force=True))["ok"]
        assert await group.state("n3") == "primary" and await group.depth("n3") < 40

    simulate(scenario, tmp_path, catchup_chunk=1)


@pytest.mark.requirement("Q7")
@pytest.mark.parametrize("default", ["messages", "configuration", "none"])
def test_what_says_nothing_itself_goes_by_the_default(tmp_path: Path, default: str) -> None:
    """Queues and exchanges; whoever says something is replicated as that says."""
    async def scenario(group: Group) -> None:
        await group.begin()
        levels = ("messages", "configuration", "none")
        for level in levels:
            assert not await group.manage("n1", "create-queue", queue=level, **{"qpid.replicate": level})
            assert not await group.manage("n1", "create-exchange", exchange=f"x-{level}", **{"qpid.replicate": level})
        assert not await group.manage("n1", "create-exchange", exchange="x-default")
        for queue in (*levels, "default"):
            await group.send("n1", "a", queue=queue)
        await group.kill("n1")
        await group.until("n2", "connecting")
        await group.ask("n2", "promote")
        depths = [await group.depth("n2", queue) for queue in (*levels, "default")]
        assert depths == [1, 0, 0, int(default == "messages")]
        names = {name for _, name, _ in (await group.ask("n2", "list"))["objects"]}
        expected = {"messages", "configuration", "x-messages", "x-configuration"}
        assert names == expected | (set() if default == "none" else {"default", "x-default"})

    simulate(scenario, tmp_path, replicate=default)


@pytest.mark.requirement("Q11")
@pytest.mark.parametrize("store", ["sync", "none"])
def test_what_a_store_keeps_when_the_power_fails_everywhere(tmp_path: Path, store: str) -> None:
    """All that was confirmed, in a dirty store; without a store nothing, and the cluster starts as if it was new."""
    async def scenario(group: Group) -> None:
        await group.begin()
        await group.send("n1", "a", "b")
        await group.backend.power_off(group.nodes)
        await group.backend.power_on(group.nodes)
        await group.start()
        for node in group.nodes:
            await group.until(node, "connecting")
        refused = await group.ask("n1", "promote", bootstrap=True)
        assert refused["ok"] == (store == "none")
        if store == "none":
            await group.all_ready("n1")
            assert await group.depth("n1") == 0
            return
        status = (await group.ask("n1", "status"))["store"]
        assert (status["state"], status["role"], status["generation"]) == ("dirty", "primary", 1)
        assert (await group.ask("n1", "accept-store"))["ok"] and (await group.ask("n1", "promote"))["ok"]
        assert await group.drain("n1", 2) == ["a", "b"]

    simulate(scenario, tmp_path, store=store)


@pytest.mark.requirement("Q18")
def test_a_message_that_was_not_confirmed_may_come_twice(tmp_path: Path) -> None:
    """At least once: the primary is lost when the backups have the message and its client has no receipt; the client
    sends it again, and both come. What was confirmed comes once."""
    async def scenario(group: Group) -> None:
        await group.begin()
        await group.send("n1", "confirmed")
        connection = await group.connect("n1")
        pairs = frozenset({("n1", "n2"), ("n2", "n1")})
        await group.backend.set_network(pairs)  # n2 has not signalled, so nothing is confirmed
        sending = asyncio.ensure_future(connection.request("SEND", {"destination": "/queue/q"}, b"again", LIMIT))
        while await group.depth("n3") < 2:
            pass
        await group.kill("n1")
        await group.cut_off()
        await asyncio.gather(sending, return_exceptions=True)
        assert isinstance(sending.exception(), (ConnectionBroken, TimeoutError))
        await group.until("n3", "connecting")
        assert (await group.ask("n3", "promote"))["ok"]
        await group.send("n3", "again")
        assert await group.drain("n3", 3) == ["confirmed", "again", "again"]
        assert await group.depth("n3") == 0

    simulate(scenario, tmp_path)
