"""PostgreSQL as the storage service's database, on the service's own machine.

All changes of a batch of requests form one transaction together with the fence, in one exchange of messages. The fence
names the service that has opened the database last: a service that was replaced by another, and does not know it,
changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from nodes.reference import wire
from nodes.reference.api import Runtime
from nodes.reference.storage.database import (
    HIGHEST_KEY,
    PAGE_ROWS,
    Fence,
    StoreLostError,
    StoreTakenError,
    encoded_columns,
)
from nodes.reference.storage.postgres import (
    PostgresConnection,
    PostgresError,
    PostgresLostError,
    Statement,
    number,
)
from nodes.reference.storage.protocol import PAGE_BYTES, TableChange

USER = "storage"
"""The role that owns the database."""
DEADLINE = 5.0
"""Seconds that a transaction may take before its outcome counts as unknown."""
_RETRY_SECONDS = 0.1
"""Time before PostgreSQL is tried again."""
_STATEMENT_ROWS = 1000
"""Rows that one statement writes."""

# Names are bytes: the brokers' table names may contain characters that PostgreSQL's texts can't.
_TABLES = (
    Statement("CREATE TABLE IF NOT EXISTS stored (name bytea NOT NULL, id bigint NOT NULL, columns bytea NOT NULL,"
              " PRIMARY KEY (name, id))"),
    Statement("CREATE TABLE IF NOT EXISTS fence (id int PRIMARY KEY, service bigint NOT NULL, epoch bigint NOT NULL,"
              " holder bytea NOT NULL, applied bigint NOT NULL)"),
    Statement("INSERT INTO fence VALUES (0, 0, 0, '', 0) ON CONFLICT DO NOTHING"),
)  # fmt: skip
_TAKE = Statement("UPDATE fence SET service = service + 1 RETURNING service, epoch, holder, applied")
# A service that was replaced divides by zero, which undoes the whole transaction.
_FENCE = ("WITH mine AS (UPDATE fence SET epoch = $2, holder = $3, applied = $4 WHERE service = $1 RETURNING 1)"
          " SELECT 1 / count(*) FROM mine")
_REPLACED = "22012"
_REMOVE = "DELETE FROM stored WHERE name = $1 AND id = ANY ($2)"
_WRITE = ("INSERT INTO stored SELECT $1, * FROM unnest($2::bigint[], $3::bytea[])"
          " ON CONFLICT (name, id) DO UPDATE SET columns = excluded.columns")
# The running sum ends a page where the embedded database would.
_PAGE = ("SELECT id, columns FROM (SELECT id, columns, row_number() OVER w AS place,"
         " sum(length(columns)) OVER w AS size FROM"
         " (SELECT id, columns FROM stored WHERE name = $1 AND id >= $2 ORDER BY id LIMIT $3) AS first"
         f" WINDOW w AS (ORDER BY id)) AS found WHERE place = 1 OR size <= {PAGE_BYTES} ORDER BY id")
_HAS_MORE = "SELECT count(*) FROM (SELECT 1 FROM stored WHERE name = $1 AND id > $2 LIMIT 1) AS beyond"


class PostgresStore(Fence):
    """The database of a server that listens at ``port`` of this machine; ``password`` reads the password of
    ``USER``."""

    def __init__(self, runtime: Runtime, port: int, password: Callable[[], str]) -> None:
        super().__init__()
        self._runtime, self._port, self._password = runtime, port, password
        self._connection: PostgresConnection | None = None
        self._service = 0
        self._written = (0, "", 0)
        self._changes: dict[tuple[str, int], bytes | None] = {}

    async def open(self) -> None:
        """Wait until the server is available, then take over the fence and load it."""
        self._drop()
        told = ""
        while True:
            connection = PostgresConnection(self._runtime, self._port, USER, self._secret(), DEADLINE)
            try:
                await connection.open()
                *_, ((service, epoch, holder, applied),) = await connection.run((*_TABLES, _TAKE))
            except (PostgresLostError, PostgresError) as error:
                connection.abort()
                if str(error) != told:
                    told = str(error)
                    self._runtime.log("database unreachable", port=self._port, reason=told)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            self._connection, self._service = connection, number(service)
            self.epoch, self.holder, self.applied = number(epoch), holder.decode(), number(applied)
            self._written = (self.epoch, self.holder, self.applied)
            return

    def _secret(self) -> str:
        try:
            return self._password()
        except OSError:
            return ""  # the server has never run yet

    def begin(self) -> None:
        """Begin a batch of changes that are written together."""

    def write(self, change: TableChange) -> None:
        """Record a change that has passed the fence."""
        for key in change.removed:
            self._changes[change.table, key] = None
        for row in change.rows:
            self._changes[change.table, row[0]] = encoded_columns(row)

    async def finish(self) -> None:
        """Write the changes since ``begin``.

        Raises:
            StoreLostError: the outcome of the write is unknown.
            StoreTakenError: another service has opened the database since.
        """
        fence = (self.epoch, self.holder, self.applied)
        if fence == self._written and not self._changes:
            return
        statements = [Statement(_FENCE, (self._service, self.epoch, self.holder.encode(), self.applied))]
        statements += self._statements()
        self._changes = {}
        await self._run(statements)
        self._written = fence

    def _statements(self) -> list[Statement]:
        by_table: dict[str, dict[int, bytes | None]] = {}
        for (table, key), columns in self._changes.items():
            by_table.setdefault(table, {})[key] = columns
        statements = []
        for table, rows in by_table.items():
            name = table.encode()
            removed = [key for key, columns in rows.items() if columns is None]
            written = [(key, columns) for key, columns in rows.items() if columns is not None]
            statements += [Statement(_REMOVE, (name, removed[place : place + _STATEMENT_ROWS]))
                           for place in range(0, len(removed), _STATEMENT_ROWS)]
            for place in range(0, len(written), _STATEMENT_ROWS):
                keys, columns_of = zip(*written[place : place + _STATEMENT_ROWS], strict=True)
                statements.append(Statement(_WRITE, (name, list(keys), list(columns_of))))
        return statements

    async def page(self, epoch: int, table: str, after: int | None) -> tuple[list[list[Any]], bool]:
        """Return rows of a table, after writing earlier changes.

        Raises:
            FencedError: another epoch holds the store.
            StoreLostError: the database is gone.
        """
        self.check(epoch)
        await self.finish()
        if after == HIGHEST_KEY:
            return [], False
        name = table.encode()
        lowest = ~HIGHEST_KEY if after is None else after + 1
        (rows,) = await self._run([Statement(_PAGE, (name, lowest, PAGE_ROWS))])
        found = [[number(key), *wire.decode(columns)] for key, columns in rows]
        if not found or found[-1][0] == HIGHEST_KEY:
            return found, False
        ((more,),) = (await self._run([Statement(_HAS_MORE, (name, found[-1][0]))]))[0]
        return found, bool(number(more))

    async def _run(self, statements: Sequence[Statement]) -> list[list[list[Any]]]:
        if self._connection is None:
            raise StoreLostError("the database is not open")
        try:
            return await self._connection.run(statements)
        except PostgresError as error:
            self._drop()
            if error.code == _REPLACED:
                raise StoreTakenError("another storage service uses the database now") from error
            raise StoreLostError(str(error)) from error
        except PostgresLostError as error:
            self._drop()
            raise StoreLostError(str(error)) from error

    def _drop(self) -> None:
        self._changes = {}
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
