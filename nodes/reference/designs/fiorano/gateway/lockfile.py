"""The lock file: a line of text with the epoch and who holds it, or held it last; on disk before anybody is told."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Protocol

from nodes.reference.designs.fiorano.gateway.grants import Record

_LINE = re.compile(r"epoch (\d{1,15}) (?P<free>free, last )?holder (\S*)\n")
MOST_EPOCH = 10**15 - 1
"""What the line has room for."""
MOST_BYTES = 1000


class LockFile(Protocol):
    """Where the line is kept."""

    async def read(self) -> bytes | None:
        """What is there; None for no file. Raises OSError."""
        ...

    async def write(self, content: bytes) -> None:
        """Replace what is there; on disk when this returns. Raises OSError."""
        ...


class RealLockFile:
    """A file of this machine, replaced as a whole."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    async def read(self) -> bytes | None:
        """The beginning of the file, which is more than a lock file has; None where there is none."""
        try:
            with self._path.open("rb") as file:
                return file.read(MOST_BYTES)
        except FileNotFoundError:
            return None

    async def write(self, content: bytes) -> None:
        """Write beside it, and rename."""
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


def encoded(record: Record, free: bool = False) -> bytes:
    """The content of a lock file; ``free``: nobody holds the lock, and the holder is the last one."""
    return f"epoch {record.epoch} {'free, last ' if free else ''}holder {record.holder}\n".encode()


def decoded(content: bytes) -> Record | None:
    """What a lock file says; None for one that is damaged."""
    match = _match(content)
    return Record(int(match[1]), match[3]) if match else None


def holder_in(content: bytes) -> str:
    """Who holds the lock as the file says; empty: nobody."""
    match = _match(content)
    return match[3] if match and not match["free"] else ""


def _match(content: bytes) -> re.Match[str] | None:
    try:
        return _LINE.fullmatch(content.decode())
    except UnicodeDecodeError:
        return None
