"""Mode shared: one database, kept by a service on another machine; only the active server changes it.

[Working of Fiorano Shared High Availability.] The engine's own database is a working copy in memory. A commit is
confirmed when the service has it on disk, in the epoch of the lock; the service refuses older epochs.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping

from nodes.reference.api import Broker, Command, Effect
from nodes.reference.designs.fiorano.configuration import DATABASE, FioranoOptions
from nodes.reference.designs.fiorano.gateway.grants import ALONE, ANY
from nodes.reference.designs.fiorano.lock import Wish
from nodes.reference.designs.fiorano.messages import Message
from nodes.reference.designs.fiorano.repository import RepositoryStamp
from nodes.reference.designs.fiorano.server import NOT_SERVING, HAServer
from nodes.reference.designs.fiorano.states import ACTIVATING, ACTIVE, PASSIVE
from nodes.reference.designs.fiorano.transitions import ACTIVATED, REACHABLE, SHARED, Transition
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.points import DATABASE_HAS
from nodes.reference.replication.handshake import ComplaintLog
from nodes.reference.storage.client import StorageClient
from nodes.reference.storage.protocol import FencedError, StorageError, StorageUnavailableError
from nodes.reference.storage.shared_state import SharedState

_CHECKS_PER_LEASE = 4
"""The number of reachability checks of the database per lease."""
_RETRY_LEASES = 10
"""Leases to wait before a server retries a database whose content it could not use."""


class SharedPair(HAServer):
    """One of two servers that share a database."""

    def __init__(self, broker: Broker, engine: StoreEngine, options: FioranoOptions,
                 send: Callable[[Message], None]) -> None:
        assert options.database is not None
        self._engine = engine
        self.client = StorageClient(broker.runtime, broker.config.node, options.database, options.cluster,
                                     options.secret, options.database_timeout)
        self.store = SharedState(self.client, engine, broker.transaction)
        self.reachable = self.activated = False
        self._complaints = ComplaintLog(broker.runtime, "database can't be used")
        self._rest_until = -math.inf
        self.epoch = self._above = self.commits = 0
        self._kept = 0
        """The epoch in which the database was loaded, with no changes since; set when loading took longer than the
        lease.
        """
        self.commands: list[Command] = []
        self._wake = asyncio.Event()
        self.waiting: deque[tuple[asyncio.Task[None] | None, list[Effect]]] = deque()
        self._activation: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.checks = 0
        super().__init__(broker, options, SHARED, PASSIVE, 0, send)

    @property
    def serves(self) -> bool:
        """Tell whether clients are admitted."""
        return self.state == ACTIVE

    @property
    def stamp(self) -> RepositoryStamp:
        """The stamp of the one repository: the epoch is that in which this server last held it."""
        return RepositoryStamp(epoch=self.epoch, counter=self.commits)

    def start(self) -> None:
        """Begin to watch the database, and seek the lock."""
        super().start()
        self._tasks = [self._runtime.spawn(self._look_forever(), "database"),
                       self._runtime.spawn(self._commit_forever(), "fiorano commit")]  # fmt: skip

    def stop(self) -> None:
        """Stop serving, and end."""
        super().stop()
        self._let_go()
        for task in self._tasks:
            task.cancel()
        self.client.close()

    def submit(self, command: Command) -> None:
        """Carry out a command if this server serves."""
        if self.serves:
            self.commands.append(command)
            self._wake.set()

    def _note_asked(self, epoch: int) -> None:
        """Do nothing: the gateway stores the epoch, and the database refuses older ones."""

    def _facts(self) -> Mapping[str, bool]:
        return {REACHABLE: self.reachable or self._goes_on_without, ACTIVATED: self.activated}

    @property
    def _goes_on_without(self) -> bool:
        """Tell whether the active server ignores an unreachable database, as documented."""
        return DATABASE in self._options.as_documented and self.state == ACTIVE

    def _wish(self) -> Wish:
        return Wish(ANY, ALONE, self._above)

    def _entered(self, line: Transition) -> None:
        if line.to == ACTIVE:
            self._tell_state()
            self._broker.began_serving()
            return
        if line.to == PASSIVE:
            self._let_go(keep=self.activated and self.before == ACTIVATING and line.lock is False)
            if self.before == ACTIVE:
                self._broker.drop_clients(NOT_SERVING)
        self._tell_state()

    def _decided(self) -> None:
        if self.state == ACTIVATING and self._activation is None and self.lock.epoch > self._above:
            self._activation = self._runtime.spawn(self._activate(self.lock.epoch), "activation")

    def _let_go(self, keep: bool = False) -> None:
        """Release the database: memory may be ahead of it. ``keep``: it was loaded and nothing has changed."""
        activation, self._activation = self._activation, None
        if activation is not None and activation is not asyncio.current_task():
            activation.cancel()
        self.activated = False
        self._kept = self.epoch if keep else 0
        if not keep:
            self.store.let_go()
        self.commands.clear()
        self.waiting.clear()

    # The database.

    async def _look_forever(self) -> None:
        while True:
            try:
                if self.state == ACTIVE and self.store.epoch:
                    await self.store.renew()
                else:
                    await self.client.state()
            except StorageError as error:
                self._failed(error)
            else:
                await self._reached()
            self.checks += 1
            await asyncio.sleep(self._options.lease / _CHECKS_PER_LEASE)

    async def _reached(self) -> None:
        if not self.reachable and self._runtime.now() >= self._rest_until:
            self.reachable = True
            self._runtime.log("database reachable")
            self.decide()
        if self.state == ACTIVE and not self.store.epoch:
            await self._resume()

    def _failed(self, error: StorageError) -> None:
        """Handle a request that the database refused or did not answer."""
        if isinstance(error, FencedError):
            self._above = max(self._above, error.epoch)
            if self.state == PASSIVE:
                return
            self._runtime.log("database refused an older epoch", level="error", epoch=self.epoch, newer=error.epoch)
            if self._options.fencing:
                self.reachable = False  # until the next check: this server's content is worthless
        elif self.reachable:
            self.reachable = False
            self._runtime.log("database unreachable", level="error", reason=str(error))
        self.decide()

    async def _activate(self, epoch: int) -> None:
        """Claim the database, and load its content."""
        try:
            if self._kept == epoch == self.store.epoch:
                await self.store.renew()  # no other server has claimed it since, so memory equals its content
            else:
                await self.store.take_over(epoch)
        except StorageError as error:
            self._activation = None
            if not isinstance(error, FencedError | StorageUnavailableError):
                self.reachable = False
                self._rest_until = self._runtime.now() + _RETRY_LEASES * self._options.lease
                self._complaints.tell("", f"{error}; restore it from a copy: nobody serves until then", level="error")
            self._failed(error)
            return
        self._activation = None
        self._complaints.forget("")
        self.epoch, self.commits, self.activated = epoch, 0, True
        self._runtime.log("database claimed", epoch=epoch)
        self.decide()

    async def _resume(self) -> None:
        """Write to the database again as if nothing had been missed in the meantime, which the document warns of."""
        self._above = max(self._above, self.lock.epoch, self.epoch)
        try:
            newest = (await self.client.state()).epoch
            await self.store.go_on(newest + 1)
        except StorageError:
            return  # the next check shows it
        self.epoch = newest + 1
        self._runtime.log("database resumed", level="warning", epoch=self.epoch)

    # Commands.

    async def _commit_forever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self.serves and self.commands:
                self._commit()

    def _commit(self) -> None:
        commands, self.commands = self.commands, []
        effects: list[Effect] = []
        with self._broker.transaction():
            for command in commands:
                effects += self._engine.apply(command)
        self.commits += 1
        task = None
        if self.store.epoch:
            task = self.store.commit(self.tally.add)
            task.add_done_callback(self._committed)
        self.waiting.append((task, effects))
        self._release()

    def _committed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # retrieve it: a dropped commit has no other reader
        self._runtime.point(DATABASE_HAS)
        self._release()

    def _release(self) -> None:
        """Release to clients, in order, the effects that the database has stored."""
        effects: list[Effect] = []
        failure: StorageError | None = None
        while self.waiting and ((task := self.waiting[0][0]) is None or task.done()):
            if task is None or task.cancelled():
                failed: BaseException | None = StorageError("the database is not held")
            else:
                failed = task.exception()
            if failed is not None:
                if not isinstance(failed, StorageError):
                    raise failed
                failure = failed
                if not self._confirms_without(failed):
                    break
            effects += self.waiting.popleft()[1]
        if effects:
            self._broker.release(effects)
        if failure is not None and self.state == ACTIVE:
            self._failed(failure)

    def _confirms_without(self, failure: StorageError) -> bool:
        """Tell whether clients get confirmations despite the failure, as the document leaves it."""
        if isinstance(failure, FencedError):
            return not self._options.fencing
        return self._goes_on_without
