"""RabbitMQ's client: heart-beats that stop, and what a quorum queue tells of a message's deliveries."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from nodes.stomp import Frame, FrameLimits, Parser, encode
from nodes.systems.rabbitmq.client import RabbitQueues
from nodes.systems.rabbitmq.system import RABBITMQ
from stormproof.clients.amqp import AmqpConnection
from stormproof.clients.amqp1 import Amqp1Connection
from stormproof.contracts.client import Beating, Delivery
from stormproof.contracts.system import StateTransfer

pytestmark = pytest.mark.requirement("H12", part=True)


async def depth(queue: str) -> int:
    return 0


class Broker:
    """Answers one connection, and counts its heart-beats."""

    def __init__(self, deliveries: int | None) -> None:
        self.beats = 0
        self.beat = asyncio.Event()
        self.connect: Frame | None = None
        self._deliveries = deliveries

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = Parser(FrameLimits())
        while data := await reader.read(1 << 16):
            for frame in parser.feed(data):
                if not isinstance(frame, Frame):
                    self.beats += 1
                    self.beat.set()
                elif frame.command == "CONNECT":
                    self.connect = frame
                    writer.write(encode(Frame("CONNECTED", {"version": "1.2"})))
                elif "receipt" in frame.headers:
                    writer.write(encode(Frame("RECEIPT", {"receipt-id": frame.headers["receipt"]})))
                    if frame.command == "SUBSCRIBE":
                        headers = {"subscription": "q0", "message-id": "1", "ack": "1", "destination": "/amq/queue/q0"}
                        if self._deliveries is not None:
                            headers["x-delivery-count"] = str(self._deliveries)
                        writer.write(encode(Frame("MESSAGE", headers, b"token")))
        writer.close()


async def taken(deliveries: int | None, counted: bool) -> Delivery:
    server = await asyncio.start_server(Broker(deliveries).serve, "127.0.0.1", 0)
    queues = RabbitQueues(depth, counted, 0.0)
    await queues.connect("127.0.0.1", server.sockets[0].getsockname()[1], "")
    delivery = await queues.take("q0", 5.0)
    await queues.close()
    server.close()
    assert delivery is not None
    return delivery


@pytest.mark.parametrize(("deliveries", "counted", "number"), [(None, True, 1), (4, True, 5), (None, False, None)])
def test_the_number_of_a_delivery(deliveries: int | None, counted: bool, number: int | None) -> None:
    """A message that was never taken back has no header; a classic queue counts nothing."""
    assert asyncio.run(taken(deliveries, counted)).number == number


def test_who_stands_still_sends_no_heartbeats() -> None:
    async def work() -> None:
        broker = Broker(None)
        server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
        queues = RabbitQueues(depth, True, 0.02)
        assert isinstance(queues, Beating)
        await queues.connect("127.0.0.1", server.sockets[0].getsockname()[1], "")
        assert broker.connect is not None and broker.connect.headers["heart-beat"] == "20,2000"
        await broker.beat.wait()
        still = asyncio.create_task(queues.stand_still(0.3))
        await asyncio.sleep(0.05)  # a beat may be on its way
        before = broker.beats
        await still
        assert broker.beats <= before + 1
        broker.beat.clear()
        await broker.beat.wait()
        await queues.close()
        server.close()

    asyncio.run(work())


def test_the_client_takes_its_heartbeat_from_the_options() -> None:
    assert {option.name: option.default for option in RABBITMQ.options}["heartbeat"] == 0.0


@pytest.mark.parametrize(("client", "kind", "listeners", "plugins"), [
    ("stomp", RabbitQueues, ["listeners.tcp.1 = 10.0.0.1:5672", "stomp.listeners.tcp.1 = 10.0.0.1:61613"],
     "[rabbitmq_stomp]."),
    ("amqp", AmqpConnection, ["listeners.tcp.1 = 10.0.0.1:61613"], "[]."),
    ("amqp1", Amqp1Connection, ["listeners.tcp.1 = 10.0.0.1:61613"], "[rabbitmq_amqp1_0]."),
])  # fmt: skip
async def test_what_clients_speak(client: str, kind: type, listeners: list[str], plugins: str) -> None:
    """The broker listens for it at the port that clients connect to."""
    options = {**{option.name: option.default for option in RABBITMQ.options}, "client": client}
    machine: Any = SimpleNamespace(address="10.0.0.1", replicas=["n1"], option=options.get)
    files = RABBITMQ.files(machine)
    assert [line for line in files["rabbitmq.conf"].splitlines() if "listeners" in line] == listeners
    assert files["enabled_plugins"].strip() == plugins
    cluster: Any = SimpleNamespace(attached=None, test=SimpleNamespace(options=options), node_names=[])
    assert type(RABBITMQ.connection(cluster)) is kind


@pytest.mark.requirement("H25", part=True)
def test_a_mirror_takes_the_state_of_its_leader() -> None:
    line = "Mirrored queue 'q0' in vhost '/': Adding mirror on node rabbit@n1: <0.6829.0>"
    assert RABBITMQ.state_transfer(line) == StateTransfer("", "n1", "mirror of q0")
    assert RABBITMQ.state_transfer("Mirrored queue 'q0' in vhost '/': Synchronising: 0 messages to synchronise") is None
