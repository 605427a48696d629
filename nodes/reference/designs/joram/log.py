"""The replicated log of commands, and the durable facts of a replica, in the broker's own database.

Changes are collected in memory. ``write`` stores them inside the broker's transaction, together with the changes that
applied commands made to the engine: ``applied`` therefore always matches the content of the state.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

from nodes.reference import wire
from nodes.reference.api import Command
from nodes.reference.designs.joram.decisions import MAX_MEMBERS
from nodes.reference.engine.row_schema import ShapeError, check_command
from nodes.reference.replication.positions import LogId, Position

_COMMAND = b"C"
_VIEW = b"V"
_GROUP = b"G"
CACHE_BYTES = 16 << 20

T = TypeVar("T")

def encode_command(command: Command) -> bytes:
    """Encode the log entry of a command; raises wire.WireError if a value can't be encoded."""
    return _COMMAND + wire.encode([command.kind, command.conn, command.seq, dict(command.args)])


def encode_view(members: Sequence[str]) -> bytes:
    """Encode the log entry that installs a view."""
    return _VIEW + wire.encode(list(members))


def decode_view(entry: bytes) -> list[str] | None:
    """Decode the members of the view that an entry installs; None if it is a command."""
    return [str(name) for name in wire.decode(entry[1:])] if entry[:1] == _VIEW else None


def encode_group(group: Sequence[Member]) -> bytes:
    """Encode the log entry that changes the group's membership."""
    return _GROUP + wire.encode(encoded_members(group))


def is_command(entry: bytes) -> bool:
    """Tell whether an entry is for the engine."""
    return entry[:1] == _COMMAND


def decode_command(entry: bytes) -> Command:
    """Decode the command in an entry."""
    kind, conn, seq, args = wire.decode(entry[1:])
    return Command(kind, conn, seq, args)


class Member(NamedTuple):
    """One replica of the group: the address of its links, and ``host:port`` of its listener for clients.

    ``apart``: the replica has its place in the list, and so the epochs that only it may open, but it does not belong to
    the group, either no longer or not yet.
    """

    name: str
    host: str
    port: int
    client: str
    apart: bool = False


def encoded_members(group: Sequence[Member]) -> list[list[Any]]:
    """Encode members as plain data; members of the group have no fifth field."""
    return [list(member) if member.apart else list(member[:4]) for member in group]


def check_members(members: Sequence[Any]) -> None:
    """Check that these are at most ``MAX_MEMBERS`` distinct members as ``Member`` lists them; raises ShapeError
    otherwise.
    """
    if len(members) > MAX_MEMBERS or not all(map(_is_member, members)):
        raise ShapeError("members are malformed")
    if len({name for name, *_ in members}) < len(members):
        raise ShapeError("a member is there twice")


def _is_member(value: Any) -> bool:
    if type(value) is not list or list(map(type, value)) not in ([str, str, int, str], [str, str, int, str, bool]):
        return False
    if value[4:] == [False]:  # a member of the group has no fifth field
        return False
    return bool(value[0] and value[1]) and 0 <= value[2] < 65536


def check_view(names: Any) -> None:
    """Check that these are the names of a view's members; raises ShapeError otherwise."""
    if type(names) is not list or not len(names) <= MAX_MEMBERS or not all(type(name) is str for name in names):
        raise ShapeError("a view is malformed")


def checked_entry(entry: bytes) -> Command | None:
    """Decode the command in an entry from a peer; None if the entry is a view or a group.

    Raises:
        ShapeError, wire.WireError: it is none of these.
    """
    content = wire.decode(entry[1:])
    if entry[:1] == _VIEW:
        check_view(content)
    elif entry[:1] == _GROUP and type(content) is list:
        check_members(content)
    elif is_command(entry) and type(content) is list and len(content) == 4:
        check_command(*content)
        return Command(*content)
    else:
        raise ShapeError("it is neither command nor view nor group")
    return None


def members_of(group: Sequence[Sequence[Any]]) -> list[Member]:
    """Decode the members in a group's encoding."""
    return [Member(*member) for member in group]


class LogWatch(Protocol):
    """An observer of a log's changes."""

    def appended(self, index: int, epoch: int, entry: bytes) -> None:
        """Note that an entry was added at the end."""

    def truncated(self, index: int) -> None:
        """Note that the entries from ``index`` on were removed."""

    def replaced(self, at: LogId) -> None:
        """Note that the log is empty, behind a state that contains everything up to ``at``."""


class JoramLog:
    """Entries ``base + 1 .. last``; earlier entries are contained in the state.

    ``promised`` is the newest epoch that this replica has agreed to. ``last`` is the index of the last entry, ``base``
    if there is none, ``applied`` that of the last entry that the engine has applied. ``whole`` is false while the log
    may lack entries that the replica once acknowledged, because it began without a log. ``regrouped`` is called when
    ``group`` has changed.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self.regrouped: Callable[[], None] = lambda: None
        self.watch: LogWatch | None = None
        database.execute(
            "CREATE TABLE IF NOT EXISTS joram_log (idx INTEGER PRIMARY KEY, epoch INTEGER NOT NULL,"
            " entry BLOB NOT NULL)"
        )
        database.execute("CREATE TABLE IF NOT EXISTS joram_meta (id INTEGER PRIMARY KEY, value BLOB NOT NULL)")
        self.base, self.base_epoch, self.promised, self.applied, view, group, self.whole = self._read_meta()
        self.last = self.base
        self.views: list[tuple[int, list[str]]] = [(self.base, view)]
        self.groups: list[tuple[int, list[Member]]] = [(self.base, group)]
        self.epochs: deque[int] = deque()
        self.sizes: deque[int] = deque()
        self.size = 0
        self.entries: dict[int, bytes] = {}
        self.cached_bytes = 0
        self.clean_upto = self.base
        self._drop_from: int | None = None
        self._drop_upto = 0
        self._encoded: tuple[list[str], list[Member], bytes, bytes] | None = None
        self.written = self._meta()
        for index, epoch, size, entry in database.execute(
            "SELECT idx, epoch, length(entry), CASE WHEN substr(entry, 1, 1) <> ? THEN entry END FROM joram_log"
            " ORDER BY idx", (_COMMAND,)
        ):
            self._note(index, epoch, size, entry)
        self.clean_upto = self.last

    @property
    def view(self) -> list[str]:
        """Members of the newest view in the log, committed or not."""
        return self.views[-1][1]

    def view_at(self, index: int) -> list[str]:
        """Return the members of the view that is in force at an entry."""
        return list(_newest(self.views, index))

    @property
    def group(self) -> list[Member]:
        """The places of the group, by the newest such entry, committed or not; empty before the first one."""
        return self.groups[-1][1]

    @property
    def group_index(self) -> int:
        """The index of the newest entry that changed the group."""
        return self.groups[-1][0]

    def group_at(self, index: int) -> list[list[Any]]:
        """Return the group's members at an entry, as plain data."""
        return encoded_members(_newest(self.groups, index))

    @property
    def has_unwritten(self) -> bool:
        """Tell whether entries wait for ``write``, or removed ones are still on disk."""
        return self.clean_upto < self.last or self._drop_from is not None

    @property
    def dirty(self) -> bool:
        """Tell whether anything at all waits for ``write``."""
        return self.has_unwritten or self._drop_upto > 0 or self._meta() != self.written

    def epoch_at(self, index: int) -> int | None:
        """Return the epoch of the entry at an index; None if it does not exist or was dropped."""
        if index == self.base:
            return self.base_epoch
        if self.base < index <= self.last:
            return self.epochs[index - self.base - 1]
        return None

    def id_at(self, index: int) -> LogId:
        """Return the id of the entry at an index that the log holds."""
        epoch = self.epoch_at(index)
        if epoch is None:
            raise ValueError(f"the log holds {self.base}..{self.last}, not {index}")
        return LogId(epoch, index)

    def position(self) -> Position:
        """Return this replica's log position."""
        return Position(self.id_at(self.last), self.id_at(self.applied))

    def append(self, epoch: int, entry: bytes) -> int:
        """Add an entry at the end; return its index."""
        index = self.last + 1
        self._note(index, epoch, len(entry), entry)
        self.entries[index] = entry
        self.cached_bytes += len(entry)
        if self.watch is not None:
            self.watch.appended(index, epoch, entry)
        return index

    def truncate(self, index: int) -> None:
        """Remove the entries from ``index`` on; they must not have been applied."""
        if index <= self.applied:
            raise ValueError(f"entry {index} has been applied and can't be removed")
        if self.watch is not None:
            self.watch.truncated(index)
        while self.last >= index:
            self._discard(self.last)
            self.epochs.pop()
            self.size -= self.sizes.pop()
            self.last -= 1
        if self.clean_upto >= index:
            self.clean_upto = index - 1
            self._drop_from = index if self._drop_from is None else min(index, self._drop_from)
        self.views = [self.views[0], *(pair for pair in self.views[1:] if pair[0] < index)]
        if self.group_index >= index:
            self.groups = [self.groups[0], *(pair for pair in self.groups[1:] if pair[0] < index)]
            self.regrouped()

    def read(self, start: int, limit: int) -> list[tuple[int, bytes]]:
        """Return (epoch, entry) from index ``start`` on, at least one if there is one, up to ``limit`` bytes in all."""
        found: list[tuple[int, bytes]] = []
        size = 0
        rows: dict[int, bytes] = {}
        for index in range(start, self.last + 1):
            entry = self.entries.get(index)
            if entry is None:
                if index not in rows:
                    rows = self._fetch(index, limit)
                entry = rows[index]
            size += len(entry)
            if found and size > limit:
                break
            found.append((self.epochs[index - self.base - 1], entry))
        return found

    def entry(self, index: int) -> bytes:
        """Return the entry at an index that the log holds."""
        cached = self.entries.get(index)
        return cached if cached is not None else self._fetch(index, 1)[index]

    def compact(self, keep: int, keep_bytes: int, hold: int) -> None:
        """Drop the oldest applied entries if the log has far more than it should keep.

        Args:
            hold: entries after this index are needed by a running state transfer.
        """
        if len(self.epochs) <= 2 * keep and self.size <= 2 * keep_bytes:
            return
        upto = self.base
        count, size = len(self.epochs), self.size
        for length in self.sizes:
            if (count <= keep and size <= keep_bytes) or upto >= min(self.applied, hold):
                break
            upto, count, size = upto + 1, count - 1, size - length
        self._forget_upto(upto)

    def reset(self, at: LogId, view: Sequence[str], group: Sequence[Sequence[Any]]) -> None:
        """Reset the log after the state was replaced by one that contains everything up to ``at``.

        Later entries stay if the log contained ``at``: they may have been acknowledged.
        """
        self.applied = at.idx
        if self.epoch_at(at.idx) == at.epoch:
            self._forget_upto(at.idx)
            self.views[0] = (self.base, list(view))
            self.groups[0] = (self.base, members_of(group))
            self.regrouped()
            return
        for index in list(self.entries):
            self._discard(index)
        self.epochs.clear()
        self.sizes.clear()
        self.size = 0
        self._drop_from, self._drop_upto = 0, 0
        self.base, self.base_epoch = at.idx, at.epoch
        self.last = self.clean_upto = self.base
        self.views = [(self.base, list(view))]
        self.groups = [(self.base, members_of(group))]
        if self.watch is not None:
            self.watch.replaced(at)
        self.regrouped()

    def write(self) -> None:
        """Write all changes, inside the broker's transaction."""
        run = self._database.execute
        if self._drop_from is not None:
            run("DELETE FROM joram_log WHERE idx >= ?", (self._drop_from,))
        if self._drop_upto:
            run("DELETE FROM joram_log WHERE idx <= ?", (self._drop_upto,))
        fresh = range(self.clean_upto + 1, self.last + 1)
        if fresh:
            self._database.executemany(
                "INSERT INTO joram_log VALUES (?, ?, ?)",
                [(index, self.epochs[index - self.base - 1], self.entries[index]) for index in fresh],
            )
        meta = self._meta()
        if meta != self.written:
            changed = {key: value for key, value in enumerate(meta) if self._stored.get(key) != value}
            self._database.executemany("INSERT OR REPLACE INTO joram_meta VALUES (?, ?)", changed.items())
            self._stored |= changed
        self.written = meta
        self._drop_from, self._drop_upto = None, 0
        self.clean_upto = self.last
        self._trim_cache()

    def _note(self, index: int, epoch: int, size: int, entry: bytes | None) -> None:
        self.last += 1
        self.epochs.append(epoch)
        self.sizes.append(size)
        self.size += size
        if entry is None or is_command(entry):
            return
        members = decode_view(entry)
        if members is not None:
            self.views.append((index, members))
        else:
            self.groups.append((index, members_of(wire.decode(entry[1:]))))
            self.regrouped()

    def _fetch(self, start: int, limit: int) -> dict[int, bytes]:
        """Read entries from the database, which holds all entries that the cache lacks."""
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

    def _forget_upto(self, upto: int) -> None:
        if upto <= self.base:
            return
        epoch = self.id_at(upto).epoch
        for index in range(self.base + 1, upto + 1):
            self._discard(index)
            self.epochs.popleft()
            self.size -= self.sizes.popleft()
        self.base, self.base_epoch = upto, epoch
        self._drop_upto = upto
        self.clean_upto = max(self.clean_upto, upto)
        self.views = _forget(self.views, upto)
        self.groups = _forget(self.groups, upto)

    def _discard(self, index: int) -> None:
        entry = self.entries.pop(index, None)
        if entry is not None:
            self.cached_bytes -= len(entry)

    def _trim_cache(self) -> None:
        if self.cached_bytes > CACHE_BYTES:
            for index in list(islice(self.entries, len(self.entries) // 2)):
                self._discard(index)

    def _meta(self) -> tuple[int, int, int, int, bytes, bytes, int]:
        view, group, encoded = self.views[0][1], self.groups[0][1], self._encoded
        if encoded is None or encoded[0] is not view or encoded[1] is not group:
            # Needed with every commit, and hardly ever different.
            encoded = self._encoded = (view, group, wire.encode(view), wire.encode(encoded_members(group)))
        return (self.base, self.base_epoch, self.promised, self.applied, encoded[2], encoded[3], int(self.whole))

    def _read_meta(self) -> tuple[int, int, int, int, list[str], list[Member], bool]:
        rows = self._stored = dict(self._database.execute("SELECT id, value FROM joram_meta"))
        if not rows:
            return 0, 0, 0, 0, [], [], True
        view = [str(name) for name in wire.decode(rows[4])]
        group = members_of(wire.decode(rows[5]))
        return int(rows[0]), int(rows[1]), int(rows[2]), int(rows[3]), view, group, bool(rows.get(6, True))


def _newest(pairs: Sequence[tuple[int, list[T]]], index: int) -> list[T]:
    """Return the newest of these lists that is in force at an entry."""
    for place, found in reversed(pairs):
        if place <= index:
            return found
    raise ValueError(f"what held at entry {index} has been dropped")


def _forget(pairs: list[tuple[int, list[T]]], upto: int) -> list[tuple[int, list[T]]]:
    """Return the lists that are still needed when everything up to an entry is dropped."""
    older = [pair for pair in pairs if pair[0] <= upto]
    return [(upto, older[-1][1]), *pairs[len(older):]]
