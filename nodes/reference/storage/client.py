"""A broker's client of the storage service: requests with a deadline each, over one connection, opened when needed.

An unreachable service costs a caller no more than the deadline, and delays nothing else: the connection is aborted
instead of closed, since closing would wait for a peer that does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from nodes.reference import wire
from nodes.reference.api import Runtime
from nodes.reference.replication.handshake import FrameParser, Handshake, LinkError, encode_frame
from nodes.reference.storage.protocol import (
    PROTOCOL,
    SERVICE,
    FencedError,
    OutOfOrderError,
    StorageError,
    StorageUnavailableError,
    StoreState,
    TableChange,
)
from nodes.timeouts import within

_READ_BYTES = 1 << 16
"""Most bytes that are read at a time."""


class StorageClient:
    """The connection of the broker ``name`` to the storage service at ``address`` (host, port).

    Every method takes at most ``deadline`` seconds, to connect included, and may raise

    * StorageUnavailableError: there was no answer by then, or no connection;
    * StorageError: the service refused the connection or the request.

    Requests may be under way at the same time; they are carried out in the order of the calls.
    """

    def __init__(self, runtime: Runtime, name: str, address: tuple[str, int], cluster: str = "storage",
                 secret: str = "", deadline: float = 1.0) -> None:
        self._runtime, self._address, self._deadline = runtime, address, deadline
        self._handshake = Handshake(PROTOCOL, cluster, name, secret, runtime.random)
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._answers: dict[int, tuple[asyncio.StreamWriter, asyncio.Future[list[Any]]]] = {}
        """Number of a request -> its connection, and its answer."""
        self._number = 0
        self.asked: dict[int, None] = {}
        """The numbers of unanswered requests."""

    async def claim(self, epoch: int) -> int:
        """Let this broker write in ``epoch``, and fence older epochs; return the number of the epoch's applied commits.

        Raises:
            FencedError: a newer epoch holds the store, or this one belongs to another broker.
        """
        (applied,) = await self._ask("claim", epoch)
        return int(applied)

    async def commit(self, epoch: int, sequence: int, changes: Sequence[TableChange]) -> None:
        """Write changes durably; ``sequence`` counts the commits of the epoch from 1.

        Raises:
            FencedError: another epoch holds the store.
            OutOfOrderError: a commit before this one is missing.
        """
        await self._ask("commit", epoch, sequence, [[name, list(map(list, rows)), list(removed)]
                                                   for name, rows, removed in changes])

    async def read(self, epoch: int, table: str) -> AsyncIterator[list[list[Any]]]:
        """Yield all rows of a table, page by page, in order of their keys.

        Raises:
            FencedError: another epoch holds the store.
        """
        after: int | None = None
        more = True
        while more:
            rows, more = await self._ask("read", epoch, table, after)
            if rows:
                after = rows[-1][0]
                yield rows

    async def state(self) -> StoreState:
        """Return the current epoch of the store and its holder."""
        return StoreState(*await self._ask("state"))

    def unanswerable(self) -> list[int]:
        """Return the numbers of requests that are awaited although their connection is lost; between callbacks there
        are none."""
        return [number for number, (writer, waiting) in self._answers.items()
                if writer is not self._writer and not waiting.done()]

    def close(self) -> None:
        """End the connection; waiting callers get StorageUnavailableError."""
        self._lose("the connection was closed")

    async def _ask(self, *request: Any) -> list[Any]:
        self._number += 1
        number = self._number
        self.asked[number] = None
        try:
            return await self._answered(number, request)
        finally:
            del self.asked[number]

    async def _answered(self, number: int, request: Sequence[Any]) -> list[Any]:
        try:
            async with within(self._deadline):
                writer = await self._connected()
                answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
                self._answers[number] = writer, answer
                try:
                    writer.write(encode_frame([number, *request]))
                    answered = await answer
                finally:
                    self._answers.pop(number, None)
        except TimeoutError as error:
            self._lose("no answer in time")
            raise StorageUnavailableError(f"no answer within {self._deadline:g} s") from error
        except (OSError, asyncio.IncompleteReadError) as error:
            self._lose("the connection failed")
            raise StorageUnavailableError(f"no connection: {error or type(error).__name__}") from error
        except LinkError as error:
            self._lose("the connection failed")
            raise StorageError(str(error)) from error
        except wire.WireError as error:
            raise StorageError(f"the request can't be sent: {error}") from error
        status, *content = answered
        if status == "fenced":
            raise FencedError(content[0])
        if status == "order":
            raise OutOfOrderError(content[0])
        if status != "ok":
            raise StorageError(" ".join(map(str, content)))
        return content

    async def _connected(self) -> asyncio.StreamWriter:
        async with self._connecting:
            if self._writer is None:
                reader, writer = await self._runtime.connect(*self._address)
                try:
                    await self._handshake.dial(reader, writer, SERVICE)
                except BaseException:
                    writer.transport.abort()
                    raise
                self._writer = writer
                self._reading = self._runtime.spawn(self._read(reader, writer), "storage answers")
            return self._writer

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = FrameParser()
        try:
            while data := await reader.read(_READ_BYTES):
                for number, *answer in parser.feed(data):
                    _, waiting = self._answers.get(number, (None, None))
                    if waiting is not None and not waiting.done():
                        waiting.set_result(answer)
        except (OSError, LinkError, TypeError, ValueError):
            pass  # the input was not a valid answer
        if self._writer is writer:
            self._reading = None
            self._lose("the connection ended")

    def _lose(self, reason: str) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.transport.abort()
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
        for _, waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(ConnectionAbortedError(reason))
