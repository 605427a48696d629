"""The replicated log of commands and what a replica must never forget, in the broker's own database.

Changes gather in memory and are written by ``write``, inside the broker's transaction, together with the
changes that applied commands made to the engine: ``applied`` is always exactly what the state contains.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Sequence
from itertools import islice

from nodes.reference import wire
from nodes.reference.api import Command
from nodes.reference.joram.decisions import LogId, Position

_COMMAND = b"C"
_VIEW = b"V"
CACHE_BYTES = 16 << 20


def encode_command(command: Command) -> bytes:
    """The log entry of a command; raises wire.WireError if it holds what can't be encoded."""
    return _COMMAND + wire.encode([command.kind, command.conn, command.seq, dict(command.args)])


def encode_view(members: Sequence[str]) -> bytes:
    """The log entry that installs a view."""
    return _VIEW + wire.encode(list(members))


def decode_view(entry: bytes) -> list[str] | None:
    """The members of the view that an entry installs; None if it is a command."""
    return [str(name) for name in wire.decode(entry[1:])] if entry[:1] == _VIEW else None


def decode_command(entry: bytes) -> Command:
    """The command that an entry holds."""
    kind, conn, seq, args = wire.decode(entry[1:])
    return Command(kind, conn, seq, args)


class Log:
    """Entries ``base + 1 .. last``; what came before is contained in the state.

    ``promised`` is the newest epoch that this replica has agreed to. ``applied`` is the index of the last
    entry that the engine has applied.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        database.execute(
            "CREATE TABLE IF NOT EXISTS joram_log (idx INTEGER PRIMARY KEY, epoch INTEGER NOT NULL,"
            " entry BLOB NOT NULL)"
        )
        database.execute("CREATE TABLE IF NOT EXISTS joram_meta (id INTEGER PRIMARY KEY, value BLOB NOT NULL)")
        self.base, self.base_epoch, self.promised, self.applied, view = self._read_meta()
        self._views: list[tuple[int, list[str]]] = [(self.base, view)]
        self._epochs: deque[int] = deque()
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self._entries: dict[int, bytes] = {}
        self._cached = 0
        self._clean_upto = self.base
        self._drop_from: int | None = None
        self._drop_upto = 0
        self._written = self._meta()
        for index, epoch, size, entry in database.execute(
            "SELECT idx, epoch, length(entry), CASE WHEN substr(entry, 1, 1) = ? THEN entry END FROM joram_log"
            " ORDER BY idx", (_VIEW,)
        ):
            self._note(index, epoch, size, entry)
        self._clean_upto = self.last

    @property
    def last(self) -> int:
        """Index of the last entry."""
        return self.base + len(self._epochs)

    @property
    def view(self) -> list[str]:
        """Members of the newest view in the log, committed or not."""
        return self._views[-1][1]

    @property
    def has_unwritten(self) -> bool:
        """Whether entries wait for ``write``, or removed ones are still on disk."""
        return self._clean_upto < self.last or self._drop_from is not None

    @property
    def dirty(self) -> bool:
        """Whether anything at all waits for ``write``."""
        return self.has_unwritten or self._drop_upto > 0 or self._meta() != self._written

    def epoch_at(self, index: int) -> int | None:
        """Epoch of the entry at an index; None when there is none, or it was dropped."""
        if index == self.base:
            return self.base_epoch
        if self.base < index <= self.last:
            return self._epochs[index - self.base - 1]
        return None

    def id_at(self, index: int) -> LogId:
        """The id of the entry at an index that the log holds."""
        epoch = self.epoch_at(index)
        if epoch is None:
            raise ValueError(f"the log holds {self.base}..{self.last}, not {index}")
        return LogId(epoch, index)

    def position(self) -> Position:
        """How far this replica is."""
        return Position(self.id_at(self.last), self.id_at(self.applied))

    def append(self, epoch: int, entry: bytes) -> int:
        """Add an entry at the end; returns its index."""
        index = self.last + 1
        self._note(index, epoch, len(entry), entry)
        self._entries[index] = entry
        self._cached += len(entry)
        return index

    def truncate(self, index: int) -> None:
        """Remove the entries from ``index`` on; they must not have been applied."""
        if index <= self.applied:
            raise ValueError(f"entry {index} has been applied and can't be removed")
        while self.last >= index:
            self._discard(self.last)
            self._epochs.pop()
            self._bytes -= self._sizes.pop()
        if self._clean_upto >= index:
            self._clean_upto = index - 1
            self._drop_from = index if self._drop_from is None else min(index, self._drop_from)
        self._views = [self._views[0], *(pair for pair in self._views[1:] if pair[0] < index)]

    def read(self, start: int, limit: int) -> list[tuple[int, bytes]]:
        """(epoch, entry) from index ``start`` on, at least one if there is one, up to ``limit`` bytes in all."""
        found: list[tuple[int, bytes]] = []
        size = 0
        rows: dict[int, bytes] = {}
        for index in range(start, self.last + 1):
            entry = self._entries.get(index)
            if entry is None:
                if index not in rows:
                    rows = self._fetch(index, limit)
                entry = rows[index]
            size += len(entry)
            if found and size > limit:
                break
            found.append((self._epochs[index - self.base - 1], entry))
        return found

    def entry(self, index: int) -> bytes:
        """The entry at an index that the log holds."""
        cached = self._entries.get(index)
        return cached if cached is not None else self._fetch(index, 1)[index]

    def compact(self, keep: int, keep_bytes: int, hold: int) -> bool:
        """Drop the oldest applied entries if the log has far more than it should keep; True if it did.

        Args:
            hold: entries after this index are needed by a running state transfer.
        """
        if len(self._epochs) <= 2 * keep and self._bytes <= 2 * keep_bytes:
            return False
        upto = self.base
        count, size = len(self._epochs), self._bytes
        for length in self._sizes:
            if (count <= keep and size <= keep_bytes) or upto >= min(self.applied, hold):
                break
            upto, count, size = upto + 1, count - 1, size - length
        return self._forget_upto(upto)

    def reset(self, at: LogId, view: Sequence[str]) -> None:
        """The state has been replaced by one that contains everything up to ``at``.

        Entries behind it stay if the log went through ``at``: they may have been acknowledged.
        """
        self.applied = at.idx
        if self.epoch_at(at.idx) == at.epoch:
            self._forget_upto(at.idx)
            self._views[0] = (self.base, list(view))
            return
        for index in list(self._entries):
            self._discard(index)
        self._epochs.clear()
        self._sizes.clear()
        self._bytes = 0
        self._drop_from, self._drop_upto = 0, 0
        self.base, self.base_epoch = at.idx, at.epoch
        self._clean_upto = self.base
        self._views = [(self.base, list(view))]

    def write(self) -> None:
        """Write all that has changed, inside the broker's transaction."""
        run = self._database.execute
        if self._drop_from is not None:
            run("DELETE FROM joram_log WHERE idx >= ?", (self._drop_from,))
        if self._drop_upto:
            run("DELETE FROM joram_log WHERE idx <= ?", (self._drop_upto,))
        fresh = range(self._clean_upto + 1, self.last + 1)
        if fresh:
            self._database.executemany(
                "INSERT INTO joram_log VALUES (?, ?, ?)",
                [(index, self._epochs[index - self.base - 1], self._entries[index]) for index in fresh],
            )
        meta = self._meta()
        if meta != self._written:
            self._database.executemany("INSERT OR REPLACE INTO joram_meta VALUES (?, ?)", enumerate(meta))
        self._written = meta
        self._drop_from, self._drop_upto = None, 0
        self._clean_upto = self.last
        self._trim_cache()

    def _note(self, index: int, epoch: int, size: int, entry: bytes | None) -> None:
        self._epochs.append(epoch)
        self._sizes.append(size)
        self._bytes += size
        members = decode_view(entry) if entry is not None else None
        if members is not None:
            self._views.append((index, members))

    def _fetch(self, start: int, limit: int) -> dict[int, bytes]:
        """Entries from the database, which holds whatever the cache doesn't."""
        count = max(1, min(1000, limit // 64))
        rows = self._database.execute(
            "SELECT idx, entry FROM joram_log WHERE idx >= ? ORDER BY idx LIMIT ?", (start, count)
        )
        found: dict[int, bytes] = {}
        size = 0
        for index, entry in rows:
            found[index] = entry
            size += len(entry)
            if size > limit:
                break
        return found

    def _forget_upto(self, upto: int) -> bool:
        if upto <= self.base:
            return False
        epoch = self.id_at(upto).epoch
        for index in range(self.base + 1, upto + 1):
            self._discard(index)
            self._epochs.popleft()
            self._bytes -= self._sizes.popleft()
        self.base, self.base_epoch = upto, epoch
        self._drop_upto = upto
        self._clean_upto = max(self._clean_upto, upto)
        older = [pair for pair in self._views if pair[0] <= upto]
        self._views = [(upto, older[-1][1]), *self._views[len(older):]]
        return True

    def _discard(self, index: int) -> None:
        entry = self._entries.pop(index, None)
        if entry is not None:
            self._cached -= len(entry)

    def _trim_cache(self) -> None:
        if self._cached > CACHE_BYTES:
            for index in list(islice(self._entries, len(self._entries) // 2)):
                self._discard(index)

    def _meta(self) -> tuple[int, int, int, int, bytes]:
        return (self.base, self.base_epoch, self.promised, self.applied, wire.encode(self._views[0][1]))

    def _read_meta(self) -> tuple[int, int, int, int, list[str]]:
        rows = dict(self._database.execute("SELECT id, value FROM joram_meta"))
        if not rows:
            return 0, 0, 0, 0, []
        view = [str(name) for name in wire.decode(rows[4])]
        return int(rows[0]), int(rows[1]), int(rows[2]), int(rows[3]), view
