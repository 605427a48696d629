"""What clients of a system put and find, whatever it keeps: messages, values, entries, events."""

from __future__ import annotations

from typing import Any, Protocol

from harness.contract.core import Bench, Client
from stormproof.contracts.client import EventConnection, LogConnection, RegisterConnection, Subscriber
from stormproof.shell_system import QUEUES

TAKE_SECONDS = 0.5
_PORT = 17000
_PAGE = 1000


class Kind(Protocol):
    """A place in the system that nobody else uses."""

    verb: str

    async def prepare(self, bench: Bench, place: int = 0) -> None:
        """Have it there, before anything is put; ``place`` is the number of the client host."""

    async def put(self, client: Client, body: bytes) -> Any:
        """What clients do that changes something, once."""

    async def find(self, client: Client) -> list[bytes]:
        """Everything that is there; a queue is empty then."""
        ...


class QueueKind:
    """A queue."""

    verb = "send"

    def __init__(self, bench: Bench) -> None:
        self.queue = bench.queue()

    async def prepare(self, bench: Bench, place: int = 0) -> None:
        """It is there."""

    async def put(self, client: Client, body: bytes) -> Any:
        """Send."""
        return await client.connection.send(self.queue, body)

    async def find(self, client: Client) -> list[bytes]:
        """Take until nothing comes."""
        found = []
        while delivery := await client.call(client.connection.take(self.queue, TAKE_SECONDS)):
            await client.call(delivery.ack())
            found.append(delivery.body)
        return found


class RegisterKind:
    """A register."""

    verb = "write"

    def __init__(self, bench: Bench) -> None:
        self.name = bench.name("r")

    async def prepare(self, bench: Bench, place: int = 0) -> None:
        """It is there as soon as it is written."""

    async def put(self, client: Client, body: bytes) -> Any:
        """Write."""
        return await client.connection.write(self.name, body)

    async def find(self, client: Client) -> list[bytes]:
        """Read."""
        value = await client.call(client.connection.read(self.name))
        return [] if value is None else [value]


class LogKind:
    """A log."""

    verb = "append"

    def __init__(self, bench: Bench) -> None:
        self.name = bench.name("log")

    async def prepare(self, bench: Bench, place: int = 0) -> None:
        """It is there as soon as it is appended to."""

    async def put(self, client: Client, body: bytes) -> Any:
        """Append."""
        return await client.connection.append(self.name, body)

    async def find(self, client: Client) -> list[bytes]:
        """Read from the beginning."""
        return [entry.body for entry in await client.call(client.connection.read(self.name, 0, _PAGE))]


class EventKind:
    """A topic with one subscriber, on a connection of its own."""

    verb = "publish"

    def __init__(self, bench: Bench) -> None:
        self.topic = bench.name("topic")
        self._subscribed: Client | None = None
        self._number = int("".join(sign for sign in self.topic if sign.isdigit()))

    async def prepare(self, bench: Bench, place: int = 0) -> None:
        """Make the topic, and subscribe."""
        self._subscribed = client = await bench.client(place)
        await client.call(client.connection.create(self.topic))
        subscriber = Subscriber(f"s{self._number}", _PORT + self._number, True, 1000, 0.0)
        await client.call(client.connection.subscribe(self.topic, subscriber))

    async def put(self, client: Client, body: bytes) -> Any:
        """Publish."""
        return await client.connection.publish(self.topic, body)

    async def find(self, client: Client) -> list[bytes]:
        """Take until nothing comes."""
        assert self._subscribed is not None
        found = []
        while event := await self._subscribed.call(self._subscribed.connection.take(2 * TAKE_SECONDS)):
            found.append(event.body)
        return found


def kind_of(bench: Bench) -> Kind:
    """What this system keeps, the first of what it provides."""
    connection = bench.make_connection()
    if QUEUES in bench.system.provides:
        return QueueKind(bench)
    if isinstance(connection, RegisterConnection):
        return RegisterKind(bench)
    if isinstance(connection, EventConnection):
        return EventKind(bench)
    assert isinstance(connection, LogConnection)
    return LogKind(bench)
