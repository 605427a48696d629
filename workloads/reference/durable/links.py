"""How a durable connection reaches brokers: over STOMP, or by the four primitives of a broker of another kind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from nodes.timeouts import within
from stormproof.contracts.client import NotDone, QueueConnection
from workloads.reference.connection import ConnectionBroken, NotSent, Settings, StompConnection

Address = tuple[str, int]

MESSAGE_ID = "x-message-id"
"""Header: ``CLIENT/SESSION/NUMBER``, the same for all copies of a message."""
SENT_AGAIN = "x-sent-again"
"""Header of a copy that may not be the first: the number of the connection in which it was sent."""


class Link(Protocol):
    """One connection to whichever broker serves; it is used once."""

    @property
    def node(self) -> Address | None:
        """Whom it talks to, or talked to last."""
        ...

    @property
    def connected(self) -> bool:
        """Whether a broker has let us in, and the connection has not failed since."""
        ...

    @property
    def over(self) -> bool:
        """Whether it is closed for good, or was never opened."""
        ...

    async def open(self, timeout: float) -> None:
        """Connect to whoever serves.

        Raises:
            ConnectionBroken: nobody let us in within ``timeout`` seconds.
        """

    async def send(self, queue: str, headers: Mapping[str, str], body: bytes) -> None:
        """Send a message, and wait until it is confirmed; messages go out in the order of the calls.

        Raises:
            NotSent: it certainly had no effect, and may be tried again on another link.
            Rejected: the broker refuses it for good: it had no effect.
            ConnectionBroken: the connection is over, and nobody knows what became of it.
        """

    async def abort(self) -> None:
        """Leave without a word."""


class StompLink:
    """A link over STOMP; messages go to ``/queue/NAME``."""

    def __init__(self, addresses: Sequence[Address], settings: Settings) -> None:
        self._connection = StompConnection(addresses, settings)

    @property
    def node(self) -> Address | None:
        """Whom it talks to, or talked to last."""
        return self._connection.peer

    @property
    def connected(self) -> bool:
        """Whether it can send now."""
        return self._connection.connected

    @property
    def over(self) -> bool:
        """Whether it is of no use any more."""
        return self._connection.over

    async def open(self, timeout: float) -> None:
        """Connect."""
        await self._connection.open(timeout)

    async def send(self, queue: str, headers: Mapping[str, str], body: bytes) -> None:
        """Send a message; over a reliable connection, through as many failovers as it takes."""
        await self._connection.request("SEND", {"destination": f"/queue/{queue}", **headers}, body, None)

    async def abort(self) -> None:
        """Leave without a word."""
        await self._connection.abort()


class NeutralLink:
    """A link to a broker of any kind, whose messages have no headers; ``mark`` puts them into the body."""

    def __init__(self, addresses: Sequence[Address], connect: Callable[[], QueueConnection], local: str,
                 send_timeout: float, mark: Callable[[Mapping[str, str], bytes], bytes]) -> None:
        """``connect`` makes a connection that is not open yet, ``local`` is the address to connect from; a broker that
        has not confirmed a message within ``send_timeout`` seconds is taken for lost."""
        self.node: Address | None = None
        self._addresses = list(addresses)
        self._make, self._local, self._send_timeout, self._mark = connect, local, send_timeout, mark
        self._connection: QueueConnection | None = None
        self._turn = asyncio.Lock()

    @property
    def connected(self) -> bool:
        """Whether it can send now."""
        return self._connection is not None

    @property
    def over(self) -> bool:
        """Whether it is of no use any more."""
        return self._connection is None

    async def open(self, timeout: float) -> None:
        """Connect to the first broker of the list that lets us in."""
        deadline = asyncio.get_running_loop().time() + timeout
        trouble = "no broker was tried"
        for address in self._addresses:
            connection = self._make()
            try:
                async with within(max(0.0, deadline - asyncio.get_running_loop().time())):
                    await connection.connect(*address, self._local)
            except Exception as error:
                trouble = str(error) or type(error).__name__
                await _closed(connection)
                continue
            self._connection, self.node = connection, address
            return
        raise ConnectionBroken(trouble)

    async def send(self, queue: str, headers: Mapping[str, str], body: bytes) -> None:
        """Send a message; after anything but a confirmation the connection is over."""
        async with self._turn:
            connection = self._connection
            if connection is None:
                raise NotSent("the connection is over")
            try:
                async with within(self._send_timeout):
                    await connection.send(queue, self._mark(headers, body))
            except NotDone as error:
                await self.abort()
                raise NotSent(str(error)) from error
            except Exception as error:
                await self.abort()
                raise ConnectionBroken(str(error) or type(error).__name__) from error

    async def abort(self) -> None:
        """Leave without a word."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await _closed(connection)


async def _closed(connection: QueueConnection) -> None:
    with contextlib.suppress(Exception):
        async with within(2.0):
            await connection.close()
