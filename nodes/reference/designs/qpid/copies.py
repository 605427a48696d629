"""Recovery by copying the best store to the other brokers, after the loss of all [Interaction with the store].

An administrator's tool reads the store of one broker piece by piece and writes each piece to all others. Then all
stores are stamped clean, with one new identifier, and the overwritten brokers end, to be restarted from their new
stores. Every broker takes part while it is connecting, and does nothing else in the meantime. An interrupted copy
leaves dirty backup stores, but never damages the best one: the tool can be run again.
"""

from __future__ import annotations

import asyncio
import base64
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nodes.reference import wire
from nodes.reference.api import Broker, ConfigError
from nodes.reference.designs.qpid.configuration import is_object
from nodes.reference.designs.qpid.positions import Generation
from nodes.reference.designs.qpid.roles import Roles
from nodes.reference.designs.qpid.states import CONNECTING
from nodes.reference.designs.qpid.store_status import CLEAN, MAX_UUID
from nodes.reference.engine.row_schema import ShapeError, check_row
from nodes.reference.engine.store import COLUMNS, TABLES, read_slice
from nodes.reference.replication.messages import MAX_NUMBER

PIECE_BYTES = 256 << 10
"""Bytes per read or write."""
HOLD_SECONDS = 15.0
"""Seconds without a request after which a copy counts as interrupted."""
_LENGTH_BYTES = 4
_MAX_ROW_BYTES = 64 << 20
"""Maximum size of a row in bytes."""
_LINGER_SECONDS = 0.3
"""Seconds for sending the last answer before the broker ends."""
_OBJECT, _GENERATIONS = "qpid_objects", "qpid_generations"
Request = Mapping[str, Any]


class StoreReplaced(Exception):
    """The broker must be restarted, from the store that was written to it."""


class StoreReader:
    """A store as one sequence of bytes: each encoded row is preceded by its length."""

    def __init__(self, database: sqlite3.Connection, roles: Roles) -> None:
        self._rows = _rows_of(database, roles)
        self._read = bytearray()

    def piece(self) -> bytes:
        """Return the next bytes; empty at the end."""
        while len(self._read) < PIECE_BYTES and (row := next(self._rows, None)) is not None:
            encoded = wire.encode(row)
            self._read += len(encoded).to_bytes(_LENGTH_BYTES, "big") + encoded
        piece = bytes(self._read[:PIECE_BYTES])
        del self._read[:PIECE_BYTES]
        return piece


def _rows_of(database: sqlite3.Connection, roles: Roles) -> Iterator[list[Any]]:
    for table in TABLES:
        row: list[Any] | None = ["", None]
        while row is not None:
            after, row = row[1], None
            for row in read_slice(database, table, after):
                yield row
    for (kind, name), arguments in roles.configuration.items():
        yield [_OBJECT, kind, name, dict(arguments)]
    for queue, generations in roles.generations.items():
        yield [_GENERATIONS, queue, [list(each) for each in generations]]


class StoreWriter:
    """Writes the output of a ``StoreReader`` into an empty store, in open transactions."""

    def __init__(self, database: sqlite3.Connection, roles: Roles) -> None:
        self._database, self._roles = database, roles
        self._waiting = bytearray()

    @property
    def is_whole(self) -> bool:
        """Tell whether the added bytes end with a complete row."""
        return not self._waiting

    def add(self, piece: bytes) -> None:
        """Add the next bytes; raises ValueError if they are not from a store."""
        self._waiting += piece
        at = 0
        while len(self._waiting) - at >= _LENGTH_BYTES:
            size = int.from_bytes(self._waiting[at : at + _LENGTH_BYTES], "big")
            if size > _MAX_ROW_BYTES:
                raise ValueError(f"a row has {size} bytes")
            if len(self._waiting) - at - _LENGTH_BYTES < size:
                break
            at += _LENGTH_BYTES + size
            self._write(wire.decode(self._waiting[at - size : at]))
        del self._waiting[:at]

    def _write(self, row: Any) -> None:
        match row:
            case [str(table), str(kind), str(name), dict(arguments)] if table == _OBJECT and is_object(row[1:]):
                self._roles.configuration.put(kind, name, arguments)
            case [str(table), str(queue), list(generations)] if table == _GENERATIONS:
                self._roles.generations.replace(queue, map(_generation, generations))
            case _:
                check_row(row)
                table, *columns = row
                if len(columns) != len(COLUMNS[table]):
                    raise ShapeError(f"a row of {table} is not whole")
                self._database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", columns)


def _generation(value: Any) -> Generation:
    match value:
        case [int(generation), int(first)] if 0 <= generation <= MAX_NUMBER and 0 <= first <= MAX_NUMBER:
            return generation, first
    raise ValueError("a generation is malformed")


class StoreCopies:
    """One broker's part in a copy, as its source or as its destination; ``copy`` names the present copy."""

    def __init__(self, broker: Broker, roles: Roles) -> None:
        self._broker, self._roles = broker, roles
        self._copy = ""
        self._next = 0
        self._reader: StoreReader | None = None
        self._writer: StoreWriter | None = None
        self.operations: dict[str, Callable[[Request], dict[str, Any]]] = {
            "read-store": self._read, "write-store": self._write, "stamp-store": self._stamp,
        }  # fmt: skip

    def _take_part(self, request: Request) -> int:
        """Return the number of the requested piece; raises ConfigError if the request is out of turn."""
        roles = self._roles
        copy, number = request.get("copy"), request.get("piece")
        if not isinstance(copy, str) or not copy or type(number) is not int or number < 0:
            raise ConfigError("copy or piece: is missing")
        if roles.state != CONNECTING:
            raise ConfigError(f"{roles.name} is {roles.state}: stores are copied while all brokers are connecting")
        if roles.held and copy != self._copy:
            raise ConfigError(f"{roles.name} takes part in another copy; wait until that has ended")
        if number and (not roles.held or number != self._next):
            raise ConfigError(f"{roles.name} takes part in that copy no longer; begin it again")
        self._copy, self._next = copy, number + 1
        roles.hold(HOLD_SECONDS)
        return number

    def _read(self, request: Request) -> dict[str, Any]:
        """Return a piece of this broker's store, empty at its end."""
        if not self._take_part(request):
            self._roles.end_connections()
            self._reader, self._writer = StoreReader(self._broker.database, self._roles), None
            self._broker.runtime.log("store is copied", generation=self._roles.generation)
        if self._reader is None:
            raise ConfigError("this broker's store is not being read")
        piece = self._reader.piece()
        return {"data": base64.b64encode(piece).decode(), "generation": self._roles.generation}

    def _write(self, request: Request) -> dict[str, Any]:
        """Replace this broker's store: the first piece empties it."""
        if not self._take_part(request):
            self._roles.begin_replacing()
            self._reader, self._writer = None, StoreWriter(self._broker.database, self._roles)
        writer, self._writer = self._writer, None
        if writer is None:
            raise ConfigError("this broker's store is not being written")
        try:
            piece = base64.b64decode(str(request.get("data", "")), validate=True)
        except ValueError:
            raise ConfigError("data: is not base64; begin again") from None
        problem = ""
        with self._broker.transaction():
            try:
                writer.add(piece)
            except (ValueError, sqlite3.IntegrityError) as error:
                problem = str(error)
        if problem:
            raise ConfigError(f"data: is not a piece of a store ({problem}); begin again")
        self._writer = writer
        return {}

    def _stamp(self, request: Request) -> dict[str, Any]:
        """Mark this store clean, with the identifier that all stores get: the copies are complete."""
        uuid, generation = request.get("uuid"), request.get("generation")
        known = isinstance(uuid, str) and uuid.isalnum() and len(uuid) <= MAX_UUID
        if not known or type(generation) is not int or not 0 <= generation <= MAX_NUMBER:
            raise ConfigError("uuid or generation: is missing")
        assert isinstance(uuid, str)
        self._take_part(request)
        written, read = self._writer, self._reader
        self._writer = self._reader = None
        if (written is None and read is None) or (written is not None and not written.is_whole):
            raise ConfigError("the copy is not whole; begin again")
        if written is None:
            self._roles.stamp_store(uuid)
            return {}
        with self._broker.transaction():
            self._roles.store.write(state=CLEAN, generation=generation, uuid=uuid)
        self._broker.runtime.log("store replaced", generation=generation)
        self._broker.runtime.spawn(_end(), "end after a copy")
        return {}


async def _end() -> None:
    await asyncio.sleep(_LINGER_SECONDS)
    raise StoreReplaced("the store was replaced: this broker has to be started again")
