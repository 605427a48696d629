"""asyncio's transport on a simulated TCP connection; its callbacks run in the process that owns it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterable
from typing import Any

from harness.sim.errors import SimulationError
from harness.sim.process import DEAD
from harness.sim.tcp import Endpoint

_READ_SIZE = 1 << 18
"""Bytes that one read takes at most, unless the program says otherwise."""


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
        self.max_size = _READ_SIZE
        """Bytes that one read takes at most, as of asyncio's own transports."""
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
        """Send bytes, or keep them until there is room.

        Raises:
            RuntimeError: the outgoing stream has ended, as in asyncio's own transports.
        """
        if self._eof_wanted:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._lost or not data:
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
            count = size if size < self.max_size else self.max_size
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
