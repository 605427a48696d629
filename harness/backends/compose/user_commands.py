"""Test commands in a project's containers, and the output of Antithesis's SDK there.

Docker's API lists and starts them, so that a container needs no shell.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shutil
import signal
import stat
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import docker
from docker.errors import APIError, DockerException, NotFound

from harness.backends.compose import settings
from harness.backends.compose.adapt import LOCAL_OUTPUT, SDK_FOLDER
from harness.backends.compose.disks import ComposeDisks
from harness.backends.docker_leftovers import reason_of
from stormproof.contracts.commands import CommandEnd, ListedFile, NotStarted
from stormproof.errors import BackendError
from stormproof.test import Test

SDK_OUTPUT = "sdk"
"""The folder in a run's folder into which the SDK writes during the run."""
LIST_SECONDS = 60.0
"""A folder of templates is listed in tenths of a second; it may also hold a program's packages."""
TAIL_BYTES = 4096
"""The end of a command's output that is kept: enough for a stack trace's last lines."""
_STATUS_SECONDS = 5.0
"""Docker knows an ended command's status within milliseconds; its engine may be busy."""
_MACHINE_SECONDS = 0.5
"""After the end of a container's first process, Docker reports it within this time."""
_POLL_SECONDS = 0.02
_SIGNALLED = 128
_NOT_EXECUTED = (126, 127)
"""Statuses of files that can't be executed. If a script's interpreter is missing, Docker's runtime gives 1 or 255."""
_LINE_BYTES = 1 << 20
"""Longer lines of the SDK are dropped: its libraries write one assertion a line."""


class ComposeCommands(ComposeDisks):
    """The part of the backend that runs test commands."""

    def __init__(self) -> None:
        super().__init__()
        self._test_commands: tuple[tuple[str, str], ...] = ()
        self._sdk: SdkOutput | None = None
        self._streams: docker.DockerClient | None = None
        self._executed = 0

    def _prepare_commands(self, test: Test, composition: settings.Composition, run_dir: Path) -> dict[str, str]:
        """Return the folder of this machine for the SDK's output of each service; none without test commands."""
        self._test_commands = settings.command_folders(composition, test.options.get(settings.TESTS.name))
        if not self._test_commands:
            return {}
        self._sdk = SdkOutput(run_dir.resolve() / SDK_OUTPUT)
        return {service: self._sdk.folder(service) for service in composition.config["services"]}

    def command_folders(self) -> Sequence[tuple[str, str]]:
        """Return the machines that have test commands, each with the folder of its test templates."""
        return self._test_commands

    def sdk_output(self) -> Sequence[tuple[str, str]]:
        """Return what the SDK has written in containers since the last call: pairs of a service and a JSON line."""
        return list(self._sdk.lines()) if self._sdk is not None else []

    def _drop_commands(self) -> None:
        if self._streams is not None:
            self._streams.close()
        if self._sdk is not None:
            self._sdk.remove()

    async def list_files(self, machine: str, folder: str) -> Sequence[ListedFile]:
        """Return the files in the subfolders of a container's folder; nothing if the folder does not exist."""
        ident = self.containers.ident(machine)

        def read() -> list[ListedFile]:
            assert self._client is not None
            try:
                stream, _ = self._client.api.get_archive(ident, folder.rstrip("/") + "/.")
            except NotFound:
                return []
            with tarfile.open(fileobj=io.BufferedReader(_Stream(stream)), mode="r|") as tar:
                return sorted(_listed(tar), key=lambda each: each.path)

        try:
            async with asyncio.timeout(LIST_SECONDS):
                return await self.containers.call(read)
        except TimeoutError:
            raise BackendError(f"{machine}: {folder} could not be listed within {LIST_SECONDS:g} s") from None

    async def execute(self, machine: str, path: str, environment: Mapping[str, str]) -> CommandEnd:
        """Execute a file of a container until it ends. If the caller is cancelled, end its processes.

        Raises:
            NotStarted: it certainly did not start. BackendError: its end is unknown.
        """
        if self._streams is None:
            self._streams = docker.from_env(timeout=None)  # type: ignore[arg-type]
        self._executed += 1
        own = {LOCAL_OUTPUT: f"{SDK_FOLDER}/command-{self._executed}.jsonl"} if self._sdk is not None else {}
        try:
            before, ident = await self.containers.state(machine), self.containers.ident(machine)
        except BackendError as error:
            raise NotStarted(str(error)) from None
        running = _Execution(self._streams, ident, path, {**own, **environment})
        try:
            status, output = await asyncio.wrap_future(running.begin())
        except asyncio.CancelledError:
            running.end()
            raise
        ended = status != 0 and await self._ended(machine, before.born, wait=status > _SIGNALLED)
        return CommandEnd(status, output, ended)

    async def _ended(self, machine: str, born: str, *, wait: bool) -> bool:
        """Return whether a container's first process is certainly no longer the one that began at a time."""
        deadline = time.monotonic() + (_MACHINE_SECONDS if wait else 0.0)
        with contextlib.suppress(BackendError):
            while (now := await self.containers.state(machine)).pid is not None and now.born == born:
                if time.monotonic() >= deadline:
                    return False
                await asyncio.sleep(_POLL_SECONDS)
            return True
        return False


class _Execution:
    """One command in a container. A separate thread waits for it, since it may take long."""

    def __init__(self, client: docker.DockerClient, container: str, path: str, environment: Mapping[str, str]) -> None:
        self._api = client.api
        self._container, self._path, self._environment = container, path, dict(environment)
        self._end: Future[tuple[int, str]] = Future()
        self._ident = ""
        self._unwanted = False
        self._lock = threading.Lock()

    def begin(self) -> Future[tuple[int, str]]:
        """Start it; return the future of its exit status and of the end of its output."""
        threading.Thread(target=self._work, name="stormproof-command", daemon=True).start()
        return self._end

    def end(self) -> None:
        """End its processes soon, without waiting for that."""
        with self._lock:
            self._unwanted = True
        threading.Thread(target=self._kill, name="stormproof-command-end", daemon=True).start()

    def _work(self) -> None:
        try:
            found = self._carry_out()
        except BaseException as error:  # the thread's caller gets it
            self._settle(error)
        else:
            self._settle(found)

    def _settle(self, found: tuple[int, str] | BaseException) -> None:
        if not self._end.set_running_or_notify_cancel():
            return
        if isinstance(found, BaseException):
            self._end.set_exception(found)
        else:
            self._end.set_result(found)

    def _carry_out(self) -> tuple[int, str]:
        try:
            made = self._api.exec_create(self._container, [self._path], environment=self._environment)
            with self._lock:
                if self._unwanted:
                    raise NotStarted("it was not needed any longer")
                self._ident = str(made["Id"])
            stream = self._api.exec_start(self._ident, stream=True)
        except APIError as error:
            raise NotStarted(reason_of(error)) from None
        except (DockerException, OSError) as error:
            raise BackendError(f"Docker failed: {error}") from None
        tail = b""
        with contextlib.suppress(Exception):  # Docker's library passes many kinds on; the status tells more
            for chunk in stream:
                tail = (tail + chunk)[-TAIL_BYTES:]
        output, status = tail.decode("utf-8", "replace"), self._status()
        if (status in _NOT_EXECUTED and "OCI runtime exec failed" in output) or (
                status and output.count("\n") == 1 and output.startswith(f"exec {self._path}: ")):  # fmt: skip
            raise NotStarted(" ".join(output.split())[-300:])
        return status, output

    def _status(self) -> int:
        deadline = time.monotonic() + _STATUS_SECONDS
        while True:
            found = self._inspect()
            if not found["Running"] and found["ExitCode"] is not None:
                return int(found["ExitCode"])
            if time.monotonic() > deadline:
                raise BackendError("Docker does not tell how the command ended")
            time.sleep(_POLL_SECONDS)

    def _inspect(self) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = self._api.exec_inspect(self._ident)
        except (DockerException, OSError) as error:
            raise BackendError(f"Docker does not tell how the command ended: {error}") from None
        return found

    def _kill(self) -> None:
        """End the command's process and its descendants, which have process ids of this machine, too."""
        deadline = time.monotonic() + _STATUS_SECONDS
        with contextlib.suppress(BackendError):
            while self._ident and time.monotonic() < deadline:
                found = self._inspect()
                if not found["Running"] and found["ExitCode"] is not None:
                    return
                if found["Running"] and (pid := int(found["Pid"] or 0)):
                    for each in (pid, *descendants(pid)):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(each, signal.SIGKILL)
                time.sleep(_POLL_SECONDS)


def descendants(pid: int) -> list[int]:
    """Return the processes that a process of this machine has started, and theirs."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                told = (entry / "stat").read_text(errors="replace")
                children.setdefault(int(told.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found, new = list[int](), [pid]
    while new:
        new = [child for each in new for child in children.get(each, ())]
        found += new
    return found


class _Stream(io.RawIOBase):
    """The chunks of an archive as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._left = iter(chunks), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._left = chunk
        part, self._left = self._left[: len(buffer)], self._left[len(buffer):]
        buffer[: len(part)] = part
        return len(part)


def _listed(tar: tarfile.TarFile) -> Iterator[ListedFile]:
    for member in tar:
        parts = PurePosixPath(member.name).parts
        if len(parts) == 2 and (member.isfile() or member.issym() or member.islnk()):
            yield ListedFile("/".join(parts), member.issym() or bool(member.mode & 0o111))


@dataclass
class _Place:
    """The part of a file that has been read: the file's identity, its length so far, and an incomplete line."""

    inode: int
    offset: int = 0
    partial: bytes = b""


class SdkOutput:
    """The files into which the SDK writes, in one folder a service.

    Programs in containers write here, so a file is read only if it is a regular one.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._places: dict[Path, _Place] = {}

    def folder(self, service: str) -> str:
        """Create the folder of a service, into which every user may write; return its path."""
        path = self._root / service
        path.mkdir(parents=True)
        path.chmod(0o777)
        return str(path)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the complete lines that are new, each with its service."""
        for service in sorted(path for path in self._root.iterdir() if path.is_dir()):
            for file in sorted(service.iterdir()):
                with contextlib.suppress(OSError):
                    yield from ((service.name, line) for line in self._new(file))

    def remove(self) -> None:
        """Remove all files."""
        shutil.rmtree(self._root, ignore_errors=True)

    def _new(self, file: Path) -> Iterator[str]:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as opened:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                return
            place = self._places.setdefault(file, _Place(status.st_ino))
            if place.inode != status.st_ino or status.st_size < place.offset:  # another process has begun it again
                place.inode, place.offset, place.partial = status.st_ino, 0, b""
            opened.seek(place.offset)
            content = opened.read(status.st_size - place.offset)
            place.offset += len(content)
        *whole, rest = (place.partial + content).split(b"\n")
        place.partial = rest if len(rest) <= _LINE_BYTES else b""
        for line in whole:
            if line.strip() and len(line) <= _LINE_BYTES:
                yield line.decode("utf-8", "replace")
