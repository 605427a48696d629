"""The clients' connection contexts on this node: which session has each, which sessions await one, and idle timers.

A context may outlive its session: a reliable client may resume it within the idle time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from nodes.reference.api import Command, Config, Opened, Runtime
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.engine.limits import Limits
from nodes.reference.server.sessions import Session

_IDLE_PARTS = 4
"""Intervals into which the idle time is divided."""


class ConnectionsHost(Protocol):
    """The broker, as its connections use it."""

    config: Config
    runtime: Runtime
    engine: StoreEngine
    limits: Limits
    serving: bool
    silences: deque[tuple[str | None, float, float]]

    def submit(self, command: Command) -> None:
        """Hand a command to the design."""

    def has_thread(self, conn: str) -> bool:
        """Return whether a collocated client that runs here has this connection."""
        ...


class Connections:
    """The connections of one node's clients.

    ``attached`` maps each connection to the session that has it. ``waiting`` maps a connection to the sessions that
    await the answer to each ``open`` of it, in order; None stands for one that is gone. ``overtaken`` holds connections
    that were given to a session whose request preceded that of the session that had them, which never happens.
    ``idle_since`` maps each connection without a session to the time since when it has none.
    """

    def __init__(self, host: ConnectionsHost) -> None:
        self._host = host
        self.attached: dict[str, Session] = {}
        self.waiting: dict[str, list[Session | None]] = {}
        self.overtaken: dict[str, None] = {}
        self.idle_since: dict[str, float] = {}
        self.idle_timers: dict[str, asyncio.TimerHandle] = {}
        self._asked = 0

    def clear(self) -> None:
        """Forget everything, because this node no longer serves."""
        self.attached.clear()
        self.waiting.clear()
        for timer in self.idle_timers.values():
            timer.cancel()
        self.idle_timers.clear()
        self.idle_since.clear()
        self.overtaken.clear()

    def take_over(self) -> None:
        """Close inherited connections that are not reliable; start the idle timers of the others."""
        for conn, reliable in self._host.engine.connections().items():
            if not self.is_orphan(conn):
                continue
            if reliable:
                self._start_idle_timer(conn)
            else:
                self._host.submit(Command("close", conn, 0, {"reason": "failover"}))

    def is_orphan(self, conn: str) -> bool:
        """Return whether nobody has a connection or awaits it."""
        return conn not in self.attached and conn not in self.waiting and not self._host.has_thread(conn)

    def new_id(self) -> str:
        """Return the id of a new connection."""
        host = self._host
        while True:
            conn = f"{host.config.node}-{host.runtime.random.getrandbits(64):016x}"
            if not host.engine.knows(conn) and conn not in self.waiting:
                return conn

    def request(self, conn: str, session: Session) -> None:
        """Note that a session requests a connection; the answer follows as an effect."""
        session.conn = conn
        self._asked += 1
        session.asked = self._asked
        self.waiting.setdefault(conn, []).append(session)

    def leave(self, session: Session) -> None:
        """Remove a session that is over: close its context, or keep it for a resumption."""
        conn, session.conn = session.conn, None
        if conn is None:
            return
        waiting = self.waiting.get(conn, [])
        if session in waiting:
            # The pending answer to the session's own open command decides about the context.
            waiting[waiting.index(session)] = None
        if self.attached.get(conn) is session:
            del self.attached[conn]
            self._host.runtime.log("client left", conn=conn)
            if not self._is_awaited(conn):  # otherwise the waiting session is about to get it
                self._abandoned(conn, session.reliable)

    def attach(self, effect: Opened) -> Session | None:
        """Give a connection to the session that requested it; return the session, if it still exists."""
        conn = effect.conn
        session = self._next_waiting(conn)
        older = self.attached.get(conn)
        if session is not None:
            self.attached[conn] = session
            self._host.runtime.log("client connected", conn=conn, received=effect.received)
            if older is not None:
                if older.asked > session.asked:
                    self.overtaken[conn] = None
                older.conn = None
                older.end("the connection was taken over")
        elif older is None and not self._is_awaited(conn):
            self._abandoned(conn, self._host.engine.connections().get(conn, False))
        return session

    def refused(self, conn: str) -> Session | None:
        """Return the session whose ``open`` was refused; the connection stays with its current session, if it has
        one."""
        session = self._next_waiting(conn)
        if conn not in self.attached and not self._is_awaited(conn):
            reliable = self._host.engine.connections().get(conn)
            if reliable is not None:
                self._abandoned(conn, reliable)
        return session

    def forget(self, conn: str) -> None:
        """Forget a connection that has been closed."""
        self.attached.pop(conn, None)
        self.overtaken.pop(conn, None)
        self.stop_idle_timer(conn)

    def _is_awaited(self, conn: str) -> bool:
        return any(session is not None for session in self.waiting.get(conn, ()))

    def _next_waiting(self, conn: str) -> Session | None:
        waiting = self.waiting.get(conn)
        if not waiting:
            return None
        session = waiting.pop(0)
        if not waiting:
            del self.waiting[conn]
        return session

    def _abandoned(self, conn: str, reliable: bool) -> None:
        if not self._host.serving:
            return
        if reliable:
            self._start_idle_timer(conn)
        else:
            self._host.submit(Command("close", conn, 0, {"reason": "connection lost"}))

    def _start_idle_timer(self, conn: str, parts: int = _IDLE_PARTS) -> None:
        """Start the idle timer. It counts intervals instead of time: clients can't come back while this process is
        stopped."""
        since = self._host.runtime.now() if parts == _IDLE_PARTS else self.idle_since[conn]
        self.stop_idle_timer(conn)
        self.idle_since[conn] = since
        wait = self._host.limits.idle_timeout / _IDLE_PARTS
        self.idle_timers[conn] = asyncio.get_running_loop().call_later(wait, self._idle_part, conn, parts - 1)

    def stop_idle_timer(self, conn: str) -> None:
        """Stop the idle timer of a connection, if it runs."""
        timer = self.idle_timers.pop(conn, None)
        self.idle_since.pop(conn, None)
        if timer is not None:
            timer.cancel()

    def _idle_part(self, conn: str, parts: int) -> None:
        if parts:
            self._start_idle_timer(conn, parts)
            return
        limit, since = self._host.limits.idle_timeout, self.idle_since[conn]
        self._host.silences.append((conn, limit, self._host.runtime.now() - since))
        del self.idle_timers[conn], self.idle_since[conn]
        self._host.runtime.log("idle connection closed", conn=conn)
        self._host.submit(Command("close", conn, 0, {"reason": "idle"}))
