"""The STOMP client: outcomes against a server that breaks off after every byte, and by what is answered."""

from __future__ import annotations

import asyncio

import pytest
from cut_server import FAIL, INFO, Cut, every_cut, outcome, serving

from nodes.stomp import Frame, FrameLimits, Parser, encode
from stormproof.clients import PROTOCOLS
from stormproof.clients.stomp import StompConnection
from stormproof.contracts.backend import Credentials
from stormproof.contracts.client import NotDone, Prefetching
from stormproof.contracts.protocol_client import Access, Broker, BrokerSetup
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError

STOMP = PROTOCOLS.load("stomp")
ACCESS = Access(Credentials("user", "secret"), vhost="/place")


class StompScript:
    """A server's side of one connection; ``holds`` is pushed to each subscriber."""

    def __init__(self, answer: str = "RECEIPT", holds: bytes | None = None, server: str = "RabbitMQ/3.10.8",
                 headers: dict[str, str] | None = None) -> None:  # fmt: skip
        self._answer, self._holds, self._server, self._headers = answer, holds, server, headers or {}
        self._parser = Parser(FrameLimits())
        self._sent = 0
        self.confirmed_at = 0
        self.frames: list[Frame] = []

    def of(self, command: str) -> list[Frame]:
        return [frame for frame in self.frames if frame.command == command]

    def feed(self, data: bytes) -> bytes:
        answer = b""
        while items := self._parser.feed(data):
            data = b""
            for frame in items:
                if isinstance(frame, Frame):
                    self.frames.append(frame)
                    answer += self._reply(frame)
                    if frame.command in ("SEND", "ACK"):
                        self.confirmed_at = self._sent + len(answer)
        self._sent += len(answer)
        return answer

    def _reply(self, frame: Frame) -> bytes:
        if frame.command == "CONNECT":
            return encode(Frame("CONNECTED", {"version": "1.2", "server": self._server}))
        if self._answer == "ERROR" and frame.command == "SEND":
            return encode(Frame("ERROR", {"message": "no", "receipt-id": frame.headers["receipt"]}))
        number = frame.headers["receipt"] if self._answer == "RECEIPT" or frame.command != "SEND" else "another"
        reply = encode(Frame("RECEIPT", {"receipt-id": number}))
        if frame.command == "SUBSCRIBE" and self._holds is not None:
            headers = {"subscription": frame.headers["id"], "message-id": "1", "ack": "7", "destination": "q"}
            reply += encode(Frame("MESSAGE", {**headers, **self._headers}, self._holds))
        return reply


def connection() -> StompConnection:
    return StompConnection(ACCESS)


async def send(client: StompConnection) -> None:
    await client.send("q0", b"1/2")


async def acknowledge(client: StompConnection) -> None:
    delivery = await client.take("q0", 5.0)
    assert delivery is not None and delivery.body == b"1/2"
    await delivery.ack()


async def test_a_message_that_was_received_never_counts_as_not_sent() -> None:
    counts = await every_cut(StompScript, connection, send, lambda script: bool(script.of("SEND")))
    assert counts[INFO] > 50 and counts[FAIL] > 50, counts


async def test_an_acknowledgement_counts_once_it_has_its_receipt() -> None:
    counts = await every_cut(lambda: StompScript(holds=b"1/2"), connection, acknowledge,
                             lambda script: bool(script.of("ACK")))  # fmt: skip
    assert counts[INFO] > 20 and counts[FAIL] > 50, counts


async def test_an_error_may_follow_a_message_that_is_stored() -> None:
    async with serving(StompScript("ERROR"), Cut()) as cutter:
        assert await outcome(connection(), cutter.port, send) == INFO


async def test_nobody_listens() -> None:
    async with serving(StompScript(), Cut()) as cutter:
        port = cutter.port
    assert await outcome(connection(), port, send) == FAIL


async def test_the_receipt_of_another_frame_confirms_nothing() -> None:
    async with serving(StompScript("another"), Cut()) as cutter:
        client = connection()
        await client.connect("127.0.0.1", cutter.port, "")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.send("q0", b"1/2"), 0.2)
        await client.close()


@pytest.mark.parametrize(("server", "headers", "number", "returns"), [
    ("RabbitMQ/3.10.8", {}, 1, True), ("RabbitMQ/3.10.8", {"x-delivery-count": "4", "redelivered": "true"}, 5, True),
    ("RabbitMQ/4.3.0", {"x-acquired-count": "6", "x-delivery-count": "4"}, 7, True),
    ("RabbitMQ/3.10.8", {"redelivered": "true"}, None, True),  # an existing classic queue
    ("ActiveMQ/5.17.2", {}, None, False), ("ActiveMQ-Artemis/2.44.0", {}, None, False),
])  # fmt: skip
async def test_what_a_broker_counts_and_takes_back(
    server: str, headers: dict[str, str], number: int | None, returns: bool
) -> None:
    script = StompScript(holds=b"1/2", server=server, headers=headers)
    async with serving(script, Cut()) as cutter:
        client = connection()
        await client.connect("127.0.0.1", cutter.port, "")
        delivery = await client.take("q0", 5.0)
        assert delivery is not None and delivery.number == number and (delivery.give_back is not None) == returns
        await client.close()
    (subscribed,) = script.of("SUBSCRIBE")
    made = {"durable": "true", "auto-delete": "false", "x-queue-type": "quorum"}
    assert (made.items() <= subscribed.headers.items()) == server.startswith("RabbitMQ")
    assert subscribed.headers["prefetch-count"] == "1" and not isinstance(client, Prefetching)


async def test_what_the_options_say_is_sent() -> None:
    script = StompScript()
    async with serving(script, Cut()) as cutter:
        options = {"prefix": "jms.queue.", "send_headers": "expires:0,a:b:c", "subscribe_headers": "x:y",
                   "queue_type": "classic", "persistent": False}  # fmt: skip
        setup = BrokerSetup([Broker("n1", "127.0.0.1", cutter.port)], ACCESS, Demands(("q0",)), options)
        await STOMP.prepare(setup)
        client = await STOMP.admitted(setup)
        await client.send("q0", b"1/2")
        assert await client.depth("q0") is None
        await client.close()
    (connect, *_), (subscribe,), (sent,) = (script.of(name) for name in ("CONNECT", "SUBSCRIBE", "SEND"))
    assert (connect.headers["login"], connect.headers["passcode"]) == ("user", "secret")
    assert connect.headers["host"] == "/place"
    assert sent.headers["destination"] == subscribe.headers["destination"] == "jms.queue.q0"
    assert (sent.headers["expires"], sent.headers["a"], subscribe.headers["x"]) == ("0", "b:c", "y")
    assert sent.headers["x-queue-type"] == "classic" and "persistent" not in sent.headers


async def test_a_connection_known_to_be_lost_sends_nothing() -> None:
    script = StompScript()
    async with serving(script, Cut()) as cutter:
        client = connection()
        await client.connect("127.0.0.1", cutter.port, "")
        cutter.end()
        with pytest.raises(NotDone):
            await client.take("q0", 5.0)
        with pytest.raises(NotDone, match="the connection was lost"):
            await client.send("q0", b"1/2")
        await client.close()
    assert not script.of("SEND")


@pytest.mark.parametrize(("access", "options", "told"), [
    (Access(sasl="PLAIN"), {}, "no SASL mechanisms"), (Access(), {"send_headers": "a"}, "write NAME:VALUE"),
])  # fmt: skip
async def test_what_is_refused(access: Access, options: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        STOMP.connection(BrokerSetup([], access, Demands(), options))
