"""The Kafka client on a real Kafka: its primitives, and outcomes of connections that are broken off."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiokafka")

import aiokafka.client
from cut_proxy import send_with_cuts
from cut_server import FAIL, INFO, OK
from kafka_server import kafka
from rabbitmq_server import free_ports

from stormproof.clients import PROTOCOLS
from stormproof.clients.kafka import Kafka, KafkaConnection
from stormproof.contracts.client import Delivery, LogConnection, LogEntry, NotDone
from stormproof.contracts.protocol_client import Access, Broker, BrokerSetup
from stormproof.contracts.workload_requirements import Demands

WAIT_SECONDS = 20.0
"""The time for a consumer to join a group: longer than a session, after which dead members are out."""
THROUGH: ContextVar[int] = ContextVar("THROUGH")
"""The port that the current connection goes to, in place of the one that the broker tells."""
SEND_STEP_BYTES = 11


class Connection(KafkaConnection):
    async def connect(self, host: str, port: int, local: str) -> None:
        THROUGH.set(port)
        await super().connect(host, port, local)


class Client(Kafka):
    """Kafka through the proxy that a connection is opened to."""

    def connection(self, setup: BrokerSetup) -> Connection:
        return Connection(setup)

    async def prepare(self, setup: BrokerSetup) -> None:
        THROUGH.set(setup.brokers[0].port)
        await super().prepare(setup)


KAFKA = Client()


@pytest.fixture(scope="module")
def port(kafka_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with kafka(kafka_home, tmp_path_factory.mktemp("kafka"), free_ports(2)) as running:
        yield running


@pytest.fixture(autouse=True)
def through(monkeypatch: pytest.MonkeyPatch) -> None:
    create = aiokafka.client.create_conn

    async def created(host: str, port: int, **named: Any) -> Any:
        return await create(host, THROUGH.get(), **named)

    monkeypatch.setattr(aiokafka.client, "create_conn", created)


def setup_of(port: int, queue: str, log: str = "", **options: Any) -> BrokerSetup:
    return BrokerSetup([Broker("n1", "127.0.0.1", port)], Access(), Demands((queue,), logs=(log,) if log else ()),
                       options)  # fmt: skip


async def taken(connection: KafkaConnection, queue: str) -> Delivery:
    async with asyncio.timeout(WAIT_SECONDS):
        while (found := await connection.take(queue, 1.0)) is None:
            pass
    return found


async def test_logs_by_librdkafka(port: int) -> None:
    """Its connection is a program."""
    pytest.importorskip("confluent_kafka")
    THROUGH.set(port)  # preparation is that of `kafka`
    client, setup = PROTOCOLS.load("kafka-librdkafka"), setup_of(port, "unused2", "log2")
    await client.prepare(setup)
    connection = await client.admitted(setup)
    assert isinstance(connection, LogConnection) and not hasattr(connection, "send")
    assert await connection.read("log2", 0, 9) == []
    assert [await connection.append("log2", body) for body in (b"a", b"b", b"\xff")] == [1, 2, 3]
    assert await connection.read("log2", 3, 9) == []
    assert await connection.read("log2", 0, 2) == [LogEntry(1, b"a"), LogEntry(2, b"b")]
    assert await connection.read("log2", 2, 9) == [LogEntry(3, b"\xff")]
    assert await connection.read("log2", 1, 1) == [LogEntry(2, b"b")]
    with pytest.raises(NotDone, match="the library refused the message"):
        await connection.append("log2", b"x" * 2_000_000)
    await connection.close()
    twice = await client.admitted(replace(setup, options={"idempotence": "true"}))
    assert await twice.append("log2", b"d") == 4
    await twice.close()
    assert await client.leaders(setup) == {"unused2": "n1", "log2": "n1"}


async def test_logs(port: int) -> None:
    setup = setup_of(port, "unused", "log")
    await KAFKA.prepare(setup)
    await KAFKA.prepare(setup)  # what exists is accepted
    connection = KAFKA.connection(setup)
    await connection.connect("127.0.0.1", port, "127.0.0.9")
    assert await connection.read("log", 0, 9) == []
    assert [await connection.append("log", body) for body in (b"a", b"b", b"c")] == [1, 2, 3]
    leader = next(iter(connection._client._conns.values()))
    assert leader._writer.get_extra_info("sockname")[0] == "127.0.0.9"
    found: list[LogEntry] = []
    while batch := await connection.read("log", found[-1].offset if found else 0, 2):
        assert len(batch) <= 2
        found += batch
    assert found == [LogEntry(1, b"a"), LogEntry(2, b"b"), LogEntry(3, b"c")]
    assert await connection.read("log", 1, 1) == [LogEntry(2, b"b")]
    assert await connection.read("log", 3, 9) == []
    with pytest.raises(NotDone, match="MESSAGE_TOO_LARGE"):
        await connection.append("log", b"x" * 2_000_000)
    assert await KAFKA.leaders(setup) == {"unused": "n1", "log": "n1"}
    assert await KAFKA.advertised(setup) == {"broker 1": ("127.0.0.1", port)}
    await connection.close()
    assert await KAFKA.clear(setup, ["unused", "log", "never-there"]) == []


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
async def test_transactions(port: int, level: str) -> None:
    """One of two is aborted. The end of a log is found behind what was aborted, and not before an open transaction."""
    setup = setup_of(port, "unused", level, transactional=True, abort_percent=50, isolation_level=level)
    await KAFKA.prepare(setup)
    connection = KAFKA.connection(setup)
    await connection.connect("127.0.0.1", port, "127.0.0.9")
    offsets = []
    for body in (b"a", b"b", b"c", b"d"):
        try:
            offsets.append((await connection.append(level, body), body))
        except NotDone as error:
            assert "its transaction was to be aborted, and was" in str(error)
    assert [body for _, body in offsets] == [b"a", b"c"]
    found: list[LogEntry] = []
    while batch := await connection.read(level, found[-1].offset if found else 0, 9):
        found += batch
    bodies = [each.body for each in found]
    assert bodies == ([b"a", b"c"] if level == "read_committed" else [b"a", b"b", b"c", b"d"])
    assert set(offsets) <= {(each.offset, each.body) for each in found}
    await connection._producer.begin_transaction()
    await connection._producer.send_and_wait(level, b"e", partition=0)
    if level == "read_committed":
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connection.read(level, found[-1].offset, 9), 1.5)
    await connection._producer.abort_transaction()
    last = [each.body for each in await connection.read(level, found[-1].offset, 9)]
    assert last == ([] if level == "read_committed" else [b"e"])
    await connection.close()


async def test_the_depth_counts_what_no_acknowledgement_stands_for(port: int) -> None:
    """With three partitions: before any commit, with messages that a consumer has, and after acknowledgements."""
    setup = setup_of(port, "deep", partitions=3)
    await KAFKA.prepare(setup)
    connection = await KAFKA.admitted(setup)
    assert await connection.depth("deep") == 0
    bodies = [b"%d" % number for number in range(7)]
    for body in bodies:
        await connection.send("deep", body)
    assert await connection.depth("deep") == 7
    found = [await taken(connection, "deep") for _ in bodies]
    assert sorted(each.body for each in found) == bodies and await connection.depth("deep") == 7
    for left, each in zip(range(6, -1, -1), found, strict=True):
        await each.ack()
        assert await connection.depth("deep") == left
    assert await connection.take("deep", 0.5) is None
    await connection.close()


async def test_an_acknowledgement_stands_for_no_other_message(port: int) -> None:
    setup = setup_of(port, "later", partitions=1)
    await KAFKA.prepare(setup)
    connection = await KAFKA.admitted(setup)
    for body in (b"1", b"2", b"3"):
        await connection.send("later", body)
    first, second = await taken(connection, "later"), await taken(connection, "later")
    await second.ack()
    assert await connection.depth("later") == 3
    assert first.give_back is not None
    await first.give_back()
    again = await taken(connection, "later")
    assert again.body == first.body == b"1"
    await connection.close()
    other = await KAFKA.admitted(setup)
    assert (await taken(other, "later")).body == b"1"
    await other.close()


async def test_messages_go_to_another_consumer_and_a_late_acknowledgement_does_nothing(port: int) -> None:
    setup = setup_of(port, "shared", partitions=1)
    await KAFKA.prepare(setup)
    one, other = await KAFKA.admitted(setup), await KAFKA.admitted(setup)
    await one.send("shared", b"1")
    held = await taken(one, "shared")
    assert await other.take("shared", 0.1) is None  # it begins to join
    async with asyncio.timeout(WAIT_SECONDS):
        while one._takers["shared"]._held:
            await other.take("shared", 0.1)
    with pytest.raises(NotDone, match="assigned the partition again"):
        await held.ack()
    await one.close()
    again = await taken(other, "shared")
    assert again.body == b"1"
    await again.ack()
    assert await other.depth("shared") == 0
    await other.close()


async def test_a_take_waits_for_its_partition_and_its_message(port: int) -> None:
    setup = setup_of(port, "awaited", partitions=1)
    await KAFKA.prepare(setup)
    one, other = await KAFKA.admitted(setup), await KAFKA.admitted(setup)
    for taker, leaver in ((one, None), (other, one)):
        taking = asyncio.create_task(taker.take("awaited", 2 * WAIT_SECONDS))  # before it is in the group
        await asyncio.sleep(0.1)
        if leaver is not None:
            await leaver.close()
        sender = await KAFKA.admitted(setup)
        await sender.send("awaited", b"1")
        await sender.close()
        found = await taking
        assert found is not None and found.body == b"1"
        await found.ack()
    assert await other.take("awaited", 0.1) is None
    await other.close()


async def test_sends_that_are_broken_off(port: int) -> None:
    counts = await send_with_cuts(KAFKA, setup_of(port, "sends"), SEND_STEP_BYTES)
    assert counts[OK] >= 1 and counts[FAIL] > 20 and counts[INFO] > 2, counts
