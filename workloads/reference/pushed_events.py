"""Listeners that replicas push events to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from nodes.stomp import Frame, Parser, ProtocolError, encode

_READ_BYTES = 1 << 16


class PushedEvents:
    """A listener for events; ``take`` receives each event, and returns True to acknowledge it, False to end the
    connection."""

    def __init__(self, take: Callable[[Frame], Awaitable[bool]]) -> None:
        self._take = take
        self._server: asyncio.Server | None = None
        self._pushing: dict[asyncio.StreamWriter, None] = {}

    async def open(self, host: str, port: int) -> None:
        """Start to listen; raises OSError."""
        self._server = await asyncio.start_server(self._accept, host, port)

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._pushing):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._pushing[writer] = None
        parser = Parser()
        try:
            while data := await reader.read(_READ_BYTES):
                for frame in parser.feed(data):
                    if isinstance(frame, Frame) and frame.command == "MESSAGE":
                        if not await self._take(frame):
                            return
                        writer.write(encode(Frame("ACK", {"id": frame.headers.get("ack", "")})))
        except (OSError, ProtocolError):
            pass  # The replica reconnects.
        finally:
            del self._pushing[writer]
            writer.transport.abort()


class FailingSubscriber:
    """A listener at ``host:port`` for events that replicas push.

    ``failing`` is the number of consecutive attempts that fail before an event is acknowledged; None: all fail.
    ``attempts`` counts the attempts since the last acknowledged event, ``taken`` are the bodies of the acknowledged
    events.
    """

    def __init__(self, host: str, port: int, failing: int | None) -> None:
        self.endpoint = f"{host}:{port}"
        self.failing = failing
        self.attempts = 0
        self.taken: list[bytes] = []
        self._address = host, port
        self._pushed = PushedEvents(self._take)

    async def open(self) -> None:
        """Start to listen; raises OSError."""
        await self._pushed.open(*self._address)

    def has_taken(self, count: int) -> Callable[[], bool]:
        """Return a function that tells whether exactly ``count`` events have been taken."""
        return lambda: len(self.taken) == count

    def close(self) -> None:
        """Stop listening."""
        self._pushed.close()

    async def _take(self, event: Frame) -> bool:
        self.attempts += 1
        if self.failing is None or self.attempts <= self.failing:
            return False
        self.attempts = 0
        self.taken.append(event.body)
        return True
