"""The storage of a repository's bytes: a file, or memory that loses at a crash the data that a disk would lose."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
from pathlib import Path
from typing import Protocol


class RepositoryError(Exception):
    """The repository can't be used; the text is one line: the repository, the problem, and the remedy."""


class Storage(Protocol):
    """Bytes that are appended to, and sometimes replaced as a whole."""

    name: str

    def read(self) -> bytes:
        """Return all stored bytes."""
        ...

    def append(self, data: bytes) -> None:
        """Add bytes at the end; a crash may leave only a part of them. Raises OSError."""

    def sync(self) -> None:
        """Make the added bytes durable. Raises OSError; after that no bytes may be added."""

    def replace(self, data: bytes) -> None:
        """Replace all bytes by these, durably and atomically: a crash leaves either the old or the new ones. Raises
        OSError."""

    def cut(self, size: int) -> None:
        """Truncate to this many bytes, durably; the rest is set aside where a person finds it. Raises OSError."""

    def close(self) -> None:
        """Release the storage for other users."""


class FileStorage:
    """A file, used by one process at a time."""

    def __init__(self, path: Path) -> None:
        """Open the file, or create it.

        Raises:
            RepositoryError: another process uses it, or it can't be opened.
        """
        self.name = str(path)
        self._path = path
        self._lock = self._file = -1
        try:
            # The lock is a separate file, since the other one is replaced.
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
        """Return all stored bytes."""
        return self._path.read_bytes()

    def append(self, data: bytes) -> None:
        """Add bytes at the end."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]

    def sync(self) -> None:
        """Make the added bytes durable."""
        os.fsync(self._file)

    def replace(self, data: bytes) -> None:
        """Replace all bytes by these."""
        self._write_beside(".new", data)
        Path(f"{self._path}.new").replace(self._path)
        self._sync_folder()
        os.close(self._file)
        self._file = self._open()

    def cut(self, size: int) -> None:
        """Truncate to this many bytes."""
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
        """Release the file for other processes."""
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._lock = self._file = -1


class MemoryStorage:
    """The same in memory; ``crash`` loses the data that a power failure would lose."""

    def __init__(self, name: str = "repository") -> None:
        self.name = name
        self.tail = b""
        """The bytes that were set aside last."""
        self._data = bytearray()
        self._synced = 0
        self._used = True

    def read(self) -> bytes:
        """Return all stored bytes."""
        return bytes(self._data)

    def append(self, data: bytes) -> None:
        """Add bytes at the end."""
        if not self._used:
            raise OSError("it is closed")
        self._data += data

    def sync(self) -> None:
        """Make the added bytes durable."""
        self._synced = len(self._data)

    def replace(self, data: bytes) -> None:
        """Replace all bytes by these."""
        self._data[:] = data
        self.sync()

    def cut(self, size: int) -> None:
        """Truncate to this many bytes."""
        self.tail = bytes(self._data[size:])
        del self._data[size:]
        self.sync()

    def close(self) -> None:
        """Refuse further additions."""
        self._used = False

    def crash(self, rng: random.Random) -> MemoryStorage:
        """Return the storage that the next process finds; this one becomes unusable. A part of the unsynced bytes
        reached the disk: a prefix, or a prefix with a hole where nothing was written."""
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
