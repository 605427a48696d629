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
"""Seconds between two heart-beats of a broker that a client requests."""
MISSED = 3
"""The number of heart-beats of silence after which a client leaves a broker."""

Depth = Callable[[str], Awaitable[int]]
"""A function that returns a queue's depth, for which STOMP has no request."""


class StompQueues:
    """One client's connection; every frame that matters is sent with a receipt.

    Args:
        destination: the name of a queue for STOMP.
        depth: asks for a queue's depth.
        login: user and password.
        host: the virtual host.
        sending: headers of sent messages.
        subscribing: headers of subscriptions, as the broker's prefetch limit.
        prefetch: the value of that limit.
        heartbeat: seconds between two heart-beats of the client; 0: none.
        wanted: seconds between two heart-beats that the client requests from the broker. If the broker sends them, the
            client leaves it when it is silent, together with all messages that have arrived and are not acknowledged.
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
        """The address of the broker, and the local address."""
        self._still = False
        self._beating: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._heard = 0.0
        """The time of the last data from the broker, by the event loop's clock."""
        self._parser = Parser(FrameLimits())
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._receipts: dict[str, asyncio.Future[None]] = {}
        self._messages: dict[str, asyncio.Queue[tuple[Frame, float]]] = {}
        self._connected: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._count = 0
        self._lost: Exception | None = None

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``, and wait for CONNECTED."""
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
        """Send a message; the receipt confirms that the broker has it."""
        headers = {"destination": self._destination(queue), "content-type": "text/plain", **self._sending}
        await self._request(Frame("SEND", headers, body))

    async def take(self, queue: str, timeout: float) -> Delivery | None:
        """Take the next message that the broker pushes, after subscribing if necessary.

        Raises:
            NotDone: the connection was lost. Messages that had arrived on it return to the broker, because they were
                not acknowledged.
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
        """Return how often a message was delivered, if its frame contains that (see ``Delivery``)."""
        return None

    async def stand_still(self, seconds: float) -> None:
        """Send no heart-beats; incoming data is not checked in the meantime."""
        self._still = True
        try:
            await asyncio.sleep(seconds)
        finally:
            self._still = False

    async def depth(self, queue: str) -> int:
        """Return the depth that the system reports."""
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
            NotDone: the connection was lost before. ConnectionError: it was lost during the request, or the broker
                refused.
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
        """Return the seconds between two heart-beats of the broker that both sides agree on; 0: it sends none."""
        offered, _, _ = connected.headers.get("heart-beat", "0,0").partition(",")
        if not self._wanted or not offered.strip().isdecimal() or not int(offered):
            return 0.0
        return max(self._wanted, int(offered) / 1000)

    async def _watch(self, limit: float) -> None:
        """Leave the broker after ``limit`` seconds of silence during which this client was listening."""
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(limit / MISSED / 2)
            now = loop.time()
            if self._still or now - before > limit / MISSED:
                self._heard = now  # this client did not listen in the meantime
            elif now - self._heard > limit:
                self._lose(ConnectionError(f"the broker was silent for {now - self._heard:.1f} s"))
                return

    async def _beat(self) -> None:
        """Send heart-beats twice as often as announced: a slightly late one must not make the broker drop us."""
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
        """Mark the connection as lost: data that still arrives from the network's buffers is discarded."""
        if self._lost is not None:
            return
        self._lost = error
        if self._writer is not None:
            self._writer.transport.abort()
        waiting: list[asyncio.Future[Any]] = [self._connected, *self._receipts.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(ConnectionError(str(error)))
                future.exception()  # retrieve it: not every future is awaited
        self._receipts.clear()
