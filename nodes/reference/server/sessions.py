"""One client's TCP connection, from its acceptance to its end: frames to commands, effects to frames."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

from nodes import stomp
from nodes.reference.api import GAP, ClientEffect, Closed, Command, Deliver, Done, Opened, Refused, Safe
from nodes.reference.engine.limits import Limits
from nodes.reference.engine.model import content_bytes
from nodes.reference.server import frames
from nodes.reference.server.administration import AdministrationHost, AdministratorRequests
from nodes.reference.server.budget import HeldMemory, Turns
from nodes.reference.server.flow import Flow
from nodes.reference.server.frames import FrameError, Greeting
from nodes.reference.server.guard import TooManyPasscodes
from nodes.reference.server.inflight import UnderWay, Work
from nodes.reference.server.login import HEART_BEAT_MS, Login, LoginHost, login_limits
from nodes.reference.server.output_buffer import OutputBuffer
from nodes.reference.server.session_timers import SessionTimers
from nodes.stomp import Frame, FrameLimits, ProtocolError

_MISSED_BEATS = 3
"""Intervals without a heart-beat after which a client is ended: networks delay, and lose, single ones."""
_IDLE_PARTS = 4
"""Intervals into which the idle time is divided: the parts are counted, because this process may be stopped."""
_READ_BYTES = 1 << 16
"""Most bytes of a client's input that are taken at a time."""
_TURN_READ_BYTES = 1 << 15
"""Bytes read from a real connection in one turn of the event loop, in which hundreds may have input."""
_FRAMES_A_TURN = 64
"""Frames that are read at a time: many small ones take long, and other sessions need their turn."""
_DISCARDED_BYTES = 16 << 20
_DISCARDED_BYTES_OF_STRANGERS = 256 << 10
"""Bytes that a client may still send after its session has ended, before its connection is cut off."""
_FRAME_BYTES = 200
"""Approximate bytes of a MESSAGE in addition to its body and the sender's headers."""


class SessionHost(LoginHost, AdministrationHost, Protocol):
    """The broker, as a session uses it."""

    limits: Limits
    has_topic_manager: bool
    budget: HeldMemory
    turns: Turns
    silences: deque[tuple[str | None, float, float]]
    """For the latest sessions that were ended as silent: the connection, the silence that ends one (seconds), and the
    time since something was read."""

    def weight(self, command: Command) -> int:
        """Return the approximate work of a command."""
        ...

    def told(self, conn: str, seq: int, answer: Mapping[str, str]) -> None:
        """Record in the trace the answer that a receipt carries in addition to its confirmation."""

    def submit(self, command: Command) -> None:
        """Hand a command to the design."""

    def seat(self, session: Session) -> bool:
        """Give a session that has logged in a place among the logged-in sessions; return whether there was one."""
        ...

    def open(self, session: Session, greeting: Greeting) -> None:
        """Open or resume a connection context; ``Opened``, ``Closed`` or ``Refused`` is the answer."""

    def leave(self, session: Session) -> None:
        """Remove a session that is over; its context, if it has one, may continue to exist."""

    def log(self, event: str, **fields: Any) -> None:
        """Write one line to the node's log."""


class Session:
    """A client's TCP connection, from its acceptance to its end.

    ``conn`` is the id of the connection context once one was requested, and ``asked`` the number of that request on
    this node. ``opened``: the client has been greeted; ``leaving``: its last command has come, or it is being closed;
    ``ended``: it gets nothing further. ``idled``: its connection is being closed for being idle; ``repeated``: its last
    command had been applied before. ``held`` is the session's share of the broker's memory budget.
    """

    def __init__(self, host: SessionHost, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.conn: str | None = None
        self.reliable = self.admin = False
        self.opened = self.leaving = self.ended = self.idled = self.repeated = False
        self.asked = 0
        self.held = 0
        self._host = host
        self._reader = reader
        # A client that has not logged in must not make the broker hold much.
        self._parser = stomp.Parser(login_limits(host.limits), most=1)
        transport: Any = writer.transport
        if hasattr(transport, "max_size"):
            transport.max_size = _TURN_READ_BYTES
        self._transport = transport
        self.output = OutputBuffer(writer, host.limits, self._all_written, self._stuck, self._lost)
        self.flow = Flow(host.turns, host.limits)
        self.timers = SessionTimers(self.output, self.flow)
        self.login = Login(host)
        self._fault: tuple[str, Mapping[str, str]] | None = None
        """The reason why the connection is being closed, and additional headers of the ERROR."""
        self.work = Work(host.weight)
        self._to_acknowledge: dict[str, str] = {}

    @property
    def most_read(self) -> int:
        """Return the most bytes that are read in one turn of the event loop."""
        return int(getattr(self._transport, "max_size", _READ_BYTES))

    @property
    def unfinished(self) -> int:
        """Return the bytes that have come and make no whole frame yet, or wait to be taken."""
        return self._parser.buffered

    # Reading.

    async def run(self) -> None:
        """Serve the client until it disconnects or is ended."""
        limit = self._host.limits.connect_timeout
        self.timers.start("connect", limit, lambda: self.end(f"no CONNECT within {limit:g} s"))
        try:
            discarded = 0
            while data := await self._reader.read(_READ_BYTES):
                if not self.ended:
                    await self._take(data)
                else:
                    discarded += len(data)
                    most = _DISCARDED_BYTES if self.login.greeting is not None else _DISCARDED_BYTES_OF_STRANGERS
                    if discarded > most:
                        break
        except OSError:
            pass  # A failed connection ends the session like an orderly end.
        finally:
            self.ended = True
            self.timers.stop_all()
            self._host.leave(self)
            self.output.close()
            self._let_go()

    async def _take(self, data: bytes) -> None:
        self.flow.read()
        if self.leaving:
            return
        try:
            while items := self._parser.feed(data):
                data = b""
                for item in items:
                    if isinstance(item, Frame) and not self.ended and not self.leaving:
                        command = self._handle(item)
                        if command is not None:
                            work = self.work.of(command)
                            if work.turn and not await self._take_turn(work):
                                return
                            self._submit(command, work)
                        if self.must_wait():
                            await self.flow.pause(self.must_wait)
        except ProtocolError as fault:
            self._refuse(str(fault), {})
        except FrameError as fault:
            self._refuse(str(fault), fault.headers)
        self._count()

    def _refuse(self, reason: str, headers: Mapping[str, str]) -> None:
        """End the session because of input that is not a valid command.

        This ends a reliable connection for good. Otherwise its client, not knowing the reason, would repeat the input
        wherever it resumes. Input after a final command is ignored."""
        if self.leaving:
            return
        if self.ended or not self.opened or self.conn is None or not self.reliable:
            self.end(reason, headers)
            return
        self.leaving, self._fault = True, (reason, headers)
        self._host.submit(Command("close", self.conn, 0, {"reason": "error"}))

    def _count(self) -> None:
        """Report the memory that this session holds to the budget."""
        held = self._parser.buffered + self.flow.waiting_bytes + self.flow.outstanding_bytes + self.output.waiting()
        held = 0 if self.ended else held
        if held != self.held:
            self._host.budget.note(self, held)

    def _let_go(self) -> None:
        """Release everything that the session holds, and admit work that waited for it."""
        self._parser.clear()
        self.flow.let_go()
        self._count()

    async def _take_turn(self, work: UnderWay) -> bool:
        """Wait until the work may be under way; return whether it still has to be done."""
        admitted = await self.flow.take_turn(work, self._count)
        if admitted and self.ended:
            self._host.turns.leave(work.turn)
        return admitted and not self.ended

    def must_wait(self) -> bool:
        """Return whether the client has to wait before more of its frames are taken.

        It waits while it is not admitted yet, too many of its commands are under way, or it doesn't read its output.
        """
        if self.ended or self.leaving:
            return False
        return (self.conn is not None and not self.opened) or self.flow.is_full(self.output.waiting())

    def _handle(self, frame: Frame) -> Command | None:
        """Act on a frame; return its command, if it is one for the design."""
        if not self.opened:
            self._connect(frame)
            return None
        try:
            if self.admin:
                self._administer(frame)
            elif self.conn is not None:
                return self._command_of(frame, self.conn)
        except (FrameError, TooManyPasscodes) as error:
            fault = error if isinstance(error, FrameError) else FrameError(str(error))
            asked = frame.headers.get("receipt")
            if asked is not None:
                fault.headers = {**fault.headers, "receipt-id": asked}
            raise fault from None
        return None

    def _command_of(self, frame: Frame, conn: str) -> Command:
        guard = self._host.guard
        command = frames.command_of(frame, conn, self.reliable, self._host.has_topic_manager, guard.enabled)
        command = guard.sealed(command) if guard.enabled else command
        self.leaving = command.kind == "close"
        return command

    def _submit(self, command: Command, under_way: UnderWay) -> None:
        self.flow.begin(under_way)
        self._host.submit(command)

    def _administer(self, frame: Frame) -> None:
        self.leaving = AdministratorRequests(self._host, self.output).handle(frame)
        if self.leaving:
            self.ended = True
            self.output.finish(b"")
        else:
            self.output.flush()

    # Login.

    def _connect(self, frame: Frame) -> None:
        greeting = self.login.check(frame)
        limits = self._host.limits
        self._parser.limits = FrameLimits(limits.max_header_bytes, limits.max_headers, limits.max_body)
        self._parser.most = _FRAMES_A_TURN
        if greeting.admin:
            self.admin = True
            if not self._host.seat(self):
                raise FrameError("too many administrators")
            self._greet({"session": f"{self._host.config.node}-admin"})
            return
        self.login.admit()
        if not self._host.seat(self):
            raise FrameError("too many connections")
        self.reliable = greeting.reliable
        self._host.open(self, greeting)

    def _greet(self, headers: Mapping[str, str]) -> None:
        greeting = self.login.greeting
        if greeting is None:
            raise RuntimeError("greeted before CONNECT")
        self.output.add(stomp.encode(self.login.answer(headers)))
        self.opened = True
        self.timers.stop("connect")
        if greeting.wants_beat:
            self.timers.beat(max(greeting.wants_beat, HEART_BEAT_MS) / 1000)
        if greeting.can_beat:
            interval = max(greeting.can_beat, HEART_BEAT_MS) / 1000
            self.timers.listen("listen", interval, _MISSED_BEATS, self._silent)
        if self.reliable:
            self.timers.listen("idle", self._host.limits.idle_timeout / _IDLE_PARTS, _IDLE_PARTS, self._idle)
        self.flow.may_go_on.set()
        if self.admin:
            self.output.flush()

    # Effects; `flush` follows when all effects of a transaction have been taken.

    def receive(self, effect: ClientEffect) -> None:
        """Turn an effect on this session's context into frames."""
        if self.ended:
            return
        if isinstance(effect, Deliver):
            size = _FRAME_BYTES + content_bytes(len(effect.body), (dict(effect.headers), effect.body))
            self.output.add_later(size, partial(frames.message, effect, self.reliable))
            if effect.auto:
                self._to_acknowledge[effect.subscription] = effect.ack_id
        elif isinstance(effect, Done):
            # Until its next new command, its transactions may have ended before.
            self.repeated = effect.duplicate
            if effect.duplicate:
                self._host.log("duplicate discarded", conn=effect.conn, seq=effect.seq)
            self.flow.end_oldest()
            if effect.receipt is not None:
                self._answer(effect.receipt, effect.conn, effect.seq, effect.headers)
            self.flow.may_go_on.set()
        elif isinstance(effect, Opened):
            headers = {"session": effect.conn}
            if self.reliable:
                headers |= {"x-connection-id": effect.conn, "x-received": str(effect.received)}
            self._greet(headers)
        elif isinstance(effect, Safe):
            if self.reliable:
                self.output.add(frames.safe(effect.seq))
        elif isinstance(effect, Refused):
            headers = {} if effect.receipt is None else {"receipt-id": effect.receipt}
            if self.reliable:
                headers["x-closed"] = GAP if effect.reason == GAP else "error"
                if effect.received is not None:
                    headers["x-received"] = str(effect.received)
            self._context_gone(effect.reason, headers)
        else:
            self._closed(effect)

    def _answer(self, receipt: str, conn: str, seq: int, headers: Mapping[str, str]) -> None:
        self.output.add(frames.receipt(receipt, headers))
        if headers:
            self._host.told(conn, seq, headers)

    def flush(self) -> None:
        """Write the frames of the effects taken."""
        if not self.ended:
            self.output.flush()
            self._count()

    def _closed(self, effect: Closed) -> None:
        if self.leaving and self._fault is None:
            self.ended = True
            self.conn = None
            self.output.finish(b"")
            self._let_go()
        else:
            reason, told = self._fault or ("connection closed", {})
            headers = {} if effect.received is None else {"x-received": str(effect.received)}
            self._context_gone(reason, {**told, "x-closed": effect.reason, **headers})

    def _context_gone(self, reason: str, headers: Mapping[str, str]) -> None:
        self.conn = None
        self.end(reason, headers)

    def end(self, reason: str, headers: Mapping[str, str] | None = None) -> None:
        """Send ERROR and close, once."""
        if self.ended:
            return
        self.ended = True
        self._host.log("client ended", conn=self.conn or "", reason=reason)
        self.output.finish(frames.error(reason, headers if headers is not None else {}))
        self._host.leave(self)
        self._let_go()
        self.flow.may_go_on.set()

    def yield_place(self, reason: str) -> None:
        """Send the reason and close at once, because another session needs the place."""
        self.end(reason)
        self.cut_off()

    def cut_off(self) -> None:
        """Close the connection at once."""
        self.output.close()

    def depose(self, reason: str, headers: Mapping[str, str]) -> None:
        """End the session because this node no longer serves.

        Written output may be waiting in this system for a network that is down, and could reach the client long after
        another node has delivered the same message to another client. Therefore a client that has not taken everything
        gets a reset instead of an ERROR; from a reset it can conclude no more than from any lost connection.
        """
        if self.ended:
            return
        if self.output.unconfirmed():
            self.ended = True
            self._host.log("client reset", conn=self.conn or "", reason=reason)
            self._host.leave(self)
            self._let_go()
            self.flow.may_go_on.set()
            self.output.reset()
        else:
            self.end(reason, headers)

    def _stuck(self, reason: str) -> None:
        self.end(f"client does not read: {reason}")

    def _lost(self) -> None:
        """Wake a reader that waits until its output is taken: otherwise it would never notice that its connection has
        ended."""
        self.flow.may_go_on.set()

    def _all_written(self) -> None:
        self.flow.may_go_on.set()
        self._count()
        if self._to_acknowledge and self.conn is not None and not self.ended and not self.leaving:
            written, self._to_acknowledge = self._to_acknowledge, {}
            for ack_id in written.values():
                self._submit(Command("ack", self.conn, 0, {"id": ack_id, "auto": True}), UnderWay(0, 1, 0))

    def _silent(self) -> None:
        greeting = self.login.greeting
        assert greeting is not None
        self._note_silence(_MISSED_BEATS * max(greeting.can_beat, HEART_BEAT_MS) / 1000)
        self.end("no heart-beat from the client")

    def _idle(self) -> None:
        """Close an idle connection: not only its TCP connection, because not even a heart-beat was received (5.1.3)."""
        self._note_silence(self._host.limits.idle_timeout)
        if self.conn is not None and not self.ended:
            self.idled = True
            self._host.log("idle connection closed", conn=self.conn)
            self._host.submit(Command("close", self.conn, 0, {"reason": "idle"}))

    def _note_silence(self, limit: float) -> None:
        silent = asyncio.get_running_loop().time() - self.flow.last_read
        self._host.silences.append((self.conn, limit, silent))
