"""The document section by section, on simulated brokers that a person promotes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from qpid_sim import VIRTUAL_ADDRESS, Group, simulate

from workloads.reference.connection import ConnectionBroken, Rejected


@pytest.mark.requirement("Q1")
@pytest.mark.requirement("Q3")
@pytest.mark.requirement("Q15", part=True)
def test_only_the_primary_serves(tmp_path: Path) -> None:
    """Backups refuse clients and say where the primary is; administrators are let in everywhere."""
    async def scenario(group: Group) -> None:
        await group.start()
        await group.until("n1", "connecting")
        with pytest.raises(ConnectionBroken, match="not primary"):
            await group.connect("n1")
        assert not (await group.ask("n1", "promote"))["ok"], "it was never ready"
        assert (await group.ask("n1", "promote", bootstrap=True))["ok"]
        await group.all_ready("n1")
        await group.send("n1", "a")
        redirected = await group.connect("n2")
        assert redirected.peer == ("10.0.0.11", 61613)
        status = await group.ask("n2", "status")
        assert (status["primary"], status["state"]) == ("n1", "ready")
        log = await group.log("n2")
        assert log.index("connecting") < log.index("catchup primary=n1") < log.index(" ready ")

    simulate(scenario, tmp_path)


@pytest.mark.requirement("Q2")
@pytest.mark.requirement("Q9", part=True)
def test_completion_waits_for_every_backup_until_it_is_given_up(tmp_path: Path) -> None:
    """A message is confirmed when all backups have it; a dequeue reaches them; one that hangs is given up."""
    async def scenario(group: Group) -> None:
        await group.begin()
        await group.send("n1", "a", "b", "c")
        assert [await group.depth(node) for node in group.nodes] == [3, 3, 3]
        assert await group.drain("n1", 2) == ["a", "b"]
        assert [await group.depth(node) for node in group.nodes] == [1, 1, 1]
        await group.backend.pause("n3", "broker")
        began = asyncio.get_running_loop().time()
        await group.send("n1", "d")  # after the time for which a backup may be silent
        assert asyncio.get_running_loop().time() - began > 0.3
        assert "backup gone backup=n3" in await group.log("n1")
        assert await group.depth("n2") == 2
        await group.backend.resume("n3", "broker")
        await group.until("n3", "ready")
        await group.all_ready("n1")
        assert await group.depth("n3") == 2

    simulate(scenario, tmp_path)


@pytest.mark.requirement("Q10", part=True)
@pytest.mark.requirement("Q9", part=True)
def test_failover_to_a_backup_that_was_ready_and_to_no_other(tmp_path: Path) -> None:
    """Ready when it lost the primary, and connecting since: eligible. Restarted since: not, until it has caught up."""
    async def scenario(group: Group) -> None:
        await group.begin()
        await group.send("n1", "a", "b")
        await group.kill("n1", "n3")
        await group.start("n3")
        await group.until("n2", "connecting")
        await group.until("n3", "connecting")
        refused = await group.ask("n3", "promote")
        assert not refused["ok"] and "dirty store" in refused["error"]
        assert (await group.ask("n2", "promote"))["ok"]
        await group.until("n3", "ready")
        assert (await group.ask("n2", "status"))["generation"] == 2
        await group.start("n1")
        await group.all_ready("n2")
        assert [await group.depth(node) for node in group.nodes] == [2, 2, 2]
        assert await group.drain("n2", 2) == ["a", "b"]

    simulate(scenario, tmp_path)


@pytest.mark.requirement("Q13", part=True)
@pytest.mark.parametrize("documented", ["", "LM1"])
def test_a_backup_that_is_ahead_of_the_new_primary(tmp_path: Path, documented: str) -> None:
    """LM1: n3 has what n2, the next primary, never got. It is told to reset; as documented it keeps that, and passes
    over what the new primary sends under the same numbers."""
    async def scenario(group: Group) -> None:
        await group.begin()
        await group.send("n1", "a")
        pairs = frozenset({("n1", "n2"), ("n2", "n1")})
        await group.backend.set_network(pairs)
        connection = await group.connect("n1")
        held = asyncio.ensure_future(connection.request("SEND", {"destination": "/queue/q"}, b"ahead", 60.0))
        while await group.depth("n3") < 2:
            pass
        await group.kill("n1")
        held.cancel()
        await group.cut_off()
        await group.until("n2", "connecting")
        assert (await group.ask("n2", "promote"))["ok"]
        await group.until("n3", "ready")
        await group.send("n2", "b", "c")
        await group.kill("n2")
        await group.until("n3", "connecting")
        assert (await group.ask("n3", "promote"))["ok"]
        expected = ["a", "ahead", "c"] if documented else ["a", "b", "c"]
        assert await group.drain("n3", 3) == expected
        assert ("queue reset" in await group.log("n3")) != bool(documented)

    simulate(scenario, tmp_path, as_documented=documented)


@pytest.mark.requirement("Q11", part=True)
@pytest.mark.requirement("Q16", part=True)
@pytest.mark.requirement("Q15")
def test_orderly_shutdown_and_start_from_clean_stores(tmp_path: Path) -> None:
    """All stores end clean with one identifier, and the cluster starts from them; one of another shutdown is refused
    and stops; a store that was not left in order starts nothing."""
    async def scenario(group: Group) -> None:
        await group.begin()
        await group.send("n1", "a", "b")
        done = await group.ask("n1", "shutdown")
        assert done["clean"] == ["n1", "n2", "n3"]
        stores = [(await group.ask(node, "status"))["store"] for node in group.nodes]
        assert {(store["state"], store["uuid"]) for store in stores} == {("clean", done["uuid"])}
        with pytest.raises(ConnectionBroken, match="shut down"):
            await group.connect("n1")
        await group.stop()
        await group.start("n1", "n2")
        await group.until("n1", "connecting")
        assert (await group.ask("n1", "promote", bootstrap=True))["ok"]
        await group.until("n2", "ready")
        await group.send("n1", "c")
        again = await group.ask("n1", "shutdown")
        assert again["clean"] == ["n1", "n2"] and again["uuid"] != done["uuid"]
        await group.stop("n1", "n2")
        await group.start()
        await group.until("n1", "connecting")
        assert (await group.ask("n1", "promote", bootstrap=True))["ok"]
        log = await group.dead("n3")
        assert "refused by the primary" in log and "of another shutdown" in log
        await group.until("n2", "ready")
        await group.kill()
        await group.start()
        await group.until("n1", "connecting")
        refused = await group.ask("n1", "promote", bootstrap=True)
        assert not refused["ok"] and "dirty" in refused["error"]

    simulate(scenario, tmp_path)


@pytest.mark.requirement("Q12", part=True)
@pytest.mark.requirement("Q13", part=True)
def test_recovery_after_the_loss_of_all(tmp_path: Path) -> None:
    """All stores are dirty, nobody may take over; a person accepts the best, which is that of the last primary."""
    async def scenario(group: Group) -> None:
        await group.begin()
        await group.send("n1", "a")
        await group.kill("n1")
        await group.until("n2", "connecting")
        await group.ask("n2", "promote")
        await group.until("n3", "ready")
        await group.send("n2", "b")
        await group.kill()
        await group.start()
        stores = {}
        for node in group.nodes:
            await group.until(node, "connecting")
            stores[node] = (await group.ask(node, "status"))["store"]
            assert not (await group.ask(node, "promote"))["ok"]
        assert {store["state"] for store in stores.values()} == {"dirty"}
        primaries = {node: store["generation"] for node, store in stores.items() if store["role"] == "primary"}
        assert primaries == {"n1": 1, "n2": 2}
        assert (await group.ask("n2", "accept-store"))["ok"]
        assert (await group.ask("n2", "promote"))["ok"]
        await group.all_ready("n2")
        assert await group.drain("n2", 2) == ["a", "b"]

    simulate(scenario, tmp_path)


@pytest.mark.requirement("Q13", part=True)
def test_as_documented_a_dirty_store_does_not_start(tmp_path: Path) -> None:
    """LM6b: the store of a failed node must be erased by hand; by default the node rejoins by itself."""
    async def scenario(group: Group) -> None:
        await group.begin()
        await group.kill("n3")
        await group.start("n3", as_documented="LM6b")
        await group.dead("n3")
        await group.start("n3")
        await group.until("n3", "ready")

    simulate(scenario, tmp_path)


@pytest.mark.requirement("Q14")
def test_two_promoted_by_hand(tmp_path: Path) -> None:
    """Without a manager nobody ends the old primary: both confirm, and when they meet, one side's messages go."""
    async def scenario(group: Group) -> None:
        await group.begin()
        await group.cut_off("n1")
        await group.until("n2", "connecting")
        assert (await group.ask("n2", "promote"))["ok"]
        await group.send("n1", "old")
        await group.send("n2", "new")
        await group.cut_off()
        await group.all_ready("n2")
        assert await group.drain("n2", 1) == ["new"]
        assert "n2 is primary of generation 2" in await group.log("n1")

    simulate(scenario, tmp_path, catchup_timeout=1.0)


@pytest.mark.requirement("Q6")
@pytest.mark.requirement("Q7", part=True)
def test_configuration_is_replicated_as_far_as_it_asks_to_be(tmp_path: Path) -> None:
    """Queues, exchanges and bindings exist on the next primary, messages where the level says so."""
    async def scenario(group: Group) -> None:
        await group.begin()
        for queue, level in (("all", "messages"), ("bare", "configuration"), ("own", "none")):
            assert not await group.manage("n1", "create-queue", queue=queue, **{"qpid.replicate": level})
        assert not await group.manage("n1", "create-exchange", exchange="news", type="topic")
        for queue in ("all", "bare"):
            assert not await group.manage("n1", "bind", exchange="news", queue=queue, key="sport.*")
        assert await group.manage("n1", "bind", exchange="news", queue="gone", key="") == "no-such-queue"
        assert "other arguments" in await group.manage("n1", "create-queue", queue="all")
        connection = await group.connect("n1")
        await connection.request("SEND", {"destination": "/exchange/news/sport.chess"}, b"mate", 5.0)
        await connection.request("SEND", {"destination": "/exchange/news/weather"}, b"rain", 5.0)
        await group.send("n1", "x", queue="own")
        assert [await group.depth("n1", queue) for queue in ("all", "bare", "own")] == [1, 1, 1]
        await group.kill("n1")
        await group.until("n2", "connecting")
        await group.ask("n2", "promote")
        assert [await group.depth("n2", queue) for queue in ("all", "bare", "own")] == [1, 0, 0]
        listed = await group.manage("n2", "list")
        assert '"news"' in listed and '"bare"' in listed and '"own"' not in listed
        connection = await group.connect("n2")
        await connection.request("SEND", {"destination": "/exchange/news/sport.go"}, b"atari", 5.0)
        assert [await group.depth("n2", queue) for queue in ("all", "bare")] == [2, 1]

    simulate(scenario, tmp_path)


@pytest.mark.requirement("Q13", part=True)
@pytest.mark.parametrize("documented", ["", "LC3"])
def test_what_was_deleted_while_a_backup_was_away(tmp_path: Path, documented: str) -> None:
    """LC3: a snapshot deletes what it lacks; as documented the queue is back when that backup takes over."""
    async def scenario(group: Group) -> None:
        await group.begin()
        await group.manage("n1", "create-queue", queue="old")
        await group.cut_off("n3")
        await group.until("n3", "connecting")
        await group.manage("n1", "delete-queue", queue="old")
        await group.cut_off()
        await group.until("n3", "ready")
        await group.kill("n1")
        await group.until("n3", "connecting")
        await group.ask("n3", "promote")
        assert ('"old"' in await group.manage("n3", "list")) == bool(documented)

    simulate(scenario, tmp_path, as_documented=documented)


@pytest.mark.requirement("Q5", part=True)
def test_addresses_of_brokers_and_clients_change_at_run_time(tmp_path: Path) -> None:
    """A node that joins is told to the others; a virtual address is no broker's."""
    async def scenario(group: Group) -> None:
        await group.start()
        addresses = {node: [group.backend.address(node), 61614] for node in group.nodes}
        both = {node: addresses[node] for node in ("n1", "n2")}
        for node in ("n1", "n2", "n3"):
            await group.until(node, "connecting")
        for node in both:
            assert (await group.ask(node, "set-broker-url", addresses=both))["ok"]
        await group.ask("n1", "promote", bootstrap=True)
        await group.until("n2", "ready")
        assert await group.state("n3") == "connecting"
        for node in both:
            assert (await group.ask(node, "set-broker-url", addresses=addresses))["ok"]
            assert (await group.ask(node, "set-client-url", addresses={"n1": ["10.0.0.11", 61613]}))["ok"]
        await group.until("n3", "ready")
        assert (await group.ask("n1", "status"))["clients"] == {"n1": "10.0.0.11:61613"}
        refused = await group.ask("n1", "set-broker-url", addresses={**addresses, "n9": [VIRTUAL_ADDRESS, 61614]})
        assert not refused["ok"] and "virtual address" in refused["error"]
        assert not (await group.ask("n1", "set-broker-url", addresses={"n1": "x"}))["ok"]

    simulate(scenario, tmp_path, virtual_address=VIRTUAL_ADDRESS)


@pytest.mark.requirement("Q5", part=True)
@pytest.mark.parametrize("moved", ["n1", "n2"])
def test_a_broker_comes_back_at_another_address(tmp_path: Path, moved: str) -> None:
    """*If the new broker has a new IP address, the sysadmin pushes a new URL to all the existing brokers* [Failback]:
    under its old name too, whether the others dial it or it dials them."""
    async def scenario(group: Group) -> None:
        await group.begin()
        addresses = {node: [group.backend.address(node), 61614] for node in group.nodes}
        stays = next(node for node in ("n1", "n2") if node != moved)
        await group.kill(moved)
        if moved == "n1":
            await group.until(stays, "connecting")
            await group.ask(stays, "promote")
            await group.until("n3", "ready")
        new = {**addresses, moved: [group.backend.address(moved), 61700]}
        await group.start(moved, peers=new)
        for node in (stays, "n3"):
            assert (await group.ask(node, "set-broker-url", addresses=new))["ok"]
        await group.until(moved, "ready")
        await group.send(stays, "x")
        assert await group.depth(moved) == 1
        assert "n3" in (await group.ask(stays, "status"))["backups"], "a broker that stayed where it was lost its link"

    simulate(scenario, tmp_path)


@pytest.mark.requirement("Q5", part=True)
def test_a_broker_that_is_told_another_address_hangs_up_at_the_old_one(tmp_path: Path) -> None:
    """Whoever is there is no broker of this cluster any more."""
    async def scenario(group: Group) -> None:
        await group.begin()
        addresses = {node: [group.backend.address(node), 61614] for node in group.nodes}
        nowhere = {**addresses, "n2": [group.backend.address("n2"), 61999]}
        assert (await group.ask("n1", "set-broker-url", addresses=nowhere))["ok"]
        await group.until("n2", "connecting")
        assert (await group.ask("n1", "set-broker-url", addresses=addresses))["ok"]
        await group.until("n2", "ready")

    simulate(scenario, tmp_path)


@pytest.mark.requirement("Q13", part=True)
def test_what_is_not_replicated_is_refused(tmp_path: Path) -> None:
    """Reliable connections and distributed transactions: a clear error."""
    async def scenario(group: Group) -> None:
        await group.begin()
        connection = await group.connect("n1")
        with pytest.raises(Rejected, match="XA"):
            await connection.request("BEGIN", {"transaction": "t", "x-xid": "x1"}, b"", 5.0)
        with pytest.raises(Rejected, match="there is no exchange"):
            other = await group.connect("n1")
            await other.request("SEND", {"destination": "/exchange/none/k"}, b"", 5.0)

    simulate(scenario, tmp_path)
