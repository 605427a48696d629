"""A client of queues on brokers that speak STOMP 1.2: https://stomp.github.io/stomp-specification-1.2.html.

| answer to a SEND | outcome | source |
| --- | --- | --- |
| connection refused; connection known to be lost before the SEND | certainly not done | nothing was written to the socket |
| RECEIPT with our frame's id | done | RECEIPT: "A RECEIPT frame is sent from the server to the client once a server has successfully processed a client frame that requests a receipt." |
| ERROR | may have happened | ERROR: "The server MAY send ERROR frames if something goes wrong. In this case, it MUST then close the connection just after sending the ERROR frame." It does not say that the message is not stored. |
| a lost connection, no answer | may have happened | the broker may have received the frame |

An ACK has a receipt, too. A failed take has removed nothing: the broker redelivers every unacknowledged message. STOMP
has no request for a queue's depth, for deleting a queue, or for lifting a delivery limit: RabbitMQ 4 drops a message of
a quorum queue after 20 failed deliveries, unless a policy lifts that.
"""  # noqa: E501

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from nodes.stomp import Frame, FrameLimits, Parser, encode
from stormproof.contracts.client import UNNOTICED_SECONDS, Delivery, Depth, NotDone
from stormproof.contracts.guarantee import NOT_PROMISED, Guarantee
from stormproof.contracts.option import Option
from stormproof.contracts.protocol_client import Access, BrokerSetup, ProtocolClient
from stormproof.errors import UsageError

ANSWER_SECONDS = 5.0
_READ_BYTES = 1 << 16
BEAT_SECONDS = 2.0
"""Seconds between two heart-beats of a broker that a client requests."""
MISSED = 3
"""The number of heart-beats of silence after which a client leaves a broker."""
AUTO, CLASSIC, QUORUM = "auto", "classic", "quorum"
_RABBITMQ = "RabbitMQ"
_COUNTS = ("x-acquired-count", "x-delivery-count")
"""Headers in which RabbitMQ's quorum queues report how often a message was delivered before."""
_PREFETCH = ("prefetch-count", "activemq.prefetchSize")
"""The headers of SUBSCRIBE that limit unacknowledged messages: of RabbitMQ; of ActiveMQ Classic, and of Artemis, which
counts bytes and sends one message at a time for such a small number. Other brokers may ignore both, so this client does
not declare a limit."""


class StompConnection:
    """One client's connection; every frame that matters is sent with a receipt.

    Args:
        access: credentials (empty: none are sent), virtual host (default: ``/``), TLS.
        prefix: prefix of a queue's name in its destination.
        queue_type: ``quorum`` or ``classic``; ``auto``: quorum queues on RabbitMQ.
        creating: headers of SEND and SUBSCRIBE that define how queues are created; None: for RabbitMQ, durable ones of
            that type.
        sending: further headers of SEND.
        subscribing: further headers of SUBSCRIBE.
        depth: asks for a queue's depth in another way.
        returning: NACK returns a message to its queue; None: that is so for RabbitMQ alone. The specification leaves
            the meaning to the broker: ActiveMQ Classic moves the message to its dead-letter queue, Artemis discards it.
        prefetch: the number of unacknowledged messages after which the broker waits; 0: the broker's default.
        heartbeat: seconds between two heart-beats of the client; 0: none.
        wanted: seconds between two heart-beats that the client requests from the broker. If the broker sends them, the
            client leaves it when it is silent, together with all messages that have arrived and are not acknowledged.
    """

    redelivers_within = UNNOTICED_SECONDS
    """Whether a broker leaves silent clients earlier is its own setting."""

    def __init__(self, access: Access, *, prefix: str = "/queue/", queue_type: str = AUTO,
                 creating: Mapping[str, str] | None = None, sending: Mapping[str, str] | None = None,
                 subscribing: Mapping[str, str] | None = None, depth: Depth | None = None,
                 returning: bool | None = None, prefetch: int = 1,
                 heartbeat: float = 0.0, wanted: float = BEAT_SECONDS) -> None:  # fmt: skip
        self._access, self._prefix, self._type = access, prefix, queue_type
        self._creating: Mapping[str, str] = creating or {}
        self._creates_itself = creating is None
        self._sending, self._depth, self._returning = sending or {}, depth, returning
        limits = dict.fromkeys(_PREFETCH, str(prefetch)) if prefetch else {}
        self._subscribing = {**limits, **(subscribing or {})}
        self.heartbeat, self._wanted = heartbeat, wanted
        self.place = ("", 0, "")
        """The address of the broker, and the local address."""
        self._rabbitmq = False
        self._still = False
        self._beating: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._heard = 0.0
        """The time of the last data from the broker, by the event loop's clock."""
        self._parser = Parser(FrameLimits())
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._receipts: dict[str, asyncio.Future[None]] = {}
        self._messages: dict[str, asyncio.Queue[tuple[Frame, float] | None]] = {}
        self._connected: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._count = 0
        self._lost: Exception | None = None

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``, and wait for CONNECTED."""
        self.place = (host, port, local)
        tls = self._access.tls
        reader, self._writer = await asyncio.open_connection(
            host, port, local_addr=(local, 0) if local else None, ssl=tls.context() if tls else None,
            server_hostname=(tls.name or host) if tls else None)  # fmt: skip
        self._reading = asyncio.get_running_loop().create_task(self._read(reader))
        credentials = self._access.credentials
        login = {"login": credentials.login, "passcode": credentials.passcode} if credentials.login else {}
        self._write(Frame("CONNECT", {"accept-version": "1.2", "host": self._access.vhost or "/", **login,
                                      "heart-beat": f"{self.heartbeat * 1000:.0f},{self._wanted * 1000:.0f}"}))
        connected = await asyncio.wait_for(self._connected, ANSWER_SECONDS)
        self._rabbitmq = connected.headers.get("server", "").startswith(_RABBITMQ)
        if self._creates_itself and self._rabbitmq:
            self._creating = {"durable": "true", "auto-delete": "false", "x-queue-type": self._kind}
        if limit := MISSED * self._interval(connected):
            self._watching = asyncio.get_running_loop().create_task(self._watch(limit))
        if self.heartbeat:
            self._beating = asyncio.get_running_loop().create_task(self._beat())

    async def arrival(self, subscription: str, timeout: float) -> tuple[Frame, float] | None:
        """Return the next frame of a subscription and the time at which it came; None if none did in time.

        Raises:
            NotDone: the connection was lost.
        """
        self._demand_connection()
        try:
            found = await asyncio.wait_for(self._messages[subscription].get(), timeout)
        except TimeoutError:
            found = None
        self._demand_connection()
        return found

    @property
    def _returns(self) -> bool:
        return self._rabbitmq if self._returning is None else self._returning

    @property
    def _kind(self) -> str:
        return self._type if self._type != AUTO else QUORUM if self._rabbitmq else ""

    async def send(self, queue: str, body: bytes) -> None:
        """Send a message; the receipt confirms that the broker has it."""
        headers = {"destination": self._prefix + queue, "content-type": "text/plain", **self._creating,
                   **self._sending}  # fmt: skip
        await self._request(Frame("SEND", headers, body))

    async def subscribe(self, queue: str) -> None:
        """Subscribe to a queue, whose messages the broker then pushes; brokers create a missing queue."""
        self._messages[queue] = asyncio.Queue()
        await self._request(Frame("SUBSCRIBE", {
            "id": queue, "destination": self._prefix + queue, "ack": "client-individual", **self._creating,
            **self._subscribing,
        }))  # fmt: skip

    async def take(self, queue: str, timeout: float) -> Delivery | None:
        """Take the next message that the broker pushes, after subscribing if necessary.

        Raises:
            NotDone: the connection was lost. Messages that had arrived on it return to the broker, because they were
                not acknowledged.
        """
        if queue not in self._messages:
            try:
                await self.subscribe(queue)
            except ConnectionError as error:
                raise NotDone(f"no subscription: {error}") from error
        found = await self.arrival(queue, timeout)
        if found is None:
            return None
        frame, came = found

        async def ack() -> None:
            await self._request(Frame("ACK", {"id": frame.headers["ack"]}))

        async def give_back() -> None:
            await self._request(Frame("NACK", {"id": frame.headers["ack"]}))

        return Delivery(frame.body, ack, give_back if self._returns else None, self._number(frame), came)

    def _number(self, frame: Frame) -> int | None:
        """Return how often a quorum queue of RabbitMQ has delivered a message, this delivery included; None for other
        queues, which do not count."""
        if self._kind != QUORUM:
            return None
        for name in _COUNTS:
            if name in frame.headers:
                return int(frame.headers[name]) + 1
        return None if frame.headers.get("redelivered") == "true" else 1

    async def stand_still(self, seconds: float) -> None:
        """Send no heart-beats; incoming data is not checked in the meantime."""
        self._still = True
        try:
            await asyncio.sleep(seconds)
        finally:
            self._still = False

    async def depth(self, queue: str) -> int | None:
        """Return a queue's depth if there is a way to ask for it; STOMP itself has no such request."""
        return None if self._depth is None else await self._depth(queue)

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
        for inbox in self._messages.values():
            inbox.put_nowait(None)  # it ends a wait


class Stomp(ProtocolClient):
    """STOMP 1.2, with receipts."""

    name = "stomp"
    summary = "STOMP 1.2: queues"
    port, tls_port = 61613, 61614
    options = (
        Option("prefix", "/queue/", "prefix of a queue's name in its destination"),
        Option("queue_type", AUTO, "type of the queues that RabbitMQ creates; auto: quorum", (AUTO, QUORUM, CLASSIC)),
        Option("prefetch", 1, "unacknowledged messages after which RabbitMQ and ActiveMQ wait; 0: the broker's "
               "default"),
        Option("heartbeat", 0.0, "seconds between two heart-beats of a client; 0: none"),
        Option("persistent", True, "messages have the header persistent:true"),
        Option("send_headers", "", "further headers of SEND: NAME:VALUE,NAME:VALUE"),
        Option("subscribe_headers", "", "further headers of SUBSCRIBE: NAME:VALUE,NAME:VALUE"),
    )  # fmt: skip
    guarantees = (
        Guarantee("duplicated", NOT_PROMISED, "STOMP 1.2, SUBSCRIBE, ack Header",
                  "what was not acknowledged is delivered again"),
        Guarantee("order", NOT_PROMISED, "STOMP 1.2, Protocol Overview",
                  "delivery semantics are left to the server; what is delivered again may come late"),
        Guarantee("mutual-exclusion", NOT_PROMISED, "STOMP 1.2, Heart-beating",
                  "a holder that stands still learns too late that its message was given to somebody else"),
    )  # fmt: skip
    extra = ""

    def connection(self, setup: BrokerSetup) -> StompConnection:
        """Return a new connection.

        Raises:
            UsageError: the access names a SASL mechanism, or a header is not ``NAME:VALUE``.
        """
        if setup.access.sasl:
            raise UsageError(f"stomp: STOMP has no SASL mechanisms; leave out {setup.access.sasl!r}")
        settings = self.settings(setup)
        persistent = {"persistent": "true"} if settings["persistent"] else {}
        return StompConnection(setup.access, prefix=settings["prefix"], queue_type=settings["queue_type"],
                               sending={**persistent, **_headers(settings["send_headers"])},
                               subscribing=_headers(settings["subscribe_headers"]),
                               prefetch=settings["prefetch"], heartbeat=settings["heartbeat"])  # fmt: skip

    async def prepare(self, setup: BrokerSetup) -> None:
        """Have the broker create the workload's queues, by subscribing to them; STOMP can't lift delivery limits."""
        connection = await self.admitted(setup)
        try:
            for queue in setup.demands.queues:
                await connection.subscribe(queue)
        finally:
            await connection.close()


def _headers(text: str) -> dict[str, str]:
    """Return the headers in ``NAME:VALUE,NAME:VALUE``; raise UsageError for another form."""
    found = {}
    for part in filter(None, text.split(",")):
        name, colon, value = part.partition(":")
        if not name or not colon:
            raise UsageError(f"stomp: no header {part!r}; write NAME:VALUE")
        found[name] = value
    return found


STOMP = Stomp()
