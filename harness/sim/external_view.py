"""What a simulated node can be seen to do from outside: the rows that its disk would keep, and the frames it sends.

A rule that reads them need not take the program's word. Rows are read with a connection of the checker; frames are cut
up and decoded by the checker's reader of the system's wire format.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from typing import Any

from harness.sim.disk import SimDisk
from harness.sim.tcp import Pipe
from stormproof.contracts.invariant import WireReader

READER = "outside"


class DurableRows:
    """The databases of one disk, as they would be after a power loss now that keeps nothing unsynced."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._copy = SimDisk(random.Random(0))
        self._version = -1
        self._databases: tuple[str, ...] = ()
        self._open: tuple[str, sqlite3.Connection] | None = None

    def rows(self, table: str, database: str = "") -> list[tuple[Any, ...]]:
        """Return all rows of a table; none if the disk holds no such table, or nothing that can be read.

        ``database`` names the file; empty: the first file that has the table.
        """
        if self._version != self._disk.version:
            self._version = self._disk.version
            self._copy.discard()
            self._open = None
            self._databases = self._copy.take_durable(self._disk)
        for name in (database,) if database else self._databases:
            try:
                return [tuple(row) for row in self._connection(name).execute(f'SELECT * FROM "{table}"')]
            except sqlite3.Error:  # another file's table, or a damaged file
                continue
        return []

    def close(self) -> None:
        """Free the copy, whose databases nothing else would ever close."""
        self._copy.discard()
        self._open = None

    def _connection(self, name: str) -> sqlite3.Connection:
        if self._open is None or self._open[0] != name:
            database = self._copy.open_database(name, READER)
            database.execute("PRAGMA locking_mode=EXCLUSIVE")  # the simulated disk has no shared memory for readers
            self._open = name, database
        return self._open[1]


class Outside:
    """The view from outside of the nodes of one group."""

    def __init__(self) -> None:
        self._disks: dict[str, DurableRows] = {}

    def place(self, node: str, disk: SimDisk) -> None:
        """Note the disk that holds a node's databases."""
        if node in self._disks:
            self._disks[node].close()
        self._disks[node] = DurableRows(disk)

    def durable(self, node: str) -> DurableRows:
        """Return the durable rows of a node that has been started before.

        To read them takes a copy of the disk after each sync: call it periodically, or at rare events.
        """
        return self._disks[node]

    def close(self) -> None:
        """Free all copies of disks."""
        for rows in self._disks.values():
            rows.close()


class WireTap:
    """Reads all frames that programs hand to their kernels, before anything else can happen to them."""

    def __init__(self, reader: Callable[[], WireReader]) -> None:
        self._reader = reader
        self.told: dict[object, Callable[[str, Any], None]] = {}
        """Sending process -> what is called with the receiving node, or else its machine, and each frame."""
        self.names: dict[object, str] = {}
        """Observed process -> its node."""

    def sent(self, pipe: Pipe, chunk: bytes) -> None:
        """Read bytes of a connection between two machines or programs."""
        sender, target = pipe.ends
        tell = self.told.get(sender.owner)
        if tell is None or not chunk:
            return
        if pipe.reader is None:
            pipe.reader = self._reader()
        for frame in pipe.reader.feed(chunk):
            tell(self.names.get(target.owner, target.host), frame)
