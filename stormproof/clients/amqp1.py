"""A client of queues on brokers that speak AMQP 1.0: Qpid Proton's protocol engine on sockets of our own.

Sources: OASIS AMQP 1.0, part 2 (transport) and part 3 (messaging).

| answer to a transfer | outcome | source |
| --- | --- | --- |
| connection refused; connection or link known to be lost before the transfer; no link or no credit | certainly not done | nothing was written; 2.6.7: "If the link-credit is less than or equal to zero, i.e., the delivery-count is the same as or greater than the delivery-limit, a sender MUST NOT send more messages." |
| *accepted* | done | 3.4.2: "an incoming message has been successfully processed" |
| *released* | certainly not done | 3.4.4: "At the target, the released outcome is used to indicate that a given transfer was not and will not be acted upon." |
| *rejected* | may have happened | 3.4.3: "an incoming message is invalid and therefore unprocessable". It does not say that the message went nowhere: a dead-letter queue may have it. |
| *modified* | may have happened | 3.4.5: "the message SHOULD be modified in the specified ways at the node": a node may have it. |
| *detach*, *end*, *close*, a lost connection, no answer | may have happened | the broker may have received the transfer |

An acknowledgement is sent unsettled, and is confirmed when the broker settles the delivery (2.6.12, *Transferring A
Message*). RabbitMQ ends a session that sends such a disposition as Proton encodes it: without *settled*, whose default
is false (2.7.6). To RabbitMQ, it is sent settled, and the answer to the next request in the session confirms it: the
broker handles a session's frames in order. A message is given back in this way to all brokers. A failed take has removed nothing: the broker redelivers every
unacknowledged message. AMQP 1.0 has no request for a queue's depth, for declaring or deleting a queue, or for lifting a
delivery limit.
"""  # noqa: E501

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any, TypeVar

from stormproof.contracts.client import UNNOTICED_SECONDS, Delivery, Depth, NotDone
from stormproof.contracts.guarantee import NOT_PROMISED, Guarantee
from stormproof.contracts.option import Option
from stormproof.contracts.protocol_client import Access, BrokerSetup, ProtocolClient
from stormproof.errors import BackendError, UsageError

T = TypeVar("T")

AUTO = "auto"
_RABBITMQ = "RabbitMQ"
_READ_BYTES = 1 << 16
CLOSE_SECONDS = 1.0
"""The time for a clean close: the harness waits 2 s for ``close``."""
IDLE_SECONDS = 6.0
"""The default time after which a client leaves a silent broker, as for STOMP: three heart-beats of 2 s."""
TICK_SECONDS = 0.5
"""The pause between two looks at the idle timeouts of both sides, which are seconds."""
_TERMINAL = ("ACCEPTED", "REJECTED", "RELEASED", "MODIFIED")


class Amqp1Connection:
    """One client's connection, with one session; links are attached when they are first used.

    Args:
        access: credentials (empty: anonymous), SASL mechanism, TLS; ``vhost`` is the host name in *open* (RabbitMQ:
            ``vhost:NAME``).
        address: prefix of a queue's name in its address; ``auto``: ``/amq/queue/`` on RabbitMQ 3, ``/queues/`` on
            later ones, and nothing elsewhere.
        prefetch: link credit: the largest number of messages that the broker may send before they are acknowledged.
        idle: seconds after which the client leaves a silent broker; 0: never.
        persistent: messages are durable.
        depth: asks for a queue's depth in another way.
    """

    redelivers_within = UNNOTICED_SECONDS
    """Whether a broker leaves silent clients earlier is its own setting."""

    def __init__(self, access: Access, *, address: str = AUTO, prefetch: int = 1, idle: float = IDLE_SECONDS,
                 persistent: bool = True, depth: Depth | None = None) -> None:  # fmt: skip
        self._access, self._address, self.prefetch = access, address, prefetch
        self._idle, self._persistent, self._depth = idle, persistent, depth
        self._writer: asyncio.StreamWriter | None = None
        self._transport: Any = None
        self._connection: Any = None
        self._session: Any = None
        self._collector: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._waits: dict[object, asyncio.Future[Any]] = {}
        """Awaited answers, by key: "open", "close", a link's name, or a delivery, whose tag may not be text."""
        self._credit = asyncio.Event()
        self._links: dict[tuple[str, str], Any] = {}
        self._inboxes: dict[str, asyncio.Queue[tuple[Any, bytes, float] | None]] = {}
        self._ours_closed: set[str] = set()
        """The names of links that this side closed."""
        self._count = 0
        self._opened = False
        self._lost = ""

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``, log in, and begin a session.

        Raises:
            ConnectionError: the broker refused.
        """
        from proton import Collector, Connection, Transport

        tls, credentials, loop = self._access.tls, self._access.credentials, asyncio.get_running_loop()
        reader, self._writer = await asyncio.open_connection(
            host, port, local_addr=(local, 0) if local else None, ssl=tls.context() if tls else None,
            server_hostname=(tls.name or host) if tls else None)  # fmt: skip
        self._connection, self._transport, self._collector = Connection(), Transport(), Collector()
        self._connection.collect(self._collector)
        self._connection.container = f"stormproof-{id(self):x}"
        self._connection.hostname = self._access.vhost or host
        if credentials.login:
            self._connection.user, self._connection.password = credentials.login, credentials.passcode
        sasl = self._transport.sasl()
        sasl.allowed_mechs(self._access.sasl or ("PLAIN" if credentials.login else "ANONYMOUS"))
        sasl.allow_insecure_mechs = True  # TLS, if any, is the socket's, which Proton does not see
        self._transport.idle_timeout = self._idle
        self._transport.bind(self._connection)
        self._session = self._connection.session()
        self._connection.open()
        self._session.open()
        opened = self._wait("open")
        self._tasks = [loop.create_task(self._read(reader)), loop.create_task(self._tick())]
        self._turn()
        await opened

    def queue_address(self, queue: str) -> str:
        """Return a queue's address on this broker."""
        if self._address != AUTO:
            return self._address + queue
        if self._product != _RABBITMQ:
            return queue
        return f"/amq/queue/{queue}" if self._told("version").startswith("3.") else f"/queues/{queue}"

    @property
    def _product(self) -> str:
        return self._told("product")

    def _told(self, name: str) -> str:
        """Return a property that the broker told in *open*."""
        return str((self._connection.remote_properties or {}).get(name, ""))

    async def create(self, queue: str) -> None:
        """Attach to a queue. Brokers such as ActiveMQ and Artemis create it then, and RabbitMQ 3 does for its address
        ``/queue/NAME``: a durable classic queue.

        Raises:
            ConnectionError: the broker refused.
        """
        address = self.queue_address(queue)
        await self._attached(queue, "sender", address.replace("/amq/queue/", "/queue/"))

    async def send(self, queue: str, body: bytes) -> None:
        """Send a message; the outcome *accepted* confirms that the broker has it."""
        from proton import Message

        self._demand()
        link = await self._not_done(self._link(queue, "sender"))
        while link.credit <= 0:
            self._demand()
            self._credit.clear()
            await self._credit.wait()
        self._demand()
        self._count += 1
        answered = self._wait(link.delivery(str(self._count)))
        link.stream(Message(body=body, inferred=True, durable=self._persistent).encode())
        link.advance()
        self._turn()
        outcome = await answered
        if outcome == "RELEASED":
            raise NotDone("released")
        if outcome != "ACCEPTED":
            raise ConnectionError(f"the outcome is {outcome.lower()}")

    async def take(self, queue: str, timeout: float) -> Delivery | None:
        """Take the next message that the broker sends, after attaching to the queue if necessary.

        Raises:
            NotDone: the connection was lost. Unacknowledged messages that had arrived return to the broker.
        """
        from proton import Delivery as State

        self._demand()
        link = await self._not_done(self._link(queue, "receiver"))
        if link.name not in self._inboxes:
            self._inboxes[link.name] = asyncio.Queue()
            link.flow(self.prefetch)
            self._turn()
        try:
            found = await asyncio.wait_for(self._inboxes[link.name].get(), timeout)
        except TimeoutError:
            found = None
        self._demand()
        if found is None:
            return None
        delivery, body, came = found

        async def settled(state: int) -> None:
            self._demand()
            delivery.update(state)
            if self._product == _RABBITMQ or state == State.RELEASED:  # ActiveMQ never settles a released message
                delivery.settle()
                self._turn()
                await self._fence(queue)
            else:
                confirmed = self._wait(delivery)
                self._turn()
                await confirmed
            link.flow(1)
            self._turn()

        return Delivery(body, lambda: settled(State.ACCEPTED), lambda: settled(State.RELEASED), None, came)

    async def depth(self, queue: str) -> int | None:
        """Return a queue's depth if there is a way to ask for it; AMQP 1.0 has no such request."""
        return None if self._depth is None else await self._depth(queue)

    async def close(self) -> None:
        """Disconnect: cleanly if the broker answers in time."""
        if self._opened and not self._lost:
            closed = self._wait("close")
            self._connection.close()
            self._turn()
            await asyncio.wait({closed}, timeout=CLOSE_SECONDS)
        self._lose("closed")
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    async def _link(self, queue: str, kind: str) -> Any:
        """Return the link of a queue in this direction, attached."""
        if (queue, kind) not in self._links:
            self._links[queue, kind] = await self._attached(queue, kind, self.queue_address(queue))
        return self._links[queue, kind]

    async def _attached(self, queue: str, kind: str, address: str) -> Any:
        from proton import Link, Terminus, symbol

        self._count += 1
        name = f"{kind}-{queue}-{self._count}"
        link = getattr(self._session, kind)(name)
        sends = kind == "sender"
        terminus = link.target if sends else link.source
        terminus.address, terminus.durability = address, Terminus.CONFIGURATION
        terminus.capabilities.put_symbol(symbol("queue"))  # ActiveMQ and Artemis: a queue, not a topic
        link.snd_settle_mode = Link.SND_UNSETTLED
        link.rcv_settle_mode = Link.RCV_FIRST  # RabbitMQ refuses `second`
        attached = self._wait(name)
        link.open()
        self._turn()
        await attached
        return link

    async def _fence(self, queue: str) -> None:
        """Wait for the broker's answer to a request: it has then handled all earlier frames of this session."""
        link = await self._attached(queue, "sender", self.queue_address(queue))
        self._ours_closed.add(link.name)
        link.close()

    def _wait(self, key: object) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waits[key] = future
        return future

    def _answer(self, key: object, value: Any = None) -> None:
        future = self._waits.pop(key, None)
        if future is not None and not future.done():
            future.set_result(value)

    def _demand(self) -> None:
        """Raise NotDone if the connection is known to be lost: nothing is written then."""
        if self._lost or self._connection is None:
            raise NotDone(f"the connection was lost: {self._lost or 'never opened'}")

    async def _not_done(self, attaching: Awaitable[T]) -> T:
        """Await the attaching of a link, before an operation's own request, which is not sent after an error."""
        try:
            return await attaching
        except ConnectionError as error:
            raise NotDone(f"no link: {error}") from error

    def _lose(self, why: str) -> None:
        """Mark the connection as lost, end all waits, and discard data that still arrives."""
        if self._lost:
            return
        self._lost = why
        if self._writer is not None:
            self._writer.transport.abort()
        for future in self._waits.values():
            if not future.done():
                future.set_exception(ConnectionError(why))
                future.exception()  # retrieve it: not every future is awaited
        self._waits.clear()
        self._credit.set()
        for inbox in self._inboxes.values():
            inbox.put_nowait(None)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(_READ_BYTES):
                while data and (room := self._transport.capacity()) > 0:
                    self._transport.push(data[:room])
                    data = data[room:]
                    self._turn()
            self._lose("closed by the broker")
        except Exception as error:
            self._lose(str(error) or type(error).__name__)

    async def _tick(self) -> None:
        """Keep both sides' idle timeouts: send empty frames in time, and leave a broker that is silent."""
        while not self._lost:
            self._transport.tick(asyncio.get_running_loop().time())
            self._turn()
            await asyncio.sleep(TICK_SECONDS)

    def _turn(self) -> None:
        """Handle what the engine has understood, and write what it wants to send."""
        while (event := self._collector.peek()) is not None:
            self._handle(event.type.name, event)
            self._collector.pop()
        while not self._lost and (pending := self._transport.pending()) > 0:
            assert self._writer is not None
            self._writer.write(self._transport.peek(pending))
            self._transport.pop(pending)

    def _handle(self, name: str, event: Any) -> None:
        if name == "PN_DELIVERY":
            self._handle_delivery(event.delivery)
        elif name == "PN_LINK_FLOW":
            self._credit.set()
        elif name == "PN_CONNECTION_REMOTE_OPEN":
            self._opened = True
            self._answer("open")
        elif name == "PN_LINK_REMOTE_OPEN":
            terminus = event.link.remote_target if event.link.is_sender else event.link.remote_source
            if terminus.type:  # otherwise the broker refuses the link, and its detach has the reason
                self._answer(event.link.name)
        elif name in ("PN_LINK_REMOTE_CLOSE", "PN_LINK_REMOTE_DETACH"):
            if event.link.name in self._ours_closed:
                self._ours_closed.discard(event.link.name)
                event.link.free()
                return
            self._lose(_words(event.link.remote_condition, "the broker closed the link"))
        elif name == "PN_SESSION_REMOTE_CLOSE":
            self._lose(_words(event.session.remote_condition, "the broker ended the session"))
        elif name == "PN_CONNECTION_REMOTE_CLOSE":
            self._answer("close")
            self._lose(_words(event.connection.remote_condition, "the broker closed the connection"))
        elif name == "PN_TRANSPORT_ERROR":
            self._lose(_words(event.transport.condition, "the transport failed"))

    def _handle_delivery(self, delivery: Any) -> None:
        from proton import Message

        link = delivery.link
        if link.is_sender:
            outcome = getattr(delivery.remote_state, "name", "")
            if outcome in _TERMINAL or delivery.settled:
                delivery.settle()
                self._answer(delivery, outcome or "unknown")
        elif delivery.readable and not delivery.partial:
            message = Message()
            message.decode(link.recv(delivery.pending))
            link.advance()
            body = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
            self._inboxes[link.name].put_nowait((delivery, body, asyncio.get_running_loop().time()))
        elif delivery.settled:
            delivery.settle()
            self._answer(delivery)


def _words(condition: Any, otherwise: str) -> str:
    return otherwise if condition is None else f"{condition.name}: {condition.description or otherwise}"


class Amqp1(ProtocolClient):
    """AMQP 1.0, with unsettled transfers."""

    name = "amqp1"
    summary = "AMQP 1.0: queues"
    port, tls_port = 5672, 5671
    options = (
        Option("address", AUTO, "prefix of a queue's name in its address; auto: RabbitMQ's, and none elsewhere"),
        Option("prefetch", 1, "link credit: messages that the broker may send ahead of acknowledgements", least=1),
        Option("idle", IDLE_SECONDS, "seconds after which a client leaves a silent broker; 0: never"),
        Option("persistent", True, "messages are durable"),
    )  # fmt: skip
    guarantees = (
        Guarantee("duplicated", NOT_PROMISED, "AMQP 1.0, 2.6.12 Transferring a Message",
                  "what was not settled is delivered again"),
        Guarantee("order", NOT_PROMISED, "AMQP 1.0, 3.4.4 Released", "what is delivered again may come late"),
        Guarantee("mutual-exclusion", NOT_PROMISED, "AMQP 1.0, 2.4.5 Idle Timeout Of A Connection",
                  "a holder that stands still learns too late that its message was given to somebody else"),
    )  # fmt: skip
    distributions = ("python-qpid-proton",)
    extra = "amqp1"

    def connection(self, setup: BrokerSetup) -> Amqp1Connection:
        """Return a new connection.

        Raises:
            UsageError: Proton lacks the SASL mechanism.
        """
        if setup.access.sasl not in ("", "PLAIN", "ANONYMOUS", "EXTERNAL"):
            raise UsageError(f"amqp1: no SASL mechanism {setup.access.sasl!r}; use PLAIN, ANONYMOUS or EXTERNAL")
        settings = self.settings(setup)
        return Amqp1Connection(setup.access, **{option.name: settings[option.name] for option in self.options})

    async def prepare(self, setup: BrokerSetup) -> None:
        """Attach to the workload's queues, so that the broker creates them if it does that.

        Raises:
            BackendError: a queue is not there, and the broker does not create it.
        """
        for queue in setup.demands.queues:
            connection = await self.admitted(setup)
            try:
                await connection.create(queue)
            except ConnectionError as error:
                raise BackendError(f"amqp1: no queue {queue}: {error}; create it before the run") from error
            finally:
                await connection.close()


AMQP1 = Amqp1()
