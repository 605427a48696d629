"""A uniform interface to the content that clients put into a system: messages, values, entries, events."""

from __future__ import annotations

from typing import Any, Protocol

from harness.contract.core import Bench, BenchClient
from stormproof.contracts.client import EventConnection, LogConnection, RegisterConnection, Subscriber
from stormproof.shell_system import QUEUES

TAKE_SECONDS = 0.5
_PORT = 17000
_PAGE = 1000


class DataKind(Protocol):
    """A place in the system that no other item uses."""

    verb: str

    async def prepare(self, bench: Bench, place: int = 0) -> None:
        """Create the place before anything is put into it. ``place`` is the number of the client host."""

    async def put(self, client: BenchClient, body: bytes) -> Any:
        """Perform the clients' changing operation once."""

    async def find(self, client: BenchClient) -> list[bytes]:
        """Return all content. A queue is empty afterwards."""
        ...


class QueueKind:
    """A queue."""

    verb = "send"

    def __init__(self, bench: Bench) -> None:
        self.queue = bench.announced("queues")

    async def prepare(self, bench: Bench, place: int = 0) -> None:
        """Do nothing: the queue exists already."""

    async def put(self, client: BenchClient, body: bytes) -> Any:
        """Send a message."""
        return await client.connection.send(self.queue, body)

    async def find(self, client: BenchClient) -> list[bytes]:
        """Take messages until none arrives."""
        found = []
        while delivery := await client.call(client.connection.take(self.queue, TAKE_SECONDS)):
            await client.call(delivery.ack())
            found.append(delivery.body)
        return found


class RegisterKind:
    """A register."""

    verb = "write"

    def __init__(self, bench: Bench) -> None:
        self.name = bench.announced("registers")

    async def prepare(self, bench: Bench, place: int = 0) -> None:
        """Do nothing: the first write creates the register."""

    async def put(self, client: BenchClient, body: bytes) -> Any:
        """Write the register."""
        return await client.connection.write(self.name, body)

    async def find(self, client: BenchClient) -> list[bytes]:
        """Read the register."""
        value = await client.call(client.connection.read(self.name))
        return [] if value is None else [value]


class LogKind:
    """A log."""

    verb = "append"

    def __init__(self, bench: Bench) -> None:
        self.name = bench.announced("logs")

    async def prepare(self, bench: Bench, place: int = 0) -> None:
        """Do nothing: the first append creates the log."""

    async def put(self, client: BenchClient, body: bytes) -> Any:
        """Append an entry."""
        return await client.connection.append(self.name, body)

    async def find(self, client: BenchClient) -> list[bytes]:
        """Read the log from its beginning."""
        return [entry.body for entry in await client.call(client.connection.read(self.name, 0, _PAGE))]


class EventKind:
    """A topic with one subscriber, on a separate connection."""

    verb = "publish"

    def __init__(self, bench: Bench) -> None:
        self.topic = bench.name("topic")
        self._subscribed: BenchClient | None = None
        self._number = int("".join(sign for sign in self.topic if sign.isdigit()))

    async def prepare(self, bench: Bench, place: int = 0) -> None:
        """Create the topic, and subscribe to it."""
        self._subscribed = client = await bench.client(place)
        await client.call(client.connection.create(self.topic))
        subscriber = Subscriber(f"s{self._number}", _PORT + self._number, True, 1000, 0.0)
        await client.call(client.connection.subscribe(self.topic, subscriber))

    async def put(self, client: BenchClient, body: bytes) -> Any:
        """Publish an event."""
        return await client.connection.publish(self.topic, body)

    async def find(self, client: BenchClient) -> list[bytes]:
        """Take events until none arrives."""
        assert self._subscribed is not None
        found = []
        while event := await self._subscribed.call(self._subscribed.connection.take(2 * TAKE_SECONDS)):
            found.append(event.body)
        return found


def kind_of(bench: Bench) -> DataKind:
    """Return a place for the first kind of content that this system provides."""
    connection = bench.make_connection()
    if QUEUES in bench.system.provides:
        return QueueKind(bench)
    if isinstance(connection, RegisterConnection):
        return RegisterKind(bench)
    if isinstance(connection, EventConnection):
        return EventKind(bench)
    assert isinstance(connection, LogConnection)
    return LogKind(bench)
