"""The links of a durable connection to brokers: over STOMP, or by the four primitives of a broker of another kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from nodes.timeouts import within
from stormproof.contracts.client import NotDone, QueueConnection
from workloads.generic_client import close_quietly, first_accepting
from workloads.reference.connection import ConnectionBroken, NotSent, StompConnection
from workloads.reference.replica_list import Address

MESSAGE_ID = "x-message-id"
"""Header: ``CLIENT/SESSION/NUMBER``, identical for all copies of a message."""
SENT_AGAIN = "x-sent-again"
"""Header of a copy that may not be the first: the number of the connection on which it was sent."""


class BrokerLink(Protocol):
    """One connection to a serving broker; it is used once."""

    @property
    def node(self) -> Address | None:
        """The node that it is connected to, or was connected to last."""
        ...

    @property
    def connected(self) -> bool:
        """Return whether a broker has accepted the client, and the connection has not failed since."""
        ...

    @property
    def over(self) -> bool:
        """Return whether it is closed for good, or was never opened."""
        ...

    async def open(self, timeout: float) -> None:
        """Connect to a serving broker.

        Raises:
            ConnectionBroken: no broker accepted the client within ``timeout`` seconds.
        """

    async def send(self, queue: str, headers: Mapping[str, str], body: bytes) -> None:
        """Send a message, and wait until it is confirmed; messages are sent in the order of the calls.

        Raises:
            NotSent: it certainly had no effect, and may be tried again on another link.
            Rejected: the broker refuses it for good: it had no effect.
            ConnectionBroken: the connection is over, and the outcome is unknown.
        """

    async def abort(self) -> None:
        """Drop the connection without DISCONNECT."""


class StompLink(StompConnection):
    """A link over STOMP; messages go to ``/queue/NAME``."""

    @property
    def node(self) -> Address | None:
        """The node that it is connected to, or was connected to last."""
        return self.peer

    async def send(self, queue: str, headers: Mapping[str, str], body: bytes) -> None:
        """Send a message; over a reliable connection, through any number of failovers."""
        await self.request("SEND", {"destination": f"/queue/{queue}", **headers}, body, None)


class GenericLink:
    """A link to a broker of any kind, whose messages have no headers; ``mark`` puts the headers into the body."""

    def __init__(self, addresses: Sequence[Address], connect: Callable[[], QueueConnection | None], local: str,
                 send_timeout: float, mark: Callable[[Mapping[str, str], bytes], bytes]) -> None:
        """Create a link. ``connect`` returns a connection that is not open yet, ``local`` is the address to connect
        from; a broker that has not confirmed a message within ``send_timeout`` seconds counts as lost."""
        self.node: Address | None = None
        self._addresses = list(addresses)
        self._make, self._local, self._send_timeout, self._mark = connect, local, send_timeout, mark
        self._connection: QueueConnection | None = None
        self._turn = asyncio.Lock()

    @property
    def connected(self) -> bool:
        """Return whether it can send now."""
        return self._connection is not None

    @property
    def over(self) -> bool:
        """Return whether it can no longer be used."""
        return self._connection is None

    async def open(self, timeout: float) -> None:
        """Connect to the first broker of the list that accepts the client."""
        try:
            self._connection, self.node = await first_accepting(self._addresses, self._make, self._local, timeout)
        except NotDone as error:
            raise ConnectionBroken(str(error)) from None

    async def send(self, queue: str, headers: Mapping[str, str], body: bytes) -> None:
        """Send a message; any outcome other than a confirmation ends the connection."""
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
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await close_quietly(connection)
