"""Recovery from total crash by copying the best store to all brokers [Interaction with the store]."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from qpid_sim import Group, simulate

from harness.run.settings import make_test
from harness.sim.backend import SimBackend
from harness.sim.loop import simulation
from nodes.reference.designs.qpid.copies import HOLD_SECONDS, PIECE_BYTES
from nodes.reference.designs.qpid.store_status import first_start
from nodes.systems.reference.cluster import CLIENT_PORT
from nodes.systems.reference.qpid.cluster import QpidCluster
from nodes.systems.reference.qpid.copying import copy_store, source_of_copy
from nodes.systems.reference.qpid.system import QPID
from stormproof.contracts.cluster import Deployment
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError
from workloads.reference.connection import Settings, StompConnection

LARGE = "x" * (PIECE_BYTES + 1000)


class Asking:
    """Asks brokers as the tool does; ``most`` requests, after which it is broken off."""

    def __init__(self, group: Group, most: int = 1000) -> None:
        self._group, self._left = group, most

    async def __call__(self, node: str, /, **request: Any) -> Mapping[str, Any]:
        self._left -= 1
        if self._left < 0:
            raise UsageError("broken off")
        answer = await self._group.ask(node, **request)
        if not answer["ok"]:
            raise UsageError(f"{node}: {answer['error']}")
        return answer


async def found(group: Group) -> dict[str, dict[str, Any] | str]:
    return {node: await group.ask(node, "status") for node in group.nodes}


async def crash(group: Group) -> None:
    """n2 is the last primary; all end, and are started again."""
    await group.begin()
    assert not await group.manage("n1", "create-exchange", exchange="news", type="fanout")
    assert not await group.manage("n1", "create-queue", queue="q")
    assert not await group.manage("n1", "bind", exchange="news", queue="q")
    await group.send("n1", "a")
    await group.kill("n1")
    await group.until("n2", "connecting")
    await group.ask("n2", "promote")
    await group.until("n3", "ready")
    await group.send("n2", "b", LARGE, LARGE, "c")
    connection = await group.connect("n2")
    await connection.request("SUBSCRIBE", {"destination": "/queue/q", "id": "s", "ack": "client"}, b"", 5.0)
    assert await connection.next_message(5.0) is not None, "one is delivered when all ends"
    await group.kill()
    await group.start()
    for node in group.nodes:
        await group.until(node, "connecting")


@pytest.mark.requirement("Q12")
def test_the_best_store_is_copied_to_all(tmp_path: Path) -> None:
    """All stores end clean with one new identifier, and any of the brokers can be the first primary."""
    async def scenario(group: Group) -> None:
        await crash(group)
        source = source_of_copy(await found(group))
        assert source == "n2"
        size = await copy_store(Asking(group), source, ["n1", "n3"])
        assert size > 2 * len(LARGE)
        for node in ("n1", "n3"):
            assert "StoreReplaced" in await group.dead(node)
        await group.start("n1", "n3")
        for node in group.nodes:
            await group.until(node, "connecting")
        stores = [status["store"] for status in (await found(group)).values() if not isinstance(status, str)]
        assert {store["state"] for store in stores} == {"clean"}
        assert len({(store["uuid"], store["generation"]) for store in stores}) == 1
        assert (await group.ask("n3", "promote", bootstrap=True))["ok"]
        await group.all_ready("n3")
        assert "refused" not in await group.log("n1")
        connection = await group.connect("n3")
        await connection.request("SEND", {"destination": "/exchange/news/k"}, b"d", 5.0)
        assert await group.drain("n3", 2) == ["a", "b"]
        await group.kill("n3")
        await group.until("n1", "connecting")
        assert (await group.ask("n1", "promote"))["ok"]
        assert await group.drain("n1", 4) == [LARGE, LARGE, "c", "d"]

    simulate(scenario, tmp_path)


@pytest.mark.requirement("Q12")
@pytest.mark.parametrize("after", [1, 5, 9, 12, 13, 14])
def test_a_copy_that_is_broken_off_can_be_begun_again(tmp_path: Path, after: int) -> None:
    """Whatever was written until then is no best store, starts nothing, and does not hinder the next copy; meanwhile
    the brokers do nothing else."""
    async def scenario(group: Group) -> None:
        await crash(group)
        with pytest.raises(UsageError, match="broken off"):
            await copy_store(Asking(group, after), "n2", ["n1", "n3"])
        held = await group.ask("n2", "promote", force=True)
        assert not held["ok"] and "takes part in a copy" in held["error"]
        with pytest.raises(UsageError, match="takes part in another copy"):
            await copy_store(Asking(group), "n2", ["n1", "n3"])
        await asyncio.sleep(HOLD_SECONDS + 1)
        if after == 9:
            await group.kill("n1")
            await group.start("n1")
            await group.until("n1", "connecting")
        if 5 <= after <= 9:
            half = await group.ask("n1", "accept-store")
            assert not half["ok"] and "a copy that was broken off" in half["error"]
        for node in ("n1", "n3"):
            if (await group.backend.process(node, "broker")).state == "dead":  # it was stamped already
                await group.start(node)
                await group.until(node, "connecting")
        assert source_of_copy(await found(group)) == "n2"
        statuses = (await found(group)).values()
        assert not first_start(None if isinstance(status, str) else status["store"] for status in statuses)
        await copy_store(Asking(group), "n2", ["n1", "n3"])
        await group.dead("n1")
        await group.start("n1")
        await group.until("n1", "connecting")
        assert (await group.ask("n1", "promote", bootstrap=True))["ok"]
        assert await group.drain("n1", 5) == ["a", "b", LARGE, LARGE, "c"]

    simulate(scenario, tmp_path)


@pytest.mark.requirement("Q12")
def test_stores_are_copied_after_the_loss_of_all_only(tmp_path: Path) -> None:
    """While there is a primary, while a broker is missing, or where no store is a primary's, one line says so."""
    async def scenario(group: Group) -> None:
        await group.start()
        await group.until("n1", "connecting")
        with pytest.raises(UsageError, match=r"none of the stores is a primary's.*--source"):
            source_of_copy(await found(group))
        assert source_of_copy(await found(group), "n3") == "n3"
        with pytest.raises(UsageError, match="--source n9: no such broker"):
            source_of_copy(await found(group), "n9")
        await group.ask("n1", "promote", bootstrap=True)
        await group.all_ready("n1")
        with pytest.raises(UsageError, match="n1 is primary"):
            source_of_copy(await found(group))
        with pytest.raises(UsageError, match="n2 is ready: stores are copied while all brokers are connecting"):
            await copy_store(Asking(group), "n2", ["n3"])
        with pytest.raises(UsageError, match="n3: no answer; all brokers must run"):
            source_of_copy({**await found(group), "n1": "no answer", "n3": "no answer", "n2": "no answer"}
                           | {"n1": {"state": "connecting"}, "n2": {"state": "connecting"}})

    simulate(scenario, tmp_path)


@pytest.mark.requirement("Q12")
@pytest.mark.parametrize(("data", "why"), [
    ("?", "is not base64"),
    (base64.b64encode(b"\xff" * 8).decode(), "is not a piece of a store"),
    (base64.b64encode(b"\0\0\0\2\7\1").decode(), "is not a piece of a store"),
    (base64.b64encode(b"\0\0\0\1\0").decode(), "is not a piece of a store"),
    (base64.b64encode(b"\0\0\0\x09").decode(), ""),
])
def test_what_is_no_piece_of_a_store_is_refused(tmp_path: Path, data: str, why: str) -> None:
    """In one line; the broker lives on with a dirty store that is empty."""
    async def scenario(group: Group) -> None:
        await group.begin()
        await group.send("n1", "a")
        await group.kill()
        await group.start("n1")
        await group.until("n1", "connecting")
        answer = await group.ask("n1", "write-store", copy="x", piece=0, data=data)
        assert why in answer.get("error", "")
        stamped = await group.ask("n1", "stamp-store", copy="x", piece=1, uuid="a1", generation=1)
        assert not stamped["ok"] and "not whole" in stamped["error"]
        for request in ({}, {"copy": "x", "piece": -1}, {"copy": "x", "piece": "1"}, {"copy": 3, "piece": 1}):
            refused = await group.ask("n1", "read-store", **request)
            assert not refused["ok"] and "is missing" in refused["error"]

    simulate(scenario, tmp_path)


@asynccontextmanager
async def managed(seed: int = 1, **settings: Any) -> AsyncIterator[tuple[QpidCluster, SimBackend]]:
    """A healthy cluster with managers."""
    test = make_test(system="qpid", workload="queue", nemesis="kill", backend="sim", nodes=3, time_limit=8, rate=10,
                     seed=seed, settings=settings)  # fmt: skip
    demands = Demands(queues=("q",))
    topology = QPID.topology(test, demands)
    backend = SimBackend()
    await backend.provision(test, topology, Path())
    cluster = QPID.cluster(Deployment(test, demands, backend, topology, "secret"))
    assert isinstance(cluster, QpidCluster)
    await cluster.start()
    assert await cluster.await_healthy(20)
    yield cluster, backend
    await cluster.stop()
    await backend.release()


async def lose_all(cluster: QpidCluster, backend: SimBackend) -> None:
    for node in cluster.test.node_names:
        await backend.kill(node, "broker")
    await cluster.statuses()  # by connections to those that were killed


@pytest.mark.requirement("Q12")
@pytest.mark.requirement("Q11", part=True)
@pytest.mark.parametrize("recovery", ["copy", "erase"])
def test_managers_start_the_cluster_again_by_themselves(recovery: str) -> None:
    """From dirty stores they promote nobody. Copied, all are clean and alike; or all but the best are erased, and that
    one is accepted."""
    async def whole() -> None:
        async with managed() as (cluster, backend):
            await lose_all(cluster, backend)
            await asyncio.sleep(15)
            await recover(cluster)
            deadline = asyncio.get_running_loop().time() + 20
            while not cluster.healthy(await cluster.statuses()):
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.2)

    async def recover(cluster: QpidCluster) -> None:
        nodes = cluster.test.node_names
        stores: dict[str, Any] = {status.node: status.detail or {} for status in await cluster.statuses()}
        assert {each["state"] for each in stores.values()} == {"connecting"}, "nobody starts from dirty stores"

        async def ask(node: str, /, **request: Any) -> Mapping[str, Any]:
            answer = await cluster.ask(node, **request)
            assert answer["ok"], answer
            return answer

        source = source_of_copy(stores)
        others = [node for node in nodes if node != source]
        if recovery == "copy":
            await copy_store(ask, source, others)
        else:
            for node in others:
                await ask(node, op="erase-store")
            await ask(source, op="accept-store")

    with simulation() as loop:
        loop.run_until_complete(loop.create_task(whole()))


@pytest.mark.requirement("Q13", part=True)
@pytest.mark.parametrize("documented", ["", "LM6a"])
def test_a_store_picked_at_random_lacks_what_the_best_has(documented: str) -> None:
    """LM6a: one backup was cut off when messages were confirmed, then all are lost. By default the person is told which
    store is the best; as documented picks one, here that backup's."""
    async def whole() -> None:
        async with managed(seed=3, as_documented=documented) as (cluster, backend):
            nodes = cluster.test.node_names
            picked = cluster.test.rng("which store is the best").choice(sorted(nodes))
            primary = await cluster.primary()
            assert primary is not None and picked != primary, "another seed is needed"
            links = [(node, picked) for node in nodes if node != picked]
            await backend.set_network(frozenset([*links, *((b, a) for a, b in links)]))
            client = StompConnection([(backend.address(primary), CLIENT_PORT)],
                                     Settings(cluster.login, cluster.passcode, reliable=False))
            await client.open(5.0)
            for body in (b"a", b"b"):
                await client.request("SEND", {"destination": "/queue/q"}, body, 20.0)
            await lose_all(cluster, backend)
            await backend.set_network(frozenset())
            assert await cluster.await_healthy(60)
            assert ("picked at random" in await cluster.repair()) == bool(documented)
            depths = [(status.detail or {})["depths"].get("q", 0) for status in await cluster.statuses()]
            assert depths == ([0, 0, 0] if documented else [2, 2, 2])

    with simulation() as loop:
        loop.run_until_complete(loop.create_task(whole()))
