"""The sending side of a client's connection: bounded, watched for a client that does not read."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
from collections.abc import Callable

from nodes.reference.engine.limits import Limits
from nodes.timeouts import within


class OutputBuffer:
    """Gathers frames, writes them together, and tells when all of them have reached the kernel.

    ``emptied`` is called when nothing waits here any more; ``stuck``, once, when more than ``max_output``
    bytes wait or the client has taken none of them for ``output_timeout`` seconds.
    """

    def __init__(self, writer: asyncio.StreamWriter, limits: Limits, emptied: Callable[[], None],
                 stuck: Callable[[str], None]) -> None:
        self._writer = writer
        self._limits = limits
        self._emptied = emptied
        self._stuck = stuck
        self._loop = asyncio.get_running_loop()
        self._frames: list[bytes] = []
        self._drain: asyncio.Task[None] | None = None
        self._written = 0
        self._watching = True
        self.last_write = self._loop.time()
        # `drain` then waits until the buffer is empty, not just shorter.
        writer.transport.set_write_buffer_limits(high=0)

    def add(self, frame: bytes) -> None:
        """One more frame for the next ``flush``."""
        self._frames.append(frame)

    def flush(self) -> None:
        """Write what was added."""
        if not self._frames:
            return
        data = b"".join(self._frames)
        self._frames = []
        if self._writer.transport.is_closing():
            return
        self._writer.write(data)
        self._written += len(data)
        self.last_write = self._loop.time()
        waiting = self.waiting()
        if waiting == 0:
            self._emptied()
        elif waiting > self._limits.max_output and self._watching:
            self._give_up(f"more than {self._limits.max_output} bytes of output wait")
        elif self._drain is None:
            self._drain = self._loop.create_task(self._drained(), name="drain")

    def waiting(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return self._writer.transport.get_write_buffer_size()

    def unconfirmed(self) -> int:
        """Bytes written that the client's system has not confirmed yet, as far as ours can tell."""
        waiting, connection = self.waiting(), self._writer.get_extra_info("socket")
        if connection is None:
            return waiting
        try:
            answer = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0" * 4)
        except OSError:
            return waiting
        return waiting + int(struct.unpack("i", answer)[0])

    def reset(self) -> None:
        """Reset the connection: what the client has not got yet, it never gets."""
        self._watching = False
        connection = self._writer.get_extra_info("socket")
        if connection is not None and not self._writer.transport.is_closing():
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def finish(self, last: bytes) -> None:
        """Write a last frame and end our side; the connection is cut off after the ``linger`` time at most.

        The client's side stays open meanwhile: closing while its data is unread would reset the connection
        and could destroy what we just wrote.
        """
        self._watching = False
        transport = self._writer.transport
        if transport.is_closing():
            return
        if last:
            self._frames.append(last)
        self._writer.write(b"".join(self._frames))
        self._frames = []
        if transport.can_write_eof():
            # A client that reset the connection is not noticed before the loop reads; there is nothing to end then.
            with contextlib.suppress(OSError):
                transport.write_eof()
        self._loop.call_later(self._limits.linger, transport.abort)

    def close(self) -> None:
        """The connection is over."""
        self._watching = False
        if self._drain is not None:
            self._drain.cancel()
        self._writer.transport.abort()

    async def _drained(self) -> None:
        while self._watching:
            taken = self._written - self.waiting()
            try:
                async with within(self._limits.output_timeout):
                    await self._writer.drain()
            except TimeoutError:
                if self._written - self.waiting() == taken and self._watching:
                    self._give_up(f"no output was taken for {self._limits.output_timeout:g} s")
                continue
            except ConnectionError:
                break
            if self.waiting() == 0:
                break
        self._drain = None
        if self._watching and not self._writer.transport.is_closing():
            self._emptied()

    def _give_up(self, reason: str) -> None:
        self._watching = False
        self._stuck(reason)
