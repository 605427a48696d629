"""A scripted server that breaks off at every point of a dialogue, and what it then knows to be true."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from stormproof.contracts.client import NotDone

OK, FAIL, INFO = "ok", "fail", "info"
LIMIT_SECONDS = 30.0
"""No outcome depends on it: a client that doesn't notice the end of its connection fails the test."""


class Script(Protocol):
    """A server's side of one connection, from bytes to bytes; a server that speaks first has a ``greeting``."""

    def feed(self, data: bytes) -> bytes:
        """Take in what the client sent, and return the answer."""
        ...


@dataclass(frozen=True)
class Cut:
    """Where the server breaks off: after it received, or sent, this many bytes; without numbers it never does."""

    received: int | None = None
    sent: int | None = None


@dataclass
class Cutter:
    """Serves one script, up to its cut, byte for byte: what comes after it is neither received nor sent."""

    script: Script
    cut: Cut
    received: int = 0
    sent: int = 0
    port: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            greeting = getattr(self.script, "greeting", b"")[: self.cut.sent]
            self.sent += len(greeting)
            writer.write(greeting)
            while not self._over() and (data := await reader.read(1 << 16)):
                if self.cut.received is not None:
                    data = data[: self.cut.received - self.received]
                self.received += len(data)
                answer = self.script.feed(data)
                if self.cut.sent is not None:
                    answer = answer[: self.cut.sent - self.sent]
                self.sent += len(answer)
                writer.write(answer)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    def end(self) -> None:
        """Break off now."""
        assert self.writers
        for writer in self.writers:
            writer.transport.abort()

    def _over(self) -> bool:
        return self.cut.received == self.received or (self.cut.sent is not None and self.cut.sent == self.sent)


@asynccontextmanager
async def serving(script: Script, cut: Cut, tls: ssl.SSLContext | None = None) -> AsyncIterator[Cutter]:
    """A server at a free port of 127.0.0.1."""
    cutter = Cutter(script, cut)
    server = await asyncio.start_server(cutter.serve, "127.0.0.1", 0, ssl=tls)
    cutter.port = server.sockets[0].getsockname()[1]
    if hasattr(script, "port"):  # it tells its clients where it is
        script.port = cutter.port
    try:
        yield cutter
    finally:
        server.close()


async def outcome(connection: Any, port: int, work: Callable[[Any], Awaitable[None]]) -> str:
    """How an operation on a new connection ends, as the harness records it: a connection that can't be opened fails."""
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            try:
                await connection.connect("127.0.0.1", port, "127.0.0.1")
            except Exception:
                return FAIL
            try:
                await work(connection)
            except NotDone:
                return FAIL
            except TimeoutError:
                raise
            except Exception:
                return INFO
            return OK
    finally:
        await connection.close()


async def until(true: Callable[[], object]) -> None:
    """Wait for something that happens in another task."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def cuts(whole: Cutter, step: int = 1) -> Iterator[Cut]:
    """A cut after every ``step`` bytes of a dialogue, in both directions."""
    yield from (Cut(received=count) for count in range(0, whole.received, step))
    yield from (Cut(sent=count) for count in range(0, whole.sent, step))


async def every_cut(script: Callable[[], Any], connection: Callable[[], Any], work: Callable[[Any], Awaitable[None]],
                    true: Callable[[Any], bool], step: int = 1, at_once: int = 1) -> dict[str, int]:  # fmt: skip
    """Run an operation against a server that breaks off after every ``step`` bytes; return how often it ended how.

    ``at_once`` is the number of such servers at a time. ``true``: the server has received the request as a whole. The
    script's ``confirmed_at`` is the number of bytes that the server has sent with the end of its confirmation.
    """
    async with serving(script(), Cut()) as whole:
        assert await outcome(connection(), whole.port, work) == OK and true(whole.script)
    counts, places = {OK: 0, FAIL: 0, INFO: 0}, asyncio.Semaphore(at_once)

    async def tried(cut: Cut) -> None:
        async with places, serving(script(), cut) as cutter:
            found = await outcome(connection(), cutter.port, work)
        counts[found] += 1
        known = f"{cut}: {found}, received {cutter.received} of {whole.received}, sent {cutter.sent} of {whole.sent}"
        if found == FAIL:
            assert not true(cutter.script), known
        if found == OK:
            assert true(cutter.script) and cutter.sent >= cutter.script.confirmed_at > 0, known

    await asyncio.gather(*map(tried, cuts(whole, step)))
    return counts
