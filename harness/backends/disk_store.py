"""The contents of a disk that may fail: a folder, and the changes to it that a power loss would undo.

Files are those of a backing folder and are changed at once, as programs see them through the page cache. The store also
keeps the data that undoes unsynced changes. For each file it keeps the changes since the last sync, with the previous
contents. For names (created, deleted, renamed) it keeps a journal that can reverse each change. As on ext4 with its
journal, changes of names become durable in their order, with the next sync of any file or folder. Contents become
durable only by a sync of the same file (P. Alagappan et al., All File Systems Are Not Created Equal, OSDI 2014).

This module needs only the standard library, because it also runs on nodes.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

SECTOR = 512
"""Bytes that a disk writes atomically; a torn write ends at such a boundary."""
FULL_AFTER = 1 << 14
"""Bytes that a full disk still accepts; overwriting counts as well, as on copy-on-write file systems."""
PROBE_FILE = ".stormproof-probe"
"""A file whose failures are not counted, and which does not belong to the programs' stored data."""
HARNESS = "stormproof-sh"
"""The name (``/proc/PID/comm``) of a process that leads a session of the harness; its writes are not the system's."""
TAKE_NAME = f"printf {HARNESS} >/proc/$$/comm"
"""Mark a shell that leads a session as the harness's.

A daemon that detaches leaves the session. A line break in the name would tear the line of ``/proc/PID/stat``.
"""
WRITTEN_BACK_AFTER = 64 << 20
"""Bytes of changes that are kept for undoing; beyond them, the oldest changes count as written back by the system."""
BITS, TRUNCATE = "bits", "truncate"
"""Damages of the system's files."""
NOTHING, TORN, SOME = "nothing", "torn", "some"
"""The unsynced changes that reach the disk: none; a part of each file's last write; a random selection."""

_PAGE = 4096
_CHANGE_COST = 128
"""Bytes that any change costs in memory, in addition to its data."""
_SQLITE = b"SQLite format 3\0"
_BESIDE_DATABASES = ("-wal", "-journal", "-shm")

Place = TypeVar("Place")
Change = tuple[int, bytes | None]
"""A write (offset, bytes), or a change of size (size, None)."""


@dataclass
class _Unsynced:
    """The changes of one file since its last sync, and for each the previous size and contents."""

    fd: int
    changes: list[Change] = field(default_factory=list)
    before: list[tuple[int, int, bytes]] = field(default_factory=list)
    """(size, offset, previous bytes)."""
    times: list[float] = field(default_factory=list)
    """When each change was made, in seconds of the monotonic clock."""
    cost: int = 0

    def drop(self, count: int) -> int:
        """Forget the first changes, which are durable; return their cost."""
        pairs = zip(self.changes[:count], self.before[:count], strict=True)
        cost = sum(_cost_of(change, old) for change, (_, _, old) in pairs)
        del self.changes[:count], self.before[:count], self.times[:count]
        self.cost -= cost
        return cost

    def reverse(self) -> None:
        """Restore the contents as of the last sync."""
        for size, offset, old in reversed(self.before):
            os.pwrite(self.fd, old, offset)
            os.ftruncate(self.fd, size)


class WriteStore:
    """A backing folder ``root``, and a folder ``trash`` for deleted files that may have to be restored.

    Both are on the same file system. Paths are those that programs use, relative to the root. The class is not
    thread-safe, except ``held``.
    """

    def __init__(self, root: Path, trash: Path, rng: random.Random) -> None:
        self.root, self._trash, self._rng = root, trash, rng
        self._unsynced: dict[int, _Unsynced] = {}
        self._names: list[tuple[float, tuple[Callable[[], None], ...]]] = []
        """When each change of names was made, in seconds of the monotonic clock, and what reverses it."""
        self._deleted: list[Path] = []
        self._numbers = 0
        self._cost = 0
        self._written: set[int] = set()
        """The files (inodes) that the system has written."""
        self.lost_bytes = 0
        """Bytes of the system's writes that the last loss discarded."""
        self.lost_since: float | None = None
        """When the oldest write that the last loss discarded was made, in seconds of the monotonic clock; None if it
        discarded none."""
        self.damaged: list[str] = []
        """The places that the last damage changed."""

    def path(self, name: str) -> Path:
        """Return the path of a file in the backing folder."""
        return self.root / name.lstrip("/")

    # Contents.

    def write(self, fd: int, data: bytes, offset: int, system: bool = True) -> int:
        """Write into a file, for the system or for the harness; returns the number of bytes written.

        The descriptor must permit reading and writing.
        """
        found = os.fstat(fd)
        size = found.st_size
        if system:
            self._written.add(found.st_ino)
        old = os.pread(fd, min(len(data), max(0, size - offset)), offset)
        self._note(fd, (offset, data), (size, offset, old))
        return os.pwrite(fd, data, offset)

    def truncate(self, fd: int, length: int) -> None:
        """Change a file's size."""
        size = os.fstat(fd).st_size
        if size == length:
            return
        self._note(fd, (length, None), (size, length, os.pread(fd, max(0, size - length), length)))
        os.ftruncate(fd, length)

    def sync(self, fd: int) -> None:
        """Make a file's content durable, and all changes of names."""
        self._forget(os.fstat(fd).st_ino)
        self.sync_names()

    def sync_all(self) -> None:
        """Make everything durable, as before an orderly end."""
        for number in list(self._unsynced):
            self._forget(number)
        self.sync_names()

    @property
    def unsynced(self) -> int:
        """The number of changes that a power loss would undo."""
        return sum(len(file.changes) for file in self._unsynced.values()) + len(self._names)

    # Names.

    def created(self, name: str) -> None:
        """Record a file or link of that name that has just been created."""
        path = self.path(name)
        found = path.lstat()
        if found.st_nlink == 1:  # The inode number may have belonged to a deleted file.
            self._written.discard(found.st_ino)
        self._renamed(lambda: path.unlink(missing_ok=True))

    def made_folder(self, name: str) -> None:
        """Record a folder of that name that has just been created."""
        path = self.path(name)
        self._renamed(lambda: shutil.rmtree(path, ignore_errors=True))

    def unlink(self, name: str) -> None:
        """Delete one name of a file."""
        path, kept = self.path(name), self._place()
        path.rename(kept)
        self._deleted.append(kept)
        self._renamed(lambda: _move(kept, path))

    def rmdir(self, name: str) -> None:
        """Delete an empty folder."""
        path = self.path(name)
        found = path.stat()
        path.rmdir()
        self._renamed(lambda: _make_folder(path, found))

    def rename(self, old: str, new: str) -> None:
        """Rename atomically, replacing any file of the new name."""
        source, target = self.path(old), self.path(new)
        replaced = target.lstat() if os.path.lexists(target) else None
        if replaced is None:
            source.rename(target)
            self._renamed(lambda: _move(target, source))
        elif stat.S_ISDIR(replaced.st_mode):
            source.rename(target)
            self._renamed(lambda: _move(target, source), lambda: _make_folder(target, replaced))
        elif os.path.samestat(replaced, source.lstat()):
            return  # Both are names of one file: rename(2) does nothing.
        else:
            kept = self._place()
            os.link(target, kept, follow_symlinks=False)
            self._deleted.append(kept)
            source.rename(target)
            self._renamed(lambda: _move(target, source), lambda: _move(kept, target))

    def sync_names(self) -> None:
        """Make all changes of names durable."""
        self._names.clear()
        deleted, self._deleted = self._deleted, []
        for kept in deleted:
            try:
                found = kept.lstat()
                kept.unlink()
            except FileNotFoundError:
                continue
            if found.st_nlink == 1:
                self._forget(found.st_ino)

    def _renamed(self, *reverse: Callable[[], None]) -> None:
        """Record a change of names, which is on the disk as a whole or not at all; ``reverse`` are the steps that
        reverse it."""
        self._names.append((time.monotonic(), reverse))

    def write_back(self, until: float) -> None:
        """Make durable what was changed before that moment of the monotonic clock, as the system's periodic write-back
        does."""
        for number, file in list(self._unsynced.items()):
            old = bisect_left(file.times, until)
            if old == len(file.times):
                self._forget(number)
            else:
                self._cost -= file.drop(old)
        self._names = self._names[bisect_left([at for at, _ in self._names], until) :]
        if not self._names:
            self.sync_names()

    # Faults of disks.

    def lose(self, luck: str) -> int:
        """Discard unsynced changes, except those that reached the disk by chance: ``NOTHING``, ``TORN`` or ``SOME``.

        Returns:
            The number of unsynced changes.
        """
        count = self.unsynced
        self.lost_bytes, self.lost_since = 0, None
        for number, file in self._unsynced.items():
            survivors = self._survivors(file.changes, luck)
            if number in self._written:
                self._count_lost(file, survivors)
            file.reverse()
            for change in survivors:
                _apply(file.fd, change)
        for number in list(self._unsynced):
            self._forget(number)
        durable = self._rng.randrange(len(self._names) + 1) if luck == SOME else 0
        for _, steps in reversed(self._names[durable:]):
            for step in steps:
                step()
        self.sync_names()
        return count

    def _count_lost(self, file: _Unsynced, survivors: list[Change]) -> None:
        kept = {id(change) for change in survivors}
        lost = [at for at, change in enumerate(file.changes) if change[1] and id(change) not in kept]
        self.lost_bytes += sum(len(file.changes[at][1] or b"") for at in lost)
        times = [file.times[at] for at in lost]
        self.lost_since = min([*times, *([] if self.lost_since is None else [self.lost_since])], default=None)

    def corrupt(self) -> int:
        """Turn one page of one of the system's files into noise; prefers a database.

        Returns:
            The number of files damaged: 1, or 0 when there is none.
        """
        found = [path for path in self.held() if path.stat().st_size and not path.name.endswith(_BESIDE_DATABASES)]
        chosen = [path for path in found if _is_database(path)] or found
        if not chosen:
            return 0
        path = self._rng.choice(chosen)
        size, page = path.stat().st_size, _page_size(path)
        start = page * self._rng.randrange(max(1, size // page))
        with path.open("r+b") as file:
            os.pwrite(file.fileno(), self._rng.randbytes(min(page, size - start)), start)
        return 1

    def damage(self, kind: str, pattern: str, bits: int) -> int:
        """Flip bits at random places of the system's files that match, or cut off the end of one (``TRUNCATE``).

        A damaged file counts as written back: the damage is on the disk. ``damaged`` has the places.

        Returns:
            The number of files that have changed.
        """
        self.damaged = []
        found = [path for path in self.held() if path.stat().st_size and matches(self._name(path), pattern)]
        if not found:
            return 0
        if kind == TRUNCATE:
            path = self._rng.choice(found)
            size = path.stat().st_size
            self._forget(path.stat().st_ino)
            left = self._rng.randrange(size)
            os.truncate(path, left)
            self.damaged = [f"{self._name(path)}: {left} of {size} bytes left"]
            return 1
        flipped = flips([(path, path.stat().st_size) for path in found], bits, self._rng)
        for path, places in flipped.items():
            self._forget(path.stat().st_ino)
            with path.open("r+b") as file:
                for offset, bit in places:
                    (old,) = os.pread(file.fileno(), 1, offset)
                    os.pwrite(file.fileno(), bytes([old ^ 1 << bit]), offset)
                    self.damaged.append(f"{self._name(path)}: bit {bit} of byte {offset}")
        return len(flipped)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def held(self) -> list[Path]:
        """List the files that the system has written. Other threads may use the store at the same time."""
        found = []
        for place, _, names in os.walk(self.root):
            for path in (Path(place, name) for name in names):
                try:
                    entry = path.lstat()
                except FileNotFoundError:
                    continue  # It was removed in the meantime.
                if stat.S_ISREG(entry.st_mode) and entry.st_ino in self._written:
                    found.append(path)
        return sorted(found)

    def empty(self) -> None:
        """Empty the disk, as if a new one had replaced it."""
        self.sync_all()
        for path in self.root.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _survivors(self, changes: list[Change], luck: str) -> list[Change]:
        if luck == TORN:
            return [_torn(changes[-1], self._rng)]
        chance = self._rng.random()
        if luck == NOTHING or chance < 0.4:
            return []
        if chance < 0.7:
            survivors = changes[: self._rng.randrange(len(changes) + 1)]
        else:
            survivors = [change for change in changes if self._rng.random() < 0.5]
        if survivors and self._rng.random() < 0.5:
            survivors[-1] = _torn(survivors[-1], self._rng)
        return survivors

    def _note(self, fd: int, change: Change, before: tuple[int, int, bytes]) -> None:
        number = os.fstat(fd).st_ino
        file = self._unsynced.get(number)
        if file is None:
            # The store opens a separate descriptor, because the program may close its own before any loss.
            file = self._unsynced[number] = _Unsynced(os.open(f"/proc/self/fd/{fd}", os.O_RDWR))
        file.changes.append(change)
        file.before.append(before)
        file.times.append(time.monotonic())
        cost = _cost_of(change, before[2])
        file.cost += cost
        self._cost += cost
        while self._cost > WRITTEN_BACK_AFTER:
            self._forget(next(iter(self._unsynced)))

    def _forget(self, number: int) -> None:
        """Drop the recorded changes of a file: they are durable, or have been undone."""
        file = self._unsynced.pop(number, None)
        if file is not None:
            self._cost -= file.cost
            os.close(file.fd)

    def _place(self) -> Path:
        self._numbers += 1
        return self._trash / str(self._numbers)


def _cost_of(change: Change, old: bytes) -> int:
    return _CHANGE_COST + len(change[1] or b"") + len(old)


def matches(name: str, pattern: str) -> bool:
    """Return whether a path below the data folder matches a shell pattern, in which ``*`` also matches slashes and
    ``**/`` no folder."""
    return fnmatchcase(name, pattern) or fnmatchcase(f"/{name}", pattern)


def flips(files: list[tuple[Place, int]], bits: int, rng: random.Random) -> dict[Place, list[tuple[int, int]]]:
    """Return random places of ``bits`` different bits in files of these sizes in bytes: (offset, bit) by file."""
    found: dict[Place, list[tuple[int, int]]] = {}
    for place in sorted(rng.sample(range(total := 8 * sum(size for _, size in files)), min(bits, total))):
        for file, size in files:
            if place < 8 * size:
                found.setdefault(file, []).append((place // 8, place % 8))
                break
            place -= 8 * size
    return found


def _apply(fd: int, change: Change) -> None:
    offset, data = change
    if data is None:
        os.ftruncate(fd, offset)
    else:
        os.pwrite(fd, data, offset)


def _torn(change: Change, rng: random.Random) -> Change:
    """Return the first sectors of a write, or none; a write smaller than a sector is cut at any byte."""
    offset, data = change
    if data is None:
        return change
    unit = SECTOR if len(data) > SECTOR else 1
    return offset, data[: unit * rng.randrange(max(1, len(data) // unit))]


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def _page_size(path: Path) -> int:
    """Return a database's page size, or the default for any other file."""
    with path.open("rb") as file:
        header = file.read(18)
    size = int.from_bytes(header[16:18], "big") if header.startswith(_SQLITE) else 0
    return size if size >= SECTOR else _PAGE


def _move(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except FileNotFoundError:
        pass  # It was in a folder that no longer exists.


def _make_folder(path: Path, like: os.stat_result) -> None:
    path.mkdir(exist_ok=True)
    path.chmod(stat.S_IMODE(like.st_mode))
    os.chown(path, like.st_uid, like.st_gid)
