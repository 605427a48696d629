"""NATS JetStream: queues, whose messages are deleted when acknowledged, and logs with offsets.

Each queue is a stream with retention *WorkQueuePolicy*, and one durable pull consumer with explicit acknowledgement.
Each log is a stream, and an offset is its sequence number. Names of streams are also their subjects.

Outcomes, by NATS' documentation:

* Certainly not done: no responders ("Request-Reply": "a request sent to a subject with no subscribers will immediately
  receive a reply that has no body, and a 503 status": no stream got it); a message above the server's ``max_payload``,
  and every request on a connection that is known to be lost (nothing was written to the socket).
* May have happened: every error of JetStream in answer to a publish, the end of the connection, and no answer in time
  ("Streams": a stream acknowledges a message after it has stored it; the acknowledgement itself can get lost).
* A take removes nothing, whatever happens to it ("Ack responses and redelivery": "A message stays in flight from the
  moment the server delivers it until the consumer answers. [...] If the answer never comes, the server assumes the
  worker stopped and delivers the message again"). An acknowledgement asks for a separate confirmation (*AckSync*).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from stormproof.clients.preparing import until_done
from stormproof.contracts.client import Delivery, LogEntry, NotDone, NotFound
from stormproof.contracts.guarantee import NOT_PROMISED, Guarantee
from stormproof.contracts.option import Option
from stormproof.contracts.protocol_client import Access, BrokerSetup, ProtocolClient
from stormproof.errors import BackendError

T = TypeVar("T")

CLIENT_PORT = 4222
CONSUMER = "takers"
CONNECT_SECONDS, ANSWER_SECONDS = 2, 2.0
FILE, MEMORY = "file", "memory"
COPY_TRIES = 60
"""Attempts to have a consumer placed on one of a stream's replicas: with five, all fail once in 600,000 reads."""
LAG_TRIES, LAG_PAUSE_SECONDS = 2, 1.0
"""The attempts to read a copy that ends before its stream does, and the pause between them. Both fit into the time
limit of an operation (3 s): otherwise a replica that lacks entries for good would never be read to its end."""
COPY_SECONDS = 30
"""The age at which servers delete a consumer whose client was cut off."""
_NO_STREAM, _OTHER_SETTINGS = 10059, 10058
"""Codes of JetStream's errors for a missing stream, and for an existing one with other settings."""
_NO_MESSAGES, _TIME_OUT = "404", "408"
"""The statuses that end a request when a consumer has nothing more; the latter only after messages."""


class NatsConnection:
    """One client's connection to one server; it never switches to another, and is never reopened automatically."""

    prefetch = 1

    def __init__(self, access: Access) -> None:
        self._access = access
        self._client: Any = None
        self._streams: Any = None
        self._pulls: dict[str, Any] = {}
        self._lost: asyncio.Future[None] | None = None
        self._copy = False
        """Whether logs are read from the server's own copy."""

    async def connect_copy(self, host: str, port: int, local: str) -> None:
        """Connect to the copies of this server."""
        await self.connect(host, port, local)
        self._copy = True

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``."""
        self._lost = asyncio.get_running_loop().create_future()
        self._client = await connected(host, port, local, self._access, self._lost)
        self._streams = self._client.jetstream(timeout=ANSWER_SECONDS)

    async def send(self, queue: str, body: bytes) -> None:
        """Publish a message; the stream's acknowledgement confirms it."""
        await self.append(queue, body)

    async def take(self, queue: str, timeout: float) -> Delivery | None:
        """Take the next message that no client has; it goes to another if it is not acknowledged for a while."""
        from nats.js.errors import ServiceUnavailableError

        if queue not in self._pulls:
            self._pulls[queue] = await self._taking(self._streams.pull_subscribe_bind(CONSUMER, queue))
        try:
            (message,) = await self._taking(self._pulls[queue].fetch(1, timeout=timeout))
        except TimeoutError:
            return None
        except ServiceUnavailableError:  # the consumer has lost its responder: it may be gone, with its stream
            await self._there(self._streams.stream_info(queue))
            raise

        async def ack() -> None:
            await self._asked(message.ack_sync(timeout=ANSWER_SECONDS))

        return Delivery(message.data, ack)

    async def depth(self, queue: str) -> int:
        """Return the number of messages in the stream, including those delivered and not acknowledged."""
        info = await self._there(self._streams.stream_info(queue))
        return int(info.state.messages)

    async def append(self, name: str, body: bytes) -> int:
        """Publish a message; return the sequence number from the stream's acknowledgement."""
        from nats.errors import ConnectionClosedError, MaxPayloadError, NoRespondersError
        from nats.js.errors import NoStreamResponseError

        try:
            confirmed = await self._asked(self._streams.publish(name, body, timeout=ANSWER_SECONDS))
        except (NoStreamResponseError, NoRespondersError) as error:
            raise NotDone(f"no stream takes it: {error}") from error
        except MaxPayloadError as error:
            raise NotDone(str(error)) from error
        except ConnectionError as error:
            if isinstance(error.__cause__, ConnectionClosedError):  # raised before anything is written
                raise NotDone(f"{error}; nothing was sent") from error
            raise
        return int(confirmed.seq)

    async def read(self, name: str, after: int, limit: int) -> list[LogEntry]:
        """Read by asking the stream's leader for the next message, repeatedly ("Direct Get" is off)."""
        from nats.js.errors import NotFoundError

        if self._copy:
            return await self._own(name, after, limit)
        found: list[LogEntry] = []
        while len(found) < limit:
            try:
                message = await self._there(self._streams.get_msg(name, after + 1, name, next=True))
            except NotFoundError:
                break
            after = message.seq
            found.append(LogEntry(after, message.data or b""))
        return found

    async def _own(self, name: str, after: int, limit: int) -> list[LogEntry]:
        """Read this server's own copy by a consumer without replicas, which is made until this server has it: such a
        consumer reads from the replica next to it. ("Direct Get" does not serve here: any replica answers it.)

        Raises:
            NotFound: this server has no copy. RuntimeError: no consumer was placed here.
        """
        here = self._client._server_info["server_name"]
        for _ in range(LAG_TRIES):  # a replica applies what the leader has confirmed a little later
            info = await self._there(self._streams.stream_info(name))
            found = info.cluster
            if found is not None and here not in (found.leader, *(each.name for each in found.replicas or ())):
                raise NotFound(f"{here} has no copy of {name}")
            if (entries := await self._placed(name, after, limit, here)) or info.state.last_seq <= after:
                return entries
            await asyncio.sleep(LAG_PAUSE_SECONDS)
        return []

    async def _placed(self, name: str, after: int, limit: int, here: str) -> list[LogEntry]:
        """Return entries from the replica on this server. Raises RuntimeError if no consumer was placed here."""
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        wanted = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=after + 1,
                                ack_policy=AckPolicy.NONE, num_replicas=1, mem_storage=True,
                                inactive_threshold=COPY_SECONDS)  # fmt: skip
        for _ in range(COPY_TRIES):
            made = await self._asked(self._streams.add_consumer(name, wanted))
            try:
                if made.cluster is None or made.cluster.leader == here:
                    return await self._fetched(name, made.name, limit)
            finally:
                with contextlib.suppress(Exception):  # it ends by itself, too
                    await self._asked(self._streams.delete_consumer(name, made.name))
        raise RuntimeError(f"of {COPY_TRIES} consumers, none was placed on {here}")

    async def _fetched(self, name: str, consumer: str, limit: int) -> list[LogEntry]:
        """Return what a consumer has, up to ``limit`` entries; the server tells when there is nothing more.

        Raises:
            RuntimeError: the server ends the request for another reason.
        """
        inbox = self._client.new_inbox()
        answers = await self._client.subscribe(inbox)
        request = json.dumps({"batch": limit, "no_wait": True}).encode()
        found: list[LogEntry] = []
        try:
            await self._client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{name}.{consumer}", request, reply=inbox)
            while len(found) < limit:
                message = await self._asked(answers.next_msg(timeout=ANSWER_SECONDS))
                status = (message.headers or {}).get("Status", "")
                if status == _NO_MESSAGES or (status == _TIME_OUT and found):
                    break
                if status:
                    raise RuntimeError(f"{name}: {status} {message.headers.get('Description', '')}")
                found.append(LogEntry(message.metadata.sequence.stream, message.data))
        finally:
            await answers.unsubscribe()
        return found

    async def close(self) -> None:
        """Disconnect."""
        if self._client is not None:
            with contextlib.suppress(Exception):
                await self._client.close()

    async def _taking(self, asked: Coroutine[Any, Any, T]) -> T:
        try:
            return await self._asked(asked)
        except ConnectionError as error:
            raise NotDone(f"{error}; a message that was not acknowledged is delivered again") from error

    async def _there(self, asked: Coroutine[Any, Any, T]) -> T:
        """Return the answer to a request about a stream.

        Raises:
            NotFound: the servers' own group, which knows all streams, has none of that name.
        """
        from nats.js.errors import NotFoundError

        try:
            return await self._asked(asked)
        except NotFoundError as error:
            if error.err_code == _NO_STREAM:
                raise NotFound(str(error)) from error
            raise

    async def _asked(self, asked: Coroutine[Any, Any, T]) -> T:
        """Return the answer to a request; end with the connection, which the library does not.

        Raises:
            NotDone: the connection was lost before. ConnectionError: it was lost meanwhile.
        """
        from nats.errors import ConnectionClosedError

        assert self._lost is not None
        if self._lost.done() or self._client.is_closed:
            asked.close()
            raise NotDone("the connection was lost before; nothing was sent")
        asking = asyncio.ensure_future(asked)
        asking.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # asyncio logs it otherwise
        try:
            await asyncio.wait((asking, self._lost), return_when=asyncio.FIRST_COMPLETED)
            if asking.done() and not asking.cancelled():
                return asking.result()
        except ConnectionClosedError as error:
            raise ConnectionError("the connection was lost") from error
        finally:
            asking.cancel()
        raise ConnectionError("the connection was lost")


class Nats(ProtocolClient):
    """NATS servers with JetStream."""

    name = "nats"
    summary = "NATS JetStream: streams as queues and logs"
    port = CLIENT_PORT
    tls_port = CLIENT_PORT
    provides = frozenset({"queues", "logs"})
    distributions = ("nats-py",)
    options = (
        Option("stream_replicas", 0, "servers that have each stream; 0: three if there are as many, otherwise one"),
        Option("storage", FILE, "where streams are", (FILE, MEMORY)),
        Option("ack_wait", 5.0, "seconds after which a message that was not acknowledged is delivered again"),
    )
    guarantees = (
        Guarantee("duplicated", NOT_PROMISED, "NATS documentation, JetStream, Consumers: AckExplicit, AckWait",
                  "what was not acknowledged in time is delivered again"),
        Guarantee("order", NOT_PROMISED, "NATS documentation, JetStream, Consumers: AckExplicit, AckWait",
                  "what is delivered again comes late"),
    )  # fmt: skip
    """Loss is judged in every mode: according to the documentation, an acknowledged message is stored ("JetStream",
    *Persistent and consistent distributed storage*)."""

    def connection(self, setup: BrokerSetup) -> NatsConnection:
        """Return a connection to one server."""
        return NatsConnection(setup.access)

    async def prepare(self, setup: BrokerSetup) -> None:
        """Create the streams, and a consumer for each queue, which begins with the first message and has no limit of
        deliveries. Existing streams are accepted as they are.

        Raises:
            Exception: the servers do not create them within ``PREPARE_SECONDS``; the last error.
        """

        async def make() -> None:
            async with _a_client(setup) as client:
                for name in (*setup.demands.queues, *setup.demands.logs):
                    await self._make(client.jetstream(timeout=ANSWER_SECONDS), setup, name)

        await until_done(make)

    async def leaders(self, setup: BrokerSetup) -> Mapping[str, str]:
        """Return the leader of each stream, if there are several servers."""
        found: dict[str, str] = {}
        if len(setup.brokers) == 1:
            return found
        nodes = await _node_names(setup)
        async with _a_client(setup) as client:
            streams = client.jetstream(timeout=ANSWER_SECONDS)
            for name in (*setup.demands.queues, *setup.demands.logs):
                cluster = (await streams.stream_info(name)).cluster
                if cluster is not None and cluster.leader in nodes:
                    found[name] = nodes[cluster.leader]
        return found

    async def move_leader(self, setup: BrokerSetup, name: str, node: str) -> None:
        """Ask a stream's leader to step down in favour of a server ("preferred" since NATS 2.11; older servers choose,
        as they do if that server does not have the stream).

        Raises:
            BackendError: the leader refuses. Exception: no leader answers.
        """
        nodes = await _node_names(setup)
        async with _a_client(setup) as client:
            cluster = (await client.jetstream(timeout=ANSWER_SECONDS).stream_info(name)).cluster
            peers = (cluster.replicas or []) if cluster is not None else []
            servers = [peer.name for peer in peers if nodes.get(peer.name) == node]
            wish = json.dumps({"placement": {"preferred": servers[0]}}).encode() if servers else b""
            answer = await client.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{name}", wish, timeout=ANSWER_SECONDS)
            if error := json.loads(answer.data).get("error"):
                raise BackendError(f"nats: {error.get('description')}")

    async def clear(self, setup: BrokerSetup, names: Sequence[str]) -> Sequence[str]:
        """Delete the streams of these names."""
        from nats.js.errors import NotFoundError

        async with _a_client(setup) as client:
            streams = client.jetstream(timeout=ANSWER_SECONDS)
            for name in names:
                with contextlib.suppress(NotFoundError):
                    await streams.delete_stream(name)
        return ()

    async def _make(self, streams: Any, setup: BrokerSetup, name: str) -> None:
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, RetentionPolicy, StorageType, StreamConfig
        from nats.js.errors import BadRequestError

        options, is_log = self.settings(setup), name in setup.demands.logs
        replicas = int(options["stream_replicas"]) or (3 if len(setup.brokers) >= 3 else 1)
        try:
            await streams.add_stream(StreamConfig(
                name=name, subjects=[name], storage=StorageType(options["storage"]), num_replicas=replicas,
                retention=RetentionPolicy.LIMITS if is_log else RetentionPolicy.WORK_QUEUE,
            ))  # fmt: skip
        except BadRequestError as error:
            if error.err_code != _OTHER_SETTINGS:
                raise
        if not is_log:
            await streams.add_consumer(name, ConsumerConfig(
                durable_name=CONSUMER, deliver_policy=DeliverPolicy.ALL, ack_policy=AckPolicy.EXPLICIT,
                ack_wait=float(options["ack_wait"]), max_deliver=-1, num_replicas=replicas,
            ))  # fmt: skip


NATS = Nats()


@contextlib.asynccontextmanager
async def _a_client(setup: BrokerSetup) -> AsyncIterator[Any]:
    """Have a client of the first server that lets one in."""
    trouble: Exception = ConnectionError("there is no server")
    for broker in setup.brokers:
        try:
            client = await connected(broker.host, broker.port, "", setup.access)
        except Exception as error:
            trouble = error
            continue
        try:
            yield client
        finally:
            await client.close()
        return
    raise trouble


async def _node_names(setup: BrokerSetup) -> dict[str, str]:
    """Return the nodes of the servers that answer, by the servers' own names."""

    async def name_of(host: str, port: int) -> str:
        client = await connected(host, port, "", setup.access)
        try:
            return str(client._server_info["server_name"])
        finally:
            await client.close()

    names = await asyncio.gather(*(name_of(each.host, each.port) for each in setup.brokers), return_exceptions=True)
    return {name: broker.node for name, broker in zip(names, setup.brokers, strict=True) if isinstance(name, str)}


async def connected(host: str, port: int, local: str, access: Access, lost: asyncio.Future[None] | None = None) -> Any:
    """Connect to that server alone; ``lost`` gets a result when the connection has ended.

    Raises:
        OSError, TimeoutError, nats.errors.Error: the connection failed.
    """
    from nats.aio.client import Client
    from nats.aio.transport import TcpTransport

    transport: Any = TcpTransport

    class FromHere(transport):  # type: ignore[misc]
        def __bool__(self) -> bool:
            """Return True: if an unconnected transport were false, the client would replace it by another one."""
            return True

        async def connect(self, uri: Any, buffer_size: int, connect_timeout: int) -> None:
            bound = (local, 0) if local else None
            opening = asyncio.open_connection(uri.hostname, uri.port, limit=buffer_size, local_addr=bound)
            self._bare_io_reader, self._bare_io_writer = await asyncio.wait_for(opening, connect_timeout)
            self._io_reader, self._io_writer = self._bare_io_reader, self._bare_io_writer

    async def ignore(error: Exception) -> None:
        """Ignore errors here: each is raised where its connection is used."""

    async def end() -> None:
        if lost is not None and not lost.done():
            lost.set_result(None)

    client = Client()
    client._transport = FromHere()  # the client's only way to choose a transport
    tls = {"tls": access.tls.context(), "tls_hostname": access.tls.name or host} if access.tls else {}
    await client.connect(f"nats://{host}:{port}", allow_reconnect=False, connect_timeout=CONNECT_SECONDS,
                         error_cb=ignore, closed_cb=end, max_reconnect_attempts=1,
                         user=access.credentials.login or None, password=access.credentials.passcode or None,
                         **tls)  # type: ignore[arg-type]  # fmt: skip
    return client
