"""A disk that fails on demand: a FUSE file system over a folder, as a separate program.

``python fuse_disk.py MOUNT_POINT FOLDER SEED`` mounts, prints ``{"ready": true}`` and then reads commands from standard
input, one JSON object a line. It answers each command with one line. At the end of its input it unmounts and ends.
Programs see an ordinary file system; synced data is kept, unsynced data may be lost in a power cut (``disk_store``).
The program needs libfuse3 and mfusepy, and no other module of this project than ``disk_store``, because it also runs on
nodes.

A fault has taken effect when it has hit the system: a call of the system failed or was slow, or files that the system
had written were lost or damaged. Calls from sessions of the harness (``HARNESS``) are not counted.

Commands: ``fault`` (with ``kind``, None for none; ``seconds``; ``files`` and ``bits``), ``count``, ``use`` (writes and
syncs of the system so far, the number of its existing files, and its damaged places), ``dark`` (power fails: from now
on no data reaches the disk, and no sync succeeds), ``lose`` (with ``luck``: unsynced data is discarded), ``light``
(power returns), ``sync``, ``write-back`` (after ``seconds``), ``end`` (equivalent to the end of the input).
"""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mfusepy

if __package__:
    from harness.backends.disk_store import BITS, FULL_AFTER, HARNESS, NOTHING, PROBE_FILE, TRUNCATE, WriteStore
else:
    from disk_store import (  # type: ignore[import-not-found,no-redef,unused-ignore]
        BITS,
        FULL_AFTER,
        HARNESS,
        NOTHING,
        PROBE_FILE,
        TRUNCATE,
        WriteStore,
    )

DAMAGES_TOLD = 20
"""The greatest number of places of a damage in an answer."""
DARK_SECONDS = 0.5
"""Seconds for which a call waits, without power, for its program to be killed, before it fails."""

_ENDED_BY_SIGNAL = 8
"""The exit code of fuse_main(3) when a signal ends it."""
_UTIME_NOW, _UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
_TIMES = ("st_atime", "st_mtime", "st_ctime")
_ATTRIBUTES = ("st_mode", "st_ino", "st_dev", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks", "st_rdev")


class FaultyDisk(mfusepy.Operations):  # type: ignore[misc]
    """The file system: calls of programs, through libfuse, and commands, each from a separate thread."""

    use_ns = True

    def __init__(self, store: WriteStore) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._probes: set[int] = set()
        self._ours: set[int] = set()
        """Files that the harness has opened, including the probe's."""
        self._kind: str | None = None
        self._seconds = 0.0
        self._room = 0
        self._shown = 0
        self._cuts = 0
        self._lost = 0
        self._writes = 0
        self._syncs = 0
        self._lost_age: float | None = None
        """Age of the oldest write that the last loss discarded, in seconds, when the power went."""
        self._write_back = 0.0
        """Seconds after which unsynced data is on the disk nevertheless; 0: never."""
        self._dark_at: float | None = None
        self._light = threading.Event()
        self._light.set()

    # Commands.

    def command(self, words: dict[str, Any]) -> dict[str, Any]:
        """Carry out a command, and return the disk's resulting state."""
        name = words["do"]
        if name == "use":  # This branch takes no lock: a walk through many files must not delay programs.
            return {"files": len(self._store.held()), "writes": self._writes, "syncs": self._syncs,
                    "lost_bytes": self._store.lost_bytes, "lost_age": self._lost_age,
                    "damaged": self._store.damaged[:DAMAGES_TOLD]}
        with self._lock:
            if name == "fault":
                self._set_fault(words)
            elif name == "dark":
                self._light.clear()
                self._dark_at = self._dark_at or time.monotonic()
            elif name == "lose":
                self._cuts += 1
                if self._write_back:
                    self._store.write_back((self._dark_at or time.monotonic()) - self._write_back)
                self._shown += self._kind is not None and bool(self._store.held())
                self._lost += self._store.lose(words.get("luck", NOTHING))
                since = self._store.lost_since
                self._lost_age = None if since is None else (self._dark_at or time.monotonic()) - since
            elif name == "light":
                self._light.set()
                self._dark_at = None
            elif name == "sync":
                self._store.sync_all()
            elif name == "write-back":
                self._write_back = float(words["seconds"])
            elif name != "count":
                raise ValueError(f"unknown command {name!r}")
            return {"shown": self._shown, "cuts": self._cuts, "lost": self._lost, "unsynced": self._store.unsynced}

    def _set_fault(self, words: dict[str, Any]) -> None:
        kind: str | None = words.get("kind")
        self._kind, self._seconds = kind, float(words.get("seconds", 0.0))
        if kind is None:
            return
        self._shown = 0
        if kind == "full":
            self._room = FULL_AFTER
        elif kind == "empty":
            self._shown = int(bool(self._store.held()))
            self._store.empty()
        elif kind == "corrupt":
            self._shown = self._store.corrupt()
        elif kind in (BITS, TRUNCATE):
            self._shown = self._store.damage(kind, words["files"], int(words["bits"]))

    # Faults.

    def _writing(self, count: int, ours: bool, probe: bool = False) -> None:
        """Register a write of ``count`` bytes, by the system or the harness; raises OSError when the disk refuses."""
        if self._kind == "write-error":
            self._shown += not ours
            raise OSError(errno.EIO, "write error")
        if self._kind == "full":
            left = self._room - count
            self._room = self._room if probe else max(0, left)
            if left < 0:
                self._shown += not ours
                raise OSError(errno.ENOSPC, "the disk is full")

    def _syncing(self, ours: bool) -> None:
        """Register a sync, by the system or by the harness; raises OSError when the disk refuses it."""
        self._demand_power()
        with self._lock:
            kind, seconds = self._kind, self._seconds
            self._syncs += not ours
            self._shown += kind in ("sync-error", "slow") and not ours
        if kind == "sync-error":
            raise OSError(errno.EIO, "sync error")
        if kind == "slow":
            time.sleep(seconds)

    def _demand_power(self) -> None:
        """Raise OSError without power, after a delay in which a program that is about to be killed has ended."""
        if not self._light.is_set():
            self._light.wait(DARK_SECONDS)
            raise OSError(errno.EIO, "the power is off")

    @contextmanager
    def _changing_names(self, name: str) -> Iterator[bool]:
        """Yield whether the name is the probe's file; raises OSError when there is no power."""
        self._demand_power()
        with self._lock:
            probe = name.rpartition("/")[2] == PROBE_FILE
            if not self._light.is_set():
                raise OSError(errno.EIO, "the power is off")
            yield probe

    # Files.

    def getattr(self, path: str | None, fh: int | None = None) -> dict[str, Any]:
        found = self._store.path(path).lstat() if fh is None and path is not None else os.fstat(fh or 0)
        return {name: getattr(found, name) for name in _ATTRIBUTES} | {
            name: getattr(found, f"{name}_ns") for name in _TIMES}  # fmt: skip

    def open(self, path: str, flags: int) -> int:
        fd, ours = os.open(self._store.path(path), _mode(flags)), _by_harness()
        with self._lock:
            if flags & (os.O_ACCMODE | os.O_TRUNC):
                self._watch(path, fd, ours)
            if flags & os.O_TRUNC and self._light.is_set():
                self._store.truncate(fd, 0)
        return fd

    def create(self, path: str, mode: int, flags: int) -> int:
        ours = _by_harness()
        with self._changing_names(path) as probe:
            self._writing(0, probe or ours, probe)
            existed = self._store.path(path).exists()
            fd = os.open(self._store.path(path), os.O_RDWR | os.O_CREAT | (flags & os.O_EXCL), mode)
            self._watch(path, fd, ours)
            if not existed:
                self._made(path)
                if not probe:
                    self._store.created(path)
            return fd

    def read(self, path: str | None, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str | None, data: bytes, offset: int, fh: int) -> int:
        with self._lock:
            if not self._light.is_set():
                return len(data)
            probe, ours = fh in self._probes, fh in self._ours
            self._writing(len(data), ours, probe)
            self._writes += not ours
            return os.pwrite(fh, data, offset) if probe else self._store.write(fh, data, offset, not ours)

    def truncate(self, path: str | None, length: int, fh: int | None = None) -> int:
        if fh is None and path is None:
            raise OSError(errno.EBADF, "which file is not told")
        fd = fh if fh is not None else os.open(self._store.path(path or ""), os.O_RDWR)
        ours = fd in self._ours if fh is not None else _by_harness()
        try:
            with self._lock:
                if self._light.is_set():
                    self._writing(0, ours, fd in self._probes)
                    self._store.truncate(fd, length)
        finally:
            if fh is None:
                os.close(fd)
        return 0

    def fsync(self, path: str | None, datasync: int, fh: int) -> int:
        probe = fh in self._probes
        self._syncing(fh in self._ours or _by_harness())
        with self._lock:
            if not self._light.is_set():
                raise OSError(errno.EIO, "the power is off")
            if not probe:
                self._store.sync(fh)
        return 0

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        self._syncing(_by_harness())
        with self._lock:
            if not self._light.is_set():
                raise OSError(errno.EIO, "the power is off")
            self._store.sync_names()
        return 0

    def release(self, path: str | None, fh: int) -> int:
        self._probes.discard(fh)
        self._ours.discard(fh)
        os.close(fh)
        return 0

    # Names.

    def readdir(self, path: str, fh: int) -> list[tuple[str, dict[str, int], int]]:
        folder = self._store.path(path)
        names = [".", "..", *(each.name for each in folder.iterdir() if each.name != PROBE_FILE)]
        # readdir(3) treats a name without an inode number as deleted.
        found = [(name, (folder / name).lstat()) for name in names if os.path.lexists(folder / name)]
        return [(name, {"st_mode": each.st_mode, "st_ino": each.st_ino}, 0) for name, each in found]

    def readlink(self, path: str) -> str:
        return str(self._store.path(path).readlink())

    def mkdir(self, path: str, mode: int) -> int:
        ours = _by_harness()
        with self._changing_names(path):
            self._writing(0, ours)
            self._store.path(path).mkdir(mode)
            self._made(path)
            self._store.made_folder(path)
        return 0

    def mknod(self, path: str, mode: int, dev: int) -> int:
        with self._changing_names(path):
            os.mknod(self._store.path(path), mode, dev)
            self._made(path)
            self._store.created(path)
        return 0

    def symlink(self, target: str, source: str) -> int:
        with self._changing_names(target):
            self._store.path(target).symlink_to(source)
            self._made(target)
            self._store.created(target)
        return 0

    def link(self, target: str, source: str) -> int:
        with self._changing_names(target):
            os.link(self._store.path(source), self._store.path(target), follow_symlinks=False)
            self._store.created(target)
        return 0

    def unlink(self, path: str) -> int:
        with self._changing_names(path) as probe:
            if probe:
                self._store.path(path).unlink()
            else:
                self._store.unlink(path)
        return 0

    def rmdir(self, path: str) -> int:
        with self._changing_names(path):
            self._store.rmdir(path)
        return 0

    def rename(self, old: str, new: str) -> int:
        with self._changing_names(new):
            self._store.rename(old, new)
        return 0

    # File attributes.

    def chmod(self, path: str | None, mode: int) -> int:
        if path is not None:
            self._store.path(path).chmod(mode)
        return 0

    def chown(self, path: str | None, uid: int, gid: int) -> int:
        if path is not None:
            os.chown(self._store.path(path), uid, gid, follow_symlinks=False)
        return 0

    def utimens(self, path: str | None, times: tuple[int, int] | None = None) -> int:
        if path is not None and times is not None:
            found = self._store.path(path).lstat()
            accessed, modified = _moment(times[0], found.st_atime_ns), _moment(times[1], found.st_mtime_ns)
            os.utime(self._store.path(path), ns=(accessed, modified), follow_symlinks=False)
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._store.path(path))
        names = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail",
                 "f_namemax")  # fmt: skip
        full = {"f_bfree": 0, "f_bavail": 0} if self._kind == "full" else {}
        return {name: getattr(found, name) for name in names} | full

    def init_with_config(self, connection: Any, config: Any) -> None:
        # Files that are deleted while open remain accessible; no attribute is cached that a loss may change.
        config.hard_remove = config.use_ino = 1
        config.entry_timeout = config.attr_timeout = config.negative_timeout = 0.0
        _say({"ready": True})

    def _watch(self, path: str, fd: int, ours: bool) -> None:
        probe = path.rpartition("/")[2] == PROBE_FILE
        if probe:
            self._probes.add(fd)
        if probe or ours:
            self._ours.add(fd)

    def _made(self, path: str) -> None:
        """Give a new file to its creator, if this process has the right to."""
        uid, gid, _ = mfusepy.fuse_get_context()
        if os.geteuid() == 0 and (uid, gid) != (os.geteuid(), os.getegid()):
            os.chown(self._store.path(path), uid, gid, follow_symlinks=False)


def _by_harness() -> bool:
    """Tell whether a shell of the harness, or a command in its session, makes the present call.

    The files that this reads need no lock of the caller's memory, unlike ``environ``, ``cmdline`` and ``maps``. A
    thread of the caller that unmaps a file keeps that lock until the disk has written the file.
    """
    _, _, pid = mfusepy.fuse_get_context()
    try:
        session = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[3]) if pid > 0 else 0
        return session > 0 and Path(f"/proc/{session}/comm").read_text().strip() == HARNESS
    except (OSError, ValueError):
        return False  # the caller, or the first process of its session, has ended


class _Mount(mfusepy.FUSE):  # type: ignore[misc]
    """Passes the open file to ``truncate``, because that file may no longer have a name."""

    def truncate_fuse_3(self, path: bytes | None, length: int, fip: Any) -> int:
        name = None if path is None else path.decode(self.encoding, self.errors)
        return int(self.operations.truncate(name, length, fip.contents.fh if fip else None))


def _moment(given: int, old: int) -> int:
    """Return a file's time in nanoseconds; ``given`` may stand for the present time or the old one (utimensat(2))."""
    return {_UTIME_NOW: time.time_ns(), _UTIME_OMIT: old}.get(given, given)


def _mode(flags: int) -> int:
    """Return the mode in which the backing file is opened.

    Written files are opened for reading, too, because overwritten data is kept. O_APPEND is omitted, because the kernel
    computes the offsets.
    """
    readonly = flags & os.O_ACCMODE == os.O_RDONLY and not flags & os.O_TRUNC
    return (os.O_RDONLY if readonly else os.O_RDWR) | os.O_CLOEXEC


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def _listen(disk: FaultyDisk, main: int) -> None:
    """Carry out commands until the harness has closed the input."""
    for line in sys.stdin:
        try:
            words = json.loads(line)
            if words["do"] == "end":
                break
            _say(disk.command(words))
        except Exception as error:  # The sender must not wait for an answer for ever.
            _say({"error": f"{type(error).__name__}: {error}"})
    signal.pthread_kill(main, signal.SIGTERM)


def main(mount_point: str, folder: str, seed: str) -> None:
    """Mount and serve until the input ends."""
    root, trash = Path(folder, "files"), Path(folder, "deleted")
    for each in (root, trash):
        each.mkdir(parents=True, exist_ok=True)
    found = Path(mount_point).stat()
    root.chmod(stat.S_IMODE(found.st_mode))
    os.umask(0)  # Each calling program applies its own umask.
    disk = FaultyDisk(WriteStore(root, trash, random.Random(seed)))
    threading.Thread(target=_listen, args=(disk, threading.main_thread().ident), daemon=True).start()
    # An ordinary user's process cannot give files away, so the kernel has no owners by which to check permissions.
    checks = {"default_permissions": True} if os.geteuid() == 0 else {}
    try:
        _Mount(disk, mount_point, foreground=True, fsname="stormproof", subtype="stormproof", allow_other=True,
               **checks)  # fmt: skip
    except RuntimeError as error:
        if error.args != (_ENDED_BY_SIGNAL,):
            raise SystemExit(f"can't mount on {mount_point}: libfuse ends with {error}") from None


if __name__ == "__main__":
    main(*sys.argv[1:4])
