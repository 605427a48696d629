"""Brokers that share one database: whoever holds the store serves, with the reference engine over a working copy.

Requests are lines, as in ``two_tier_programs``. A broker that does not hold the store does not listen; it looks at the
store five times a second, and takes it over when its holder has not been heard for ``HOLDER_SILENCE`` seconds.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nodes.reference.api import Command, Deliver, Refused
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.server.process import NodeProcess, serve_process
from nodes.reference.server.runtime import LoopRuntime, RealRuntime
from nodes.reference.storage.client import StorageClient
from nodes.reference.storage.config import StorageConfig
from nodes.reference.storage.protocol import StorageError
from nodes.reference.storage.shared_state import SharedState

STORE_PORT, CLIENT_PORT = 7100, 7000
SECRET = "of the tests"
HOLDER_SILENCE, LOOK_SECONDS, DEADLINE = 1.5, 0.2, 0.5


class Broker:
    """One of the brokers that share the store."""

    def __init__(self, runtime: LoopRuntime, name: str, host: str, store: str) -> None:
        self.runtime, self.host = runtime, host
        self.database = sqlite3.connect(":memory:", isolation_level=None)
        self.engine = StoreEngine(self.database)
        self.client = StorageClient(runtime, name, (store, STORE_PORT), secret=SECRET, deadline=DEADLINE)
        self.state = SharedState(self.client, self.engine, self.transaction)
        self.sessions: dict[str, asyncio.StreamWriter] = {}
        self.inboxes: dict[str, deque[Deliver]] = {}
        self.opened = 0
        self.server: asyncio.Server | None = None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.database.execute("BEGIN")
        yield
        self.engine.flush()
        self.database.execute("COMMIT")

    async def run(self) -> None:
        try:
            while True:
                await self.look()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            self.lost("stopped")
            self.client.close()

    async def look(self) -> None:
        """Renew what this broker holds, or take over what nobody does."""
        try:
            if self.state.epoch:
                await self.state.renew()
                return
            found = await self.client.state()
            if found.idle > HOLDER_SILENCE or not found.holder:
                await self.state.take_over(found.epoch + 1)
                self.forget_connections()
                await self.state.commit()
                self.server = await self.runtime.serve(self.serve, self.host, CLIENT_PORT)
                self.runtime.log("role active", epoch=self.state.epoch)
        except StorageError as error:
            self.lost(str(error))

    def forget_connections(self) -> None:
        """Clients of the holder before are not here."""
        with self.transaction():
            for conn in list(self.engine.connections()):
                self.engine.apply(Command("close", conn, 0, {"reason": "failover"}))

    def lost(self, why: str) -> None:
        """The store is held no longer: clients are to look elsewhere."""
        self.state.let_go()
        if self.server is not None:
            self.runtime.log("role passive", why=why)
            self.server.close()
            self.server = None
        for writer in self.sessions.values():
            writer.transport.abort()

    async def do(self, kind: str, conn: str, **args: Any) -> None:
        """Apply one command; returns when it is durable, and what it brings forth is delivered."""
        with self.transaction():
            effects = self.engine.apply(Command(kind, conn, 0, args))
        await self.state.commit()
        for effect in effects:
            if isinstance(effect, Refused):
                raise ConnectionAbortedError(effect.reason)
            if isinstance(effect, Deliver) and effect.conn in self.inboxes:
                self.inboxes[effect.conn].append(effect)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        conn = f"{self.host}-{self.state.epoch}-{self.opened}"
        try:
            self.sessions[conn], self.inboxes[conn] = writer, deque()
            await self.do("open", conn, reliable=False, login="guest")
            while line := await reader.readline():
                writer.write(f"{await self.answer(conn, line.decode().split())}\n".encode())
        except StorageError as error:
            self.lost(str(error))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.sessions.pop(conn, None)
            self.inboxes.pop(conn, None)
            writer.transport.abort()
            await self.leave(conn)

    async def leave(self, conn: str) -> None:
        """What the client had and did not acknowledge waits again."""
        try:
            if self.state.epoch and self.engine.knows(conn):
                await self.do("close", conn, reason="gone")
        except StorageError as error:
            self.lost(str(error))

    async def answer(self, conn: str, words: list[str]) -> str:
        inbox = self.inboxes[conn]
        match words:
            case ["DEPTH", queue]:
                return f"OK {self.engine.depths().get(queue, 0)}"
            case ["PUT", queue, body]:
                await self.do("send", conn, destination=f"/queue/{queue}", headers={}, body=body.encode())
                return "OK"
            case ["TAKE", queue]:
                # A subscription of one message's length, for as long as the answer takes.
                await self.do("subscribe", conn, id=queue, destination=f"/queue/{queue}", ack="client-individual",
                              prefetch=1)
                if not inbox:
                    await self.unsubscribe(conn, queue)
                    return "EMPTY"
                message = inbox.popleft()
                return f"MSG {message.ack_id} {message.body.decode()}"
            case ["ACK", queue, number]:
                await self.do("ack", conn, id=number)
                await self.unsubscribe(conn, queue)
                return "OK"
        return "ERROR what?"

    async def unsubscribe(self, conn: str, queue: str) -> None:
        """What the subscription was sent meanwhile waits in its queue again."""
        await self.do("unsubscribe", conn, id=queue)
        self.inboxes[conn].clear()


class BrokerProgram(NodeProcess):
    """A broker from its start to its end."""

    def __init__(self, runtime: LoopRuntime, name: str, host: str, store: str) -> None:
        super().__init__(Broker(runtime, name, host, store).run(), runtime, "broker")


if __name__ == "__main__":
    _, name_, host_, store_ = sys.argv
    sys.exit(serve_process(
        lambda: BrokerProgram(RealRuntime(StorageConfig("data", host_, CLIENT_PORT, ("-",))), name_, host_, store_)))
