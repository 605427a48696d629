"""Hostile and broken clients end their own connection, and nobody else's."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest
from broker_process import PATIENCE, BrokerProcess, RawClient, status, until, works

Start = Callable[..., BrokerProcess]


class Watched:
    """A broker with a client that was there before the trouble and must still be served after it."""

    def __init__(self, broker: BrokerProcess, witness: RawClient) -> None:
        self.broker, self.port, self.witness = broker, broker.port, witness

    async def unharmed(self) -> None:
        await self.witness.confirmed("SEND", {"destination": "/queue/witness"}, b"still here")
        await works(self.port)
        assert self.broker.alive()


Watch = Callable[..., Awaitable[Watched]]


@pytest.fixture
def watched(start_broker: Start) -> Watch:
    async def make(**options: object) -> Watched:
        broker = start_broker(**options)
        return Watched(broker, await RawClient.connect(broker.port))

    return make


GREETING = b"CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:secret-word\n\n\0"


@pytest.mark.parametrize(("data", "reason"), [
    (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "unknown command"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xff" * 70_000, "headers are longer"),
    (b"SEND\ndestination:/queue/q\n\nx\0", "before CONNECT"),
    (b"CONNECT\naccept-version:1.1\n\n\0", "versions are 1.2"),
    (b"CONNECT\naccept-version:1.2\nheart-beat:soon\n\n\0", "heart-beat"),
    (b"CONNECT\naccept-version:1.2\nlogin:guest\npasscode:guess\n\n\0", "wrong login or passcode"),
    (b"CONNECT\naccept-version:1.2\nx-admin:true\n\n\0", "wrong login or passcode"),
    (GREETING + GREETING, "CONNECT on an open connection"),
    (GREETING + b"CONNECTED\n\n\0", "CONNECTED on an open connection"),
    (GREETING + b"SEND\n\nx\0", "without destination"),
    (GREETING + b"SEND\ndestination:/topic/t.*\n\nx\0", "not /queue/NAME"),
    (GREETING + b"SEND\ndestination:/queue/durable:guest:t\n\nx\0", "not /queue/NAME"),
    (GREETING + b"SUBSCRIBE\nid:s\ndestination:/topic/a.>.b\n\n\0", "not /queue/NAME"),
    (GREETING + b"SUBSCRIBE\nid:s\ndestination:/queue/q\nx-durable:n\n\n\0", "x-durable is for /topic/"),
    (GREETING + b"SUBSCRIBE\nid:s\ndestination:/topic/t\nx-durable:a\\cb\n\n\0", "blank or a colon"),
    (GREETING + b"SEND\ndestination:/queue/" + b"n" * 300 + b"\n\nx\0", "longer than 200"),
    (GREETING + b"SEND\ndestination:/admin/status\n\n\0", "not /queue/NAME"),
    (GREETING + b"SUBSCRIBE\nid:1\ndestination:/queue/q\nack:never\n\n\0", "ack is none of"),
    (GREETING + b"SUBSCRIBE\nid:1\ndestination:/queue/q\nx-prefetch:0\n\n\0", "x-prefetch"),
    (GREETING + b"ACK\n\n\0", "ACK without id"),
    (GREETING + b"BEGIN\n\n\0", "BEGIN without transaction"),
    (GREETING + b"SEND\ndestination:/queue/q\ncontent-length:99999999\n\n", "body is longer"),
    (GREETING + b"SEND\nbad\\escape:x\n\n\0", "undefined escape"),
])
async def test_a_wrong_frame_is_told_and_ends_the_connection(
        shared_broker: BrokerProcess, data: bytes, reason: str) -> None:
    client = await RawClient.dial(shared_broker.port)
    client.writer.write(data)
    frame = await client.frame()
    if frame is not None and frame.command == "CONNECTED":
        frame = await client.frame()
    assert frame is not None and frame.command == "ERROR"
    assert reason in frame.headers["message"]
    await client.closed()
    await works(shared_broker.port)


async def pour(client: RawClient, piece: bytes) -> None:
    """Send without end, until the broker has had enough."""
    try:
        while True:
            client.writer.write(piece)
            await client.writer.drain()
            await asyncio.sleep(0)  # `drain` lets nobody else run while the broker takes everything at once
    except ConnectionError:
        pass


@pytest.mark.parametrize(("start", "piece", "reason"), [
    (b"SEND\nendless:", b"x" * 10_000, "headers are longer"),
    (b"SEND\n", b"a:b\n" * 2_500, "headers are longer"),
    (b"SEND\ndestination:/queue/q\n\n", b"x" * 10_000, "body is longer"),
])
async def test_an_endless_frame_is_cut_off(
        watched: Watch, start: bytes, piece: bytes, reason: str) -> None:
    scene = await watched(max_body=100_000, linger=6.0)
    client = await RawClient.connect(scene.port)
    client.writer.write(start)
    pouring = asyncio.create_task(pour(client, piece))
    assert reason in (await client.expect("ERROR")).headers["message"]
    async with asyncio.timeout(PATIENCE):
        await pouring
    await scene.unharmed()


async def test_a_client_that_says_nothing_is_let_go(watched: Watch) -> None:
    scene = await watched(connect_timeout=2.0)
    client = await RawClient.dial(scene.port)
    assert "no CONNECT within" in (await client.refused()).headers["message"]
    await scene.unharmed()


async def test_a_client_whose_heart_stops_is_let_go_and_its_messages_go_to_others(
        watched: Watch) -> None:
    scene = await watched()
    client = await RawClient.connect(scene.port, heart_beat="500,0")
    client.send("SUBSCRIBE", {"id": "s", "destination": "/queue/q", "ack": "client"})
    client.send("SEND", {"destination": "/queue/q"}, b"x")
    await client.expect("MESSAGE")
    assert "no heart-beat" in (await client.refused()).headers["message"]
    scene.witness.send("SUBSCRIBE", {"id": "s", "destination": "/queue/q", "ack": "client"})
    assert (await scene.witness.expect("MESSAGE")).headers["redelivered"] == "true"
    await scene.unharmed()


async def test_the_broker_sends_heart_beats_as_often_as_asked(shared_broker: BrokerProcess) -> None:
    client = await RawClient.connect(shared_broker.port, heart_beat="0,100")
    reading = asyncio.create_task(client.frame())
    loop, seen = asyncio.get_running_loop(), 0
    came: list[float] = []
    async with asyncio.timeout(PATIENCE):
        while not any(later - one < 0.25 for one, later in pairwise(came)):
            if client.beats > seen:  # two at once were read late
                came = [*(came if client.beats == seen + 1 else []), loop.time()]
                seen = client.beats
            await asyncio.sleep(0.02)
    reading.cancel()
    await asyncio.wait({reading})
    await client.confirmed("DISCONNECT")


def deaf_socket(port: int) -> socket.socket:
    """A connected socket that takes very little, and that nobody reads."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", port))
    connection.sendall(GREETING)
    return connection


@pytest.mark.parametrize(("limits", "reason"), [
    ({"max_output": 1_000_000}, "bytes of output wait"),
    ({"output_timeout": 0.3}, "no output was taken"),
])
async def test_a_client_that_never_reads_is_let_go(
        watched: Watch, limits: dict[str, float], reason: str) -> None:
    scene = await watched(linger=0.2, **limits)
    for _ in range(80):
        await scene.witness.confirmed("SEND", {"destination": "/queue/big"}, b"x" * 100_000)
    with deaf_socket(scene.port) as deaf:
        deaf.sendall(b"SUBSCRIBE\nid:s\ndestination:/queue/big\nack:client\nx-prefetch:80\n\n\0")
        await scene.unharmed()
        await until(lambda: reason in scene.broker.log.read_text())
        # What it held goes to a client that reads.
        scene.witness.send("SUBSCRIBE", {"id": "s", "destination": "/queue/big", "ack": "client"})
        assert len((await scene.witness.expect("MESSAGE")).body) == 100_000
    await works(scene.port)


async def test_a_client_that_asks_for_receipts_and_never_reads_is_made_to_wait(
        watched: Watch) -> None:
    scene = await watched(output_timeout=0.5, linger=0.2)
    frame = b"SEND\ndestination:/queue/q\nreceipt:" + b"r" * 20_000 + b"\n\n\0"
    loop = asyncio.get_running_loop()
    with deaf_socket(scene.port) as deaf:
        deaf.setblocking(False)
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(PATIENCE):
                while True:
                    await loop.sock_sendall(deaf, frame)
    assert (await status(scene.port))["depths"]["q"] < 2000
    await scene.unharmed()


async def test_many_frames_at_once_are_all_answered_in_order(
        watched: Watch) -> None:
    scene = await watched(max_outstanding=8)
    client = await RawClient.connect(scene.port)
    for number in range(500):
        client.send("SEND", {"destination": "/queue/q", "receipt": str(number)}, b"x")
    receipts = [(await client.expect("RECEIPT")).headers["receipt-id"] for _ in range(500)]
    assert receipts == [str(number) for number in range(500)]
    await scene.unharmed()


async def test_the_number_of_connections_is_bounded_but_not_for_the_administrator(
        watched: Watch) -> None:
    scene = await watched(max_connections=3)
    others = [await RawClient.connect(scene.port) for _ in range(2)]
    late = await RawClient.dial(scene.port)
    late.hello()
    assert (await late.refused()).headers["message"] == "too many connections"
    late.abort()
    assert (await status(scene.port))["connections"] == 3
    for client in others:
        await client.confirmed("DISCONNECT")
        client.abort()
    await scene.unharmed()


async def test_headers_of_the_broker_cannot_be_forged(shared_broker: BrokerProcess) -> None:
    client = await RawClient.connect(shared_broker.port)
    forged = {"destination": "/queue/forge", "message-id": "1", "ack": "9-9", "subscription": "other",
              "redelivered": "true", "x-seq": "7", "line\nbreak": "a\r\nMESSAGE:\0"[:-1]}
    await client.confirmed("SEND", forged, b"x")
    client.send("SUBSCRIBE", {"id": "mine", "destination": "/queue/forge", "ack": "client"})
    headers = (await client.expect("MESSAGE")).headers
    assert (headers["subscription"], headers.get("redelivered"), headers.get("x-seq")) == ("mine", None, None)
    assert headers["ack"] != "9-9" and headers["line\nbreak"] == "a\r\nMESSAGE:"
    await client.confirmed("ACK", {"id": headers["ack"]})


async def test_an_administrator_sees_the_state_and_can_do_nothing_else(shared_broker: BrokerProcess) -> None:
    answer = await status(shared_broker.port)
    assert (answer["node"], answer["design"], answer["role"], answer["serving"], answer["view"]) == (
        "n1", "standalone", "master", True, ["n1"])
    client = await RawClient.connect(shared_broker.port, x_admin="true")
    await client.confirmed("DISCONNECT")
    client = await RawClient.connect(shared_broker.port, x_admin="true")
    client.send("SEND", {"destination": "/queue/q"})
    assert "administrator" in (await client.refused()).headers["message"]
