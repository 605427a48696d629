"""A persistent root shell on a node, driven over a byte stream with begin and end markers.

Every real backend consists of this shell and a way to open one. A command costs a write and a read instead of a new
session, and each has a hard time limit. A shell that does not answer in time is destroyed with the command that it
runs, and the next command gets a new shell.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from nodes.timeouts import within
from stormproof.errors import BackendError
from stormproof.timeout_scale import TIMEOUT_FACTOR

OUTPUT_LIMIT = 1 << 20
"""Bytes of a command's output that are kept by default."""

_CHUNK = 1 << 18
_DESTROY_LIMIT = 5.0 * TIMEOUT_FACTOR
_STATUS_LIMIT = 8
_ANSWER_LIMIT = 1.0 * TIMEOUT_FACTOR


class ShellChannel(Protocol):
    """Standard input and (merged) output of one ``/bin/sh`` process running as root on a node."""

    async def read(self) -> bytes:
        """Return the next bytes of output; ``b""`` when the shell has ended."""
        ...

    async def write(self, data: bytes) -> None:
        """Send to the shell's input, waiting while it does not read; raises OSError when it has ended."""

    async def destroy(self) -> None:
        """End the shell and the command that it runs; safe to call twice."""


@dataclass(frozen=True)
class Output:
    """The output of a command: its first bytes up to the limit, its true size, and its exit status."""

    status: int
    data: bytes
    size: int

    @property
    def text(self) -> str:
        """The output as text, with a note where it was shortened."""
        text = self.data.decode("utf-8", "replace")
        missing = self.size - len(self.data)
        return text if not missing else f"{text}\n[{missing} more bytes of output were not kept]"


class _Unstarted(Exception):
    """The shell ended before it began on the command."""


class _Inbox:
    """Splits the incoming bytes at markers, and keeps no more of them than requested."""

    def __init__(self, channel: ShellChannel) -> None:
        self._channel = channel
        self._rest = b""

    async def until(self, mark: bytes, keep: int) -> tuple[bytes, int]:
        """Return the first ``keep`` bytes before the next ``mark``, and the number of all bytes before it.

        Raises:
            EOFError: the stream ended first.
        """
        kept = bytearray()
        size = 0
        pending = self._rest
        while True:
            at = pending.find(mark)
            # The mark may be split over two reads: its possible beginning stays pending.
            usable = at if at >= 0 else max(0, len(pending) - len(mark) + 1)
            kept += pending[: min(usable, keep - len(kept))]
            size += usable
            if at >= 0:
                self._rest = pending[at + len(mark) :]
                return bytes(kept), size
            pending = pending[usable:]
            chunk = await self._channel.read()
            if not chunk:
                raise EOFError
            pending += chunk


class Shell:
    """Runs commands one after the other in a shell that is opened when first needed.

    ``name`` is the node's name for messages; ``connect`` opens a new channel. A channel that was silent for ``silence``
    seconds must answer before it gets another command, or is replaced; with None, channels are never tested.
    """

    def __init__(self, name: str, connect: Callable[[], Awaitable[ShellChannel]], silence: float | None = None) -> None:
        self.name = name
        self._silence = silence
        self._heard = 0.0
        self._connect = connect
        self._channel: ShellChannel | None = None
        self._inbox: _Inbox | None = None
        self._lock = asyncio.Lock()
        self._nonce = secrets.token_hex(12)
        self._serial = 0

    async def run(
        self, script: str, timeout: float, payload: bytes | None = None, limit: int = OUTPUT_LIMIT
    ) -> Output:
        """Run a POSIX shell script in a subshell, output and errors together.

        ``payload`` is the script's standard input: the script must read exactly that number of bytes or fail.
        ``timeout`` is in seconds and includes the wait for earlier commands.

        Raises:
            BackendError: the script did not end in time, or the shell ended while it ran.
        """
        try:
            async with within(timeout), self._lock:
                try:
                    return await self._attempt(script, payload, limit)
                except _Unstarted:
                    return await self._attempt(script, payload, limit)
        except TimeoutError:
            raise BackendError(f"{self.name}: no answer within {timeout:g} s to: {_brief(script)}") from None
        except (EOFError, OSError, _Unstarted) as error:
            why = str(error) or "it closed its output"
            raise BackendError(f"{self.name}: the shell ended under: {_brief(script)} ({why})") from None

    async def close(self) -> None:
        """End the shell and the command that it runs."""
        channel, self._channel, self._inbox = self._channel, None, None
        if channel is not None:
            async with within(_DESTROY_LIMIT):
                await channel.destroy()

    async def _attempt(self, script: str, payload: bytes | None, limit: int) -> Output:
        usable = False
        try:
            await self._drop_if_silent()
            if self._channel is None:
                self._channel = await self._connect()
                self._inbox = _Inbox(self._channel)
            output = await self._exchange(script, payload, limit)
            usable = payload is None or output.status == 0
            self._heard = asyncio.get_running_loop().time()
            return output
        finally:
            # After a cancellation or a half-read payload, the shell's position in the stream is unknown.
            if not usable:
                await self.close()

    async def _drop_if_silent(self) -> None:
        """Close a channel that stalls, before a command is lost in it: a new one is faster than its revival."""
        loop = asyncio.get_running_loop()
        if self._channel is None or self._silence is None or loop.time() - self._heard < self._silence:
            return
        try:
            async with within(_ANSWER_LIMIT):
                await self._exchange(":", None, 0)
        except (TimeoutError, EOFError, OSError, _Unstarted):
            await self.close()

    async def _exchange(self, script: str, payload: bytes | None, limit: int) -> Output:
        assert self._channel is not None and self._inbox is not None
        self._serial += 1
        begin, end = (f"{self._nonce} {self._serial} {word}" for word in ("begin", "end"))
        # eval in a subshell: a syntax error, `exit` or `cd` in the script does not affect this shell. A failed script
        # leaves unread payload behind, which must not be executed as commands.
        stdin, after = ("</dev/null ", "") if payload is None else ("", "[ $s = 0 ] || exit 1; ")
        command = (
            f"{{ printf '\\n%s\\n' '{begin}'; ( eval {shlex.quote(script)} ) {stdin}; s=$?; "
            f"printf '\\n%s %s\\n' '{end}' \"$s\"; {after}}}\n"
        )
        try:
            await self._channel.write(command.encode())
            await self._inbox.until(f"\n{begin}\n".encode(), 0)
        except (EOFError, OSError) as error:
            raise _Unstarted(str(error)) from None
        # Send concurrently with reading: a script that gives up leaves payload that is never read.
        sending = asyncio.create_task(self._send(payload)) if payload else None
        try:
            data, size = await self._inbox.until(f"\n{end} ".encode(), limit)
            status, _ = await self._inbox.until(b"\n", _STATUS_LIMIT)
        finally:
            if sending is not None:
                sending.cancel()
        return Output(int(status), data, size)

    async def _send(self, payload: bytes) -> None:
        assert self._channel is not None
        try:
            for start in range(0, len(payload), _CHUNK):
                await self._channel.write(payload[start : start + _CHUNK])
        except OSError:
            pass  # The script gave up on its input: its output says why.


def _brief(script: str) -> str:
    line = " ".join(script.split())
    return line if len(line) <= 80 else line[:77] + "..."
