"""The lock file: a line of text with the epoch and its present or last holder; it is on disk before a request is
answered.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Protocol

from nodes.reference.designs.fiorano.gateway.grants import LockRecord

_LINE = re.compile(r"epoch (\d{1,15}) (?P<free>free, last )?holder (\S*)\n")
MAX_EPOCH = 10**15 - 1
"""The largest epoch that fits into the line."""
MAX_FILE_BYTES = 1000


class LockFileAccess(Protocol):
    """The storage of the line."""

    async def read(self) -> bytes | None:
        """Return the content; None for no file. Raises OSError."""
        ...

    async def write(self, content: bytes) -> None:
        """Replace the content; it is on disk when this returns. Raises OSError."""
        ...


class RealLockFile:
    """A file of this machine, replaced atomically."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    async def read(self) -> bytes | None:
        """Return the beginning of the file, long enough for a whole lock file; None if the file does not exist."""
        try:
            with self._path.open("rb") as file:
                return file.read(MAX_FILE_BYTES)
        except FileNotFoundError:
            return None

    async def write(self, content: bytes) -> None:
        """Write a temporary file next to it, and rename that."""
        part = self._path.with_name(f"{self._path.name}.part")
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def encoded(record: LockRecord, free: bool = False) -> bytes:
    """Encode the content of a lock file; ``free``: the lock is free, and the holder is the last one."""
    return f"epoch {record.epoch} {'free, last ' if free else ''}holder {record.holder}\n".encode()


def decoded(content: bytes) -> LockRecord | None:
    """Decode a lock file; None for a damaged one."""
    match = _match(content)
    return LockRecord(int(match[1]), match[3]) if match else None


def holder_in(content: bytes) -> str:
    """Return the present holder according to the file; empty for none."""
    match = _match(content)
    return match[3] if match and not match["free"] else ""


def _match(content: bytes) -> re.Match[str] | None:
    try:
        return _LINE.fullmatch(content.decode())
    except UnicodeDecodeError:
        return None
