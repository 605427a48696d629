"""Asynchronous propagation (HA Joram 2.2): confirmed early, kept by the client until it is safe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from joram_cluster import QUEUE, Client, Cluster, running, until

from harness.reference.mutants import BASE
from harness.run.cases import Case
from harness.sim.campaign import run_seed
from nodes.reference.api import Command, ConfigError, Deliver, Done, Safe
from nodes.reference.designs.joram.options import JoramOptions
from nodes.reference.designs.joram.outbox import Outbox
from nodes.stomp import Frame, Parser, encode
from workloads.reference.connection import ConnectionBroken, Settings, StompConnection

pytestmark = pytest.mark.requirement("J7")

SETTINGS = Settings(login="guest", passcode="guest", heartbeat=0.3, same_replica=0.1)
ASYNCHRONOUS: dict[str, Any] = {"propagation": "asynchronous", "detection_timeout": 1.5}


@asynccontextmanager
async def reliable(cluster: Cluster, *names: str) -> AsyncIterator[StompConnection]:
    connection = StompConnection([("127.0.0.1", cluster.ports[name]) for name in names], SETTINGS)
    await connection.open(10)
    yield connection
    await connection.abort()


async def send(connection: StompConnection, body: str) -> None:
    await connection.request("SEND", {"destination": QUEUE}, body.encode(), 10)


async def test_the_receipt_comes_before_the_replicas_have_it_safety_and_delivery_come_after(tmp_path: Path):
    async with running(tmp_path, propagation="asynchronous", detection_timeout=4.0) as cluster:
        master, *others = await cluster.settled()
        consumer = await cluster.client(master)
        await consumer.subscribe()
        async with reliable(cluster, master) as producer:
            await send(producer, "before")
            await producer.settled()
            assert (await consumer.message()).body == b"before"
            last = cluster.status(others[0])["log_last"]
            cluster.cut([master], others)
            await send(producer, "early")
            assert cluster.status(others[0])["log_last"] == cluster.status(others[1])["log_last"] <= last + 1
            assert producer.unsafe == 1
            taken = asyncio.create_task(consumer.message())
            await asyncio.sleep(0.3)
            assert not taken.done() and producer.unsafe == 1
            cluster.heal()
            await producer.settled()
            assert (await taken).body == b"early"


async def test_after_a_failover_the_reliable_client_sends_again_what_was_not_safe_and_the_plain_one_has_lost_it(
    tmp_path: Path
):
    async with running(tmp_path, propagation="asynchronous", detection_timeout=2.5) as cluster:
        master, *others = await cluster.settled()
        plain = await cluster.client(master)
        async with reliable(cluster, master, *others) as connection:
            await send(connection, "kept 0")
            await connection.settled()
            cluster.cut([master], others)
            for body in ("kept 1", "kept 2", "kept 3"):
                await send(connection, body)
            await plain.publish("lost")
            assert connection.unsafe == 3
            view = await cluster.settled(*others)
            await connection.settled()
            await send(connection, "kept 4")
            assert connection.peer == ("127.0.0.1", cluster.ports[view[0]])
            cluster.heal()
            await cluster.settled()
            states = [list(broker.engine.dump()) for broker in cluster.brokers.values()]
            assert states[0] == states[1] == states[2], "what only the old master had is gone there too"
            assert await (await cluster.client(view[0])).drain() == [f"kept {number}" for number in range(5)]


async def test_an_acknowledgement_and_a_farewell_are_confirmed_only_when_they_are_safe(tmp_path: Path):
    async with running(tmp_path, propagation="asynchronous", detection_timeout=4.0) as cluster:
        master, *others = await cluster.settled()
        client = await cluster.client(master)
        await client.publish("x")
        await client.subscribe()
        message = await client.message()
        leaving = await cluster.client(master)
        await cluster.settled()
        cluster.cut([master], others)
        waiting = [asyncio.create_task(client.ack(message)), asyncio.create_task(leaving.confirm("DISCONNECT", {}))]
        await asyncio.sleep(0.5)
        assert not any(task.done() for task in waiting)
        cluster.heal()
        await asyncio.gather(*waiting)


async def test_the_replicas_are_brought_up_to_date_without_anybody_who_waits(tmp_path: Path):
    async with running(tmp_path, propagation="asynchronous", sync_interval=0.1) as cluster:
        master, other, _ = await cluster.settled()
        client: Client = await cluster.client(master)
        await client.publish("x")
        await until(lambda: cluster.depth(other) == 1, "the replica has it")


def test_what_waits_and_what_goes_out():
    outbox = Outbox()
    send, ack = Command("send", "c", 1, {}), Command("ack", "c", 2, {})
    in_transaction = Command("send", "c", 3, {"tx": "t"})
    delivery = Deliver("d", 1, "s", QUEUE, "1-1", "1", 0, {}, b"")
    receipts = [Done("c", number, f"r{number}") for number in range(1, 5)]
    assert outbox.add_ahead(10, send, [receipts[0], delivery], early=True)
    assert outbox.add_ahead(11, ack, [receipts[1]], early=True)
    assert outbox.add_ahead(12, in_transaction, [receipts[2]], early=True)
    assert outbox.release() == [receipts[0]]
    assert outbox.add_ahead(13, Command("send", "c", 4, {}), [receipts[3]], early=False), "too far ahead"
    outbox.commit(9)
    assert outbox.release() == []
    outbox.commit(12)
    assert outbox.release() == [delivery, receipts[1], receipts[2], Safe("c", 3)]
    assert not Outbox().add_ahead(1, send, [receipts[0]], early=True)
    outbox.clear()
    outbox.commit(13)
    assert outbox.release() == []


class FakeBroker:
    """Confirms early, then ends the connection; on its return the connection has been closed for idleness."""

    def __init__(self, applied: str) -> None:
        self.applied, self.connects = applied, 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = Parser()
        while data := await reader.read(1 << 16):
            for frame in parser.feed(data):
                if not isinstance(frame, Frame):
                    continue
                if frame.command == "CONNECT":
                    self.connects += 1
                    if self.connects == 2:
                        headers = {"message": "connection closed", "x-closed": "idle", "x-received": self.applied}
                        writer.write(encode(Frame("ERROR", headers)))
                        return
                    headers = {"version": "1.2", "heart-beat": "300,300", "x-connection-id": "c", "x-received": "0",
                               "x-early": "true"}
                    writer.write(encode(Frame("CONNECTED", headers)))
                elif frame.body == b"over":
                    writer.transport.abort()
                    return
                elif frame.command == "SEND":
                    writer.write(encode(Frame("RECEIPT", {"receipt-id": frame.headers["receipt"]})))


@pytest.mark.requirement("J16")
async def test_a_client_whose_connection_was_closed_is_told_what_came_undone():
    broker = FakeBroker(applied="2")
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    connection = StompConnection([server.sockets[0].getsockname()], SETTINGS)
    await connection.open(5)
    for body in ("1", "2", "3", "4"):
        await send(connection, body)
    assert connection.unsafe == 4
    with pytest.raises(ConnectionBroken, match="high availability is broken"):
        await send(connection, "over")
    assert [frame.body for frame in connection.undone] == [b"3", b"4"]
    await connection.abort()
    server.close()


@pytest.mark.parametrize(("applied", "unsafe"), [("0", 1), ("1", 0)])
async def test_what_was_sent_again_is_safe_when_the_broker_says_so_though_its_receipt_was_lost(
    applied: str, unsafe: int
):
    broker = FakeBroker(applied)
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    undone = [Frame("SEND", {"destination": QUEUE}, b"over")]
    connection = StompConnection([server.sockets[0].getsockname()], SETTINGS, undone)
    await connection.open(5)
    if unsafe:
        with pytest.raises(ConnectionBroken, match="high availability is broken"):
            await connection.settled()
    else:
        await connection.settled()
    assert (connection.unsafe, len(connection.undone)) == (unsafe, unsafe)
    await connection.abort()
    server.close()


def asynchronous(**settings: str) -> Case:
    return replace(BASE, settings={**BASE.settings, "propagation": "asynchronous", **settings})


@pytest.mark.parametrize("seed", [pytest.param(1, marks=pytest.mark.soak), 35])
def test_simulated_reliable_clients_lose_nothing(seed: int, tmp_path: Path):
    result = run_seed(asynchronous(), seed, tmp_path, tmp_path)
    assert result.verdict == "valid", result.sentence


def test_simulated_plain_clients_lose_what_was_confirmed_and_nothing_else_goes_wrong(tmp_path: Path):
    case = asynchronous(reliable="false")
    results = [run_seed(case, seed, tmp_path, tmp_path) for seed in (24, 22)]
    assert sum(result.anomalies.get("lost", 0) for result in results) > 0
    assert {name for result in results for name in result.broken} <= {"lost"}


def test_the_interval_must_fit_the_detection_timeout(tmp_path: Path):
    config = Cluster(tmp_path, detection_timeout=0.4, sync_interval=0.3).config("n1")
    with pytest.raises(ConfigError, match="sync_interval"):
        JoramOptions.from_config(config)
