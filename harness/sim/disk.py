"""Simulated disks: SQLite's files in memory, which lose unsynced data at a power loss and fail on demand.

SQLite runs unchanged on a VFS (through apsw) whose files are kept here. A file records its written and its synced
contents. A kill of the process preserves the written contents, as the kernel's page cache does. A power loss preserves
the synced contents and, as on real disks, perhaps some of the rest, perhaps torn. Node code gets a connection with the
interface of ``sqlite3``.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import apsw

from harness.backends.disk_store import TRUNCATE, flips, matches
from stormproof.contracts.backend import DISK_DAMAGES, DiskFault
from stormproof.contracts.cluster import MAIN

SECTOR = 512
"""Bytes that a disk writes atomically; a torn write ends at such a boundary."""
FULL_AFTER = 1 << 14
"""Bytes that a full disk still accepts; overwriting counts as well, as on copy-on-write file systems."""
_STATEMENTS = 256

_ERRORS: tuple[tuple[type[apsw.Error], type[sqlite3.Error]], ...] = (
    (apsw.CorruptError, sqlite3.DatabaseError),
    (apsw.NotADBError, sqlite3.DatabaseError),
    (apsw.ConstraintError, sqlite3.IntegrityError),
    (apsw.Error, sqlite3.OperationalError),
)


class SimFile:
    """One file: ``data`` is what a reader sees; ``pending`` are the changes that a power loss may undo.

    Syncs are frequent and power losses rare. Durable contents are therefore not stored, but reconstructed by undoing
    the pending changes.
    """

    def __init__(self) -> None:
        self.used = False
        """Whether the file was ever written."""
        self.data = bytearray()
        self.pending: list[tuple[int, bytes | None]] = []
        """Changes since the last sync: (offset, bytes) for a write, (size, None) for a truncation."""
        self._undo: list[tuple[int, bytearray | None]] = []
        """For each pending change: the size before it, and the overwritten bytes; None for none."""

    def write(self, offset: int, data: bytes) -> None:
        """Write into the page cache."""
        self.used = True
        image = self.data
        size, end = len(image), offset + len(data)
        if offset == size:
            self._undo.append((size, None))
            image += data
        elif end <= size:
            self._undo.append((size, image[offset:end]))
            image[offset:end] = data
        else:
            self._undo.append((size, image[offset:]))
            _apply(image, (offset, data))
        self.pending.append((offset, data))

    def truncate(self, size: int) -> None:
        """Truncate the file."""
        self._undo.append((len(self.data), self.data[size:]))
        del self.data[size:]
        self.pending.append((size, None))

    def sync(self) -> None:
        """Make all written data durable."""
        self.pending.clear()
        self._undo.clear()

    def durable(self) -> bytearray:
        """Return the contents that survive any power loss."""
        image = bytearray(self.data)
        for (size, before), (offset, _) in zip(reversed(self._undo), reversed(self.pending), strict=True):
            if before is not None:
                image[offset : offset + len(before)] = before
            del image[size:]
        return image

    def lose(self, surviving: Iterable[tuple[int, bytes | None]]) -> None:
        """Discard unsynced changes, except those that reached the disk by chance."""
        image = self.durable()
        for change in surviving:
            _apply(image, change)
        self.data = image
        self.sync()

    def damage(self, offset: int, noise: bytes) -> None:
        """Overwrite the durable and the visible contents; only a new write at that place repairs them."""
        seen, pending, self.data = self.data, self.pending, self.durable()
        self.pending, self._undo = [], []
        # Data that was never synced is not on the disk yet, and cannot be damaged there.
        self.data[offset : offset + len(noise)] = noise[: max(0, len(self.data) - offset)]
        for start, data in pending:
            if data is None:
                self.truncate(start)
            else:
                self.write(start, data)
        self.data = seen
        self.data[offset : offset + len(noise)] = noise


class SimDisk:
    """The contents of one disk: files by path, and the disk's present fault.

    With ``alone``, only one program at a time has a database open, as SQLite's locks ensure on a disk that several
    machines share. Without it, each program of the node has one database open.
    """

    def __init__(self, rng: random.Random, alone: bool = False) -> None:
        self._alone = alone
        self.files: dict[str, bytes] = {}
        self.fault: DiskFault | None = None
        self.shown = 0
        """The number of times that the present fault has taken effect."""
        self.harmed = False
        """Whether a fault has ever refused or destroyed anything."""
        self.writes = 0
        """The number of writes so far."""
        self.version = 0
        """Changes whenever the durable contents may have changed."""
        self.lost: Callable[[], None] = lambda: None
        """Called when synced data was lost or damaged."""
        self.stall: Callable[[str, float], None] = lambda program, seconds: None
        """Called with the program that has to wait for the disk, and the seconds."""
        self._rng = rng
        self._files: dict[str, SimFile] = {}
        self._room = 0
        self._users: dict[str, _Vfs] = {}
        self._connections: dict[str, SimDatabase] = {}

    def open_database(self, name: str, program: str = MAIN) -> sqlite3.Connection:
        """Open the database of that name, as the disk holds it; each program has one open at a time.

        Raises:
            sqlite3.Error: the disk fails.
        """
        self.abandon(program)
        if self._alone and self._connections:
            raise sqlite3.OperationalError("database is locked")
        if program not in self._users:
            self._users[program] = _Vfs(self, program)
        connection = self._connections[program] = SimDatabase(name, self._users[program].vfs_name)
        return cast(sqlite3.Connection, connection)

    def abandon(self, program: str = MAIN) -> None:
        """Close the database of a program that has died, so that its remaining operations have no effect."""
        connection = self._connections.pop(program, None)
        if connection is not None:
            self._users[program].cut_off()
            connection.close()

    def _abandon_all(self) -> None:
        for program in list(self._connections):
            self.abandon(program)

    def set_fault(self, fault: DiskFault | None) -> None:
        """Set the disk's only fault from now on; None for no fault."""
        if fault == self.fault:
            return
        self.fault = fault
        if fault is None:
            return
        self.shown = 0
        if fault.kind == "full":
            self._room = FULL_AFTER
        elif fault.kind == "empty":
            self.shown = int(self.held > 0)
            self._files.clear()
        elif fault.kind == "corrupt":
            self.shown = self._corrupt()
        elif fault.kind in DISK_DAMAGES:
            self.shown = self._damage(fault)
        self.version += 1
        if self.shown:
            self.harmed = True
            self.lost()

    def take_durable(self, disk: SimDisk) -> tuple[str, ...]:
        """Become a copy of another disk after a power loss that keeps nothing unsynced; return its databases."""
        for path, file in disk._files.items():
            copied = self._files[path] = SimFile()
            copied.data = file.durable()
        return tuple(path for path in self._files if not path.endswith(("-wal", "-journal")))

    @property
    def held(self) -> int:
        """The number of files that programs have written."""
        return sum(file.used for file in self._files.values())

    def sync(self) -> None:
        """Sync all files, as the system does before a reboot."""
        self.version += 1
        for file in self._files.values():
            file.sync()

    def process_died(self, program: str = MAIN) -> None:
        """React to a killed program: the page cache survives, unless the present fault loses it."""
        self.abandon(program)
        self.version += 1
        if self.fault is not None and self.fault.kind in ("lose-unsynced", "torn"):
            self.shown += self.held > 0
            others = {path for name, user in self._users.items() if name != program for path in user.paths}
            for path, file in self._files.items():
                if path in others:
                    continue
                torn = self.fault.kind == "torn"
                file.lose([_torn(file.pending[-1], self._rng)] if torn and file.pending else [])

    def power_lost(self) -> None:
        """Discard all unsynced changes, or some of them in any order, with the last survivor perhaps torn."""
        self._abandon_all()
        self.version += 1
        for file in self._files.values():
            luck = self._rng.random()
            if luck < 0.4 or not file.pending:
                survivors: list[tuple[int, bytes | None]] = []
            elif luck < 0.7:
                survivors = file.pending[: self._rng.randrange(len(file.pending) + 1)]
            else:
                survivors = [change for change in file.pending if self._rng.random() < 0.5]
            if survivors and self._rng.random() < 0.5:
                survivors[-1] = _torn(survivors[-1], self._rng)
            file.lose(survivors)

    def user_lost_power(self, program: str) -> None:
        """Discard unsynced data if the machine that lost power ran the program with the open database."""
        if program in self._connections:
            self.power_lost()

    def discard(self) -> None:
        """Free everything."""
        self._abandon_all()
        for user in self._users.values():
            user.unregister()
        self._users.clear()
        self._files.clear()
        self.files.clear()

    # The interface for the VFS.

    def file(self, path: str, create: bool) -> SimFile | None:
        """Return the file of that path; create it if asked to."""
        file = self._files.get(path)
        if file is None and create:
            file = self._files[path] = SimFile()
        return file

    def remove(self, path: str) -> None:
        """Delete a file."""
        self.version += 1
        self._files.pop(path, None)

    def writing(self, count: int) -> None:
        """Register a write of ``count`` bytes; raises apsw.Error when the disk refuses it."""
        self.writes += 1
        kind = self.fault.kind if self.fault is not None else ""
        if kind == "write-error":
            self._refuse()
            raise apsw.IOError("simulated write error")
        if kind == "full":
            self._room -= count
            if self._room < 0:
                self._refuse()
                raise apsw.FullError("simulated disk is full")

    def syncing(self, program: str) -> None:
        """Register a program's sync; raises apsw.Error when the disk refuses it."""
        fault = self.fault
        if fault is None:
            return
        if fault.kind == "sync-error":
            self._refuse()
            raise apsw.IOError("simulated sync error")
        if fault.kind == "slow":
            self.shown += 1
            self.stall(program, fault.seconds)

    def _refuse(self) -> None:
        self.shown += 1
        self.harmed = True

    def probe(self) -> str:
        """Return the outcome of a synced write now: ``ok``, ``failed`` or ``slow``."""
        shown, harmed, room, stall = self.shown, self.harmed, self._room, self.stall
        waits: list[float] = []
        self.stall = lambda program, seconds: waits.append(seconds)
        try:
            self.writing(FULL_AFTER + 1)
            self.syncing(MAIN)
        except apsw.Error:
            return "failed"
        finally:
            self.shown, self.harmed, self._room, self.stall = shown, harmed, room, stall
        return "slow" if waits else "ok"

    def _corrupt(self) -> int:
        """Turn one page of a database file into noise."""
        for path, file in self._files.items():
            if path.endswith("-wal") or path.endswith("-journal") or not file.data:
                continue
            size = int.from_bytes(file.data[16:18], "big") or 4096
            start = size * self._rng.randrange(max(1, len(file.data) // size))
            noise = self._rng.randbytes(min(size, len(file.data) - start))
            file.damage(start, noise)
            return 1
        return 0

    def _damage(self, fault: DiskFault) -> int:
        """Flip bits of the files that match, or cut off the end of one of them. Return the number of changed files."""
        found = [(path, len(file.data)) for path, file in self._files.items()
                 if file.used and file.data and matches(path, fault.files)]  # fmt: skip
        if not found:
            return 0
        if fault.kind == TRUNCATE:
            path, size = self._rng.choice(found)
            self._files[path].truncate(self._rng.randrange(size))
            self._files[path].sync()
            return 1
        flipped = flips(found, fault.bits, self._rng)
        for path, places in flipped.items():
            file = self._files[path]
            file.sync()
            for offset, bit in places:
                file.data[offset] ^= 1 << bit
        return len(flipped)


class SimDatabase:
    """An apsw connection with the methods of ``sqlite3.Connection`` that node code uses, and with its exceptions."""

    def __init__(self, name: str, vfs: str) -> None:
        try:
            self._connection = apsw.Connection(name, vfs=vfs, statementcachesize=_STATEMENTS)
        except apsw.Error as error:
            raise _translated(error) from error
        self._execute = self._connection.execute
        # Statements that are executed many times return no rows, so all of them can share one cursor.
        self._many = self._connection.cursor().executemany

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._connection.in_transaction

    def execute(self, statement: str, values: Sequence[Any] = ()) -> TableRows:
        """Execute one statement, and return its rows."""
        try:
            cursor = self._execute(statement, values)
        except apsw.Error as error:
            raise _translated(error) from error
        return TableRows(cursor)

    def executemany(self, statement: str, values: Iterable[Sequence[Any]]) -> None:
        """Execute one statement for each of the values."""
        try:
            self._many(statement, values)
        except apsw.Error as error:
            raise _translated(error) from error

    def close(self) -> None:
        """Close the connection; uncommitted changes are rolled back."""
        try:
            self._connection.close(True)
        except apsw.Error as error:
            raise _translated(error) from error


class _Vfs(apsw.VFS):
    """The operating system's files as SQLite sees them: those of one disk, opened by one program."""

    _made = 0

    def __init__(self, disk: SimDisk, program: str) -> None:
        _Vfs._made += 1
        self.vfs_name = f"stormproof-{_Vfs._made}"
        super().__init__(self.vfs_name, base="")
        self.program = program
        self.paths: dict[str, None] = {}
        """All paths that the program has ever opened, in order."""
        self._disk = disk
        self._handles: list[_Handle] = []

    def cut_off(self) -> None:
        """Disable all open handles: they change nothing from now on."""
        for handle in self._handles:
            handle.dead = True
        self._handles.clear()

    def xOpen(self, name: Any, flags: list[int]) -> _Handle:  # type: ignore[override]
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        flags[1] = flags[0]
        create = bool(flags[0] & apsw.SQLITE_OPEN_CREATE)
        file = self._disk.file(path, create) if path is not None else SimFile()
        if file is None:
            raise apsw.CantOpenError(f"there is no {path}")
        if path is not None:
            self.paths[path] = None
        handle = _Handle(self._disk, self.program, file)
        self._handles.append(handle)
        return handle

    def xDelete(self, filename: str, syncdir: bool) -> None:
        if not self._handles:
            return
        self._disk.remove(filename)

    def xAccess(self, pathname: str, flags: int) -> bool:
        return self._disk.file(pathname, create=False) is not None

    def xFullPathname(self, name: str) -> str:
        return name


class _Handle:
    """An open file."""

    def __init__(self, disk: SimDisk, program: str, file: SimFile) -> None:
        self.dead = False
        self._disk = disk
        self._program = program
        self._file = file

    def xRead(self, amount: int, offset: int) -> bytes:
        return bytes(self._file.data[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:
        if not self.dead:
            if self._disk.fault is not None:
                self._disk.writing(len(data))
            self._file.write(offset, data)

    def xTruncate(self, size: int) -> None:
        if not self.dead:
            self._file.truncate(size)

    def xSync(self, flags: int) -> None:
        if not self.dead:
            self._disk.syncing(self._program)
            self._file.sync()
            self._disk.version += 1

    def xFileSize(self) -> int:
        return len(self._file.data)

    def xLock(self, level: int) -> None:
        """Do nothing: one process uses the disk."""

    def xUnlock(self, level: int) -> None:
        """Do nothing: one process uses the disk."""

    def xCheckReservedLock(self) -> bool:
        return False

    def xFileControl(self, op: int, ptr: int) -> bool:
        return False

    def xSectorSize(self) -> int:
        return SECTOR

    def xDeviceCharacteristics(self) -> int:
        # SQLite assumes this of real disks on Unix: a write leaves adjacent bytes alone.
        return apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE

    def xClose(self) -> None:
        """Do nothing: there is nothing to release."""

    def excepthook(self, *details: object) -> bool:
        """Swallow an error that SQLite could not report, as when it closes a file; no caller needs it."""
        return True


class TableRows:
    """The rows of a statement, read on demand."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._cursor
        except apsw.Error as error:
            raise _translated(error) from error

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row; None when none is left."""
        return next(iter(self), None)


def _translated(error: apsw.Error) -> sqlite3.Error:
    for theirs, ours in _ERRORS:
        if isinstance(error, theirs):
            return ours(str(error))
    return sqlite3.OperationalError(str(error))


def _apply(image: bytearray, change: tuple[int, bytes | None]) -> None:
    offset, data = change
    if data is None:
        del image[offset:]
        return
    if offset > len(image):
        image.extend(bytes(offset - len(image)))
    if offset == len(image):
        image += data
    else:
        image[offset : offset + len(data)] = data


def _torn(change: tuple[int, bytes | None], rng: random.Random) -> tuple[int, bytes | None]:
    """Return the first sectors of a write, or none; a write smaller than a sector is cut at any byte."""
    offset, data = change
    if data is None:
        return change
    unit = SECTOR if len(data) > SECTOR else 1
    return offset, data[: unit * rng.randrange(max(1, len(data) // unit))]
