"""The AMQP 0-9-1 client: outcomes against a server that breaks off after every byte, and by what is answered."""

from __future__ import annotations

import asyncio

import pytest
from amqp_script import ACK, CLOSE, NACK, PROPERTIES, RETURN, RETURN_OTHER, AmqpScript
from cut_server import FAIL, INFO, OK, Cut, every_cut, outcome, serving, until

from stormproof.clients import PROTOCOLS
from stormproof.clients.amqp import UNLIMITED_DELIVERIES, AmqpConnection
from stormproof.contracts.client import Beating, NotDone, Prefetching
from stormproof.contracts.protocol_client import Access, Broker, BrokerSetup
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import BackendError, UsageError

AMQP = PROTOCOLS.load("amqp")
PLAIN = Access()


def connection() -> AmqpConnection:
    return AmqpConnection(PLAIN, heartbeat=0)


async def send(client: AmqpConnection) -> None:
    await client.send("q0", b"1/2")


async def acknowledge(client: AmqpConnection) -> None:
    delivery = await client.take("q0", 5.0)
    assert delivery is not None and delivery.body == b"1/2"
    await delivery.ack()


async def test_a_publish_that_was_received_never_counts_as_not_done() -> None:
    counts = await every_cut(AmqpScript, connection, send, lambda script: bool(script.published))
    assert counts[INFO] > 50 and counts[FAIL] > 200, counts  # cut within the publish and its answer, and before


async def test_an_acknowledgement_counts_once_it_is_committed() -> None:
    counts = await every_cut(lambda: AmqpScript(holds=b"1/2"), connection, acknowledge,
                             lambda script: script.committed == ["Basic.Ack"])  # fmt: skip
    assert counts[INFO] > 30 and counts[FAIL] > 200, counts


@pytest.mark.parametrize(("answer", "ends"), [
    (ACK, OK), (NACK, INFO), (CLOSE, INFO), (RETURN, FAIL),
    (RETURN_OTHER, OK),  # the return of another message says nothing about this one
])  # fmt: skip
async def test_answers(answer: str, ends: str) -> None:
    async with serving(AmqpScript(answer), Cut()) as cutter:
        assert await outcome(connection(), cutter.port, send) == ends


async def test_nobody_listens() -> None:
    async with serving(AmqpScript(), Cut()) as cutter:
        port = cutter.port
    assert await outcome(connection(), port, send) == FAIL


async def test_a_connection_known_to_be_lost_sends_nothing() -> None:
    script = AmqpScript()
    async with serving(script, Cut()) as cutter:
        client = connection()
        await client.connect("127.0.0.1", cutter.port, "127.0.0.1")
        await client.close()
        for work in (send(client), acknowledge(client)):
            with pytest.raises(NotDone, match="lost"):
                await work
    assert not script.published


async def test_messages_are_persistent_and_named() -> None:
    script = AmqpScript()
    async with serving(script, Cut()) as cutter:
        assert await outcome(connection(), cutter.port, send) == OK
    assert script.properties.delivery_mode == 2 and script.properties.message_id


@pytest.mark.parametrize(("headers", "redelivered", "queue_type", "number"), [
    (None, False, "auto", 1), ({"x-delivery-count": 4}, True, "auto", 5), (None, False, "classic", None),
    ({"x-acquired-count": 6, "x-delivery-count": 4}, True, "auto", 7),  # RabbitMQ 4
    (None, True, "auto", None),  # an existing classic queue
])  # fmt: skip
async def test_the_number_of_a_delivery(
    headers: dict[str, int] | None, redelivered: bool, queue_type: str, number: int | None
) -> None:
    script = AmqpScript(holds=b"1/2", headers=headers, redelivered=redelivered)
    async with serving(script, Cut()) as cutter:
        client = AmqpConnection(PLAIN, queue_type=queue_type)
        await client.connect("127.0.0.1", cutter.port, "")
        delivery = await client.take("q0", 5.0)
        assert delivery is not None and delivery.number == number
        assert delivery.came is not None and delivery.came <= asyncio.get_running_loop().time()
        assert delivery.give_back is not None
        await delivery.give_back()
        await client.close()
    assert script.committed == ["Basic.Nack"]


async def test_a_lost_connection_ends_a_take() -> None:
    """It may not say that the queue is empty."""
    async with serving(AmqpScript(), Cut()) as cutter:
        client = connection()
        await client.connect("127.0.0.1", cutter.port, "")
        assert await client.take("q0", 0.01) is None
        asyncio.get_running_loop().call_later(0.05, cutter.end)
        with pytest.raises(NotDone, match="the connection was lost"):
            await client.take("q0", 60.0)
        await client.close()


async def test_a_lost_connection_takes_along_what_had_come() -> None:
    async with serving(AmqpScript(holds=b"1/2"), Cut()) as cutter:
        client = connection()
        await client.connect("127.0.0.1", cutter.port, "")
        assert await client.take("q0", 0.0) is None
        await until(client._inboxes["q0"].qsize)
        cutter.end()
        await until(lambda: not client._link.is_opened)
        with pytest.raises(NotDone, match="the connection was lost"):
            await client.take("q0", 5.0)
        await client.close()


async def test_who_stands_still_sends_no_heartbeats() -> None:
    script = AmqpScript()
    async with serving(script, Cut()) as cutter:
        client = AmqpConnection(PLAIN, heartbeat=1)
        assert isinstance(client, Beating) and isinstance(client, Prefetching)
        await client.connect("127.0.0.1", cutter.port, "")
        await until(lambda: script.beats)
        before = script.beats
        await client.stand_still(2.5)
        assert script.beats == before
        await until(lambda: script.beats > before)
        await client.close()


def setup_of(port: int, access: Access = PLAIN, **options: object) -> BrokerSetup:
    return BrokerSetup([Broker("n1", "127.0.0.1", port)], access, Demands(("q0",)), options)


@pytest.mark.parametrize(("options", "properties", "arguments"), [
    ({}, PROPERTIES, {"x-queue-type": "quorum", "x-delivery-limit": UNLIMITED_DELIVERIES}),
    ({"queue_type": "classic"}, PROPERTIES, {"x-queue-type": "classic"}),
    ({}, {"product": "qpid"}, {}),  # without capabilities, as Broker-J
])  # fmt: skip
async def test_what_is_declared(options: dict[str, object], properties: object, arguments: dict[str, object]) -> None:
    script = AmqpScript(properties=properties)
    async with serving(script, Cut()) as cutter:
        await AMQP.prepare(setup_of(cutter.port, **options))
    (declared,) = script.declared
    assert declared.durable and (declared.arguments or {}) == arguments


async def test_a_broker_that_is_not_there_is_named() -> None:
    async with serving(AmqpScript(), Cut()) as cutter:
        port = cutter.port
    with pytest.raises(BackendError, match=r"amqp: no broker lets a client in: n1: .*Connect"):
        await AMQP.prepare(setup_of(port))


def test_an_unknown_mechanism_is_refused() -> None:
    with pytest.raises(UsageError, match=r"SCRAM-SHA-256.*use PLAIN or EXTERNAL"):
        AMQP.connection(setup_of(1, Access(sasl="SCRAM-SHA-256")))
