"""Inconsistent store errors: a store fails at one broker and at no other [Inconsistent errors]."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from qpid_sim import Group, simulate

from nodes.systems.reference.qpid.stores import describe
from stormproof.contracts.backend import DiskFault

KINDS = ("write-error", "sync-error", "full")
BODY = "x" * 20_000
"""More than a full disk has room for."""


@pytest.mark.requirement("Q8")
@pytest.mark.parametrize("kind", KINDS)
def test_a_backup_carries_on_in_memory(tmp_path: Path, kind: str) -> None:
    """It stays ready, says so as a critical error, and may not take over; once its store works again, it stores what it
    could not, which is there after the loss of all."""
    async def scenario(group: Group) -> None:
        await group.begin()
        await group.send("n1", "a", "b")
        await group.backend.set_disk("n2", DiskFault(kind))
        await group.send("n1", BODY, "c")
        assert await group.drain("n1", 1) == ["a"]
        assert [await group.depth(node) for node in group.nodes] == [3, 3, 3]
        status = await group.ask("n2", "status")
        assert status["state"] == "ready" and not status["eligible"]
        assert "CRITICAL: its store fails" in describe("n2", status)
        refused = await group.ask("n2", "promote")
        assert not refused["ok"] and "its store fails" in refused["error"]
        assert (await group.log("n2")).count("CRITICAL store failed; carrying on in memory") == 1
        await group.backend.set_disk("n2", None)
        await asyncio.sleep(1.0)
        status = await group.ask("n2", "status")
        assert status["eligible"] and not status["store"]["error"]
        await group.kill()
        await group.start("n2")
        await group.until("n2", "connecting")
        assert (await group.ask("n2", "accept-store"))["ok"]
        assert (await group.ask("n2", "promote"))["ok"]
        assert await group.drain("n2", 3) == ["b", BODY, "c"]

    simulate(scenario, tmp_path, store_errors="carry-on")


@pytest.mark.requirement("Q8")
@pytest.mark.parametrize("kind", KINDS)
def test_a_backup_aborts(tmp_path: Path, kind: str) -> None:
    """It ends; the others go on; started again, it catches up."""
    async def scenario(group: Group) -> None:
        await group.begin()
        await group.backend.set_disk("n2", DiskFault(kind))
        await group.send("n1", "a", BODY)
        assert "broker failed" in await group.dead("n2")
        await group.send("n1", "b")
        await group.backend.set_disk("n2", None)
        await group.start("n2")
        await group.until("n2", "ready")
        assert [await group.depth(node) for node in group.nodes] == [3, 3, 3]

    simulate(scenario, tmp_path)


@pytest.mark.requirement("Q8")
@pytest.mark.parametrize("default", ["abort", "carry-on"])
def test_each_queue_may_say_what_is_done(tmp_path: Path, default: str) -> None:
    """Its argument is stronger than the default; a queue that carries on may be made and deleted meanwhile."""
    async def scenario(group: Group) -> None:
        await group.begin()
        assert not await group.manage("n1", "create-queue", queue="soft", **{"qpid.store_errors": "carry-on"})
        assert not await group.manage("n1", "create-queue", queue="hard", **{"qpid.store_errors": "abort"})
        assert "is none of abort, carry-on" in await group.manage(
            "n1", "create-queue", queue="odd", **{"qpid.store_errors": "ignore"})
        await group.backend.set_disk("n2", DiskFault("write-error"))
        await group.send("n1", "a", queue="soft")
        assert not await group.manage("n1", "create-queue", queue="new", **{"qpid.store_errors": "carry-on"})
        assert not await group.manage("n1", "delete-queue", queue="new")
        if default == "carry-on":
            await group.send("n1", "b", queue="other")
        assert await group.state("n2") == "ready"
        await group.send("n1", "c", queue="other" if default == "abort" else "hard")
        await group.dead("n2")

    simulate(scenario, tmp_path, store_errors=default)


@pytest.mark.requirement("Q8")
def test_what_is_kept_in_memory_has_a_bound(tmp_path: Path) -> None:
    """Beyond twice the memory that contents may take, carrying on ends."""
    async def scenario(group: Group) -> None:
        await group.begin()
        await group.backend.set_disk("n2", DiskFault("write-error"))
        await group.send("n1", *["y" * 1000] * 3)
        assert await group.state("n2") == "ready"
        await group.send("n1", *["y" * 1000] * 2)
        await group.dead("n2")
        assert await group.depth("n1") == 5

    simulate(scenario, tmp_path, store_errors="carry-on", message_cache=2000)


@pytest.mark.requirement("Q8")
@pytest.mark.parametrize("errors", ["abort", "carry-on"])
def test_a_primary_whose_store_fails_ends(tmp_path: Path, errors: str) -> None:
    """Whatever the option says: a backup has all that was confirmed, and a store that works."""
    async def scenario(group: Group) -> None:
        await group.begin()
        await group.send("n1", "a")
        connection = await group.connect("n1")
        await group.backend.set_disk("n1", DiskFault("write-error"))
        lost = asyncio.ensure_future(connection.request("SEND", {"destination": "/queue/q"}, b"b", 5.0))
        await group.dead("n1")
        await asyncio.gather(lost, return_exceptions=True)
        assert lost.exception() is not None, "it was not confirmed"
        await group.until("n2", "connecting")
        assert (await group.ask("n2", "promote"))["ok"]
        assert await group.drain("n2", 1) == ["a"]

    simulate(scenario, tmp_path, store_errors=errors)


@pytest.mark.requirement("Q8")
@pytest.mark.requirement("Q16")
def test_a_store_that_fails_is_not_clean_after_a_shutdown(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        await group.begin()
        await group.backend.set_disk("n2", DiskFault("write-error"))
        await group.send("n1", "a")
        assert (await group.ask("n1", "shutdown"))["clean"] == ["n1", "n3"]
        await group.dead("n2")
        await group.backend.set_disk("n2", None)
        await group.start("n2")
        await group.until("n2", "connecting")
        assert (await group.ask("n2", "status"))["store"]["state"] == "dirty"

    simulate(scenario, tmp_path, store_errors="carry-on")
