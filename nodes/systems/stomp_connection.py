"""A client of queues on brokers that speak STOMP: https://stomp.github.io/stomp-specification-1.2.html."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from nodes.stomp import Frame, FrameLimits, Parser, encode
from stormproof.contracts.client import Delivery, NotDone

ANSWER_SECONDS = 5.0
_READ_BYTES = 1 << 16
BEAT_SECONDS = 2.0
"""Between two heart-beats of a broker that a client wants to hear."""
MISSED = 3
"""A broker that was silent for so many of these times is left."""

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
        prefetch: what that limit is.
        heartbeat: seconds between two heart-beats of the client's; 0: none.
        wanted: seconds between two heart-beats of the broker's that the client asks for. Where the broker sends them,
            the client leaves it when it is silent, with all that has come and is not acknowledged.
    """

    def __init__(self, destination: Callable[[str], str], depth: Depth, *, login: tuple[str, str], host: str = "/",
                 sending: Mapping[str, str], subscribing: Mapping[str, str],
                 prefetch: int = 1, heartbeat: float = 0.0, wanted: float = BEAT_SECONDS) -> None:  # fmt: skip
        self._destination, self._depth = destination, depth
        self._login, self._host = login, host
        self._sending, self._subscribing = sending, subscribing
        self.prefetch = prefetch
        self.heartbeat, self._wanted = heartbeat, wanted
        self.place = ("", 0, "")
        """Where it is connected to, and from which address."""
        self._still = False
        self._beating: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._heard = 0.0
        """When something came from the broker last, by the event loop's time."""
        self._parser = Parser(FrameLimits())
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._receipts: dict[str, asyncio.Future[None]] = {}
        self._messages: dict[str, asyncio.Queue[tuple[Frame, float]]] = {}
        self._connected: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._count = 0
        self._lost: Exception | None = None

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``; CONNECTED lets us in."""
        self.place = (host, port, local)
        reader, self._writer = await asyncio.open_connection(host, port, local_addr=(local, 0) if local else None)
        self._reading = asyncio.get_running_loop().create_task(self._read(reader))
        login, passcode = self._login
        self._write(Frame("CONNECT", {"accept-version": "1.2", "host": self._host, "login": login, "passcode": passcode,
                                      "heart-beat": f"{self.heartbeat * 1000:.0f},{self._wanted * 1000:.0f}"}))
        connected = await asyncio.wait_for(self._connected, ANSWER_SECONDS)
        if limit := MISSED * self._interval(connected):
            self._watching = asyncio.get_running_loop().create_task(self._watch(limit))
        if self.heartbeat:
            self._beating = asyncio.get_running_loop().create_task(self._beat())

    async def send(self, queue: str, body: bytes) -> None:
        """SEND; the receipt says that the broker has it."""
        headers = {"destination": self._destination(queue), "content-type": "text/plain", **self._sending}
        await self._request(Frame("SEND", headers, body))

    async def take(self, queue: str, timeout: float) -> Delivery | None:
        """The next message that the broker pushes; a subscription is made first.

        Raises:
            NotDone: the connection was lost. What had come on it is the broker's again, since nobody acknowledged it.
        """
        if queue not in self._messages:
            self._messages[queue] = asyncio.Queue()
            await self._request(Frame("SUBSCRIBE", {
                "id": queue, "destination": self._destination(queue), "ack": "client-individual", **self._subscribing,
            }))  # fmt: skip
        inbox = self._messages[queue]
        self._demand_connection()
        try:
            frame, came = await asyncio.wait_for(inbox.get(), timeout)
        except TimeoutError:
            self._demand_connection()
            return None

        async def ack() -> None:
            await self._request(Frame("ACK", {"id": frame.headers["ack"]}))

        async def give_back() -> None:
            await self._request(Frame("NACK", {"id": frame.headers["ack"]}))

        return Delivery(frame.body, ack, give_back, self.number_of(frame), came)

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
        for task in (self._beating, self._watching, self._reading):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    async def _request(self, frame: Frame) -> None:
        """Send a frame with a receipt, and wait for it.

        Raises:
            NotDone: the connection was lost before. ConnectionError: it was lost meanwhile, or the broker refused.
        """
        self._demand_connection()
        self._count += 1
        number = str(self._count)
        self._receipts[number] = asyncio.get_running_loop().create_future()
        self._write(Frame(frame.command, {**frame.headers, "receipt": number}, frame.body))
        await self._receipts[number]

    def _demand_connection(self) -> None:
        if self._lost is not None:
            raise NotDone(f"the connection was lost: {self._lost}")

    def _interval(self, connected: Frame) -> float:
        """Seconds between two heart-beats of the broker, as both sides want it; 0: it sends none."""
        offered, _, _ = connected.headers.get("heart-beat", "0,0").partition(",")
        if not self._wanted or not offered.strip().isdecimal() or not int(offered):
            return 0.0
        return max(self._wanted, int(offered) / 1000)

    async def _watch(self, limit: float) -> None:
        """Leave the broker when it was silent for so many seconds in which we were there to hear it."""
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(limit / MISSED / 2)
            now = loop.time()
            if self._still or now - before > limit / MISSED:
                self._heard = now  # nobody listened meanwhile
            elif now - self._heard > limit:
                self._lose(ConnectionError(f"the broker was silent for {now - self._heard:.1f} s"))
                return

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
                self._heard = asyncio.get_running_loop().time()
                for frame in self._parser.feed(data):
                    if isinstance(frame, Frame):
                        self._take_in(frame)
            raise ConnectionError("closed by the broker")
        except Exception as error:
            self._lose(error)

    def _take_in(self, frame: Frame) -> None:
        if frame.command == "MESSAGE":
            self._messages[frame.headers["subscription"]].put_nowait((frame, self._heard))
        elif frame.command == "RECEIPT":
            future = self._receipts.pop(frame.headers["receipt-id"], None)
            if future is not None and not future.done():
                future.set_result(None)
        elif frame.command == "CONNECTED" and not self._connected.done():
            self._connected.set_result(frame)
        elif frame.command == "ERROR":
            text = frame.headers.get("message") or frame.body.decode("utf-8", "replace")
            raise ConnectionError(f"ERROR: {text[:200]}")

    def _lose(self, error: Exception) -> None:
        """Take the connection for lost: what still comes on it, out of the network's buffers, is for nobody."""
        if self._lost is not None:
            return
        self._lost = error
        if self._writer is not None:
            self._writer.transport.abort()
        waiting: list[asyncio.Future[Any]] = [self._connected, *self._receipts.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(ConnectionError(str(error)))
                future.exception()  # not everybody waits
        self._receipts.clear()
