"""The AMQP 1.0 client: outcomes against a server that breaks off after every byte, and by what is answered.

Proton's engine is the other side, too.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("proton", reason="pip install 'stormproof[amqp1]'")

from cut_server import FAIL, INFO, OK, Cut, every_cut, outcome, serving, until
from proton import Collector, Connection, Delivery, Message, Terminus, Transport

from stormproof.clients import PROTOCOLS
from stormproof.clients.amqp1 import Amqp1Connection
from stormproof.contracts.client import NotDone, Prefetching
from stormproof.contracts.protocol_client import Access, Broker, BrokerSetup
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import BackendError, UsageError

AMQP1 = PROTOCOLS.load("amqp1")
ACCESS = Access()
"""Anonymous: Proton as a server has nothing else here."""
TAG = "\u0080\u0081"


class Amqp1Script:
    """A server's side of one connection; ``holds`` is sent to the first receiver, and ``state`` answers a transfer.

    ``refuses``: links get no terminus and are closed. ``settled`` is what receivers' dispositions said, ``frames`` the
    number of links that were attached.
    """

    def __init__(self, state: int | None = Delivery.ACCEPTED, holds: bytes | None = None, product: str = "",
                 version: str = "", refuses: bool = False, credit: int = 10) -> None:  # fmt: skip
        self._state, self._holds, self._refuses, self._credit = state, holds, refuses, credit
        self._connection, self._collector = Connection(), Collector()
        self._transport = Transport(Transport.SERVER)
        self._transport.sasl().allowed_mechs("ANONYMOUS")
        self._connection.collect(self._collector)
        self._connection.container = "server"
        self._connection.properties = {"product": product, "version": version}
        self._transport.bind(self._connection)
        self._sent = 0
        self.confirmed_at = 0
        self.published: list[Message] = []
        self.settled: list[tuple[str, bool]] = []
        self.addresses: list[str] = []

    def feed(self, data: bytes) -> bytes:
        answer = b""
        while data:
            room = self._transport.capacity()
            if room <= 0:
                break
            self._transport.push(data[:room])
            data = data[room:]
            answer += self._turn()
        self._sent += len(answer)
        return answer

    def _turn(self) -> bytes:
        confirms = False
        while (event := self._collector.peek()) is not None:
            confirms |= self._handle(event.type.name, event)
            self._collector.pop()
        answer = b""
        while (pending := self._transport.pending()) > 0:
            answer += self._transport.peek(pending)
            self._transport.pop(pending)
        if confirms:
            self.confirmed_at = self._sent + len(answer)
        return answer

    def _handle(self, name: str, event: Any) -> bool:
        if name == "PN_CONNECTION_REMOTE_OPEN":
            event.connection.open()
        elif name == "PN_SESSION_REMOTE_OPEN":
            event.session.open()
        elif name == "PN_LINK_REMOTE_OPEN":
            self._attach(event.link)
        elif name == "PN_LINK_REMOTE_CLOSE":
            event.link.close()
        elif name == "PN_LINK_FLOW" and event.link.is_sender and self._holds is not None and event.link.credit:
            event.link.delivery(TAG)
            event.link.stream(Message(body=self._holds, inferred=True).encode())
            event.link.advance()
            self._holds = None
        elif name == "PN_CONNECTION_REMOTE_CLOSE":
            event.connection.close()
        elif name == "PN_DELIVERY":
            return self._delivery(event.delivery)
        return False

    def _attach(self, link: Any) -> None:
        theirs = link.remote_target if link.is_receiver else link.remote_source
        self.addresses.append(theirs.address)
        mine = link.target if link.is_receiver else link.source
        if self._refuses:  # 2.6.3: an attach without a terminus, and a detach
            mine.type = Terminus.UNSPECIFIED
            link.open()
            link.close()
            return
        mine.address, mine.type = theirs.address, Terminus.TARGET if link.is_receiver else Terminus.SOURCE
        link.open()
        if link.is_receiver:
            link.flow(self._credit)

    def _delivery(self, delivery: Any) -> bool:
        link = delivery.link
        if link.is_receiver and delivery.readable and not delivery.partial:
            message = Message()
            message.decode(link.recv(delivery.pending))
            link.advance()
            self.published.append(message)
            if self._state is not None:
                delivery.update(self._state)
            delivery.settle()
            return True
        if link.is_sender and delivery.remote_state:
            self.settled.append((delivery.remote_state.name, delivery.settled))
            if delivery.settled:  # there is no answer to it, but to what follows it
                self.confirmed_at = self._sent + 1
                return False
            delivery.update(delivery.remote_state)
            delivery.settle()
            return True
        return False


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
