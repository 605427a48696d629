"""The sending side of a client's connection: bounded, and watched for a client that does not read."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
from collections import deque
from collections.abc import Callable

from nodes.reference.engine.limits import Limits
from nodes.timeouts import within

PIECE_BYTES = 1 << 20
"""Bytes that are encoded and written at a time; further frames are encoded when the kernel has taken these."""


def _tell_nobody(*reason: str) -> None:
    """Do nothing: the connection is over."""


class OutputBuffer:
    """Gathers frames, writes them together, and reports when all of them have reached the kernel.

    A frame may be given as a function that encodes it, with its approximate size: many frames with the same body then
    cost nothing before they are written. ``emptied`` is called when no output waits here any longer. ``stuck`` is
    called, once, when more than ``max_output`` bytes wait or the client has taken none of them for ``output_timeout``
    seconds. ``lost`` is called when the connection fails while output waits that will never be taken.
    """

    def __init__(self, writer: asyncio.StreamWriter, limits: Limits, emptied: Callable[[], None],
                 stuck: Callable[[str], None], lost: Callable[[], None]) -> None:
        self._writer = writer
        self._transport = writer.transport
        self._limits = limits
        self._emptied = emptied
        self._stuck = stuck
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self.frames: deque[tuple[int, bytes | Callable[[], bytes]]] = deque()
        self.unmade = 0
        """Bytes of the frames that are not encoded yet."""
        self.draining: asyncio.Task[None] | None = None
        self._finishing: asyncio.Task[None] | None = None
        self.cut: asyncio.TimerHandle | None = None
        """The timer that cuts the connection off, once the last output was given."""
        self.written = 0
        """Bytes written so far."""
        self._watching = True
        self.last_write = self._loop.time()
        # `drain` then waits until the buffer is empty, not just shorter.
        self._transport.set_write_buffer_limits(high=0)

    def add(self, frame: bytes) -> None:
        """Add a frame for the next ``flush``."""
        self.add_later(len(frame), frame)

    def add_later(self, size: int, make: bytes | Callable[[], bytes]) -> None:
        """Add a frame of about that size for the next ``flush``, to be encoded when it is written."""
        self.frames.append((size, make))
        self.unmade += size

    def flush(self) -> None:
        """Write the added frames."""
        if not self.frames:
            return
        if self._transport.is_closing():
            self._drop()
            return
        self._write_pieces()
        self.last_write = self._loop.time()
        waiting = self.waiting()
        if waiting == 0:
            self._emptied()
        elif waiting > self._limits.max_output and self._watching:
            self._give_up(f"more than {self._limits.max_output} bytes of output wait")
        elif self.draining is None:
            self.draining = self._loop.create_task(self._drained(), name="drain")

    def _write_pieces(self) -> None:
        """Write until nothing is left, or the kernel takes no more."""
        while self.frames and (self.unwritten() == 0 or self.unmade + self.unwritten() <= PIECE_BYTES):
            piece: list[bytes] = []
            made = 0
            while self.frames and (made + self.frames[0][0] <= PIECE_BYTES or not piece):
                size, frame = self.frames.popleft()
                self.unmade -= size
                made += size
                piece.append(frame if isinstance(frame, bytes) else frame())
            data = b"".join(piece)
            self._writer.write(data)
            self.written += len(data)

    def _drop(self) -> None:
        self.frames.clear()
        self.unmade = 0

    def unwritten(self) -> int:
        """Return the number of written bytes that the kernel has not taken yet."""
        return self._transport.get_write_buffer_size()

    @property
    def is_over(self) -> bool:
        """Whether the last output has been given, or the client is given up."""
        return not self._watching

    @property
    def closing(self) -> bool:
        """Whether the connection has ended, or is about to: nothing can be sent on it any longer."""
        return self._transport.is_closing()

    def waiting(self) -> int:
        """Return the approximate number of bytes that the kernel has not taken yet."""
        return self.unmade + self._transport.get_write_buffer_size()

    def unconfirmed(self) -> int:
        """Return the number of bytes written that the client's system has not confirmed yet, as far as ours can
        tell."""
        waiting, connection = self.waiting(), self._writer.get_extra_info("socket")
        if connection is None:
            return waiting
        try:
            answer = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0" * 4)
        except OSError:
            return waiting
        return waiting + int(struct.unpack("i", answer)[0])

    def reset(self) -> None:
        """Reset the connection: the client never gets the output that it has not received yet."""
        self._watching = False
        connection = self._writer.get_extra_info("socket")
        if connection is not None and not self._transport.is_closing():
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def finish(self, last: bytes) -> None:
        """Write a last frame and end our side; the connection is cut off after the ``linger`` time at most.

        The client's side stays open in the meantime: closing while its data is unread would reset the connection and
        could destroy what we just wrote.
        """
        self._watching = False
        transport = self._transport
        if transport.is_closing():
            self._drop()
            return
        if last and self.waiting() > PIECE_BYTES:
            self._drop()  # the reason must still arrive in time
        self.add(last)
        if self.unmade <= PIECE_BYTES:
            self._writer.write(b"".join(frame if isinstance(frame, bytes) else frame() for _, frame in self.frames))
            self._drop()
            self._end_output()
        else:
            self._finishing = self._loop.create_task(self._write_rest(), name="last output")
        self.cut = self._loop.call_later(self._limits.linger, transport.abort)

    def _end_output(self) -> None:
        transport = self._transport
        if transport.can_write_eof() and not transport.is_closing():
            # A reset by the client is not noticed before the loop reads; there is nothing to end then.
            with contextlib.suppress(OSError):
                transport.write_eof()

    async def _write_rest(self) -> None:
        """Write the remaining output, piece by piece; the connection is cut off when that takes too long."""
        with contextlib.suppress(ConnectionError):
            while self.frames and not self._transport.is_closing():
                self._write_pieces()
                await self._writer.drain()
            self._end_output()

    def close(self) -> None:
        """Stop, because the connection is over."""
        self._watching = False
        for task in (self.draining, self._finishing):
            if task is not None:
                task.cancel()
        self._drop()
        self._transport.abort()
        # The callbacks' owner refers to this buffer: such a cycle would stay in memory until a garbage collection.
        self._emptied, self._stuck, self._lost = _tell_nobody, _tell_nobody, _tell_nobody

    async def _drained(self) -> None:
        while self._watching:
            taken = self.written - self.unwritten()
            try:
                async with within(self._limits.output_timeout):
                    await self._writer.drain()
            except TimeoutError:
                if self.written - self.unwritten() == taken and self._watching:
                    self._give_up(f"no output was taken for {self._limits.output_timeout:g} s")
                continue
            except ConnectionError:
                break
            self.last_write = self._loop.time()  # waiting output has been sent to the client
            if self._watching:
                self._write_pieces()
            if self.waiting() == 0:
                break
        self.draining = None
        if self._transport.is_closing():
            self._drop()
            self._lost()
        elif self._watching:
            self._emptied()

    def _give_up(self, reason: str) -> None:
        self._watching = False
        self._stuck(reason)
