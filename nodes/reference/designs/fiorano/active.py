"""The serving side: carries out commands, has them stored locally and at the standby, and releases safe effects.

[Working of Fiorano Replicated High Availability: "the Active Server replicates its data store and state to the Passive
Server".] The changes of one transaction form one change-set. While this server is alone, the effects of a change-set
are released as soon as it is on disk and the lock is held. With a standby, they are released once the standby, too, has
it on disk.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from nodes.reference.api import Broker, Command, Effect
from nodes.reference.designs.fiorano.lock import ServerLock
from nodes.reference.designs.fiorano.messages import Begin, ChangeSet, Complete, Message, Page, StoredUpTo
from nodes.reference.designs.fiorano.repository import StoredStamp
from nodes.reference.designs.fiorano.tables import Tables
from nodes.reference.designs.fiorano.tally import DiskWriteCounter
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.engine.store import Changes
from nodes.reference.points import ALL_SENT, EPOCH_ADOPTED, PAGE_SENT, SET_SENT, SET_STORED, STANDBY_STORED


@dataclass(eq=False)
class Standing:
    """The progress of a standby that is being synchronised or is synchronised; ``stored`` is its newest stored
    change-set.

    ``complete``: the standby was sent everything, so nothing is confirmed without it from then on. ``sent``: the number
    of pages sent so far.
    """

    sync: int
    stored: int = -1
    complete: bool = False
    under_way: int = 0
    sent: int = 0
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class ActiveSide:
    """Serves clients from its creation until ``stop``.

    Args:
        send: sends a message over the HA channel.
        above: an epoch that a standby may have; changes that only this server has are confirmed in a later epoch.
        fencing: whether the lock is checked before anything is confirmed.
        tally: counts change-sets.
        window: the maximum number of pages in flight.
    """

    def __init__(self, broker: Broker, engine: StoreEngine, repository: StoredStamp, tables: Tables, lock: ServerLock,
                 send: Callable[[Message], None], above: int, fencing: bool,
                 tally: DiskWriteCounter, window: int) -> None:
        self._broker, self._engine, self.repository, self._tables = broker, engine, repository, tables
        self._lock, self._send, self._fencing = lock, send, fencing
        self.tally, self.window = tally, window
        self.counted_before = tally.changes
        self.above = above
        self.standing: Standing | None = None
        self.commands: list[Command] = []
        self._wake = asyncio.Event()
        self.waiting: deque[tuple[int, int, list[Effect]]] = deque()
        """The unconfirmed change-sets: their number, the epoch in which they were created, and their effects."""
        self.began = repository.stamp
        """The repository's stamp when this server began to serve."""
        self.confirmed = (0, 0)
        """Epoch and number of the newest change-set that was confirmed to clients."""
        self.copying: dict[asyncio.Task[None], int] = {}
        """The running copy tasks, which send a standby all pages, each with the number of its synchronisation."""
        self.told: tuple[int, int] | None = None
        """Epoch and number of the change-set that was last reported to the standby."""
        self._noted = engine.changes = Changes()
        self._task = broker.runtime.spawn(self._run(), "fiorano commit")

    def stop(self) -> None:
        """Stop serving; unconfirmed changes stay unconfirmed."""
        self.part()
        self._engine.changes = None
        self.waiting.clear()
        self._task.cancel()

    def submit(self, command: Command) -> None:
        """Queue a command; it is carried out together with all others that arrive in this turn of the event loop."""
        self.commands.append(command)
        self._wake.set()

    @property
    def unwoken(self) -> bool:
        """Tell whether commands wait, and nothing wakes up who carries them out."""
        return bool(self.commands) and not self._wake.is_set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            self.commit()

    def commit(self) -> None:
        """Carry out all waiting commands in one transaction."""
        commands, self.commands = self.commands, []
        if not commands:
            return
        effects: list[Effect] = []
        runtime, repository = self._broker.runtime, self.repository
        with self._broker.transaction():
            for command in commands:
                effects += self._engine.apply(command)
            repository.write(counter=repository.stamp.counter + 1, changed=runtime.time_of_day())
        runtime.point(SET_STORED)
        self.waiting.append((repository.stamp.counter, repository.stamp.epoch, effects))
        tables: list[list[object]] = [[*each] for each in self._noted.drain()]
        self.tally.add(tables)
        self._tell(tables)
        runtime.point(SET_SENT)
        self.release()

    def adopt_epoch(self) -> None:
        """Adopt the lock's present epoch: later changes and confirmations belong to it."""
        if self._lock.epoch > self.repository.stamp.epoch:
            with self._broker.transaction():
                self.repository.write(epoch=self._lock.epoch)
            self._broker.runtime.point(EPOCH_ADOPTED)
            if self.shares:
                self._tell([])
        self.release()

    def _tell(self, tables: list[list[object]]) -> None:
        standing, stamp = self.standing, self.repository.stamp
        if standing is None:
            return
        if standing.complete:
            self.above = max(self.above, stamp.epoch)
        self._send(ChangeSet(standing.sync, stamp.epoch, stamp.counter, stamp.changed, tables))
        self.told = stamp.epoch, stamp.counter

    # Confirmation.

    @property
    def shares(self) -> bool:
        """Tell whether a standby has everything, in which case nothing is confirmed without it."""
        return self.standing is not None and self.standing.complete

    def may_go_alone(self) -> bool:
        """Tell whether changes that only this server has may be confirmed now."""
        if not self._fencing:
            return True
        return self._lock.holds() and self._lock.epoch > self.above and self.repository.stamp.epoch == self._lock.epoch

    def safe(self) -> int:
        """Return the number of the newest change-set that may be confirmed to clients; -1 for none."""
        standing = self.standing
        if standing is not None and standing.complete:
            return standing.stored
        if self.may_go_alone():
            return self.repository.stamp.counter
        return -1

    def release(self) -> None:
        """Release the effects of all safe change-sets to clients."""
        safe = self.safe()
        effects: list[Effect] = []
        while self.waiting and self.waiting[0][0] <= safe:
            counter, epoch, told = self.waiting.popleft()
            self.confirmed = (epoch, counter)
            effects += told
        if effects:
            self._broker.release(effects)

    # The standby.

    def synchronise(self, sync: int) -> None:
        """Begin to bring the standby up to date while clients are served."""
        self.part()
        standing = self.standing = Standing(sync)
        stamp = self.repository.stamp
        self._send(Begin(sync, stamp.epoch, stamp.counter))
        task = standing.task = self._broker.runtime.spawn(self._copy(standing), "synchronisation")
        self.copying[task] = sync
        task.add_done_callback(self.copying.pop)

    def part(self) -> None:
        """Forget the standby, because the channel is broken or the other server is not a standby any longer."""
        standing, self.standing = self.standing, None
        if standing is not None and standing.task is not None:
            standing.task.cancel()

    def stored(self, message: StoredUpTo) -> bool:
        """Note what the standby has stored; return whether it now has everything."""
        standing = self.standing
        if standing is None or message.sync != standing.sync:
            return False
        standing.stored = max(standing.stored, message.counter)
        standing.under_way = max(0, standing.under_way - message.frames)
        standing.moved.set()
        self._broker.runtime.point(STANDBY_STORED)
        self.release()
        return standing.complete and message.whole

    async def _copy(self, standing: Standing) -> None:
        for table, rows in self._tables.pages():
            self._send(Page(standing.sync, table, rows))
            standing.under_way += 1
            standing.sent += 1
            self._broker.runtime.point(PAGE_SENT)
            while standing.under_way >= self.window:
                standing.moved.clear()
                await standing.moved.wait()
            # Clients are served between any two pages.
            await asyncio.sleep(0)
        stamp = self.repository.stamp
        self._send(Complete(standing.sync, stamp.epoch, stamp.counter))
        standing.complete, self.told = True, (stamp.epoch, stamp.counter)
        self._broker.runtime.point(ALL_SENT)
        self.above = max(self.above, stamp.epoch)
