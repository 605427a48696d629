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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodes.stomp import Frame, Parser, ProtocolError, encode
from nodes.timeouts import within
from workloads.reference.connection_state import RECEIVED, ConnectionState, Garble, PendingFrame
from workloads.reference.replica_list import Address, ReplicaList
from workloads.reference.silence_watch import SilenceWatch

_READ_BYTES = 64 * 1024
_SILENT_HEARTBEATS = 3
"""The number of heart-beats that are missing when a connection counts as failed."""
_OFFERED = ("1.2", "100,100")
"""The version that the reference broker speaks, and the heart-beats that it offers and asks for."""


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
        self._replicas = ReplicaList(addresses, settings.learns_replicas)
        self._state = ConnectionState()
        self._writer: asyncio.StreamWriter | None = None
        self._connected = False
        self._parser = Parser()
        self._silence = settings.heartbeat * _SILENT_HEARTBEATS
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
            pending = self._state.enqueue(frame.command, frame.headers, frame.body)
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
        pending = self._state.enqueue(command, headers, body)
        pending.gap, pending.garble = gap, garble
        self._write_pending(pending)
        try:
            async with within(timeout):
                answer = await pending.future
        except (TimeoutError, ConnectionBroken) as error:
            if pending.seq == 0:
                if any(each.quiet and each.seq and not each.done for each in self._state.pending.values()):
                    raise TimeoutError from None  # an earlier frame without a receipt was sent
                self._state.drop_unsent(pending)
                raise NotSent(str(error) or "no connection") from None
            # A frame that was sent stays queued: without it the numbers that follow would have a gap.
            raise
        return answer

    def tell(self, command: str, headers: Mapping[str, str], body: bytes) -> None:
        """Send a frame without asking for a receipt: it has been carried out when a later frame is confirmed, unless
        receipts are early."""
        self._write_pending(self._state.enqueue(command, headers, body, quiet=True))

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
        return self._state.unsafe

    @property
    def undone(self) -> list[Frame]:
        """The frames of a broken connection that were confirmed and now certainly have no effect, in order.

        The application decides whether to send them again on a new connection.
        """
        return self._state.undone

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
        twin = StompConnection(self.replicas, self.settings)
        twin._replicas.place = self._replicas.place
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
    def identifier(self) -> str | None:
        """The identifier of a reliable connection."""
        return self._state.connection_id

    @property
    def early(self) -> bool:
        """Whether receipts precede their safety."""
        return self._state.early

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
                address = self._replicas.current
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
                    self._replicas.learn(refusal.master)
                    keep_until = loop.time()
                self._drop_socket()
                if not self.settings.reliable and self._ready.is_set():
                    break
                if loop.time() >= keep_until:
                    self._replicas.advance(to_first=self.settings.first_again and served)
                    missed, served = missed + 1, False
                    if not missed % len(self._replicas.addresses):
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
        self._silence = max(server_beat / 1000, self.settings.heartbeat) * _SILENT_HEARTBEATS
        self._replicas.adopt(frame.headers.get("x-replicas", ""), self.peer)

    @property
    def replicas(self) -> list[Address]:
        """The addresses that it tries to reach, cyclically, in this order."""
        return list(self._replicas.addresses)

    def use_replicas(self, addresses: Sequence[Address], first: int = 0) -> None:
        """Replace the list of addresses, and continue at position ``first``."""
        self._replicas.addresses, self._replicas.place = list(addresses), first

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
        return (_Wrong if headers["x-closed"] in ("error", "gap") else ConnectionBroken)(reason)

    async def _serve(self, reader: asyncio.StreamReader) -> None:
        beats = asyncio.create_task(self._beat(), name="heart-beat")
        try:
            async with within(None) as limit:
                with SilenceWatch(limit, self._silence) as watch:
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
        data = await reader.read(_READ_BYTES)
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
                self._state.confirm(pending, frame.headers)
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

    def _write_pending(self, pending: PendingFrame) -> None:
        """Write a frame if there is a connection; number it when it is first written."""
        if not self._writer or not self._connected or self._writer.is_closing():
            return
        self._writer.write(self._state.encoded(pending))

    def _drop_socket(self) -> None:
        self._connected = False
        if self._writer:
            self._writer.transport.abort()
            self._writer = None


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
