"""The outside world for node code: asyncio's clock and sockets; in a real process, also SQLite files and standard
output."""

from __future__ import annotations

import asyncio
import json
import random
import select
import socket
import sqlite3
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TextIO

from nodes.reference.api import ConfigError, Entrance, Handler, Listener
from nodes.reference.server.login_queue import LoginQueue, Streams

DATABASE_SETTINGS = (
    # One process owns the file, which also prevents a second broker from using the same data folder.
    "PRAGMA locking_mode=EXCLUSIVE",
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=OFF",
    # Some systems build SQLite to overwrite all deleted data with zeros: ten times the work for a large message.
    "PRAGMA secure_delete=OFF",
    # A process that ended at a failed sync may have left changes that are in the system's cache alone: make all that is
    # read from now on durable.
    "PRAGMA wal_checkpoint(TRUNCATE)",
)
FORMAT = 0
"""``user_version`` of every database; to be raised with any change of the stored format that this version can't
read."""
_STREAM_LIMIT = 1 << 18
_IP_FREEBIND = 15
_DAMAGED = "move it away: a replicated broker gets its data from the others, one that stands alone needs a copy"


def prepared(database: sqlite3.Connection, path: str) -> sqlite3.Connection:
    """Make a database durable at every commit from now on, and check its integrity as far as SQLite can.

    Raises:
        ConfigError: the file can't be written, is damaged, of a newer version, or is used by another broker.
    """
    try:
        for setting in DATABASE_SETTINGS:
            database.execute(setting)
        (version,) = database.execute("PRAGMA user_version").fetchone()
        # This finds a damaged page now, before its messages are delivered or found missing.
        damage = [str(row[0]) for row in database.execute("PRAGMA quick_check(1)")]
        database.execute("BEGIN IMMEDIATE")
        database.execute("COMMIT")
    except sqlite3.Error as error:
        if "locked" in str(error):
            hint = "is another broker using it?"
        elif isinstance(error, sqlite3.OperationalError):
            hint = "choose another with `data`"
        else:
            hint = _DAMAGED
        raise ConfigError(f"data: {path} can't be used ({error}); {hint}") from error
    if version > FORMAT:
        raise ConfigError(f"data: {path} is of format {version}, and this version reads up to {FORMAT}: use the "
                          "version that wrote it, or another folder")
    if damage != ["ok"]:
        raise ConfigError(f"data: {path} is damaged ({' '.join(damage[0].split())}); {_DAMAGED}")
    return database


class LoopRuntime(ABC):
    """The common part of every Runtime on an event loop: clock, connections and tasks are the loop's."""

    random: random.Random

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._failure: asyncio.Future[None] | None = None

    @abstractmethod
    def open_database(self, name: str) -> sqlite3.Connection:
        """Open the node's database of that name: durable at commit, no implicit transactions."""

    @abstractmethod
    def write_log(self, line: str) -> None:
        """Write one line to the node's log."""

    @abstractmethod
    def clocks(self) -> tuple[float, datetime]:
        """Return seconds since the broker's start, and the time of day."""

    def expose(self, group: str, name: str, program: object) -> None:
        """Do nothing: there are no invariants here."""

    def withdraw(self) -> None:
        """Do nothing: there are no invariants here."""

    def point(self, name: str) -> None:
        """Do nothing: no faults are injected here."""

    def now(self) -> float:
        """Return monotonic seconds, by the event loop's clock."""
        return asyncio.get_running_loop().time()

    def time_of_day(self) -> float:
        """Return seconds since 1970 by the node's clock."""
        return self.clocks()[1].timestamp()

    async def connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a TCP connection without Nagle's delay."""
        reader, writer = await asyncio.open_connection(host, port, limit=_STREAM_LIMIT)
        _no_delay(writer)
        return reader, writer

    async def serve(self, handler: Handler, host: str, port: int) -> asyncio.Server:
        """Listen on a TCP port; raises OSError when that is not possible."""

        return await asyncio.start_server(self._handling(handler), host, port, limit=_STREAM_LIMIT, backlog=1024)

    async def serve_strangers(self, handler: Handler, host: str, port: int, entrance: Entrance,
                              movable: bool = False) -> Listener:
        """Listen on a TCP port; ``handler`` runs for every connection. Raises OSError when that is not possible."""
        return _Served(await self.serve(handler, host, port))

    def _handling(self, handler: Handler) -> Handler:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            _no_delay(writer)
            try:
                await handler(reader, writer)
            except Exception as error:
                self.log("connection handler failed", level="error", error=repr(error))
                writer.transport.abort()

        return accept

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a task in the background; its failure ends ``supervise`` with the same exception."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._finished)
        return task

    def log(self, event: str, level: str | None = None, **fields: Any) -> None:
        """Write ``<seconds since start> <wall time> [LEVEL] <event> key=value...``."""
        seconds, time_of_day = self.clocks()
        wall = time_of_day.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        words = [f"{seconds:.6f}", wall]
        if level is not None:
            words.append(level.upper())
        words.append(event)
        words.extend(f"{key}={_readable(value)}" for key, value in fields.items())
        self.write_log(" ".join(words))

    async def supervise(self, main: asyncio.Future[None]) -> None:
        """Wait for ``main``; when a background task fails first, cancel ``main`` and raise that failure."""
        self._failure = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait((main, self._failure), return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done() and not main.done():
                main.cancel()
                await asyncio.wait((main,))
                self._failure.result()
            await main
        finally:
            self._failure.cancel()

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self.log("background task failed", level="error", task=task.get_name(), error=repr(error))
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)


class ProgramConfig(Protocol):
    """The parts of a program's configuration that concern the outside world."""

    @property
    def data(self) -> str:
        """The folder for its data."""
        ...

    @property
    def options(self) -> Mapping[str, Any]:
        """Further settings."""
        ...


class RealRuntime(LoopRuntime):
    """The Runtime of a program that runs as an operating-system process; needs a running event loop.

    Its randomness is the operating system's, because the numbers of a handshake must be unpredictable. Option ``seed``
    of the configuration makes it repeatable instead, for tests.
    """

    def __init__(self, config: ProgramConfig, output: TextIO | None = None) -> None:
        super().__init__()
        seed = config.options.get("seed")
        self.random = random.SystemRandom() if seed is None else random.Random(seed)
        self._folder = Path(config.data)
        self._output = output if output is not None else sys.stdout
        self._began = time.monotonic()

    def open_database(self, name: str) -> sqlite3.Connection:
        """Open ``<data folder>/<name>.sqlite``, creating it if necessary.

        Raises:
            ConfigError: the folder or the file can't be written, is damaged, or is used by another broker.
        """
        path = self._folder / f"{name}.sqlite"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(path, isolation_level=None, timeout=2.0, cached_statements=256)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"data: {path} can't be used ({error}); choose another with `data`") from error
        return prepared(database, str(path))

    async def serve_strangers(self, handler: Handler, host: str, port: int, entrance: Entrance,
                              movable: bool = False) -> Listener:
        """Listen on a TCP port; ``handler`` runs for connections that sent a possible greeting. Raises OSError on
        failure."""
        if not hasattr(select, "epoll"):
            return await super().serve_strangers(handler, host, port, entrance)
        loop = asyncio.get_running_loop()
        if movable:
            server = await loop.create_server(asyncio.Protocol, sock=_movable_socket(host, port), start_serving=False)
        else:
            server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
        return LoginQueue(server, entrance, Streams(self._handling(handler), _STREAM_LIMIT, self.spawn), self.log)

    def write_log(self, line: str) -> None:
        """Print the line and flush."""
        print(line, file=self._output, flush=True)

    def clocks(self) -> tuple[float, datetime]:
        """Return the times of the machine's clocks."""
        return time.monotonic() - self._began, datetime.now(UTC)


class _Served:
    """Adapts a server to a listener."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server

    @property
    def port(self) -> int:
        """The TCP port."""
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop listening."""
        self._server.close()


def _readable(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    plain = text.isascii() and text.isprintable() and text and not set(text) & set(' "=')
    return text if plain else json.dumps(text)


def _movable_socket(host: str, port: int) -> socket.socket:
    """Bind a socket to an IPv4 address that this machine need not have now (ip(7))."""
    movable = socket.socket()
    try:
        movable.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        movable.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
        movable.bind((host, port))
    except OSError:
        movable.close()
        raise
    return movable


def _no_delay(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
