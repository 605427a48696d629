"""Where a repository's bytes lie: a file, or memory that forgets at a crash what a disk would."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
from pathlib import Path
from typing import Protocol


class RepositoryError(Exception):
    """The repository can't be used; the text is one line: which, what is wrong, what to do."""


class Storage(Protocol):
    """Bytes that grow at the end, and are replaced as a whole now and then."""

    name: str

    def read(self) -> bytes:
        """All that is there."""
        ...

    def append(self, data: bytes) -> None:
        """Add bytes at the end, where a crash may leave a part of them. Raises OSError."""

    def sync(self) -> None:
        """Make durable what was added. Raises OSError; nothing may be added after that."""

    def replace(self, data: bytes) -> None:
        """Put these bytes in place of all others, durably: after a crash it is the one or the other. Raises OSError."""

    def cut(self, size: int) -> None:
        """Keep this many bytes, durably; those behind are set aside where a person finds them. Raises OSError."""

    def close(self) -> None:
        """Let somebody else use it."""


class FileStorage:
    """A file, used by one process at a time."""

    def __init__(self, path: Path) -> None:
        """Open the file, or make it.

        Raises:
            RepositoryError: another process uses it, or it can't be opened.
        """
        self.name = str(path)
        self._path = path
        self._lock = self._file = -1
        try:
            # The lock has a file of its own, since the other one is replaced.
            self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file = self._open()
        except BlockingIOError:
            self.close()
            raise RepositoryError(f"{path}: another client uses this repository; give each a separate file") from None
        except OSError as error:
            self.close()
            raise RepositoryError(f"{path}: the repository can't be opened: {error.strerror or error}") from error

    def _open(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def read(self) -> bytes:
        """All that is there."""
        return self._path.read_bytes()

    def append(self, data: bytes) -> None:
        """Add bytes at the end."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]

    def sync(self) -> None:
        """Make durable what was added."""
        os.fsync(self._file)

    def replace(self, data: bytes) -> None:
        """Put these bytes in place of all others."""
        self._write_beside(".new", data)
        Path(f"{self._path}.new").replace(self._path)
        self._sync_folder()
        os.close(self._file)
        self._file = self._open()

    def cut(self, size: int) -> None:
        """Keep this many bytes."""
        self._write_beside(".tail", self.read()[size:])
        self._sync_folder()
        os.ftruncate(self._file, size)
        os.fsync(self._file)

    def _write_beside(self, suffix: str, data: bytes) -> None:
        with open(f"{self._path}{suffix}", "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def _sync_folder(self) -> None:
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        """Let another process use it."""
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._lock = self._file = -1


class MemoryStorage:
    """The same in memory; ``crash`` forgets what a power failure would."""

    def __init__(self, name: str = "repository") -> None:
        self.name = name
        self.tail = b""
        """What was set aside last."""
        self._data = bytearray()
        self._synced = 0
        self._used = True

    def read(self) -> bytes:
        """All that is there."""
        return bytes(self._data)

    def append(self, data: bytes) -> None:
        """Add bytes at the end."""
        if not self._used:
            raise OSError("it is closed")
        self._data += data

    def sync(self) -> None:
        """Make durable what was added."""
        self._synced = len(self._data)

    def replace(self, data: bytes) -> None:
        """Put these bytes in place of all others."""
        self._data[:] = data
        self.sync()

    def cut(self, size: int) -> None:
        """Keep this many bytes."""
        self.tail = bytes(self._data[size:])
        del self._data[size:]
        self.sync()

    def close(self) -> None:
        """Nothing is added any more."""
        self._used = False

    def crash(self, rng: random.Random) -> MemoryStorage:
        """What the next process finds; this one's is of no use any more. Of what was not synced some came to the disk:
        a part of it, or a part with a hole where nothing was written."""
        found = MemoryStorage(self.name)
        unsynced = bytes(self._data[self._synced :])
        kept = rng.randrange(len(unsynced) + 1)
        survived = bytearray(unsynced[:kept])
        if kept > 1 and rng.random() < 0.3:
            hole = rng.randrange(kept)
            survived[hole : hole + rng.randrange(1, kept - hole + 1)] = b""
            survived[hole:hole] = bytes(kept - len(survived))
        found.replace(bytes(self._data[: self._synced]) + bytes(survived))
        self.close()
        return found
