"""A client of queues on brokers that speak STOMP: https://stomp.github.io/stomp-specification-1.2.html."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

from nodes.stomp import Frame, FrameLimits, Parser, encode
from stormproof.contracts.client import Delivery, NotDone

ANSWER_SECONDS = 5.0
_READ_BYTES = 1 << 16

Depth = Callable[[str], Awaitable[int]]
"""How many messages a queue holds: STOMP has no way to ask."""


class StompQueues:
    """One client's connection; every frame that matters is sent with a receipt.

    Args:
        destination: the name of a queue for STOMP.
        depth: asks for a queue's depth.
        login: user and password.
        host: the virtual host.
        sending: headers of what is sent.
        subscribing: headers of subscriptions, as the broker's prefetch limit.
        heartbeat: seconds between two heart-beats of the client's; 0: none.
    """

    def __init__(self, destination: Callable[[str], str], depth: Depth, *, login: tuple[str, str], host: str = "/",
                 sending: Mapping[str, str], subscribing: Mapping[str, str],
                 heartbeat: float = 0.0) -> None:  # fmt: skip
        self._destination, self._depth = destination, depth
        self._login, self._host = login, host
        self._sending, self._subscribing = sending, subscribing
        self.heartbeat = heartbeat
        self.place = ("", 0, "")
        """Where it is connected to, and from which address."""
        self._still = False
        self._beating: asyncio.Task[None] | None = None
        self._parser = Parser(FrameLimits())
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._receipts: dict[str, asyncio.Future[None]] = {}
        self._messages: dict[str, asyncio.Queue[Frame]] = {}
        self._connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count = 0
        self._lost: Exception | None = None

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``; CONNECTED lets us in."""
        self.place = (host, port, local)
        reader, self._writer = await asyncio.open_connection(host, port, local_addr=(local, 0) if local else None)
        self._reading = asyncio.get_running_loop().create_task(self._read(reader))
        login, passcode = self._login
        self._write(Frame("CONNECT", {"accept-version": "1.2", "host": self._host, "login": login, "passcode": passcode,
                                      "heart-beat": f"{self.heartbeat * 1000:.0f},0"}))  # fmt: skip
        await asyncio.wait_for(self._connected, ANSWER_SECONDS)
        if self.heartbeat:
            self._beating = asyncio.get_running_loop().create_task(self._beat())

    async def send(self, queue: str, body: bytes) -> None:
        """SEND; the receipt says that the broker has it."""
        headers = {"destination": self._destination(queue), "content-type": "text/plain", **self._sending}
        await self._request(Frame("SEND", headers, body))

    async def take(self, queue: str, timeout: float) -> Delivery | None:
        """The next message that the broker pushes; a subscription is made first."""
        if queue not in self._messages:
            self._messages[queue] = asyncio.Queue()
            await self._request(Frame("SUBSCRIBE", {
                "id": queue, "destination": self._destination(queue), "ack": "client-individual", **self._subscribing,
            }))  # fmt: skip
        inbox = self._messages[queue]
        if self._lost is not None and inbox.empty():
            raise self._lost
        try:
            frame = await asyncio.wait_for(inbox.get(), timeout)
        except TimeoutError:
            return None

        async def ack() -> None:
            await self._request(Frame("ACK", {"id": frame.headers["ack"]}))

        async def give_back() -> None:
            await self._request(Frame("NACK", {"id": frame.headers["ack"]}))

        return Delivery(frame.body, ack, give_back, self.number_of(frame))

    def number_of(self, frame: Frame) -> int | None:
        """How often a message was delivered, if its frame tells (see ``Delivery``)."""
        return None

    async def stand_still(self, seconds: float) -> None:
        """Send no heart-beats; what comes meanwhile is looked at by nobody."""
        self._still = True
        try:
            await asyncio.sleep(seconds)
        finally:
            self._still = False

    async def depth(self, queue: str) -> int:
        """What the system says."""
        return await self._depth(queue)

    async def close(self) -> None:
        """Disconnect."""
        if self._writer is not None:
            self._writer.close()
        for task in (self._beating, self._reading):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    async def _request(self, frame: Frame) -> None:
        """Send a frame with a receipt, and wait for it.

        Raises:
            NotDone: the connection was lost before. ConnectionError: it was lost meanwhile, or the broker refused.
        """
        if self._lost is not None:
            raise NotDone(f"the connection was lost: {self._lost}")
        self._count += 1
        number = str(self._count)
        self._receipts[number] = asyncio.get_running_loop().create_future()
        self._write(Frame(frame.command, {**frame.headers, "receipt": number}, frame.body))
        await self._receipts[number]

    async def _beat(self) -> None:
        """Twice as often as was said: a beat that is a little late is no reason to be given up."""
        while True:
            await asyncio.sleep(self.heartbeat / 2)
            if not self._still and self._writer is not None:
                self._writer.write(b"\n")

    def _write(self, frame: Frame) -> None:
        assert self._writer is not None
        self._writer.write(encode(frame))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(_READ_BYTES):
                for frame in self._parser.feed(data):
                    if isinstance(frame, Frame):
                        self._take_in(frame)
            raise ConnectionError("closed by the broker")
        except Exception as error:
            self._lose(error)

    def _take_in(self, frame: Frame) -> None:
        if frame.command == "MESSAGE":
            self._messages[frame.headers["subscription"]].put_nowait(frame)
        elif frame.command == "RECEIPT":
            future = self._receipts.pop(frame.headers["receipt-id"], None)
            if future is not None and not future.done():
                future.set_result(None)
        elif frame.command == "CONNECTED" and not self._connected.done():
            self._connected.set_result(None)
        elif frame.command == "ERROR":
            text = frame.headers.get("message") or frame.body.decode("utf-8", "replace")
            raise ConnectionError(f"ERROR: {text[:200]}")

    def _lose(self, error: Exception) -> None:
        self._lost = error
        for future in (self._connected, *self._receipts.values()):
            if not future.done():
                future.set_exception(ConnectionError(str(error)))
                future.exception()  # not everybody waits
        self._receipts.clear()
