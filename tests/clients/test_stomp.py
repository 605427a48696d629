"""The STOMP client of real systems: it leaves a broker that is silent, and says when what it takes came."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from nodes.stomp import Frame, FrameLimits, Parser, encode
from stormproof.clients.stomp import MISSED, StompConnection
from stormproof.contracts.client import NotDone
from stormproof.contracts.protocol_client import Access

pytestmark = pytest.mark.requirement("H12", part=True)

WANTED = 0.1


class Broker:
    """Answers one connection, gives it one message, and beats until it is told to be silent."""

    def __init__(self, beats: int) -> None:
        self.beats = beats
        """Milliseconds between two heart-beats that it says it sends."""
        self.silent = asyncio.Event()
        self.ended = asyncio.Event()
        self.push: Callable[[], None] = lambda: None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser, beating = Parser(FrameLimits()), asyncio.create_task(self._beat(writer))
        try:
            while data := await reader.read(1 << 16):
                for frame in parser.feed(data):
                    if isinstance(frame, Frame):
                        self._answer(frame, writer)
        except ConnectionError:
            pass
        finally:
            self.ended.set()
            beating.cancel()
            writer.close()

    def _answer(self, frame: Frame, writer: asyncio.StreamWriter) -> None:
        if frame.command == "CONNECT":
            writer.write(encode(Frame("CONNECTED", {"version": "1.2", "heart-beat": f"{self.beats},0"})))
        elif "receipt" in frame.headers:
            writer.write(encode(Frame("RECEIPT", {"receipt-id": frame.headers["receipt"]})))
        if frame.command == "SUBSCRIBE":
            headers = {"subscription": "q0", "message-id": "1", "ack": "1", "destination": "q0"}
            self.push = lambda: writer.write(encode(Frame("MESSAGE", headers, b"1/2")))

    async def _beat(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await asyncio.sleep(WANTED / 4)
            if self.beats and not self.silent.is_set():
                writer.write(b"\n")


async def with_broker(beats: int, work: Callable[[Broker, StompConnection], Awaitable[None]]) -> None:
    broker = Broker(beats)
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    queues = StompConnection(Access(), wanted=WANTED)
    await queues.connect("127.0.0.1", server.sockets[0].getsockname()[1], "")
    try:
        await work(broker, queues)
    finally:
        await queues.close()
        server.close()


async def test_a_silent_broker_is_left_with_what_had_come() -> None:
    async def work(broker: Broker, queues: StompConnection) -> None:
        assert await queues.take("q0", 0.01) is None
        broker.push()
        await asyncio.sleep(WANTED / 2)  # it is here, and nobody took it
        broker.silent.set()
        await broker.ended.wait()
        with pytest.raises(NotDone, match="the connection was lost: the broker was silent for"):
            await queues.take("q0", 5.0)
        with pytest.raises(NotDone, match="silent"):
            await queues.send("q0", b"1/3")

    await with_broker(round(WANTED * 1000), work)


async def test_who_waits_for_a_message_learns_that_the_connection_is_lost() -> None:
    """It may not say that the queue is empty."""
    async def work(broker: Broker, queues: StompConnection) -> None:
        assert await queues.take("q0", 0.01) is None
        broker.silent.set()
        with pytest.raises(NotDone, match="silent"):
            await queues.take("q0", 4 * MISSED * WANTED)

    await with_broker(round(WANTED * 1000), work)


@pytest.mark.parametrize("beats", [round(WANTED * 1000), 0])
async def test_a_broker_that_beats_or_promised_none_is_not_left(beats: int) -> None:
    async def work(broker: Broker, queues: StompConnection) -> None:
        assert await queues.take("q0", 4 * MISSED * WANTED) is None
        assert not broker.ended.is_set()
        loop = asyncio.get_running_loop()
        before = loop.time()
        broker.push()
        await asyncio.sleep(WANTED)
        asked = loop.time()
        delivery = await queues.take("q0", 5.0)
        assert delivery is not None and delivery.came is not None and before <= delivery.came <= asked
        await delivery.ack()

    await with_broker(beats, work)


async def test_one_that_stood_still_itself_does_not_blame_the_broker() -> None:
    async def work(broker: Broker, queues: StompConnection) -> None:
        broker.silent.set()
        await queues.stand_still(4 * MISSED * WANTED)
        broker.silent.clear()
        await asyncio.sleep(WANTED)
        assert not broker.ended.is_set()

    await with_broker(round(WANTED * 1000), work)
