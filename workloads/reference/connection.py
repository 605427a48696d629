"""The client side of an HA connection over STOMP: it reconnects along the list of replicas, re-emits, and discards.

After HA Joram 5.1.1 to 5.1.6 (J1, J15, J17): frames are sent and received asynchronously and are numbered. When the TCP
connection fails, the client tries the same replica for a set time, then the next in the list, cyclically. Once
reconnected, it re-emits the frames whose receipts it has not seen, and discards the messages that it had already
received. It also works without the numbering, against any STOMP 1.2 broker.

Where the broker confirms early (asynchronous propagation, 2.2), a frame stays in the buffer after its receipt until the
broker reports it as safe, and is re-emitted with the others after a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from nodes.stomp import Frame, Parser, ProtocolError, encode
from nodes.timeouts import within

Address = tuple[str, int]
Garble = Callable[[bytes], bytes]

_READ_SIZE = 64 * 1024
_SILENCE_FACTOR = 3

_OFFERED = ("1.2", "100,100")
"""The version that the reference broker speaks, and the heart-beats that it offers and asks for."""
RECEIVED = "RECEIVED"
"""The frame by which a client of a reliable connection reports the messages that it has received, if no other frame
does."""


REPEATED = "x-twice"
"""A header that is sent twice, the second time with another text: the first counts (STOMP 1.2, "Repeated Header
Entries")."""


class ConnectionBroken(Exception):
    """The connection is over for good; frames that were not confirmed may or may not have had an effect."""


class NotSent(Exception):
    """The frame never reached a socket, so it certainly had no effect."""


class Rejected(Exception):
    """The broker answered the frame with an ERROR: it had no effect, and the connection is over."""


@dataclass(frozen=True)
class Settings:
    """The settings of a client's connection; times in seconds.

    ``same_replica`` is the time for which it retries the replica that it lost before it moves to the next in the list,
    or to the start of the list (``first_again``). ``round_pause`` is its pause when no replica in the list has accepted
    it. ``heartbeat`` is the interval asked of the broker (three silent intervals mean a failed connection).
    ``local_host`` is the address to bind to, which decides the client's position in the network. ``learns_replicas``:
    it also tries replicas that the broker names.
    """

    login: str
    passcode: str
    local_host: str | None = None
    reliable: bool = True
    connect_timeout: float = 1.0
    same_replica: float = 0.5
    heartbeat: float = 0.5
    retry_delay: float = 0.05
    learns_replicas: bool = True
    first_again: bool = False
    round_pause: float = 0.0


@dataclass
class _Pending:
    """A frame that waits for its receipt, or to be safe; ``seq`` is assigned when it is first written.

    ``done``: its receipt has arrived. ``told``: the application believes that it is confirmed. ``gap``: the sequence
    numbers that are skipped before its number. ``garble``: a function that corrupts its bytes. ``quiet``: it asks for
    no receipt; the receipt of a later frame also confirms it.
    """

    frame: Frame
    future: asyncio.Future[Mapping[str, str]]
    seq: int = 0
    done: bool = False
    told: bool = False
    gap: int = 0
    garble: Garble | None = None
    quiet: bool = False


@dataclass
class _State:
    """The state that survives a reconnection.

    ``early``: a receipt does not mean that a frame is safe. ``safe``: the highest number that the broker has reported
    as safe. ``final``: that number at the connection's end, if the broker could report it. ``confirmed``: the number of
    the last frame with a receipt.
    """

    connection_id: str | None = None
    early: bool = False
    sent: int = 0
    safe: int = 0
    final: int | None = None
    received: int = 0
    confirmed: int = 0
    receipts: int = 0
    pending: dict[str, _Pending] = field(default_factory=dict)

    def forget_safe(self) -> None:
        """Drop the frames that are safe and that have been confirmed to their sender, on this or an earlier
        connection."""
        for receipt, pending in list(self.pending.items()):
            safe = not self.early or 0 < pending.seq <= self.safe
            if safe and (pending.done or (self.early and pending.told)):
                del self.pending[receipt]


class StompConnection:
    """One reliable connection to a replicated broker. Open it, send frames, take messages, close it."""

    def __init__(self, addresses: Sequence[Address], settings: Settings, undone: Sequence[Frame] = ()) -> None:
        """Create a connection; ``undone`` are frames that an earlier connection had to undo; they are sent first."""
        self.settings = settings
        self.messages: deque[Frame] = deque()
        self.odd = ""
        """Description of a protocol violation by the broker, if there was one; clients may ignore it."""
        self.unnamed = False
        """True if the last ERROR named no receipt that was requested."""
        self.peer: Address | None = None
        """The replica that it is connected to, or was connected to last."""
        self._addresses = list(addresses)
        self._place = 0
        self._state = _State()
        self._writer: asyncio.StreamWriter | None = None
        self._connected = False
        self._parser = Parser()
        self._silence = settings.heartbeat * _SILENCE_FACTOR
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._arrived = asyncio.Event()
        self._settled = asyncio.Event()
        self._rests_until = 0.0
        self._first = True
        """True while this TCP connection is the first one."""
        self._told = 0
        """The highest message number that this TCP connection reported as received when it began."""
        self._broken: Exception | None = None
        for frame in undone:
            pending = self._enqueue(frame.command, frame.headers, frame.body)
            pending.told = True

    async def open(self, timeout: float) -> None:
        """Connect to the first replica in the list that accepts the client.

        Raises:
            ConnectionBroken: no replica did within ``timeout``; the text is the last one's answer.
        """
        self._task = asyncio.create_task(self._run(), name="connection")
        # Not asyncio.wait_for, here and below: Python 3.11's version sometimes loses a cancellation.
        try:
            async with within(timeout):
                await self._ready.wait()
        except TimeoutError:
            reason = self._broken or "no replica let us in"
            await self.abort()
            raise ConnectionBroken(str(reason)) from None
        if self._task.done():
            raise ConnectionBroken(str(self._broken))

    async def request(
        self, command: str, headers: Mapping[str, str], body: bytes, timeout: float | None, *, gap: int = 0,
        garble: Garble | None = None,
    ) -> Mapping[str, str]:
        """Send a frame, wait for its receipt across reconnections, and return the receipt's headers.

        A ``timeout`` of None waits until the connection is over. ``gap`` is the number of sequence numbers to skip
        before this frame; the broker must close the connection because of the gap. The broker must also close it when
        ``garble`` corrupts the frame's bytes; then the end of the connection may be the only answer.

        Raises:
            NotSent: neither this frame nor an earlier frame without a receipt reached a socket within ``timeout``, and
                neither ever will.
            Rejected: the broker answered it with an ERROR.
            TimeoutError: it reached a socket, or an earlier frame without a receipt did, and no receipt arrived.
            ConnectionBroken: the connection ended for good in the meantime.
        """
        if self.over:
            raise NotSent(str(self._broken))
        pending = self._enqueue(command, headers, body)
        pending.gap, pending.garble = gap, garble
        self._write_pending(pending)
        try:
            async with within(timeout):
                answer = await pending.future
        except (TimeoutError, ConnectionBroken) as error:
            if pending.seq == 0:
                if any(each.quiet and each.seq and not each.done for each in self._state.pending.values()):
                    raise TimeoutError from None  # an earlier frame without a receipt was sent
                unsent = [key for key, each in self._state.pending.items()
                          if each is pending or (each.quiet and each.seq == 0)]
                for key in unsent:
                    del self._state.pending[key]
                raise NotSent(str(error) or "no connection") from None
            # A frame that was sent stays queued: without it the numbers that follow would have a gap.
            raise
        return answer

    def tell(self, command: str, headers: Mapping[str, str], body: bytes) -> None:
        """Send a frame without asking for a receipt: it has been carried out when a later frame is confirmed, unless
        receipts are early."""
        self._write_pending(self._enqueue(command, headers, body, quiet=True))

    def _enqueue(self, command: str, headers: Mapping[str, str], body: bytes, *, quiet: bool = False) -> _Pending:
        self._state.receipts += 1
        receipt = f"r{self._state.receipts}"
        frame = Frame(command, {**headers} if quiet else {**headers, "receipt": receipt}, body)
        made = _Pending(frame, asyncio.get_running_loop().create_future(), quiet=quiet)
        pending = self._state.pending[receipt] = made
        return pending

    def _confirm_before(self, seq: int) -> None:
        """Mark the frames without a receipt that were sent before ``seq`` as confirmed."""
        for pending in self._state.pending.values():
            if pending.quiet and not pending.done and 0 < pending.seq < seq:
                pending.done = pending.told = True
                if not pending.future.done():
                    pending.future.set_result({})

    async def settled(self) -> None:
        """Wait until all confirmed frames are safe.

        Raises:
            ConnectionBroken: the connection ended for good first.
        """
        while self.unsafe:
            if self.over:
                raise self._end()
            self._settled.clear()
            await self._settled.wait()

    @property
    def unsafe(self) -> int:
        """The number of frames that are confirmed and not safe yet."""
        return sum(pending.told for pending in self._state.pending.values())

    @property
    def undone(self) -> list[Frame]:
        """The frames of a broken connection that were confirmed and now certainly have no effect, in order.

        The application decides whether to send them again on a new connection.
        """
        final = self._state.final
        told = [pending for pending in self._state.pending.values() if pending.told]
        return [each.frame for each in told if each.seq == 0 or (final is not None and each.seq > final)]

    async def next_message(self, timeout: float) -> Frame | None:
        """Return the next delivered message, or None when none arrived within ``timeout``."""
        deadline = asyncio.get_running_loop().time() + timeout
        while not self.messages:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or self.over:
                return None
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with within(left):
                    await self._arrived.wait()
        return self.messages.popleft()

    def twin(self) -> StompConnection:
        """Return a second connection that takes this one over when it is opened, as if its client had lost this one; it
        sends nothing."""
        twin = StompConnection(self._addresses, self.settings)
        twin._place = self._place
        twin._state.connection_id, twin._state.received = self._state.connection_id, self._state.received
        return twin

    def rest(self, seconds: float) -> None:
        """Stop reading for some seconds, but at most for half the time after which the broker counts as silent."""
        self._rests_until = asyncio.get_running_loop().time() + min(seconds, self._silence / 2)

    async def ended(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the connection to be over for good; return whether it is."""
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=timeout)
        return self.over

    async def close(self, timeout: float = 0.5) -> None:
        """Disconnect in order if the broker answers within ``timeout``, otherwise just drop the connection."""
        with contextlib.suppress(TimeoutError, ConnectionBroken, NotSent):
            if self._ready.is_set():
                await self.request("DISCONNECT", {}, b"", timeout)
        await self.abort()

    async def abort(self) -> None:
        """Drop the connection without DISCONNECT."""
        if self._task:
            self._task.cancel()
            await asyncio.wait((self._task,))
            if not self._task.cancelled():
                self._task.result()
        self._drop_socket()

    def silence(self) -> None:
        """Stop sending and receiving at once; ``abort`` has to follow."""
        if self._task:
            self._task.cancel()
        self._drop_socket()

    @property
    def connected(self) -> bool:
        """Return whether a replica has accepted the client and the connection to it has not failed since."""
        return self._connected

    @property
    def over(self) -> bool:
        """Return whether it is closed for good, or was never opened."""
        return self._task is None or self._task.done()

    @property
    def broken(self) -> Exception | None:
        """The reason of its last failure, or of its end."""
        return self._broken

    @property
    def refused(self) -> bool:
        """Return whether the broker ended it because of a client's frame: closed it for good, if it is a reliable
        one."""
        return isinstance(self._broken, _Wrong if self.settings.reliable else _Refused)

    @property
    def closed_for_idleness(self) -> float | None:
        """The time on the loop's clock at which the client learnt that the broker had closed it for idleness
        (5.1.3)."""
        return self._broken.learnt if isinstance(self._broken, _Idle) else None

    async def _run(self) -> None:
        """Connect, serve the connection until it fails, and reconnect, for as long as that can succeed."""
        loop = asyncio.get_running_loop()
        keep_until = loop.time()
        missed, served = 0, False
        try:
            while True:
                address = self._addresses[self._place]
                try:
                    async with within(self.settings.connect_timeout):
                        reader = await self._connect(address)
                    self._ready.set()
                    missed, served = 0, True
                    try:
                        await self._serve(reader)
                    finally:
                        keep_until = loop.time() + self.settings.same_replica
                except (OSError, TimeoutError, ProtocolError, EOFError) as error:
                    self._broken = error
                except _Refused as refusal:
                    self._broken = refusal
                    self._learn(refusal.master)
                    keep_until = loop.time()
                self._drop_socket()
                if not self.settings.reliable and self._ready.is_set():
                    break
                if loop.time() >= keep_until:
                    back = self.settings.first_again and served and self._place > 0
                    self._place = 0 if back else (self._place + 1) % len(self._addresses)
                    missed, served = missed + 1, False
                    if not missed % len(self._addresses):
                        await asyncio.sleep(self.settings.round_pause)
                await asyncio.sleep(self.settings.retry_delay)
        except ConnectionBroken as error:
            self._broken = error
        finally:
            self._drop_socket()
            self._ready.set()
            self._arrived.set()
            self._settled.set()
            for pending in list(self._state.pending.values()):
                if not pending.future.done():
                    pending.future.set_exception(self._end())
                    pending.future.exception()  # There may be no waiter, which is not a defect.

    def _end(self) -> ConnectionBroken:
        """Return the reason of the connection's end."""
        broken = self._broken
        return broken if isinstance(broken, ConnectionBroken) else ConnectionBroken(str(broken or "closed"))

    async def _connect(self, address: Address) -> asyncio.StreamReader:
        local = (self.settings.local_host, 0) if self.settings.local_host else None
        reader, writer = await asyncio.open_connection(*address, local_addr=local)
        self._writer = writer
        self.peer = address
        self._parser = Parser()
        beat = int(self.settings.heartbeat * 1000)
        headers = {
            "accept-version": "1.2",
            "host": "/",
            "login": self.settings.login,
            "passcode": self.settings.passcode,
            "heart-beat": f"{beat},{beat}",
        }
        state = self._state
        if self.settings.reliable:
            headers["x-reliable"] = "true"
            if state.connection_id:
                headers |= {"x-connection-id": state.connection_id, "x-received": str(state.received)}
        self._told, asked, self.unnamed = state.received, state.connection_id, False
        self._first = asked is None
        writer.write(encode(Frame("CONNECT", headers)))
        frames: list[Any] = []
        while not any(isinstance(frame, Frame) for frame in frames):
            frames = await self._read(reader)
        answers = [frame for frame in frames if isinstance(frame, Frame)]
        self._greeted(answers[0])
        if asked and state.connection_id != asked:
            self._note("another connection was resumed than was asked for")
        self._connected = True
        for frame in answers[1:]:
            self._take(frame)
        for pending in list(state.pending.values()):
            self._write_pending(pending)
        return reader

    def _greeted(self, frame: Frame) -> None:
        if frame.command == "ERROR":
            reason = frame.headers.get("message", "refused")
            if "x-closed" in frame.headers:
                raise self._closed_by_broker(reason, frame.headers)
            raise _Refused(reason, frame.headers.get("x-master", ""))
        if frame.command != "CONNECTED":
            raise ProtocolError(f"{frame.command} where CONNECTED was expected")
        if (frame.headers.get("version"), frame.headers.get("heart-beat")) != _OFFERED:
            self._note("CONNECTED says something else than what was agreed on")
        state = self._state
        state.connection_id = frame.headers.get("x-connection-id")
        if "x-early" in frame.headers:
            state.early = True
        applied = int(frame.headers.get("x-received", 0))
        if state.confirmed > applied and not state.early:
            self._note("a connection was resumed without what was confirmed on it")
        self._safe(applied)
        server_beat = int(frame.headers.get("heart-beat", "0,0").split(",")[0])
        self._silence = max(server_beat / 1000, self.settings.heartbeat) * _SILENCE_FACTOR
        self._replicas(frame.headers.get("x-replicas", ""))

    @property
    def replicas(self) -> list[Address]:
        """The addresses that it tries to reach, cyclically, in this order."""
        return list(self._addresses)

    def use_replicas(self, addresses: Sequence[Address], first: int = 0) -> None:
        """Replace the list of addresses, and continue at position ``first``."""
        self._addresses, self._place = list(addresses), first

    def _safe(self, seq: int) -> None:
        """Mark the frames up to this number as safe."""
        self._state.safe = max(self._state.safe, seq)
        self._state.forget_safe()
        self._settled.set()

    def _closed_by_broker(self, reason: str, headers: Mapping[str, str]) -> ConnectionBroken:
        """Return the exception for a connection that can't be resumed: "the high availability is broken" (5.1.6)."""
        if "x-received" in headers:
            self._state.final = int(headers["x-received"])
            if self._state.final < self._state.confirmed and not self._state.early:
                self._note("a connection was closed without what was confirmed on it")
            self._safe(self._state.final)
        if headers["x-closed"] == "idle":
            return _Idle(f"{reason} for idleness: high availability is broken", asyncio.get_running_loop().time())
        return (_Wrong if headers["x-closed"] == "error" else ConnectionBroken)(reason)

    def _replicas(self, text: str) -> None:
        """Adopt the server's list of replicas (J17), and keep the current position in it."""
        listed = [_address(item) for item in text.split(",") if item]
        if self.settings.learns_replicas and listed and self.peer in listed and listed != self._addresses:
            self.use_replicas(listed, listed.index(self.peer))

    def _learn(self, master: str) -> None:
        """Add the master that a slave names to the list: it may have joined the group after the client received the
        list."""
        if self.settings.learns_replicas and master and (address := _address(master)) not in self._addresses:
            self._addresses.append(address)

    async def _serve(self, reader: asyncio.StreamReader) -> None:
        beats = asyncio.create_task(self._beat(), name="heart-beat")
        try:
            async with within(None) as limit:
                with _Watch(limit, self._silence) as watch:
                    while True:
                        await self._rest()
                        for frame in await self._read(reader):
                            if isinstance(frame, Frame):
                                self._take(frame)
                        watch.heard()
        finally:
            beats.cancel()

    async def _rest(self) -> None:
        left = self._rests_until - asyncio.get_running_loop().time()
        if left > 0:
            await asyncio.sleep(left)

    async def _read(self, reader: asyncio.StreamReader) -> list[Any]:
        data = await reader.read(_READ_SIZE)
        if not data:
            raise EOFError("connection closed by the broker")
        return list(self._parser.feed(data))

    def _note(self, what: str) -> None:
        self.odd = self.odd or what

    def _take(self, frame: Frame) -> None:
        if frame.command == "RECEIPT":
            pending = self._state.pending.get(frame.headers.get("receipt-id", ""))
            # A frame of an earlier TCP connection may be confirmed here, and confirmed again after it is re-emitted.
            if pending is None and self._first and not self._state.early:
                self._note("a receipt came twice, or for nothing")
            if pending and pending.frame.command == RECEIVED:
                del self._state.pending[pending.frame.headers["receipt"]]
                if not pending.future.done():
                    pending.future.set_result(frame.headers)
            elif pending:
                self._confirm_before(pending.seq)
                self._state.confirmed = max(self._state.confirmed, pending.seq)
                pending.done = True
                if not pending.future.done():
                    pending.future.set_result(frame.headers)
                    pending.told = True
                self._state.forget_safe()
        elif frame.command == "SAFE":
            self._safe(int(frame.headers["x-safe"]))
        elif frame.command == "MESSAGE":
            number = int(frame.headers.get("x-seq", 0))
            if number and number <= self._told and not self._state.early:
                self._note("a message was sent again that was known to have been received")
            if number and number <= self._state.received:
                return
            self._state.received = max(self._state.received, number)
            self.messages.append(frame)
            self._arrived.set()
        elif frame.command == "ERROR":
            reason = frame.headers.get("message", "error")
            asked = self._state.pending.get(frame.headers.get("receipt-id", ""))
            self.unnamed = asked is None
            closed = "x-closed" in frame.headers
            if asked and not asked.future.done() and (closed or not self.settings.reliable):
                asked.future.set_exception(Rejected(reason))
            if closed:
                raise self._closed_by_broker(reason, frame.headers)
            raise _Refused(reason, frame.headers.get("x-master", ""))

    async def _beat(self) -> None:
        while self._writer:
            await asyncio.sleep(self.settings.heartbeat)
            if self._writer:
                self._writer.write(b"\n")

    def _write_pending(self, pending: _Pending) -> None:
        """Write a frame if there is a connection; number it when it is first written."""
        if not self._writer or not self._connected or self._writer.is_closing():
            return
        headers = dict(pending.frame.headers)
        if pending.frame.command == RECEIVED:  # has no number, and no effect that could be repeated
            self._writer.write(encode(Frame(RECEIVED, headers | {"x-received": str(self._state.received)})))
            return
        if pending.seq == 0:
            self._state.sent += 1 + pending.gap
            pending.seq = self._state.sent
        if self._state.connection_id:
            headers["x-seq"] = str(pending.seq)
            if self._state.received:
                headers["x-received"] = str(self._state.received)
        data = _twice(encode(Frame(pending.frame.command, headers, pending.frame.body)), headers)
        self._writer.write(data if pending.garble is None else pending.garble(data))

    def _drop_socket(self) -> None:
        self._connected = False
        if self._writer:
            self._writer.transport.abort()
            self._writer = None


def _twice(frame: bytes, headers: Mapping[str, str]) -> bytes:
    if REPEATED not in headers:
        return frame
    line = f"\n{REPEATED}:{headers[REPEATED]}\n".encode()
    return frame.replace(line, line + f"{REPEATED}:second\n".encode(), 1)


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


class _Watch:
    """A time-out that expires after some seconds without received data.

    It checks the time at intervals: rescheduling the time-out at every read would cost a timer for each.
    """

    def __init__(self, limit: asyncio.Timeout, seconds: float) -> None:
        self._limit, self._seconds = limit, seconds
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        self.heard()
        self._timer = self._loop.call_at(self._last + self._seconds, self._look)
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def heard(self) -> None:
        """Record that data was received now."""
        self._last = self._loop.time()

    def _look(self) -> None:
        due = self._last + self._seconds
        if due <= self._loop.time():
            self._limit.reschedule(due)
        else:
            self._timer = self._loop.call_at(due, self._look)


class _Idle(ConnectionBroken):
    """The broker has closed it for idleness; the client has ``learnt`` that at that time of the loop."""

    def __init__(self, reason: str, learnt: float) -> None:
        super().__init__(reason)
        self.learnt = learnt


class _Wrong(ConnectionBroken):
    """The broker has closed it for a wrong command."""


class _Refused(Exception):
    """This replica refuses clients now; ``master`` is the replica that accepts them, as HOST:PORT, if it is named."""

    def __init__(self, reason: str, master: str) -> None:
        super().__init__(reason)
        self.master = master
