"""The storage service itself: carries out requests of several brokers in the order of their arrival, in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from nodes.reference import wire
from nodes.reference.api import Runtime
from nodes.reference.replication.handshake import (
    ComplaintLog,
    FrameParser,
    Handshake,
    LinkError,
    UnauthenticatedPeers,
    encode_frame,
)
from nodes.reference.storage.config import StorageConfig
from nodes.reference.storage.database import RowStore, StoredRows, StoreLostError
from nodes.reference.storage.protocol import (
    PROTOCOL,
    SERVICE,
    FencedError,
    MalformedRequestError,
    OutOfOrderError,
    changes_of,
)
from nodes.timeouts import within

MAX_UNSENT_BYTES = 16 << 20
"""Bytes of answers that may wait for a client to read them; a client with more is cut off."""
_READ_BYTES = 1 << 16
"""Most bytes that are read at a time."""
_HANDSHAKE_SECONDS = 2.0
"""Time in which a client must prove that it knows the secret."""
_LOG_SECONDS = 2.0
"""Least time between two log lines about disk writes."""
_MAX_READS = 16
"""Pages that are read in one transaction."""
_MAX_WAITING = 10_000
"""Requests that may wait; beyond this number no further input is read until they are done."""


class _Request(NamedTuple):
    client: str
    writer: asyncio.StreamWriter
    content: Any


def _end_of_batch(requests: Sequence[_Request]) -> int:
    """Return the number of requests that form a batch: all, but not many reads, because their answers are long."""
    reads = 0
    for place, (_, _, content) in enumerate(requests):
        reads += isinstance(content, list) and len(content) > 1 and content[1] == "read"
        if reads == _MAX_READS:
            return place + 1
    return len(requests)


class StorageService:
    """Keeps one database for the brokers that its configuration names.

    All requests that have arrived are carried out in one transaction, and answered when it is on disk. When the
    database is lost, clients are cut off, and served again when it is available again.
    """

    def __init__(self, config: StorageConfig, runtime: Runtime, store: RowStore | None = None) -> None:
        """Use ``store`` as the database; by default, an embedded one."""
        self._config, self._runtime = config, runtime
        self._handshake = Handshake(PROTOCOL, config.cluster, SERVICE, config.secret, runtime.random)
        self._complaints = ComplaintLog(runtime, "connection refused")
        self.rows: RowStore = store or StoredRows(runtime.open_database(SERVICE), config.page_rows)
        self._heard = self._told_at = runtime.now()
        self._writes = self._told = 0
        """The number of transactions that changed something."""
        self.waiting: list[_Request] = []
        self.batches = 0
        self._wake, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()
        self._strangers = UnauthenticatedPeers()
        self._writers: dict[asyncio.StreamWriter, None] = {}  # in the order of arrival, so that a simulated run repeats
        self._claimant: asyncio.StreamWriter | None = None
        """The connection of the last claim, the only one that may commit."""
        runtime.expose(f"{config.cluster}/0", SERVICE, self)

    async def run(self) -> None:
        """Serve until the task is cancelled.

        Raises:
            OSError: the service can't listen.
        """
        await self.rows.open()
        server = await self._runtime.serve(self._serve, self._config.host, self._config.port)
        self._runtime.log("listening", epoch=self.rows.epoch, holder=self.rows.holder, applied=self.rows.applied)
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                try:
                    await self._do_all()
                except StoreLostError as error:
                    await self._reopen(str(error))
                await asyncio.sleep(0)
        finally:
            server.close()
            for writer in self._writers:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers[writer] = None
        try:
            with self._strangers.waiting(writer):
                async with within(_HANDSHAKE_SECONDS):
                    client = await self._handshake.accept(reader, writer, self._config.clients)
            self._complaints.forget(client)
            await self._read(client, reader, writer)
        except LinkError as error:
            self._complaints.tell("", str(error))
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # a client that has gone will ask again
        finally:
            self._writers.pop(writer, None)
            writer.transport.abort()

    async def _read(self, client: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = FrameParser()
        while data := await reader.read(_READ_BYTES):
            for content in parser.feed(data):
                self.waiting.append(_Request(client, writer, content))
            self._wake.set()
            if len(self.waiting) > _MAX_WAITING:
                self._room.clear()
            await self._room.wait()

    async def _reopen(self, reason: str) -> None:
        """Open the lost database again. Pending requests may or may not have been applied; clients repeat them
        afterwards."""
        self._runtime.log("database lost", reason=reason)
        self._claimant = None
        self.waiting = []
        for writer in list(self._writers):
            writer.transport.abort()
        await self.rows.open()
        self._runtime.log("database open", epoch=self.rows.epoch, holder=self.rows.holder, applied=self.rows.applied)

    async def _do_all(self) -> None:
        end = _end_of_batch(self.waiting)
        requests, self.waiting = self.waiting[:end], self.waiting[end:]
        self.batches += 1
        if self.waiting:
            self._wake.set()
        else:
            self._room.set()
        before = (self.rows.epoch, self.rows.holder, self.rows.applied)
        self.rows.begin()
        answers = [(request, await self._do(request)) for request in requests]
        await self.rows.finish()
        self._writes += before != (self.rows.epoch, self.rows.holder, self.rows.applied)
        self._tell_writes()
        for request, answer in answers:
            transport = request.writer.transport
            if answer is None or transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
                transport.abort()
            elif not transport.is_closing():
                request.writer.write(encode_frame(answer))

    def _tell_writes(self) -> None:
        """Log the number of disk writes, periodically."""
        now = self._runtime.now()
        if self._writes != self._told and now >= self._told_at + _LOG_SECONDS:
            self._told, self._told_at = self._writes, now
            self._runtime.log("disk writes", writes=self._writes)

    async def _do(self, request: _Request) -> list[Any] | None:
        """Carry out a request; return the answer, None for a client that doesn't speak the protocol."""
        content = request.content
        if not (isinstance(content, list) and len(content) >= 2 and type(content[0]) is int):
            self._complaints.tell(request.client, "a request is malformed")
            return None
        number, asked, *arguments = content
        try:
            return [number, "ok", *await self._answer(request, asked, arguments)]
        except FencedError as error:
            return [number, "fenced", error.epoch]
        except OutOfOrderError as error:
            return [number, "order", error.applied]
        except MalformedRequestError as error:
            self._complaints.tell(request.client, str(error))
            return [number, "refused", str(error)]
        except wire.WireError as error:
            reason = f"the database is damaged: a row can't be read ({error})"
            self._complaints.tell(request.client, reason, level="error")
            return [number, "refused", reason]

    async def _answer(self, request: _Request, asked: Any, arguments: list[Any]) -> list[Any]:
        rows, client, writer = self.rows, request.client, request.writer
        if any(isinstance(argument, bool) for argument in arguments):
            arguments = []
        match asked, arguments:
            case "claim", [int(epoch)] if epoch > 0:
                before = rows.epoch
                applied = rows.claim(epoch, client)
                self._heard = self._runtime.now()
                self._claimant = writer
                if epoch != before:
                    self._runtime.log("store claimed", epoch=epoch, holder=client)
                return [applied]
            case "commit", [int(epoch), int(sequence), changes] if sequence > 0:
                if writer is not self._claimant:
                    raise FencedError(rows.epoch)
                rows.commit(epoch, sequence, changes_of(changes))
                self._heard = self._runtime.now()
                return []
            case "read", [int(epoch), str(table), after] if after is None or type(after) is int:
                if writer.transport.is_closing():
                    return []  # The client was cut off, or has gone.
                return list(await rows.page(epoch, table, after))
            case "state", []:
                return [rows.epoch, rows.holder, rows.applied, self._runtime.now() - self._heard]
        raise MalformedRequestError(f"there is no such request: {str(asked)[:40]!r}")
