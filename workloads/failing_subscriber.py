"""A subscriber that lets deliveries fail, as often as it is told, and takes the event then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nodes.stomp import Frame, Parser, ProtocolError, encode

_READ = 1 << 16


class FailingSubscriber:
    """Listens at ``host:port`` for events that replicas push.

    ``failing`` is how many attempts in a row fail, before the next event is acknowledged; None: all do. ``attempts``
    counts those since an event was taken last, ``taken`` are the bodies of those events.
    """

    def __init__(self, host: str, port: int, failing: int | None) -> None:
        self.endpoint = f"{host}:{port}"
        self.failing = failing
        self.attempts = 0
        self.taken: list[bytes] = []
        self._host, self._port = host, port
        self._server: asyncio.Server | None = None
        self._writers: dict[asyncio.StreamWriter, None] = {}

    async def open(self) -> None:
        """Begin to listen; raises OSError."""
        self._server = await asyncio.start_server(self._accept, self._host, self._port)

    def has_taken(self, count: int) -> Callable[[], bool]:
        """Whether it has taken so many events, whenever that is asked."""
        return lambda: len(self.taken) == count

    def close(self) -> None:
        """Listen no longer."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers[writer] = None
        parser = Parser()
        try:
            while data := await reader.read(_READ):
                for frame in parser.feed(data):
                    if not isinstance(frame, Frame) or frame.command != "MESSAGE":
                        continue
                    self.attempts += 1
                    if self.failing is None or self.attempts <= self.failing:
                        return
                    self.attempts = 0
                    self.taken.append(frame.body)
                    writer.write(encode(Frame("ACK", {"id": frame.headers.get("ack", "")})))
        except (OSError, ProtocolError):
            pass  # It is tried again.
        finally:
            del self._writers[writer]
            writer.transport.abort()
