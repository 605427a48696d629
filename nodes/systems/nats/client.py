"""A client of NATS JetStream: queues, whose messages are deleted when acknowledged, and logs with offsets.

Each queue is a separate stream (NATS' documentation: "Streams", retention *WorkQueuePolicy*; "Consumers", pull,
explicit acknowledgement). All logs are subjects of one stream, and an offset is its sequence number: a log has gaps.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any, TypeVar

from stormproof.contracts.backend import Credentials
from stormproof.contracts.client import Delivery, LogEntry, NotDone, NotFound

T = TypeVar("T")

CLIENT_PORT = 4222
CONSUMER = "takers"
LOG_STREAM = "logs"
NOBODY = Credentials()
NO_STREAM = 10059
"""The code of JetStream's error for a missing stream; other codes concern consumers, or single messages."""
CONNECT_SECONDS, ANSWER_SECONDS = 2, 2.0


class NatsConnection:
    """One client's connection to one server; it never switches to another, and is never reopened automatically."""

    prefetch = 1

    def __init__(self, log_stream: str = LOG_STREAM, credentials: Credentials = NOBODY) -> None:
        self._log_stream, self._credentials = log_stream, credentials
        self._client: Any = None
        self._stream: Any = None
        self._pulls: dict[str, Any] = {}

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``."""
        self._client = await connected(host, port, local, self._credentials)
        self._stream = self._client.jetstream(timeout=ANSWER_SECONDS)

    async def send(self, queue: str, body: bytes) -> None:
        """Publish a message; the stream's acknowledgement confirms it."""
        await self._publish(queue, body)

    async def take(self, queue: str, timeout: float) -> Delivery | None:
        """Take the next message that no client has; it goes to another if it is not acknowledged for a while."""
        from nats.js.errors import ServiceUnavailableError

        if queue not in self._pulls:
            self._pulls[queue] = await self._stream.pull_subscribe_bind(CONSUMER, queue)
        try:
            (message,) = await self._pulls[queue].fetch(1, timeout=timeout)
        except TimeoutError:
            return None
        except ServiceUnavailableError:  # the consumer has lost its responder: it may be gone, with its stream
            await _there(self._stream.stream_info(queue))
            raise

        async def ack() -> None:
            await message.ack_sync(timeout=ANSWER_SECONDS)

        return Delivery(message.data, ack)

    async def depth(self, queue: str) -> int:
        """Return the number of messages in the stream, including those delivered and not acknowledged."""
        info = await _there(self._stream.stream_info(queue))
        return int(info.state.messages)

    async def append(self, name: str, body: bytes) -> int:
        """Publish a message; return the sequence number from the stream's acknowledgement."""
        return await self._publish(log_subject(self._log_stream, name), body)

    async def read(self, name: str, after: int, limit: int) -> list[LogEntry]:
        """Read by asking the stream's leader for the subject's next message, repeatedly ("Direct Get" is off)."""
        from nats.js.errors import NotFoundError

        found: list[LogEntry] = []
        subject = log_subject(self._log_stream, name)
        while len(found) < limit:
            try:
                message = await self._stream.get_msg(self._log_stream, after + 1, subject, next=True)
            except NotFoundError as error:
                if error.err_code == NO_STREAM:
                    raise NotFound(str(error)) from error
                break
            after = message.seq
            found.append(LogEntry(after, message.data or b""))
        return found

    async def _publish(self, subject: str, body: bytes) -> int:
        from nats.errors import NoRespondersError
        from nats.js.errors import NoStreamResponseError

        try:
            confirmed = await self._stream.publish(subject, body, timeout=ANSWER_SECONDS)
        except (NoStreamResponseError, NoRespondersError) as error:
            raise NotDone(f"no stream takes it: {error}") from error
        return int(confirmed.seq)

    async def close(self) -> None:
        """Disconnect."""
        if self._client is not None:
            with contextlib.suppress(Exception):
                await self._client.close()


async def _there(asked: Awaitable[T]) -> T:
    """Return the answer to a request about a stream.

    Raises:
        NotFound: the servers' own group, which knows all streams, has none of that name.
    """
    from nats.js.errors import NotFoundError

    try:
        return await asked
    except NotFoundError as error:
        if error.err_code == NO_STREAM:
            raise NotFound(str(error)) from error
        raise


def log_subject(stream: str, name: str) -> str:
    """Return the subject of a log, or of all (``*``), in the stream of logs."""
    return f"{stream}.{name}"


async def connected(host: str, port: int, local: str = "", credentials: Credentials = NOBODY) -> Any:
    """Connect to that server alone.

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
            opening = asyncio.open_connection(uri.hostname, uri.port, limit=buffer_size, local_addr=(local, 0))
            self._bare_io_reader, self._bare_io_writer = await asyncio.wait_for(opening, connect_timeout)
            self._io_reader, self._io_writer = self._bare_io_reader, self._bare_io_writer

    client = Client()
    if local:
        client._transport = FromHere()  # the client's only way to choose a transport

    async def ignore(error: Exception) -> None:
        """Ignore errors here: each is raised where its connection is used."""

    await client.connect(f"nats://{host}:{port}", allow_reconnect=False, connect_timeout=CONNECT_SECONDS,
                         error_cb=ignore, max_reconnect_attempts=1, user=credentials.login or None,
                         password=credentials.passcode or None)  # fmt: skip
    return client
