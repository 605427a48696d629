"""The harness's side of disks that fail: mounts one in the place of a folder, tells it what to do, unmounts it.

The file system is a program of its own (``fuse_disk``), which lives by its standard input: when the harness is gone,
however that ended, it unmounts.
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
from harness.backends.shell import Channel
from nodes.timeouts import within
from stormproof.contracts.backend import Capability
from stormproof.errors import BackendError
from stormproof.mounts import unmount_below
from stormproof.timeout_scale import SLOW

DEVICE = Path("/dev/fuse")
_MOUNT_LIMIT = 10.0 * SLOW
_ASK_LIMIT = 10.0 * SLOW
_END_LIMIT = 3.0 * SLOW
_SETTING = "user_allow_other"
_END = b'{"do": "end"}\n'
_PROGRAM = "harness.backends.fuse_disk"
_FUSE_CONF = Path("/etc/fuse.conf")


class Stream(Protocol):
    """Standard input and output of a program, wherever it runs."""

    async def read_line(self) -> bytes:
        """The next line of its output; ``b""`` when it has ended."""
        ...

    async def write(self, data: bytes) -> None:
        """Send to its input; raises OSError when it has ended."""

    async def end(self) -> str:
        """End its input and wait for its end, however long it takes within reason; its last words."""
        ...


class FuseDisk:
    """One mounted disk of one machine."""

    def __init__(self, name: str, stream: Stream) -> None:
        self._name = name
        self._stream = stream
        self._lock = asyncio.Lock()

    async def await_ready(self) -> None:
        """Wait until it is mounted. Raises BackendError when it can't be."""
        line = last = b""
        try:
            async with within(_MOUNT_LIMIT):
                # Where its errors come with its output, libfuse may say something else before.
                while b"ready" not in (line := await self._stream.read_line()) and line:
                    last = line
        except TimeoutError:
            line = b""
        if b"ready" not in line:
            words = await self._stream.end() or last.decode(errors="replace").strip()
            raise BackendError(f"{self._name}: can't mount a disk that can fail: {words or 'it does not answer'}")

    async def ask(self, command: str, **values: Any) -> Mapping[str, Any]:
        """Carry out a command of ``fuse_disk``; how the disk stands then. Raises BackendError."""
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
        """Unmount."""
        await self._stream.end()


class LocalStream:
    """Those of a process on this machine."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        self._process, self._in, self._out = process, process.stdin, process.stdout
        self._words: list[bytes] = []
        self._listening = asyncio.create_task(self._listen(process.stderr))

    @classmethod
    async def start(cls, argv: Sequence[str], environment: Mapping[str, str]) -> LocalStream:
        """Start a program in a session of its own."""
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
    """Those of a program that a root shell has become, with its errors among its output."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._rest = b""

    @classmethod
    async def start(cls, channel: Channel, command: str) -> ChannelStream:
        """Let the shell become a program."""
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
            pass  # it is gone, or is ended now
        await self._channel.destroy()
        return words.decode(errors="replace").strip()


async def mount_here(name: str, point: Path, folder: Path, seed: str) -> FuseDisk:
    """Mount a disk on this machine, visible to all users; ``folder`` keeps what it stores.

    Raises:
        BackendError: it can't be mounted.
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
    """Whether this machine lets this user mount disks that can fail, for others to see, too."""
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


@functools.cache
def can_share_mounts() -> Capability:
    """The same where others than this user have to see what is mounted: Docker's daemon."""
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
