"""Simulated TCP connections: the operating system's half.

An ``Endpoint`` is the kernel's half: it outlives the process that opened it until all written data has been sent. A
``Pipe`` carries the bytes of one direction in order, despite losses in the network. Node and client code holds a
``SimTransport`` on top (``harness.sim.transport``).
"""

from __future__ import annotations

from bisect import bisect, insort
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Protocol

from harness.sim.latency import LatencyModel
from harness.sim.livelock import CHUNK_BITS
from harness.sim.loop import SimLoop
from harness.sim.process import Handle, Resource, SimProcess
from stormproof.contracts.backend import Link
from stormproof.contracts.invariant import WireReader

WINDOW = 1 << 19
"""Bytes that the kernels of both sides buffer for a reader that does not read."""

FIRST_RETRY, LAST_RETRY = 0.2, 120.0

RETRANSMISSIONS = 15
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
    tap: Callable[[Pipe, bytes], None] | None
    """Called with all bytes that programs hand to their kernels."""

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


class Reader(Protocol):
    """The process's half of a connection (``harness.sim.transport.SimTransport``), as the kernel sees it."""

    unsent: bytearray
    """Data that waits for room in the kernel."""

    def arrived(self) -> None:
        """React to arrived data."""

    def readable(self) -> None:
        """Schedule a read, if there is something to read."""

    def writable(self) -> None:
        """Schedule a flush of the waiting data: there may be room."""


class Pipe:
    """One direction of a connection: chunks of bytes, the last of them FIN, delivered in order or not at all."""

    __slots__ = ("_attempts", "_back", "_flying", "_last", "_link", "_network", "_over", "_retry", "_sender", "_sent",
                 "_sent_on", "_timer", "_waiting", "held", "reader", "target")

    def __init__(self, network: Carrier, sender: Endpoint, target: Endpoint) -> None:
        self.target = target
        self.held = 0
        """Bytes sent and not yet read."""
        self.reader: WireReader | None = None
        """The tap's reader of the bytes that were sent so far."""
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
    def ends(self) -> tuple[Endpoint, Endpoint]:
        """The sender and the receiver."""
        return self._sender, self.target

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
            if self._network.tap is not None:
                self._network.tap(self, chunk)
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
        elif self._attempts == RETRANSMISSIONS:
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

    def __init__(self, network: Carrier, host: str, owner: SimProcess | None) -> None:
        self.host = host
        self.owner = owner
        self.gone = False
        """Whether this half is closed for reading; arriving data is answered by a reset."""
        self.buffer = bytearray()
        self.forgotten = False
        """Whether the machine lost power, and with it all knowledge of the connection."""
        self.ended = False
        self.failed: OSError | None = None
        self.transport: Reader | None = None
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

    def described(self) -> str:
        """Return the machine at its other end; empty for an attempt to connect."""
        return f"a connection with {self.peer.host}" if self.peer is not None else ""

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
