"""A listener that replicas push events to, and that acknowledges them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from nodes.stomp import Frame, Parser, ProtocolError, encode

_READ = 1 << 16


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
            while data := await reader.read(_READ):
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
