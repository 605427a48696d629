"""A waiting area for connections before their greeting, at little work and some hundred bytes each.

A connection of asyncio's with its streams takes many times as much, and thousands of strangers a second that never
finish their greeting would take these resources from all other clients. All waiting connections share a separate epoll;
a turn of the event loop handles a bounded number of its events.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from nodes.reference.api import Entrance, Handler

_EVENTS_A_TURN = 32
"""Maximum number of connections that are handled, and accepted, in one turn of the event loop."""
_BACKLOG = 1024
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PAUSE_SECONDS = 0.2
"""Seconds without new connections when the system has no resources for another one."""
_REPORT_SECONDS = 1.0
"""Minimum number of seconds between two lines in the log."""


class _Newcomer:
    """One connection; ``deadline`` is in seconds of the event loop's clock."""

    __slots__ = ("deadline", "greeting", "is_whole", "socket")

    def __init__(self, connection: socket.socket, deadline: float, is_whole: Callable[[bytes], bool]) -> None:
        self.socket, self.deadline, self.is_whole = connection, deadline, is_whole
        self.greeting = b""


class LoginQueue:
    """Listens, and hands a connection over when a complete greeting, or an invalid one, has arrived.

    The number of waiting connections is limited: the one that has waited longest gives way to a new one, and none waits
    longer than the entrance permits. Connections that were handed over are not limited here.
    """

    def __init__(self, server: asyncio.Server, entrance: Entrance, hand_over: Callable[[socket.socket, bytes], None],
                 log: Callable[..., None]) -> None:
        """Listen at the addresses of ``server``, which must not listen yet. Raises OSError when one can't be listened
        on."""
        self._server, self._entrance, self._hand_over, self._log = server, entrance, hand_over, log
        self._loop = asyncio.get_running_loop()
        self._listening = {copy.fileno(): copy for copy in (
            socket.socket(fileno=os.dup(each.fileno())) for each in server.sockets)}
        self.port = int(server.sockets[0].getsockname()[1])
        self._waiting: dict[int, _Newcomer] = {}
        self._turned_away: dict[str, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._epoll = select.epoll()
        self._closed = False
        try:
            for listener in self._listening.values():
                listener.setblocking(False)
                listener.listen(_BACKLOG)
            self._resume_listening()
        except OSError:
            self.close()
            raise
        self._loop.add_reader(self._epoll.fileno(), self._look)

    def close(self) -> None:
        """Stop listening, and cut off waiting connections."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        for timer in self._timers.values():
            timer.cancel()
        for connection in (*self._listening.values(), *(each.socket for each in self._waiting.values())):
            connection.close()
        self._waiting.clear()
        self._server.close()

    # Events.

    def _look(self) -> None:
        for descriptor, _ in self._epoll.poll(0, _EVENTS_A_TURN):
            listener = self._listening.get(descriptor)
            if listener is not None:
                self._let_in(listener)
            elif descriptor in self._waiting:  # otherwise it has just given way
                self._read(self._waiting[descriptor])

    def _let_in(self, listener: socket.socket) -> None:
        for _ in range(_EVENTS_A_TURN):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, ConnectionError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                self._pause(str(error))
                return
            self._seat(connection)

    def _seat(self, connection: socket.socket) -> None:
        if len(self._waiting) >= self._entrance.places:
            self._turn_away(next(iter(self._waiting.values())), "too many connections are about to log in, "
                                                                "and this one took longest")
        connection.setblocking(False)
        newcomer = _Newcomer(connection, self._loop.time() + self._entrance.seconds, self._entrance.reader())
        self._waiting[connection.fileno()] = newcomer
        self._epoll.register(connection.fileno(), select.EPOLLIN)
        if "late" not in self._timers:
            self._timer("late", self._entrance.seconds, self._end_the_late)

    def _read(self, newcomer: _Newcomer) -> None:
        try:
            data = newcomer.socket.recv(self._entrance.most + 1)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        newcomer.greeting += data
        if not data:
            self._forget(newcomer)
            newcomer.socket.close()
        elif newcomer.is_whole(data) or len(newcomer.greeting) > self._entrance.most:
            self._forget(newcomer)
            self._hand_over(newcomer.socket, newcomer.greeting)

    # Connections that are turned away.

    def _forget(self, newcomer: _Newcomer) -> None:
        self._epoll.unregister(newcomer.socket.fileno())
        del self._waiting[newcomer.socket.fileno()]

    def _turn_away(self, newcomer: _Newcomer, reason: str) -> None:
        self._forget(newcomer)
        with contextlib.suppress(OSError):
            newcomer.socket.send(self._entrance.refusal(reason))
        newcomer.socket.close()
        self._turned_away[reason] = self._turned_away.get(reason, 0) + 1
        if "report" not in self._timers:
            self._timer("report", _REPORT_SECONDS, self._report)

    def _end_the_late(self) -> None:
        now = self._loop.time()
        while self._waiting:
            oldest = next(iter(self._waiting.values()))
            if oldest.deadline > now:
                self._timer("late", oldest.deadline - now, self._end_the_late)
                return
            self._turn_away(oldest, f"no CONNECT within {self._entrance.seconds:g} s")

    def _report(self) -> None:
        """Log one line for many strangers, because they must not fill the disk with the log."""
        for reason, count in self._turned_away.items():
            self._log("unauthenticated connections rejected", count=count, reason=reason)
        self._turned_away.clear()

    # Listeners.

    def _resume_listening(self) -> None:
        for descriptor in self._listening:
            self._epoll.register(descriptor, select.EPOLLIN)

    def _pause(self, reason: str) -> None:
        """Drop the longest-waiting connection and accept no new ones for a while, because the system has no resources
        left."""
        if self._waiting:
            self._turn_away(next(iter(self._waiting.values())), reason)
        if "open" not in self._timers:
            for descriptor in self._listening:
                self._epoll.unregister(descriptor)
            self._timer("open", _PAUSE_SECONDS, self._resume_listening)

    def _timer(self, name: str, seconds: float, action: Callable[[], None]) -> None:
        def act() -> None:
            del self._timers[name]
            action()

        self._timers[name] = self._loop.call_later(seconds, act)


class Streams:
    """Creates streams for connections that are handed over, including the input that was read already."""

    def __init__(self, handler: Handler, limit: int, spawn: Callable[[Coroutine[Any, Any, None], str], object]) -> None:
        self._handler, self._limit, self._spawn = handler, limit, spawn

    def __call__(self, connection: socket.socket, read: bytes) -> None:
        """Run the handler with the connection."""
        self._spawn(self._begin(connection, read), "newcomer")

    async def _begin(self, connection: socket.socket, read: bytes) -> None:
        reader = asyncio.StreamReader(limit=self._limit)
        reader.feed_data(read)
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: asyncio.StreamReaderProtocol(reader, self._handler), connection)
        except OSError:
            connection.close()
