"""What a disk that may fail has stored: a folder, and which of the changes made to it a power loss would take back.

Files are those of a backing folder, changed at once, as programs see them through the page cache. Beside them is kept
what it takes to forget what was not synced: for each file the changes since its last sync with what had been there
before, and for names (created, deleted, renamed) a journal of how to reverse each. As on ext4 with its journal, names
become durable in the order in which they were changed, with the next sync of any file or folder; contents become
durable by a sync of their own file alone (P. Alagappan et al., All File Systems Are Not Created Equal, OSDI 2014).

This module needs the standard library alone: it also runs on nodes.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

SECTOR = 512
"""Bytes that a disk writes as a whole; a torn write ends at such a boundary."""
FULL_AFTER = 1 << 14
"""Bytes that still go onto a disk that gets full; writing over others counts as well, as where copies are kept."""
PROBE_FILE = ".stormproof-probe"
"""A file whose failures are not counted, and which is no part of what programs have stored."""
HARNESS = "stormproof-sh"
"""The name (``/proc/PID/comm``) of a process that leads a session of the harness: writes there are not the system's."""
TAKE_NAME = f"printf {HARNESS} >/proc/$$/comm"
"""Mark a shell that leads a session as the harness's. A daemon that detaches leaves the session. A line break in the
name would tear the line of ``/proc/PID/stat``."""
WRITTEN_BACK_AFTER = 64 << 20
"""Bytes of changes that are kept to be forgotten; beyond them the system writes back what was changed first."""
NOTHING, TORN, SOME = "nothing", "torn", "some"
"""What of the un-synced changes reaches the disk: nothing; of each file's last write a part; whatever luck decides."""

_PAGE = 4096
_CHANGE_COST = 128
"""Bytes that it takes to remember any change."""
_SQLITE = b"SQLite format 3\0"
_BESIDE_DATABASES = ("-wal", "-journal", "-shm")

Change = tuple[int, bytes | None]
"""(offset, bytes) written, or (size, None) set as the size."""


@dataclass
class _Unsynced:
    """The changes of one file since its last sync, and for each the size before and what had been there."""

    fd: int
    changes: list[Change] = field(default_factory=list)
    before: list[tuple[int, int, bytes]] = field(default_factory=list)
    """(size, offset, bytes that were there)."""
    cost: int = 0

    def reverse(self) -> None:
        """Bring the file back to what its last sync left."""
        for size, offset, old in reversed(self.before):
            os.pwrite(self.fd, old, offset)
            os.ftruncate(self.fd, size)


class Store:
    """A backing folder ``root`` and, in ``trash``, on the same file system, what was deleted and may come back.

    Paths are those that programs use, relative to the root. Not for several threads at once, but for ``held``.
    """

    def __init__(self, root: Path, trash: Path, rng: random.Random) -> None:
        self.root, self._trash, self._rng = root, trash, rng
        self._unsynced: dict[int, _Unsynced] = {}
        self._names: list[Callable[[], None]] = []
        self._deleted: list[Path] = []
        self._numbers = 0
        self._cost = 0
        self._written: set[int] = set()
        """The files (inodes) into which the system has written."""

    def path(self, name: str) -> Path:
        """Where a file lies in the backing folder."""
        return self.root / name.lstrip("/")

    # Contents.

    def write(self, fd: int, data: bytes, offset: int, system: bool = True) -> int:
        """Write into a file, by a descriptor that can read and write, for the system or for the harness; the bytes
        written."""
        found = os.fstat(fd)
        size = found.st_size
        if system:
            self._written.add(found.st_ino)
        old = os.pread(fd, min(len(data), max(0, size - offset)), offset)
        self._note(fd, (offset, data), (size, offset, old))
        return os.pwrite(fd, data, offset)

    def truncate(self, fd: int, length: int) -> None:
        """Give a file another size."""
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
        """How many changes a power loss would take back."""
        return sum(len(file.changes) for file in self._unsynced.values()) + len(self._names)

    # Names.

    def created(self, name: str) -> None:
        """A file or link of that name has just been made."""
        path = self.path(name)
        found = path.lstat()
        if found.st_nlink == 1:  # the number may be that of a file that is gone
            self._written.discard(found.st_ino)
        self._names.append(lambda: path.unlink(missing_ok=True))

    def made_folder(self, name: str) -> None:
        """A folder of that name has just been made."""
        path = self.path(name)
        self._names.append(lambda: shutil.rmtree(path, ignore_errors=True))

    def unlink(self, name: str) -> None:
        """Delete a name of a file."""
        path, kept = self.path(name), self._place()
        path.rename(kept)
        self._deleted.append(kept)
        self._names.append(lambda: _move(kept, path))

    def rmdir(self, name: str) -> None:
        """Delete an empty folder."""
        path = self.path(name)
        found = path.stat()
        path.rmdir()
        self._names.append(lambda: _make_folder(path, found))

    def rename(self, old: str, new: str) -> None:
        """Rename, at once, in place of whatever has the new name."""
        source, target = self.path(old), self.path(new)
        replaced = target.lstat() if os.path.lexists(target) else None
        if replaced is None or stat.S_ISDIR(replaced.st_mode):
            source.rename(target)
            if replaced is not None:
                self._names.append(lambda: _make_folder(target, replaced))
        elif os.path.samestat(replaced, source.lstat()):
            return  # two names of one file: nothing happens (rename(2))
        else:
            kept = self._place()
            os.link(target, kept, follow_symlinks=False)
            self._deleted.append(kept)
            source.rename(target)
            self._names.append(lambda: _move(kept, target))
        self._names.append(lambda: _move(target, source))

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

    # What happens to disks.

    def lose(self, luck: str) -> int:
        """Forget what was not synced, but for what happened to reach the disk: ``NOTHING``, ``TORN`` or ``SOME``.

        Returns:
            How many changes there were.
        """
        count = self.unsynced
        for file in self._unsynced.values():
            survivors = self._survivors(file.changes, luck)
            file.reverse()
            for change in survivors:
                _apply(file.fd, change)
        for number in list(self._unsynced):
            self._forget(number)
        durable = self._rng.randrange(len(self._names) + 1) if luck == SOME else 0
        for reverse in reversed(self._names[durable:]):
            reverse()
        self.sync_names()
        return count

    def corrupt(self) -> int:
        """Turn one page of one of the system's files into noise, of a database where there is one; how many files that
        were."""
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

    def held(self) -> list[Path]:
        """List the files into which the system has written. Others may use the store meanwhile."""
        found = []
        for place, _, names in os.walk(self.root):
            for path in (Path(place, name) for name in names):
                try:
                    entry = path.lstat()
                except FileNotFoundError:
                    continue  # it was removed meanwhile
                if stat.S_ISREG(entry.st_mode) and entry.st_ino in self._written:
                    found.append(path)
        return sorted(found)

    def empty(self) -> None:
        """The disk was replaced by a new one."""
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
            # Its own: the program's may be closed before anything is lost.
            file = self._unsynced[number] = _Unsynced(os.open(f"/proc/self/fd/{fd}", os.O_RDWR))
        file.changes.append(change)
        file.before.append(before)
        cost = _CHANGE_COST + len(change[1] or b"") + len(before[2])
        file.cost += cost
        self._cost += cost
        while self._cost > WRITTEN_BACK_AFTER:
            self._forget(next(iter(self._unsynced)))

    def _forget(self, number: int) -> None:
        """What was changed in a file is durable, or has been taken back."""
        file = self._unsynced.pop(number, None)
        if file is not None:
            self._cost -= file.cost
            os.close(file.fd)

    def _place(self) -> Path:
        self._numbers += 1
        return self._trash / str(self._numbers)


def _apply(fd: int, change: Change) -> None:
    offset, data = change
    if data is None:
        os.ftruncate(fd, offset)
    else:
        os.pwrite(fd, data, offset)


def _torn(change: Change, rng: random.Random) -> Change:
    """The first sectors of a write, or not even one; smaller ones are cut anywhere."""
    offset, data = change
    if data is None:
        return change
    unit = SECTOR if len(data) > SECTOR else 1
    return offset, data[: unit * rng.randrange(max(1, len(data) // unit))]


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def _page_size(path: Path) -> int:
    """That of a database; the usual one of anything else."""
    with path.open("rb") as file:
        header = file.read(18)
    size = int.from_bytes(header[16:18], "big") if header.startswith(_SQLITE) else 0
    return size if size >= SECTOR else _PAGE


def _move(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except FileNotFoundError:
        pass  # it was in a folder that is gone


def _make_folder(path: Path, like: os.stat_result) -> None:
    path.mkdir(exist_ok=True)
    path.chmod(stat.S_IMODE(like.st_mode))
    os.chown(path, like.st_uid, like.st_gid)
