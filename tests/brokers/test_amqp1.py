"""The AMQP 1.0 client: outcomes against a server that breaks off after every byte, and by what is answered.

Proton's engine, which has to be compiled, is the other side, too: so this test is with those of real brokers.
"""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("proton", reason="pip install 'stormproof[amqp1]'")

from amqp1_script import Amqp1Script
from cut_server import FAIL, INFO, OK, Cut, every_cut, outcome, serving, until
from proton import Delivery

from stormproof.clients import PROTOCOLS
from stormproof.clients.amqp1 import Amqp1Connection
from stormproof.contracts.client import NotDone, Prefetching
from stormproof.contracts.protocol_client import Access, Broker, BrokerSetup
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import BackendError, UsageError

AMQP1 = PROTOCOLS.load("amqp1")
ACCESS = Access()
"""Anonymous: Proton as a server has nothing else here."""


def connection() -> Amqp1Connection:
    return Amqp1Connection(ACCESS)


async def send(client: Amqp1Connection) -> None:
    await client.send("q0", b"1/2")


async def acknowledge(client: Amqp1Connection) -> None:
    delivery = await client.take("q0", 5.0)
    assert delivery is not None and delivery.body == b"1/2"
    await delivery.ack()


async def test_a_transfer_that_was_received_never_counts_as_not_done() -> None:
    counts = await every_cut(Amqp1Script, connection, send, lambda script: bool(script.published))
    assert counts[INFO] > 50 and counts[FAIL] > 200, counts


@pytest.mark.parametrize("product", ["", "RabbitMQ"])
async def test_an_acknowledgement_counts_once_it_is_confirmed(product: str) -> None:
    counts = await every_cut(lambda: Amqp1Script(holds=b"1/2", product=product, version="3.10"), connection,
                             acknowledge, lambda script: bool(script.settled))  # fmt: skip
    assert counts[INFO] > 20 and counts[FAIL] > 200, counts


@pytest.mark.parametrize(("state", "ends"), [
    (Delivery.ACCEPTED, OK), (Delivery.RELEASED, FAIL), (Delivery.REJECTED, INFO), (Delivery.MODIFIED, INFO),
    (None, INFO),  # settled without an outcome
])  # fmt: skip
async def test_outcomes(state: int | None, ends: str) -> None:
    async with serving(Amqp1Script(state), Cut()) as cutter:
        assert await outcome(connection(), cutter.port, send) == ends


@pytest.mark.parametrize(("product", "acknowledged", "settled"), [
    ("", True, False), ("RabbitMQ", True, True), ("", False, True), ("RabbitMQ", False, True),
])  # fmt: skip
async def test_how_a_message_is_settled(product: str, acknowledged: bool, settled: bool) -> None:
    script = Amqp1Script(holds=b"1/2", product=product, version="3.10")
    async with serving(script, Cut()) as cutter:
        client = connection()
        await client.connect("127.0.0.1", cutter.port, "")
        delivery = await client.take("q0", 5.0)
        assert delivery is not None and delivery.give_back is not None and delivery.number is None
        assert delivery.came is not None and delivery.came <= asyncio.get_running_loop().time()
        await (delivery.ack() if acknowledged else delivery.give_back())
        await client.close()
    assert script.settled == [("ACCEPTED" if acknowledged else "RELEASED", settled)]


@pytest.mark.parametrize(("product", "version", "address", "used"), [
    ("", "", "auto", "q0"), ("RabbitMQ", "3.10.8", "auto", "/amq/queue/q0"),
    ("RabbitMQ", "4.1.0", "auto", "/queues/q0"), ("RabbitMQ", "3.10.8", "jms.queue.", "jms.queue.q0"),
])  # fmt: skip
async def test_addresses(product: str, version: str, address: str, used: str) -> None:
    script = Amqp1Script(product=product, version=version)
    async with serving(script, Cut()) as cutter:
        client = Amqp1Connection(ACCESS, address=address)
        assert await outcome(client, cutter.port, send) == OK
    assert script.addresses == [used] and script.published[0].durable


async def test_nobody_listens() -> None:
    async with serving(Amqp1Script(), Cut()) as cutter:
        port = cutter.port
    assert await outcome(connection(), port, send) == FAIL


async def test_a_refused_link_has_sent_nothing() -> None:
    script = Amqp1Script(refuses=True)
    async with serving(script, Cut()) as cutter:
        assert await outcome(connection(), cutter.port, send) == FAIL
    async with serving(Amqp1Script(refuses=True), Cut()) as cutter:
        setup = BrokerSetup([Broker("n1", "127.0.0.1", cutter.port)], ACCESS, Demands(("q0",)))
        with pytest.raises(BackendError, match=r"amqp1: no queue q0: .*; create it before the run"):
            await AMQP1.prepare(setup)
    assert not script.published


async def test_without_credit_nothing_is_sent() -> None:
    script = Amqp1Script(credit=0)
    async with serving(script, Cut()) as cutter:
        client = connection()
        await client.connect("127.0.0.1", cutter.port, "")
        sending = asyncio.create_task(client.send("q0", b"1/2"))
        await until(lambda: script.addresses)
        cutter.end()
        with pytest.raises(NotDone, match="the connection was lost"):
            await sending
        await client.close()
    assert not script.published


async def test_a_lost_connection_ends_a_take() -> None:
    """It may not say that the queue is empty."""
    async with serving(Amqp1Script(), Cut()) as cutter:
        client = connection()
        assert isinstance(client, Prefetching)
        await client.connect("127.0.0.1", cutter.port, "")
        assert await client.take("q0", 0.01) is None
        asyncio.get_running_loop().call_later(0.05, cutter.end)
        with pytest.raises(NotDone, match="the connection was lost"):
            await client.take("q0", 60.0)
        with pytest.raises(NotDone, match="the connection was lost"):
            await send(client)
        await client.close()


async def test_a_silent_broker_is_left() -> None:
    """The script sends no empty frames; a client with idle=0 stays."""
    for idle in (1.0, 0.0):
        async with serving(Amqp1Script(), Cut()) as cutter:
            client = Amqp1Connection(ACCESS, idle=idle)
            await client.connect("127.0.0.1", cutter.port, "")
            if idle:
                with pytest.raises(NotDone, match="the connection was lost"):
                    await client.take("q0", 60.0)
            else:
                assert await client.take("q0", 3.0) is None
            await client.close()


def test_an_unknown_mechanism_is_refused() -> None:
    with pytest.raises(UsageError, match=r"SCRAM-SHA-256.*use PLAIN, ANONYMOUS or EXTERNAL"):
        AMQP1.connection(BrokerSetup([], Access(sasl="SCRAM-SHA-256")))
