"""One client's TCP connection: login, frames to commands, effects to frames, heart-beats, limits."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from nodes import stomp
from nodes.reference.api import (
    Admission,
    ClientEffect,
    Closed,
    Command,
    Config,
    ConfigError,
    Deliver,
    Done,
    Opened,
    Refused,
    Safe,
)
from nodes.reference.bugs.flags import READ_ON_ARRIVAL, RECEIPT_ON_ARRIVAL
from nodes.reference.engine.limits import Limits
from nodes.reference.engine.model import content_bytes
from nodes.reference.server import frames
from nodes.reference.server.budget import Budget, Turns, Worker
from nodes.reference.server.frames import FrameError, Greeting
from nodes.reference.server.guard import Guard, TooManyPasscodes
from nodes.reference.server.inflight import UnderWay, Work
from nodes.reference.server.output_buffer import OutputBuffer
from nodes.stomp import Frame, FrameLimits, ProtocolError

HEART_BEAT_MS = 100
"""Shortest interval of heart-beats offered and requested, so that the client's preference decides."""

_MISSED_BEATS = 3
HEART_BEAT, SILENT_CLIENT, HELD_UP, LEFT_OVER, UNREAD = "heart-beat", "silent-client", "held-up", "left-over", "unread"
MUTE_CLIENT, IDLE_SESSION, LINGERING = "mute-client", "idle-session", "lingering"
"""The names of overdue events on a session, as used by the checks of deadlines."""
_CLOCK_STEP = 0.001
"""Seconds by which a timer may end too early: sums of floating-point numbers are rounded, and so are clocks."""
_SOON_MS = 300
"""Largest interval that counts as frequent heart-beats, in milliseconds."""
_IDLE_PARTS = 4
_CHUNK = 1 << 16
_RECEIVED = 1 << 15
"""Bytes read from a real connection in one turn of the event loop, in which hundreds may have input."""
_HIGH_OUTPUT = 1 << 18
_FRAMES = 64
"""Frames that are read at a time: many small ones take long, and other sessions need their turn."""
_DISCARDED = 16 << 20
_DISCARDED_OF_STRANGERS = 256 << 10
"""Bytes that a client may still send after its session has ended, before its connection is cut off."""
_FRAME = 200
"""Approximate bytes of a MESSAGE in addition to its body and the sender's headers."""


class SessionHost(Protocol):
    """The broker, as a session uses it."""

    config: Config
    limits: Limits
    bugs: frozenset[str]
    has_topic_manager: bool
    guard: Guard
    budget: Budget
    turns: Turns

    def weight(self, command: Command) -> int:
        """Return the approximate work of a command."""
        ...

    def value(self, command: Command) -> Mapping[str, str]:
        """Return this node's own value for a READ, without confirming with other replicas (a switchable bug)."""
        ...

    def told(self, conn: str, seq: int, answer: Mapping[str, str]) -> None:
        """Record in the trace the answer that a receipt carries in addition to its confirmation."""

    def submit(self, command: Command) -> None:
        """Hand a command to the design."""

    def time_of_day(self) -> float:
        """Return seconds since 1970 by the node's clock, which may be wrong; for an administrator."""
        ...

    def admission(self) -> Admission:
        """Return whether ordinary clients are admitted now."""
        ...

    def status(self) -> dict[str, Any]:
        """Return the broker's status, for an administrator."""
        ...

    def add_replica(self, name: str, link: tuple[str, int], client: str) -> None:
        """Add a replica to the group; raises ConfigError when the design can't."""

    def administer(self, request: Mapping[str, Any], answer: Callable[[Mapping[str, Any]], None]) -> None:
        """Pass an administrator's request to the design; ``answer`` is called with the result."""

    def seat(self, session: Session) -> bool:
        """Give a session that has logged in a place among the logged-in sessions; return whether there was one."""
        ...

    def open(self, session: Session, greeting: Greeting) -> None:
        """Open or resume a connection context; ``Opened``, ``Closed`` or ``Refused`` is the answer."""

    def leave(self, session: Session) -> None:
        """Remove a session that is over; its context, if it has one, may continue to exist."""

    def cut_early(self, session: Session) -> None:
        """Record that a session was ended as silent although its client was heard recently."""

    def log(self, event: str, **fields: Any) -> None:
        """Write one line to the node's log."""


class Session:
    """A client's TCP connection, from its acceptance to its end.

    ``conn`` is the id of the connection context once one was requested, and ``asked`` the number of that request on
    this node. ``principal`` is the principal that has logged in, 0 for the broker's own login. ``ended`` is true when
    the client gets nothing further. ``held`` is the session's share of the broker's memory budget.
    """

    def __init__(self, host: SessionHost, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.conn: str | None = None
        self.reliable = False
        self.principal = 0
        self.admin = False
        self.ended = False
        self.asked = 0
        self.held = 0
        self._host = host
        self._reader = reader
        self._loop = asyncio.get_running_loop()
        # A client that has not logged in must not make the broker hold much.
        self._parser = stomp.Parser(login_limits(host.limits), most=1)
        transport: Any = writer.transport
        if hasattr(transport, "max_size"):
            transport.max_size = _RECEIVED
        self._output = OutputBuffer(writer, host.limits, self._all_written, self._stuck, self._lost)
        self._greeting: Greeting | None = None
        self._admission: Admission | None = None
        self._open = False
        self._leaving = False
        self._fault: tuple[str, Mapping[str, str]] | None = None
        """The reason why the connection is being closed, and additional headers of the ERROR."""
        self._outstanding: deque[UnderWay] = deque()
        self._outstanding_bytes = self._outstanding_weight = 0
        self._turn: asyncio.Future[bool] | None = None
        self._entering = 0
        """Size of the work that waits for its turn."""
        self._waiting_bytes = 0
        self._work = Work(host.weight)
        self._worker = Worker()
        self._may_go_on = asyncio.Event()
        self._reading = True
        self._waits = self._for_share = self._idled = self._repeated = False
        self._last_read = self._loop.time()
        self._to_acknowledge: dict[str, str] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # Reading.

    async def run(self) -> None:
        """Serve the client until it disconnects or is ended."""
        limit = self._host.limits.connect_timeout
        self._timer("connect", limit, lambda: self.end(f"no CONNECT within {limit:g} s"))
        try:
            discarded = 0
            while data := await self._reader.read(_CHUNK):
                if not self.ended:
                    await self._take(data)
                else:
                    discarded += len(data)
                    if discarded > (_DISCARDED if self._greeting is not None else _DISCARDED_OF_STRANGERS):
                        break
        except OSError:
            pass  # A failed connection ends the session like an orderly end.
        finally:
            self.ended = True
            for timer in self._timers.values():
                timer.cancel()
            self._host.leave(self)
            self._output.close()
            self._let_go()

    async def _take(self, data: bytes) -> None:
        self._last_read = self._loop.time()
        if self._leaving:
            return
        try:
            while items := self._parser.feed(data):
                data = b""
                for item in items:
                    if isinstance(item, Frame) and not self.ended and not self._leaving:
                        command = self._handle(item)
                        if command is not None:
                            work = self._work.of(command)
                            if work.turn and not await self._take_turn(work):
                                return
                            self._submit(command, work)
                        if self._must_wait():
                            await self._wait()
        except ProtocolError as fault:
            self._refuse(str(fault), {})
        except FrameError as fault:
            self._refuse(str(fault), fault.headers)
        self._count()

    def _refuse(self, reason: str, headers: Mapping[str, str]) -> None:
        """End the session because of input that is not a valid command.

        This ends a reliable connection for good. Otherwise its client, not knowing the reason, would repeat the input
        wherever it resumes. Input after a final command is ignored."""
        if self._leaving:
            return
        if self.ended or not self._open or self.conn is None or not self.reliable:
            self.end(reason, headers)
            return
        self._leaving, self._fault = True, (reason, headers)
        self._host.submit(Command("close", self.conn, 0, {"reason": "error"}))

    def _count(self) -> None:
        """Report the memory that this session holds to the budget."""
        held = self._parser.buffered + self._waiting_bytes + self._outstanding_bytes + self._output.waiting()
        held = 0 if self.ended else held
        if held != self.held:
            self._host.budget.note(self, held)

    @property
    def miscounted(self) -> bool:
        """Whether its counters of waiting output or of commands under way are wrong."""
        under_way = sum(each.size for each in self._outstanding), sum(each.weight for each in self._outstanding)
        return self._output.miscounted() or under_way != (self._outstanding_bytes, self._outstanding_weight)

    @property
    def keeps(self) -> int:
        """The number of things noted about the client's input; 0 while a command is under way or output waits.

        There should be at most one for each open transaction."""
        output, work = self._output, self._work
        busy = self.ended or self._leaving or self._outstanding or self._entering or self._repeated
        if busy or not output.rests:
            return 0
        containers = [each for part in (self, output, work) for each in vars(part).values()
                      if isinstance(each, (deque, dict, list, set))]
        return sum(map(len, containers)) - len(self._timers)

    @property
    def turns(self) -> int:
        """Size of its work that has its turn: under way, or just admitted."""
        turn = self._turn
        let_in = self._entering and turn is not None and turn.done() and not turn.cancelled() and turn.result()
        return sum(each.turn for each in self._outstanding) + (self._entering if let_in else 0)

    @property
    def busy(self) -> bool:
        """Whether it has commands under way."""
        return bool(self._outstanding)

    @property
    def weight(self) -> int:
        """Weight of its commands under way."""
        return self._outstanding_weight

    def _let_go(self) -> None:
        """Release everything that the session holds, and admit work that waited for it."""
        self._parser.clear()
        turns = self._host.turns
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(False)
            turns.admit()
        for each in self._outstanding:
            self._done(each)
        turns.busy -= bool(self._outstanding)
        self._outstanding.clear()
        self._count()

    async def _take_turn(self, work: UnderWay) -> bool:
        """Wait until the work may be under way; return whether it still has to be done."""
        self._turn = self._host.turns.enter(self._worker, work.turn)
        if self._turn is not None:
            self._entering = work.turn
            admitted = await self._wait_for(self._turn, work.size)
            self._entering = 0
            if not admitted:
                return False
        if self.ended:
            self._host.turns.leave(work.turn)
        return not self.ended

    async def _wait_for(self, turn: asyncio.Future[bool], size: int) -> bool:
        self._reading, self._waiting_bytes = False, size
        self._count()
        admitted = await turn
        self._waiting_bytes = 0
        self._reading = True
        self._last_read = self._loop.time()
        return admitted

    def _must_wait(self) -> bool:
        """Return whether the client has to wait before more of its frames are taken.

        It waits while it is not admitted yet, too many of its commands are under way, or it doesn't read its output.
        """
        if self.ended or self._leaving:
            return False
        limits = self._host.limits
        opening = self.conn is not None and not self._open
        return (opening or self._outstanding_weight >= limits.max_outstanding
                or self._outstanding_bytes >= limits.max_outstanding_bytes
                or self._output.waiting() > _HIGH_OUTPUT or self._has_share())

    def _has_share(self) -> bool:
        """Return whether all clients together have reached their limit of work, and this one its equal share of it."""
        turns, most = self._host.turns, self._host.limits.max_under_way
        return bool(self._outstanding) and turns.weight >= most and self._outstanding_weight * turns.busy >= most

    async def _wait(self) -> None:
        self._reading, self._waits = False, True
        while self._must_wait():
            self._for_share = self._has_share()
            self._may_go_on.clear()
            await self._may_go_on.wait()
        self._reading, self._waits = True, False
        self._last_read = self._loop.time()

    def overdue(self, now: float) -> list[tuple[str, float]]:
        """Return the conditions that should end before long on this session, each with the time of its beginning.

        Such conditions are: the client gets no heart-beat; the client is silent; it may send more but is not read; it
        has lost its connection to another session; it reads nothing; the session was ended and still exists."""
        if self.ended:
            return [(LINGERING, self._last_read)]
        if self._leaving:
            return []
        found = self._late(now)
        if (refused := self._output.refused_since(now)) is not None:
            found.append((UNREAD, refused))
        return found

    def _late(self, now: float) -> list[tuple[str, float]]:
        read = self._last_read
        if self._waits:
            # A session with too much output continues when all is taken; one at its share, when a command is done.
            waits = self._output.waiting() or (self._for_share and self._outstanding)
            return [] if self._must_wait() or waits else [(HELD_UP, read)]
        greeting = self._greeting
        if greeting is None or not self._open:
            return []
        if self.conn is None and not self.admin:
            return [(LEFT_OVER, read)]
        owed, wrote, found = greeting.wants_beat, self._output.last_write, []
        # A session that waits for its turn learns of its connection's failure only afterwards.
        failed = self._output.closing and not self._reading
        if owed and now - wrote > max(owed, HEART_BEAT_MS) / 1000 and not self._output.waiting() and not failed:
            found.append((HEART_BEAT, wrote))
        if not self._reading:
            return found
        if greeting.can_beat:
            found.append((MUTE_CLIENT if greeting.can_beat <= _SOON_MS else SILENT_CLIENT, read))
        if self.reliable and not self._idled:
            found.append((IDLE_SESSION, read))
        return found

    def _handle(self, frame: Frame) -> Command | None:
        """Act on a frame; return its command, if it is one for the design."""
        if not self._open:
            self._connect(frame)
        elif self.admin:
            self._administer(frame)
        elif self.conn is not None:
            return self._command_of(frame, self.conn)
        return None

    def _command_of(self, frame: Frame, conn: str) -> Command:
        try:
            guard = self._host.guard
            command = frames.command_of(frame, conn, self.reliable, self._host.has_topic_manager, guard.enabled)
            command = guard.sealed(command) if guard.enabled else command
        except (FrameError, TooManyPasscodes) as error:
            fault = error if isinstance(error, FrameError) else FrameError(str(error))
            asked = frame.headers.get("receipt")
            if asked is not None:
                fault.headers = {**fault.headers, "receipt-id": asked}
            raise fault from None
        self._leaving = command.kind == "close"
        if RECEIPT_ON_ARRIVAL in self._host.bugs and command.kind == "send" and "receipt" in command.args:
            self._output.add(frames.receipt(str(command.args["receipt"])))
            self._output.flush()
        if READ_ON_ARRIVAL in self._host.bugs and command.kind == "read":
            self._answer(str(command.args["receipt"]), conn, command.seq, self._host.value(command))
            self._output.flush()
        return command

    def _submit(self, command: Command, under_way: UnderWay) -> None:
        self._host.turns.busy += not self._outstanding
        self._host.turns.weight += under_way.weight
        self._outstanding.append(under_way)
        self._outstanding_bytes += under_way.size
        self._outstanding_weight += under_way.weight
        self._host.submit(command)

    def _done(self, done: UnderWay) -> None:
        """Release what a command under way occupied, after it is done or when its outcome is no longer awaited."""
        turns = self._host.turns
        turns.weight -= done.weight
        self._outstanding_bytes -= done.size
        self._outstanding_weight -= done.weight
        if done.turn:
            turns.leave(done.turn)

    # Login.

    def _connect(self, frame: Frame) -> None:
        greeting = frames.greeting(frame)
        config = self._host.config
        right = hmac.compare_digest(greeting.login.encode(), config.login.encode())
        right &= hmac.compare_digest(greeting.passcode.encode(), config.passcode.encode())
        if not right and self._host.guard.enabled and not greeting.admin:
            right = self._is_principal(greeting)
        if not right:
            raise FrameError("wrong login or passcode")
        limits = self._host.limits
        self._parser.limits = FrameLimits(limits.max_header_bytes, limits.max_headers, limits.max_body)
        self._parser.most = _FRAMES
        self._greeting = greeting
        if greeting.admin:
            self.admin = True
            if not self._host.seat(self):
                raise FrameError("too many administrators")
            self._greet({"session": f"{config.node}-admin"})
            return
        admission = self._admission = self._host.admission()
        if not admission.accepted:
            raise FrameError(admission.reason or "not master", master_header(admission))
        if not self._host.seat(self):
            raise FrameError("too many connections")
        self.reliable = greeting.reliable
        self._host.open(self, greeting)

    def _is_principal(self, greeting: Greeting) -> bool:
        """Return whether login and passcode belong to a principal; only a serving node knows, and spends time on it."""
        admission = self._host.admission()
        if not admission.accepted:
            raise FrameError(admission.reason or "not master", master_header(admission))
        try:
            self.principal = self._host.guard.identify(greeting.login, greeting.passcode)
        except TooManyPasscodes as error:
            raise FrameError(str(error)) from None
        return self.principal > 0

    def _greet(self, headers: Mapping[str, str]) -> None:
        greeting = self._greeting
        if greeting is None:
            raise RuntimeError("greeted before CONNECT")
        answer = {"version": frames.VERSION, "server": frames.SERVER,
                  "heart-beat": f"{HEART_BEAT_MS},{HEART_BEAT_MS}", **headers}
        admission = self._admission or self._host.admission()
        listed = admission.replicas
        replicas = ",".join(self._host.config.client_addresses.values() if listed is None else listed)
        if replicas:
            answer["x-replicas"] = replicas
        if admission.early and self.reliable:
            answer["x-early"] = "true"
        self._output.add(stomp.encode(Frame("CONNECTED", answer)))
        self._open = True
        self._timers.pop("connect").cancel()
        if greeting.wants_beat:
            self._beat(max(greeting.wants_beat, HEART_BEAT_MS) / 1000)
        if greeting.can_beat:
            interval = max(greeting.can_beat, HEART_BEAT_MS) / 1000
            self._listen("listen", interval, _MISSED_BEATS, lambda: self.end("no heart-beat from the client"))
        if self.reliable:
            self._listen("idle", self._host.limits.idle_timeout / _IDLE_PARTS, _IDLE_PARTS, self._idle)
        self._may_go_on.set()
        if self.admin:
            self._output.flush()

    # Effects; `flush` follows when all effects of a transaction have been taken.

    def receive(self, effect: ClientEffect) -> None:
        """Turn an effect on this session's context into frames."""
        if self.ended:
            return
        if isinstance(effect, Deliver):
            size = _FRAME + content_bytes(len(effect.body), (dict(effect.headers), effect.body))
            self._output.add_later(size, partial(frames.message, effect, self.reliable))
            if effect.auto:
                self._to_acknowledge[effect.subscription] = effect.ack_id
        elif isinstance(effect, Done):
            # Until its next new command, its transactions may have ended before.
            self._repeated = effect.duplicate
            if effect.duplicate:
                self._host.log("duplicate discarded", conn=effect.conn, seq=effect.seq)
            # There may be none: after a takeover, the outcomes of the older session's commands arrive here.
            if self._outstanding:
                self._done(self._outstanding.popleft())
                self._host.turns.busy -= not self._outstanding
            if effect.receipt is not None:
                self._answer(effect.receipt, effect.conn, effect.seq, effect.headers)
            self._may_go_on.set()
        elif isinstance(effect, Opened):
            headers = {"session": effect.conn}
            if self.reliable:
                headers |= {"x-connection-id": effect.conn, "x-received": str(effect.received)}
            self._greet(headers)
        elif isinstance(effect, Safe):
            if self.reliable:
                self._output.add(frames.safe(effect.seq))
        elif isinstance(effect, Refused):
            headers = {} if effect.receipt is None else {"receipt-id": effect.receipt}
            if self.reliable:
                headers["x-closed"] = "gap" if effect.reason == "gap" else "error"
                if effect.received is not None:
                    headers["x-received"] = str(effect.received)
            self._context_gone(effect.reason, headers)
        else:
            self._closed(effect)

    def _answer(self, receipt: str, conn: str, seq: int, headers: Mapping[str, str]) -> None:
        self._output.add(frames.receipt(receipt, headers))
        if headers:
            self._host.told(conn, seq, headers)

    def flush(self) -> None:
        """Write the frames of the effects taken."""
        if not self.ended:
            self._output.flush()
            self._count()

    def _closed(self, effect: Closed) -> None:
        if self._leaving and self._fault is None:
            self.ended = True
            self.conn = None
            self._output.finish(b"")
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
        self._output.finish(frames.error(reason, headers if headers is not None else {}))
        self._host.leave(self)
        self._let_go()
        self._may_go_on.set()

    def yield_place(self, reason: str) -> None:
        """Send the reason and close at once, because another session needs the place."""
        self.end(reason)
        self.cut_off()

    def cut_off(self) -> None:
        """Close the connection at once."""
        self._output.close()

    def depose(self, reason: str, headers: Mapping[str, str]) -> None:
        """End the session because this node no longer serves.

        Written output may be waiting in this system for a network that is down, and could reach the client long after
        another node has delivered the same message to another client. Therefore a client that has not taken everything
        gets a reset instead of an ERROR; from a reset it can conclude no more than from any lost connection.
        """
        if not self.ended and self._output.unconfirmed():
            self.ended = True
            self._host.log("client reset", conn=self.conn or "", reason=reason)
            self._host.leave(self)
            self._let_go()
            self._may_go_on.set()
            self._output.reset()
        else:
            self.end(reason, headers)

    def _stuck(self, reason: str) -> None:
        self.end(f"client does not read: {reason}")

    def _lost(self) -> None:
        """Wake a reader that waits until its output is taken: otherwise it would never notice that its connection has
        ended."""
        self._may_go_on.set()

    def _all_written(self) -> None:
        self._may_go_on.set()
        self._count()
        if self._to_acknowledge and self.conn is not None and not self.ended and not self._leaving:
            written, self._to_acknowledge = self._to_acknowledge, {}
            for ack_id in written.values():
                self._submit(Command("ack", self.conn, 0, {"id": ack_id, "auto": True}), UnderWay(0, 1, 0))

    # The administrator.

    def _administer(self, frame: Frame) -> None:
        if frame.command == "DISCONNECT":
            self._leaving = True
        elif frame.command == "SEND" and frame.headers.get("destination") == frames.ADMIN_STATUS:
            self._tell_administrator(frames.ADMIN_STATUS, self._host.status())
        elif frame.command == "SEND" and frame.headers.get("destination") == frames.ADMIN_TIME:
            self._tell_administrator(frames.ADMIN_TIME, {"time": self._host.time_of_day()})
        elif frame.command == "SEND" and frame.headers.get("destination") == frames.ADMIN_DESIGN:
            self._host.administer(frames.design_request(frame), self._answer_administrator)
        elif frame.command == "SEND" and frame.headers.get("destination") == frames.ADMIN_ADD_REPLICA:
            try:
                self._host.add_replica(*frames.new_replica(frame))
            except ConfigError as error:
                raise FrameError(str(error)) from error
        else:
            raise FrameError(
                f"an administrator may SEND to {frames.ADMIN_STATUS}, {frames.ADMIN_TIME}, {frames.ADMIN_DESIGN} and "
                f"{frames.ADMIN_ADD_REPLICA}, and DISCONNECT")
        asked = frame.headers.get("receipt")
        if asked is not None:
            self._output.add(frames.receipt(asked))
        if self._leaving:
            self.ended = True
            self._output.finish(b"")
        else:
            self._output.flush()

    def _tell_administrator(self, destination: str, content: Mapping[str, Any]) -> None:
        headers = {"subscription": "admin", "message-id": "status", "destination": destination,
                   "content-type": "application/json"}
        self._output.add(stomp.encode(Frame("MESSAGE", headers, json.dumps(content).encode())))

    def _answer_administrator(self, answer: Mapping[str, Any]) -> None:
        if not self.ended:
            self._tell_administrator(frames.ADMIN_DESIGN, answer)
            self._output.flush()

    # Timers.

    def _timer(self, name: str, seconds: float, action: Callable[[], None]) -> None:
        self._timers[name] = self._loop.call_later(seconds, action)

    def _beat(self, interval: float) -> None:
        """Send a heart-beat when nothing else was sent for most of the interval."""
        left = self._output.last_write + interval * 0.75 - self._loop.time()
        if left <= _CLOCK_STEP:
            # Waiting output is sent to the client as soon as it takes it.
            if not self.ended and self._output.waiting() == 0:
                self._output.add(stomp.EOL)
                self._output.flush()
                left = interval * 0.75
            else:
                left = interval * 0.25
        self._timer("beat", left, lambda: self._beat(interval))

    def _listen(self, name: str, interval: float, most: int, silent: Callable[[], None]) -> None:
        """Call ``silent`` after ``most`` intervals in which nothing was read.

        Intervals are counted instead of time, because this process may have been stopped: input that arrived in the
        meantime is read before the next count. Counting starts at the last read.
        """

        def count(heard: float, missed: int) -> None:
            wait = interval
            if self._last_read != heard or not self._reading:
                heard, missed = self._last_read, 0
                late = self._loop.time() - heard
                wait -= late if late < interval else 0.0
            elif missed + 1 == most:
                if self._loop.time() - heard < (most - 1) * interval:
                    self._host.cut_early(self)
                silent()
                return
            else:
                missed += 1
            self._timer(name, wait, lambda: count(heard, missed))

        count(0.0, 0)

    def _idle(self) -> None:
        """Close an idle connection: not only its TCP connection, because not even a heart-beat was received (5.1.3)."""
        if self.conn is not None and not self.ended:
            self._idled = True
            self._host.log("idle connection closed", conn=self.conn)
            self._host.submit(Command("close", self.conn, 0, {"reason": "idle"}))


def login_limits(limits: Limits) -> FrameLimits:
    """Return the limits of frames before the login."""
    return FrameLimits(limits.max_login_bytes, limits.max_headers, limits.max_login_bytes)


def master_header(admission: Admission) -> dict[str, str]:
    """Return the header that names the master to a refused client."""
    return {} if admission.master is None else {"x-master": admission.master}
