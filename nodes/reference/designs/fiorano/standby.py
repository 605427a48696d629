"""The passive side: writes the active server's messages to the local database, and reports how far they are on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nodes.reference.api import Broker
from nodes.reference.designs.fiorano.messages import Begin, ChangeSet, Complete, Page, StoredUpTo, check_tables
from nodes.reference.designs.fiorano.repository import StoredStamp
from nodes.reference.designs.fiorano.tables import Tables
from nodes.reference.points import SET_COPIED
from nodes.reference.replication.handshake import LinkError

Sent = Begin | Page | ChangeSet | Complete


class Standby:
    """A repository that follows the active server; ``send`` reports to that server how far it is stored.

    ``following`` is the number of the synchronisation whose changes are accepted; while it is 0, no changes are
    accepted. ``stale``: rows were written past the engine, so it must be reloaded before it is used.
    """

    def __init__(self, broker: Broker, repository: StoredStamp, tables: Tables,
                 send: Callable[[StoredUpTo], None]) -> None:
        self._broker, self._repository, self._tables, self._send = broker, repository, tables, send
        self.following = 0
        self.stale = False

    def refuse(self) -> None:
        """Accept nothing more from the formerly active server: its epoch has ended here."""
        self.following = 0

    def apply(self, messages: Sequence[Sent]) -> bool:
        """Write the messages in one transaction; return whether a synchronisation is complete now.

        Raises:
            LinkError: a message is malformed, or one before it is missing.
        """
        if not messages or not (self.following or any(isinstance(message, Begin) for message in messages)):
            return False
        for message in messages:
            self._check(message)
        mistake: LinkError | None = None
        completed = False
        done = 0
        with self._broker.transaction():
            for message in messages:
                try:
                    completed |= self._take(message)
                except LinkError as error:
                    mistake = error  # nothing of this one was written, and the messages before it are valid
                    break
                done += 1
        if mistake is not None:
            raise mistake
        self._broker.runtime.point(SET_COPIED)
        stamp = self._repository.stamp
        self._send(StoredUpTo(self.following, stamp.counter, done, stamp.whole))
        return completed

    def _take(self, message: Sent) -> bool:
        repository, stamp = self._repository, self._repository.stamp
        self.stale = True
        if isinstance(message, Begin):
            self.following = message.sync
            self._tables.stage()
            repository.write(whole=False, epoch=message.epoch, counter=message.counter)
            self._broker.runtime.log("synchronisation begins", epoch=message.epoch, counter=message.counter)
            return False
        if message.sync != self.following:
            return False
        if isinstance(message, Page):
            self._demand(not stamp.whole, "a page comes after the synchronisation is complete")
            self._tables.write(message.table, message.rows, (), staged=True)
            return False
        if isinstance(message, ChangeSet):
            self._demand(message.counter in (stamp.counter, stamp.counter + 1), "a change-set is missing")
            for name, rows, removed in message.tables:
                self._tables.write(name, rows, removed, staged=not stamp.whole)
            repository.write(epoch=message.epoch, counter=message.counter, changed=message.changed)
            return False
        self._demand(not stamp.whole and message.counter == stamp.counter, "the end of a synchronisation is malformed")
        self._tables.replace()
        repository.write(whole=True, epoch=message.epoch)
        self._broker.runtime.log("synchronisation complete", epoch=message.epoch, counter=message.counter)
        return True

    def _check(self, message: Sent) -> None:
        if isinstance(message, Page):
            self._tables.check(message.table, message.rows)
        elif isinstance(message, ChangeSet):
            check_tables(message.tables)
            for name, rows, _ in message.tables:
                self._tables.check(name, rows)

    @staticmethod
    def _demand(right: bool, mistake: str) -> None:
        if not right:
            raise LinkError(mistake)
