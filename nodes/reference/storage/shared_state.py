"""An engine whose state is kept by the storage service; the engine's own database is only a working copy.

After a command is applied, its changes are written to the working copy and sent to the service; its effects may be
released when the service has the changes on disk. So a commit costs a round trip, and many may be under way. A broker
that takes the store over claims a newer epoch, which fences the former holder, and loads the whole store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from nodes.reference.engine.engine import StoreEngine
from nodes.reference.engine.row_schema import ShapeError, check_row, check_state
from nodes.reference.engine.store import TABLES, Changes
from nodes.reference.storage.client import StorageClient
from nodes.reference.storage.protocol import FencedError, StorageError, StoreDamagedError, TableChange


class SharedState:
    """Keeps the state of ``engine`` in the store that ``client`` connects to.

    ``transaction`` opens a transaction of the working copy, as ``Broker.transaction`` does. ``epoch`` is the epoch in
    which this broker holds the store. It is 0 when the broker does not hold it: before ``take_over``, and after any
    failed commit, since memory is then ahead of the store.
    """

    def __init__(self, client: StorageClient, engine: StoreEngine,
                 transaction: Callable[[], AbstractContextManager[None]]) -> None:
        self._client, self._engine, self._transaction = client, engine, transaction
        self._changes = Changes()
        self._sequence = 0
        self.epoch = 0

    @property
    def position(self) -> tuple[int, int]:
        """The epoch, and the number of its last commit that was sent."""
        return self.epoch, self._sequence

    async def take_over(self, epoch: int, on_progress: Callable[[], None] = lambda: None) -> None:
        """Hold the store from now on, and load its contents as the engine's state.

        The epoch must be a new one, even for its holder: commits that failed, or commits that this broker sent before
        its restart, may still be under way, and would be mistaken for the first ones of this epoch.

        Raises:
            FencedError: the store was claimed in this epoch or a newer one.
            StoreDamagedError: its contents can't be an engine's state; the engine has kept its own.
            StorageError: the service can't be reached, or refuses.
        """
        self.let_go()
        if (newest := (await self._client.state()).epoch) >= epoch:
            raise FencedError(newest)
        self._sequence = await self._client.claim(epoch)
        rows: list[list[Any]] = []
        for table in TABLES:
            async for page in self._client.read(epoch, table):
                rows += ([table, *row] for row in page)
                on_progress()
        _check(rows)
        with self._transaction():
            self._engine.load(rows, on_progress)
        self._engine.changes = self._changes
        self._changes.clear()
        self.epoch = epoch

    async def go_on(self, epoch: int) -> None:
        """Hold the store again, without loading it: changes made in the meantime are never written.

        For brokers that have to demonstrate the consequences. Raises as ``take_over`` does.
        """
        self._sequence = await self._client.claim(epoch)
        self._changes.clear()
        self._engine.changes = self._changes
        self.epoch = epoch

    def let_go(self) -> None:
        """Stop holding the store; later changes are written only to the working copy."""
        self.epoch = 0
        self._engine.changes = None

    def commit(self, told: Callable[[Sequence[TableChange]], None] = lambda changes: None) -> asyncio.Task[None]:
        """Send the changes since the last call, and pass them to ``told``; the task ends when they are durable.

        Tasks end in the order of the calls. After one has failed, all later ones fail.

        Raises:
            StorageError: the store is not held.
        """
        if not self.epoch:
            raise StorageError("this broker does not hold the store")
        self._sequence += 1
        changes = [TableChange(*each) for each in self._changes.drain()]
        told(changes)
        task = asyncio.get_running_loop().create_task(
            self._commit(self.epoch, self._sequence, changes), name=f"commit {self._sequence}")
        task.add_done_callback(_note_failure)
        return task

    async def _commit(self, epoch: int, sequence: int, changes: list[TableChange]) -> None:
        if self.epoch != epoch:  # Lost since the call: no commit may follow a failed one.
            raise StorageError("the store is no longer held")
        try:
            await self._client.commit(epoch, sequence, changes)
        except StorageError:
            if self.epoch == epoch:
                self.let_go()
            raise

    async def renew(self) -> None:
        """Tell the service that the holder is alive.

        Raises:
            FencedError: another broker holds the store now; this one has let go.
            StorageError: the service can't be reached.
        """
        epoch = self.epoch
        if not epoch:
            raise StorageError("this broker does not hold the store")
        try:
            await self._client.claim(epoch)
        except StorageError:
            if self.epoch == epoch:
                self.let_go()
            raise


def _note_failure(task: asyncio.Task[None]) -> None:
    """Retrieve a task's exception, so that it is not reported as lost when its waiter has ended: letting go is
    enough."""
    if not task.cancelled():
        task.exception()


def _check(rows: list[list[Any]]) -> None:
    """Raise StoreDamagedError unless these rows form a consistent state."""
    tables: dict[str, dict[int, list[Any]]] = {table: {} for table in TABLES}
    try:
        for row in rows:
            if len(row) < 3:  # a link's form of a deleted row
                raise ShapeError(f"a row of {row[0]} has no columns")
            check_row(row)
            tables[row[0]][row[1]] = row
        check_state(tables)
    except ShapeError as error:
        raise StoreDamagedError(f"the database is damaged: {error}") from error
