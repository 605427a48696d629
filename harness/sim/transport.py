"""Simulated TCP connections: the operating system's half, and asyncio's transport on top.

An ``Endpoint`` is the kernel's half: it outlives the process that opened it until all written data has been sent. A
``Pipe`` carries the bytes of one direction in order, despite losses in the network. Node and client code holds a
``SimTransport``, whose callbacks run in the process that owns it.
"""

from __future__ import annotations

import asyncio
import contextvars
from bisect import bisect, insort
from collections import deque
from collections.abc import Iterable
from random import Random
from typing import Any, Protocol

from harness.sim.errors import SimulationError
from harness.sim.latency import LatencyModel
from harness.sim.livelock import CHUNK_BITS
from harness.sim.loop import DEAD, Handle, Process, Resource, SimLoop
from stormproof.contracts.backend import Link

WINDOW = 1 << 19
"""Bytes that the kernels of both sides buffer for a reader that does not read."""

FIRST_RETRY, LAST_RETRY = 0.2, 120.0
_READ_SIZE = 1 << 18

ATTEMPTS = 15
"""Retransmissions after which a connection has timed out (Linux: ``tcp_retries2``), a quarter of an hour."""

FIN = b""
"""End of stream in a pipe."""


class Sent:
    """Counts of what programs have handed to their kernels for one link: frames (writes), and their bytes."""

    __slots__ = ("bytes", "frames")

    def __init__(self) -> None:
        self.frames = 0
        self.bytes = 0


class Carrier(Protocol):
    """The part of the network (``harness.sim.network.Network``) that connections use."""

    loop: SimLoop
    rng: Random
    latency: LatencyModel
    calm: bool
    """Whether every packet on every link arrives, after the usual delay."""

    def sent_on(self, link: Link) -> Sent:
        """Return the counters of what programs have sent on the link; the caller adds to them."""
        ...

    def passes(self, link: Link) -> bool:
        """Return whether a packet on the link arrives now; count a lost one."""
        ...

    def refuses(self, link: Link) -> bool:
        """Return whether a middlebox answers a packet on the link with a reset."""
        ...

    def delay(self, link: Link) -> float:
        """Return the delay of the next packet on the link, in seconds."""
        ...

    def usual_delay(self, link: Link) -> float:
        """Return the delay of the next packet on a link without conditions, in seconds."""
        ...

    def shaped(self, pipe: Pipe, link: Link, chunk: bytes) -> bool:
        """Return whether the chunk has to queue on a slow link, which calls ``depart`` in its turn."""
        ...


class Pipe:
    """One direction of a connection: chunks of bytes, the last of them FIN, delivered in order or not at all."""

    __slots__ = ("_attempts", "_back", "_flying", "_last", "_link", "_network", "_over", "_retry", "_sender", "_sent",
                 "_sent_on", "_timer", "_waiting", "held", "target")

    def __init__(self, network: Carrier, sender: Endpoint, target: Endpoint) -> None:
        self.target = target
        self.held = 0
        """Bytes sent and not yet read."""
        self._network = network
        self._sender = sender
        self._link = (sender.host, target.host)
        self._back = (target.host, sender.host)
        self._sent_on = network.sent_on(self._link)
        self._sent = 0
        self._flying: deque[int] = deque()
        """Numbers of the chunks in flight, in order: they arrive in this order, or are lost."""
        self._waiting: list[tuple[int, bytes]] = []
        """Chunks that were lost, and those that arrived early or were held back because of that, by number."""
        self._retry = FIRST_RETRY
        self._attempts = 0
        self._timer: Handle | None = None
        self._last = 0.0
        self._over = False
        """Whether a chunk was answered by a reset; nothing arrives that was sent after it."""

    @property
    def stalled(self) -> bool:
        """Return whether packets or their acknowledgements are being lost."""
        return self._timer is not None

    def send(self, chunk: bytes) -> None:
        """Send bytes, or FIN."""
        if chunk:
            self.held += len(chunk)
            self._sent_on.frames += 1
            self._sent_on.bytes += len(chunk)
        self._sent += 1
        if self._timer is not None and self._retry > FIRST_RETRY:
            self._waiting.append((self._sent, chunk))
            return
        self._flying.append(self._sent)
        network = self._network
        if network.calm or not network.shaped(self, self._link, chunk):
            self.depart(chunk)

    def depart(self, chunk: bytes) -> None:
        """Put the chunk on the link."""
        if self._sender.forgotten:
            return
        network, link = self._network, self._link
        loop = network.loop
        # The receiver has work to do in proportion to the bytes, however few callbacks that takes.
        loop.work += len(chunk) >> CHUNK_BITS
        if loop.watch is not None:
            loop.watch.sent(link, chunk)
        arrival = loop.now + (network.usual_delay(link) if network.calm else network.delay(link))
        if arrival < self._last:
            arrival = self._last  # TCP keeps the order.
        self._last = arrival
        loop.at(arrival, self._arrived, chunk)

    def _arrived(self, chunk: bytes) -> None:
        number, network = self._flying.popleft(), self._network
        if self._over:
            return
        if not network.calm:
            if network.refuses(self._link):
                self._over = True
                self._waiting.clear()
                self._sender.reset_by_peer()
                return
            if not network.passes(self._link):
                insort(self._waiting, (number, chunk))
                self._try_later()
                return
        if self._waiting and self._waiting[0][0] < number:
            # An earlier chunk is missing, and the receiver waits for it.
            insort(self._waiting, (number, chunk))
            return
        self.target.arrived(chunk)
        if not (network.calm or network.passes(self._back)):
            self._try_later()

    def _try_later(self) -> None:
        if self._timer is None:
            self._timer = self._network.loop.after(self._retry, self._try_again)

    def _try_again(self) -> None:
        self._timer = None
        network = self._network
        if self._over or self._sender.forgotten or self._sender.failed:
            self._waiting.clear()
            return
        there = network.passes(self._link)
        if there:
            self._deliver()
        if there and network.passes(self._back):
            self._retry = FIRST_RETRY
            self._attempts = 0
            self._sender.drained()
            if self._waiting:
                self._try_later()
        elif self._attempts == ATTEMPTS:
            self._sender.fail(TimeoutError(110, "connection timed out"))
        elif not self.target.gone or self._waiting:
            self._attempts += 1
            self._retry = min(2 * self._retry, LAST_RETRY)
            self._try_later()

    def _deliver(self) -> None:
        """Deliver the waiting chunks, up to the first one that is still in flight."""
        waiting = self._waiting
        count = bisect(waiting, (self._flying[0],)) if self._flying else len(waiting)
        ready = waiting[:count]
        del waiting[:count]
        for _, chunk in ready:
            self.target.arrived(chunk)


class Endpoint(Resource):
    """The kernel's half of a connection, at a host, for a process."""

    def __init__(self, network: Carrier, host: str, owner: Process | None) -> None:
        self.host = host
        self.owner = owner
        self.gone = False
        """Whether this half is closed for reading; arriving data is answered by a reset."""
        self.buffer = bytearray()
        self.forgotten = False
        """Whether the machine lost power, and with it all knowledge of the connection."""
        self.ended = False
        self.failed: OSError | None = None
        self.transport: SimTransport | None = None
        self.pipe: Pipe | None = None
        self.peer: Endpoint | None = None
        self.network = network
        self._finished = False
        if owner is not None:
            owner.resources[self] = None

    def join(self, peer: Endpoint) -> None:
        """Open the way to the peer."""
        self.peer = peer
        self.pipe = Pipe(self.network, self, peer)

    def room(self) -> int:
        """Return the number of bytes that the kernel accepts now."""
        return WINDOW - self.pipe.held if self.pipe is not None else 0

    def send(self, data: bytes) -> None:
        """Hand bytes to the kernel; a process that waits for its disk does so later, or never."""
        assert self.pipe is not None
        owner = self.owner
        if owner is not None and owner.busy:
            owner.defer(self.pipe.send, data)
        else:
            self.pipe.send(data)

    def finish(self) -> None:
        """Send the end of stream."""
        if not self._finished and self.pipe is not None:
            self._finished = True
            self.send(FIN)

    def close(self) -> None:
        """Close the process's half: sent data still goes out, but unread data turns the close into a reset."""
        if self.gone:
            return
        unread = bool(self.buffer)
        self.vanish()
        if self.failed:
            return
        if unread:
            self._reset_peer()
        else:
            self.finish()

    def vanish(self) -> None:
        """Drop the connection silently."""
        self.gone = True
        self.buffer.clear()
        if self.owner is not None:
            self.owner.resources.pop(self, None)

    def owner_ended(self, powerless: bool) -> None:
        """Close the connection that a dead process left open, as its system does; a powerless system drops it."""
        self.transport = None
        if powerless:
            self.forgotten = True
            self.vanish()
        else:
            self.close()

    def arrived(self, chunk: bytes) -> None:
        """Accept a chunk from the network."""
        if self.gone:
            if chunk:
                self._reset_peer()
            return
        if chunk:
            self.buffer += chunk
        else:
            self.ended = True
        if self.transport is not None:
            self.transport.arrived()

    def reset_by_peer(self) -> None:
        """Fail because the peer, or a middlebox, has refused the sent data."""
        self.fail(ConnectionResetError(104, "connection reset by peer"))

    def fail(self, error: OSError) -> None:
        """End the connection with an error."""
        if self.gone:
            return
        self.failed = error
        self.buffer.clear()
        if self.transport is not None:
            self.transport.readable()

    def taken(self, count: int) -> None:
        """Free the window after the process has read ``count`` bytes, so that the sender may send more."""
        peer = self.peer
        if peer is None or peer.pipe is None:
            return
        peer.pipe.held -= count
        transport = peer.transport
        if transport is not None and transport.unsent and not peer.pipe.stalled:
            transport.writable()

    def drained(self) -> None:
        """Let the transport try again: there may be room for more."""
        if self.transport is not None:
            self.transport.writable()

    def _reset_peer(self) -> None:
        peer, network = self.peer, self.network
        if peer is None:
            return
        link = (self.host, peer.host)
        target = peer

        def arrive() -> None:
            if network.passes(link):
                target.reset_by_peer()

        network.loop.after(network.delay(link), arrive)


class SimTransport(asyncio.Transport):
    """asyncio's side of a simulated connection."""

    def __init__(self, endpoint: Endpoint, protocol: asyncio.BaseProtocol, mine: tuple[str, int],
                 peer: tuple[str, int], context: contextvars.Context) -> None:
        super().__init__({"sockname": mine, "peername": peer})
        self._endpoint = endpoint
        self._protocol: Any = protocol
        self._context = context
        self._loop = endpoint.network.loop
        self.unsent = bytearray()
        """Data that waits for room in the kernel."""
        self._high, self._low = 1 << 16, 1 << 14
        self._held_back = False
        self._closing = False
        self._lost = False
        self._eof_wanted = False
        self._reading = True
        self._read_due = False
        endpoint.transport = self

    def begin(self) -> None:
        """Report the connection to the protocol; called in the owner's context."""
        self._protocol.connection_made(self)
        self.readable()

    # The interface for code that holds the transport.

    def is_closing(self) -> bool:
        """Return whether the transport is closed or about to be."""
        return self._closing

    def close(self) -> None:
        """Send the waiting data, then close."""
        if self._closing:
            return
        self._closing = True
        self._reading = False
        if not self.unsent:
            self._post(self._end, None)

    def abort(self) -> None:
        """Close at once; data that waits here is lost."""
        self._fail(None)

    def write(self, data: Any) -> None:
        """Send bytes, or keep them until there is room."""
        if self._lost or self._eof_wanted or not data:
            return
        if not self.unsent:
            endpoint = self._endpoint
            room = endpoint.room()
            if room >= len(data):
                endpoint.send(bytes(data))
                return
            if room > 0:
                endpoint.send(bytes(data[:room]))
                data = data[room:]
        self.unsent += data
        if not self._held_back and len(self.unsent) > self._high:
            self._held_back = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Send the pieces together."""
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        """Half-close: end the outgoing stream."""
        if self._closing or self._eof_wanted:
            return
        self._eof_wanted = True
        if not self.unsent:
            self._endpoint.finish()

    def can_write_eof(self) -> bool:
        """Return True: half-closing is possible."""
        return True

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that the kernel has not accepted yet."""
        return len(self.unsent)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return the limits (low, high)."""
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the limits at which the protocol pauses and resumes writing."""
        if high is None:
            high = 1 << 16 if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low
        if not self._held_back and len(self.unsent) > self._high:
            self._held_back = True
            self._protocol.pause_writing()

    def pause_reading(self) -> None:
        """Leave arriving data in the kernel."""
        self._reading = False

    def resume_reading(self) -> None:
        """Resume reading."""
        if not self._closing and not self._reading:
            self._reading = True
            self.readable()

    def is_reading(self) -> bool:
        """Return whether the transport reads."""
        return self._reading and not self._closing

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the protocol."""
        self._protocol = protocol

    # The interface for the kernel's half.

    def arrived(self) -> None:
        """React to arrived data: an idle process reads it at once."""
        if self._read_due or not self._loop.enter(self._endpoint.owner):
            self.readable()
        else:
            self._context.run(self._read)

    def readable(self) -> None:
        """Schedule a read, if there is something to read."""
        endpoint = self._endpoint
        if not self._read_due and (endpoint.buffer or endpoint.ended or endpoint.failed):
            self._read_due = True
            self._post(self._read)

    def writable(self) -> None:
        """Schedule a flush of the waiting data: there may be room."""
        if self.unsent:
            self._post(self._flush)

    def _post(self, callback: Any, *args: Any) -> None:
        owner = self._endpoint.owner
        if owner is None or owner.state != DEAD:
            self._loop.post(owner, self._context, callback, *args)

    def _read(self) -> None:
        self._read_due = False
        endpoint = self._endpoint
        if self._lost:
            return
        if endpoint.failed:
            self._fail(endpoint.failed)
            return
        if not self._reading:
            return
        if buffer := endpoint.buffer:
            size = len(buffer)
            count = size if size < _READ_SIZE else _READ_SIZE
            network = endpoint.network
            if count > 1 and (slices := network.latency.slices) and network.rng.random() < slices:
                count = network.rng.randrange(1, count)
            if count == size:
                data = bytes(buffer)
                buffer.clear()
            else:
                data = bytes(buffer[:count])
                del buffer[:count]
            endpoint.taken(count)
            try:
                self._protocol.data_received(data)
                if endpoint.owner is not None and type(self._protocol) is asyncio.StreamReaderProtocol:
                    endpoint.owner.woken = True
            except SimulationError:
                raise
            except Exception as error:  # as asyncio does
                self._loop.call_exception_handler({"message": "reading failed", "exception": error, "transport": self})
                self._fail(error)
            if endpoint.buffer or endpoint.ended:
                self.readable()
        elif endpoint.ended:
            endpoint.ended = False
            self._reading = False
            if not self._protocol.eof_received():
                self.close()

    def _flush(self) -> None:
        room = self._endpoint.room()
        if self._lost or not self.unsent or room <= 0:
            return
        chunk = bytes(self.unsent[:room])
        del self.unsent[:room]
        self._endpoint.send(chunk)
        if self._held_back and len(self.unsent) <= self._low:
            self._held_back = False
            self._protocol.resume_writing()
        if not self.unsent:
            if self._closing:
                self._end(None)
            elif self._eof_wanted:
                self._endpoint.finish()

    def _fail(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._closing = self._lost = True
        self._reading = False
        self.unsent.clear()
        self._post(self._tell_lost, error)

    def _end(self, error: Exception | None) -> None:
        if not self._lost:
            self._closing = self._lost = True
            self._tell_lost(error)

    def _tell_lost(self, error: Exception | None) -> None:
        endpoint = self._endpoint
        endpoint.transport = None
        endpoint.close()
        self._protocol.connection_lost(error)
