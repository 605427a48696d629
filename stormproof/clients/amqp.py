"""A client of queues on brokers that speak AMQP 0-9-1, by aiormq; it never reconnects and never repeats a request.

Sources: the AMQP 0-9-1 reference (amqp0-9-1.xml), and RabbitMQ's documentation for its extensions.

| answer to a publish | outcome | source |
| --- | --- | --- |
| connection refused; connection or channel known to be lost before the publish | certainly not done | nothing was written to the socket |
| *basic.return* with our message's id | certainly not done | basic.publish, *mandatory*: "If this flag is set, the server will return an unroutable message with a Return method." |
| *basic.ack* | done | RabbitMQ, *Publisher Confirms*: "The broker then confirms messages as it handles them by sending a basic.ack on the same channel." |
| *basic.nack* | may have happened | RabbitMQ, *Publisher Confirms*: "By nack'ing one or more messages, the broker indicates that it was unable to process the messages and refuses responsibility for them". It does not say that no queue or replica has them. |
| *channel.close*, *connection.close*, a lost connection, no answer | may have happened | channel.close: "the sender wants to close the channel. This may be due to internal conditions [...] or due to an error handling a specific method". The publish may have been handled before. |

An acknowledgement has no answer in AMQP 0-9-1. It is sent in a transaction: "This method commits all message
publications and acknowledgments performed in the current transaction" (tx.commit). A failed take
has removed nothing: the broker redelivers every unacknowledged message.
"""  # noqa: E501

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from stormproof.contracts.client import UNNOTICED_SECONDS, Delivery, Depth, NotDone
from stormproof.contracts.guarantee import NOT_PROMISED, Guarantee
from stormproof.contracts.option import Option
from stormproof.contracts.protocol_client import Access, BrokerSetup, ProtocolClient
from stormproof.errors import UsageError

T = TypeVar("T")

AUTO, CLASSIC, QUORUM = "auto", "classic", "quorum"
TRANSACTION, ORDER = "transaction", "order"
UNLIMITED_DELIVERIES = 2**31 - 1
"""The delivery limit of quorum queues. RabbitMQ 4 has 20 by default. RabbitMQ 3.10 accepts -1, which is unlimited for
RabbitMQ 4, and then drops every message at its first return."""
CLOSE_SECONDS = 1.0
"""The time for a clean close: the harness waits 2 s for ``close``."""
_RABBITMQ = "RabbitMQ"
_COUNTS = ("x-acquired-count", "x-delivery-count")
"""The headers in which quorum queues report how often a message was delivered before: RabbitMQ 4 counts all deliveries
in the former, and only failed ones in the latter."""

logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # lost connections are what tests are about


class _Writer(asyncio.StreamWriter):
    """The writing side of a connection, which can hold back everything that is written."""

    held: bytearray | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.held is None:
            super().write(data)
        else:
            self.held += data


class _Sockets:
    """aiormq's transport factory: connections from one address."""

    writer: _Writer | None = None

    def __init__(self, host: str, port: int, local: str, access: Access) -> None:
        self._host, self._port, self._local, self._tls = host, port, local, access.tls

    async def create(self, *_: Any, **__: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        context: ssl.SSLContext | None = self._tls.context() if self._tls else None
        name = (self._tls.name or self._host) if self._tls else None
        bound = (self._local, 0) if self._local else None
        transport, _protocol = await loop.create_connection(lambda: protocol, self._host, self._port, ssl=context,
                                                            server_hostname=name, local_addr=bound)  # fmt: skip
        self.writer = _Writer(transport, protocol, reader, loop)
        return reader, self.writer


class AmqpConnection:
    """One client's connection. Messages are pushed, at most ``prefetch`` ahead of their acknowledgement.

    Args:
        access: credentials (default: guest), virtual host (default: ``/``), SASL mechanism (PLAIN or EXTERNAL), TLS.
        queue_type: ``quorum`` or ``classic``; ``auto``: quorum queues on RabbitMQ, and the broker's default elsewhere.
        prefetch: the largest number of messages that the broker may push before they are acknowledged.
        heartbeat: seconds, a whole number, after whose double the broker leaves a silent client; the client leaves a
            broker that is silent for three times a second more. 0: no heartbeats.
        mandatory: messages that no queue takes are returned; otherwise the broker confirms and drops them.
        persistent: messages are written to disk.
        acknowledge: what confirms an acknowledgement: ``transaction``; or ``order``, the answer to the next request on
            the same channel, for brokers without transactions.
        depth: asks for a queue's depth in another way.
    """

    def __init__(self, access: Access, *, queue_type: str = AUTO, prefetch: int = 1, heartbeat: int = 2,
                 mandatory: bool = True, persistent: bool = True, acknowledge: str = TRANSACTION,
                 depth: Depth | None = None) -> None:  # fmt: skip
        self._access, self._type, self.prefetch = access, queue_type, prefetch
        self.heartbeat = float(heartbeat)
        self._mandatory, self._mode, self._transaction = mandatory, 2 if persistent else 1, acknowledge == TRANSACTION
        self._depth = depth
        self._sockets: _Sockets | None = None
        self._link: Any = None
        self._sender: Any = None
        self._taker: Any = None
        self._inboxes: dict[str, asyncio.Queue[tuple[Any, float] | None]] = {}
        self._lost = ""

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``, log in, and open the virtual host."""
        import aiormq
        from aiormq.exceptions import InvalidFrameError
        from yarl import URL

        access = self._access
        url = URL.build(scheme="amqp", host="broker", user=access.credentials.login or None, path="/",
                        password=access.credentials.passcode or None,
                        query={"heartbeat": f"{self.heartbeat:.0f}", "auth": access.sasl or "PLAIN"})  # fmt: skip
        self._sockets = _Sockets(host, port, local, access)
        self._link = aiormq.Connection(url, transport_factory=self._sockets)  # type: ignore[arg-type]
        self._link.vhost = access.vhost or "/"
        try:
            await self._asked(self._link.connect())
        except InvalidFrameError as error:  # its text does not have the broker's
            if "OpenOk" not in str(error):
                raise
            raise ConnectionError(f"the broker does not open the virtual host {self._link.vhost!r}") from None
        # Broker-J names no capabilities, and has these.
        self._link.server_properties.setdefault("capabilities", {"publisher_confirms": True, "basic.nack": True})
        self._link.closing.add_done_callback(lambda _: self._lose("closed"))

    @property
    def redelivers_within(self) -> float:
        """The seconds after which the broker has left a silent client: two missed heartbeats, and one for its check."""
        return 3 * self.heartbeat or UNNOTICED_SECONDS

    @property
    def queue_type(self) -> str:
        """The type of the queues that this connection declares; empty: the broker's default."""
        if self._type != AUTO:
            return self._type
        return QUORUM if self._link.server_properties.get("product") == _RABBITMQ else ""

    async def declare(self, queue: str) -> None:
        """Declare a durable queue with unlimited deliveries; an existing queue of that name is accepted as it is.

        Raises:
            aiormq.exceptions.AMQPError: the broker refused.
        """
        from aiormq.exceptions import ChannelPreconditionFailed

        kind = self.queue_type
        arguments: dict[str, Any] = {"x-queue-type": kind} if kind else {}
        if kind == QUORUM:
            arguments["x-delivery-limit"] = UNLIMITED_DELIVERIES
        channel = await self._open(publisher_confirms=False)
        try:
            await self._asked(channel.queue_declare(queue, durable=True, arguments=arguments))
        except ChannelPreconditionFailed as refusal:  # it exists with other arguments, or the arguments are wrong
            channel = await self._open(publisher_confirms=False)
            try:
                await self._asked(channel.queue_declare(queue, passive=True))
            except Exception:
                raise refusal from None
        await self._asked(channel.close())

    async def delete(self, queue: str) -> None:
        """Delete a queue; a missing one is accepted."""
        channel = await self._open(publisher_confirms=False)
        await self._asked(channel.queue_delete(queue))
        await self._asked(channel.close())

    async def count(self, queue: str) -> int:
        """Return the *message-count* of a queue's *queue.declare-ok*. RabbitMQ leaves out unacknowledged messages,
        Broker-J counts them."""
        channel = await self._open(publisher_confirms=False)
        found = await self._asked(channel.queue_declare(queue, passive=True))
        await self._asked(channel.close())
        return int(found.message_count)

    async def send(self, queue: str, body: bytes) -> None:
        """Publish a message to the default exchange; the broker's *basic.ack* confirms it."""
        from aiormq.exceptions import PublishError
        from pamqp.commands import Basic

        self._demand(self._sender)
        if self._sender is None:
            self._sender = await self._not_done(self._open(publisher_confirms=True))
        properties = Basic.Properties(delivery_mode=self._mode, content_type="text/plain")  # aiormq adds an id
        try:
            answer = await self._asked(self._sender.basic_publish(
                body, routing_key=queue, mandatory=self._mandatory, properties=properties))  # fmt: skip
        except PublishError as error:  # returned, matched by the message's id
            raise NotDone(f"returned: {getattr(error.frame, 'reply_text', '')}") from None
        if not isinstance(answer, Basic.Ack):
            raise ConnectionError(f"unexpected answer to a publish: {answer!r}")

    async def take(self, queue: str, timeout: float) -> Delivery | None:
        """Take the next message that the broker pushes, after subscribing if necessary.

        Raises:
            NotDone: the connection, or the subscription, was lost. Unacknowledged messages that had arrived return to
                the broker.
        """
        self._demand(self._taker)
        inbox = self._inboxes.get(queue)
        if inbox is None:
            inbox = await self._not_done(self._subscribe(queue))
        try:
            found = await asyncio.wait_for(inbox.get(), timeout)
        except TimeoutError:
            found = None
        self._demand(self._taker)
        if found is None:
            return None
        (message, came), channel = found, self._taker
        tag = message.delivery_tag

        async def ack() -> None:
            await self._settled(channel, channel.basic_ack(tag, wait=False))

        async def give_back() -> None:
            giving_back = channel.basic_nack if self._link.basic_nack else channel.basic_reject
            await self._settled(channel, giving_back(tag, requeue=True, wait=False))

        return Delivery(message.body, ack, give_back, self._number(message), came)

    async def depth(self, queue: str) -> int | None:
        """Return a queue's depth if there is a way to ask for it. AMQP 0-9-1 has none: the *message-count* of
        *queue.declare-ok* leaves out unacknowledged messages."""
        return None if self._depth is None else await self._depth(queue)

    async def stand_still(self, seconds: float) -> None:
        """Send nothing for ``seconds``, heartbeats included; incoming data is still read."""
        writer = self._sockets.writer if self._sockets else None
        if writer is None:
            return
        writer.held = bytearray()
        try:
            await asyncio.sleep(seconds)
        finally:
            held, writer.held = writer.held, None
            writer.write(bytes(held))

    async def close(self) -> None:
        """Disconnect: cleanly if the broker answers in time."""
        if self._link is not None and self._link.is_opened:
            closing = asyncio.ensure_future(self._asked(self._link.close()))
            await asyncio.wait({closing}, timeout=CLOSE_SECONDS)
            closing.cancel()
        if self._sockets and self._sockets.writer:
            self._sockets.writer.transport.abort()

    async def _subscribe(self, queue: str) -> asyncio.Queue[tuple[Any, float] | None]:
        if self._taker is None:
            self._taker = await self._open(publisher_confirms=False)
            self._taker.on_consumer_cancel_callbacks.add(lambda _: self._lose("the broker cancelled the subscription"))
            if self._transaction:
                await self._asked(self._taker.tx_select())
            await self._asked(self._taker.basic_qos(prefetch_count=self.prefetch))
        inbox = self._inboxes[queue] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        async def arrived(message: Any) -> None:
            inbox.put_nowait((message, loop.time()))

        await self._asked(self._taker.basic_consume(queue, arrived))
        return inbox

    async def _settled(self, channel: Any, sending: Awaitable[None]) -> None:
        """Send an acknowledgement, or its opposite, and wait for the broker's answer to what follows it."""
        await self._asked(sending)
        await self._asked(channel.tx_commit() if self._transaction else channel.basic_qos(prefetch_count=self.prefetch))

    def _number(self, message: Any) -> int | None:
        """Return a delivery's number on a quorum queue of RabbitMQ; other queues don't count deliveries."""
        headers = message.header.properties.headers or {}
        for name in _COUNTS:
            if name in headers:
                return int(headers[name]) + 1
        return 1 if self.queue_type == QUORUM and not message.delivery.redelivered else None

    async def _open(self, *, publisher_confirms: bool) -> Any:
        channel = await self._asked(self._link.channel(publisher_confirms=publisher_confirms))
        channel.closing.add_done_callback(lambda _: self._wake())
        return channel

    def _demand(self, channel: Any) -> None:
        """Raise NotDone if the connection or one of its channels is known to be lost: nothing is written then."""
        if self._lost or not self._link.is_opened or (channel is not None and channel.is_closed):
            raise NotDone(f"the connection was lost: {self._lost or 'closed'}")

    def _lose(self, why: str) -> None:
        self._lost = self._lost or why
        self._wake()

    def _wake(self) -> None:
        """End all waits for messages: the takes then look at the connection."""
        for inbox in self._inboxes.values():
            inbox.put_nowait(None)

    async def _not_done(self, preparing: Awaitable[T]) -> T:
        """Await the requests before an operation's own request; after an error, its own request has not been sent."""
        try:
            return await self._asked(preparing)
        except Exception as error:
            raise NotDone(str(error) or type(error).__name__) from error

    @staticmethod
    async def _asked(call: Awaitable[T]) -> T:
        """Await a call of aiormq, which ends waiting calls with CancelledError when the connection is closed.

        Raises:
            ConnectionError: the call was ended so.
        """
        try:
            return await call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise ConnectionError("the connection was closed") from None


class Amqp(ProtocolClient):
    """AMQP 0-9-1, with RabbitMQ's publisher confirms."""

    name = "amqp"
    summary = "AMQP 0-9-1: queues"
    port, tls_port = 5672, 5671
    options = (
        Option("queue_type", AUTO, "type of the queues that are declared; auto: quorum on RabbitMQ, elsewhere the "
               "broker's default", (AUTO, QUORUM, CLASSIC)),
        Option("prefetch", 1, "messages that the broker may push ahead of acknowledgements", least=1),
        Option("heartbeat", 2, "seconds, a whole number: the broker leaves a client that is silent for twice as long; "
               "0: none"),
        Option("mandatory", True, "messages that no queue takes are returned"),
        Option("persistent", True, "messages are persistent (delivery-mode 2)"),
        Option("acknowledge", TRANSACTION, "confirmation of an acknowledgement: a transaction's commit, or the answer "
               "to the next request", (TRANSACTION, ORDER)),
    )  # fmt: skip
    guarantees = (
        Guarantee("duplicated", NOT_PROMISED, "AMQP 0-9-1, 3.1.8 Acknowledgements",
                  "what was not acknowledged is delivered again"),
        Guarantee("order", NOT_PROMISED, "AMQP 0-9-1, basic.recover and basic.reject",
                  "what is delivered again may come late"),
        Guarantee("mutual-exclusion", NOT_PROMISED, "AMQP 0-9-1, 4.2.7 Heartbeat",
                  "a holder that stands still learns too late that its message was given to somebody else"),
    )  # fmt: skip
    distributions = ("aiormq",)

    def connection(self, setup: BrokerSetup) -> AmqpConnection:
        """Return a new connection.

        Raises:
            UsageError: aiormq lacks the SASL mechanism.
        """
        if setup.access.sasl not in ("", "PLAIN", "EXTERNAL"):
            raise UsageError(f"amqp: no SASL mechanism {setup.access.sasl!r}; use PLAIN or EXTERNAL")
        settings = self.settings(setup)
        return AmqpConnection(setup.access, **{option.name: settings[option.name] for option in self.options})

    async def prepare(self, setup: BrokerSetup) -> None:
        """Declare the workload's queues, durable, with unlimited deliveries."""
        await self._with_each(setup, setup.demands.queues, AmqpConnection.declare)

    async def clear(self, setup: BrokerSetup, names: Sequence[str]) -> Sequence[str]:
        """Delete these queues."""
        await self._with_each(setup, names, AmqpConnection.delete)
        return ()

    async def _with_each(self, setup: BrokerSetup, names: Sequence[str],
                         work: Callable[[AmqpConnection, str], Awaitable[None]]) -> None:  # fmt: skip
        connection = await self.admitted(setup)
        try:
            for name in names:
                await work(connection, name)
        finally:
            await connection.close()


AMQP = Amqp()
