"""The harness's side of failing disks: mounts a disk over a folder, sends it commands, unmounts it.

The file system is a separate program (``fuse_disk``) that depends on its standard input: however the harness ends, the
program then unmounts.
"""

from __future__ import annotations

import asyncio
import ctypes.util
import functools
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from harness.backends.launch import as_root
from harness.backends.shell import ShellChannel
from nodes.timeouts import within
from stormproof.contracts.backend import Capability
from stormproof.errors import BackendError
from stormproof.mounts import unmount_below
from stormproof.timeout_scale import TIMEOUT_FACTOR

DEVICE = Path("/dev/fuse")
_MOUNT_LIMIT = 10.0 * TIMEOUT_FACTOR
_ASK_LIMIT = 10.0 * TIMEOUT_FACTOR
_END_LIMIT = 3.0 * TIMEOUT_FACTOR
_SETTING = "user_allow_other"
_END = b'{"do": "end"}\n'
_PROGRAM = "harness.backends.fuse_disk"
_FUSE_CONF = Path("/etc/fuse.conf")


class Stream(Protocol):
    """Standard input and output of a program, on any machine."""

    async def read_line(self) -> bytes:
        """Return the next line of its output; ``b""`` when it has ended."""
        ...

    async def write(self, data: bytes) -> None:
        """Send to its input; raises OSError when it has ended."""

    async def end(self) -> str:
        """Close its input and wait for its end, up to a limit; returns its last line."""
        ...


class FuseDisk:
    """One mounted disk of one machine."""

    def __init__(self, name: str, stream: Stream) -> None:
        self._name = name
        self._stream = stream
        self._lock = asyncio.Lock()

    async def await_ready(self) -> None:
        """Wait until the disk is mounted. Raises BackendError when that fails."""
        line = last = b""
        try:
            async with within(_MOUNT_LIMIT):
                # Where errors are merged into the output, libfuse may print other lines first.
                while b"ready" not in (line := await self._stream.read_line()) and line:
                    last = line
        except TimeoutError:
            line = b""
        if b"ready" not in line:
            words = await self._stream.end() or last.decode(errors="replace").strip()
            raise BackendError(f"{self._name}: can't mount a disk that can fail: {words or 'it does not answer'}")

    async def ask(self, command: str, **values: Any) -> Mapping[str, Any]:
        """Carry out a command of ``fuse_disk``; returns the disk's resulting state. Raises BackendError."""
        try:
            async with within(_ASK_LIMIT), self._lock:
                await self._stream.write((json.dumps({"do": command, **values}) + "\n").encode())
                line = await self._stream.read_line()
        except (TimeoutError, OSError) as error:
            raise BackendError(f"{self._name}: its disk does not answer: {error or command}") from None
        if not line:
            raise BackendError(f"{self._name}: its disk has ended: {await self._stream.end()}")
        answer: Mapping[str, Any] = json.loads(line)
        if "error" in answer:
            raise BackendError(f"{self._name}: its disk can't {command}: {answer['error']}")
        return answer

    async def close(self) -> None:
        """Unmount the disk."""
        await self._stream.end()


class LocalStream:
    """The streams of a process on this machine."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        self._process, self._in, self._out = process, process.stdin, process.stdout
        self._words: list[bytes] = []
        self._listening = asyncio.create_task(self._listen(process.stderr))

    @classmethod
    async def start(cls, argv: Sequence[str], environment: Mapping[str, str]) -> LocalStream:
        """Start a program in a new session."""
        return cls(await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            start_new_session=True, env=environment,
        ))  # fmt: skip

    async def read_line(self) -> bytes:
        return await self._out.readline()

    async def write(self, data: bytes) -> None:
        self._in.write(data)
        await self._in.drain()

    async def end(self) -> str:
        self._in.close()
        try:
            async with within(_END_LIMIT):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await asyncio.wait((self._listening,), timeout=_END_LIMIT)
        return self._words[-1].decode(errors="replace").strip() if self._words else ""

    async def _listen(self, errors: asyncio.StreamReader) -> None:
        while line := await errors.readline():
            self._words = [line]


class ChannelStream:
    """The streams of a program that replaced a root shell, with its errors merged into its output."""

    def __init__(self, channel: ShellChannel) -> None:
        self._channel = channel
        self._rest = b""

    @classmethod
    async def start(cls, channel: ShellChannel, command: str) -> ChannelStream:
        """Replace the shell with a program."""
        await channel.write(f"exec {command}\n".encode())
        return cls(channel)

    async def read_line(self) -> bytes:
        while b"\n" not in self._rest:
            chunk = await self._channel.read()
            if not chunk:
                line, self._rest = self._rest, b""
                return line
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line + b"\n"

    async def write(self, data: bytes) -> None:
        await self._channel.write(data)

    async def end(self) -> str:
        words = b""
        try:
            async with within(_END_LIMIT):
                await self._channel.write(_END)
                while line := await self.read_line():
                    words = line
        except (OSError, TimeoutError):
            pass  # It has ended, or is ended by the next call.
        await self._channel.destroy()
        return words.decode(errors="replace").strip()


async def mount_here(name: str, point: Path, folder: Path, seed: str) -> FuseDisk:
    """Mount a disk on this machine, visible to all users; ``folder`` stores its contents.

    Raises:
        BackendError: it cannot be mounted.
    """
    stream = await LocalStream.start(
        [sys.executable, "-P", "-m", _PROGRAM, str(point), str(folder), seed],
        {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    disk = FuseDisk(name, stream)
    try:
        await disk.await_ready()
    except BaseException:
        await disk.close()
        await asyncio.to_thread(unmount_below, point.parent)
        raise
    return disk


@functools.cache
def can_mount() -> Capability:
    """Return whether this user can mount failing disks on this machine so that others can see them, too."""
    install = f"run: {as_root()}apt-get install fuse3"
    if not DEVICE.exists():
        return _missing(
            f"there is no {DEVICE}",
            "load the kernel's module fuse (modprobe fuse); a container needs --device /dev/fuse",
        )
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return _missing(f"this user may not open {DEVICE}", f"run as root, or: sudo chmod 666 {DEVICE}")
    if not ctypes.util.find_library("fuse3"):
        return _missing("libfuse3 is not installed", install)
    if os.geteuid() and not shutil.which("fusermount3"):
        return _missing("fusermount3 not found", install)
    return Capability("fuse", True, f"disks that fail and power that is cut, by FUSE ({DEVICE}, libfuse3)")


def can_share_mounts() -> Capability:
    """Return the same capability if mounts must be visible to other users, as to Docker's daemon."""
    found = can_mount()
    if not found.available or os.geteuid() == 0:
        return found
    try:
        settings = _FUSE_CONF.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        settings = []
    if _SETTING in (line.strip() for line in settings):
        return found
    return _missing(
        f"{_FUSE_CONF} does not let users show others what they mount",
        f"run: echo {_SETTING} | sudo tee -a {_FUSE_CONF}",
    )


def _missing(why: str, mend: str) -> Capability:
    return Capability("fuse", False, f"no disks that fail and no power cuts: {why}", mend)
