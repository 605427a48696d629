"""What a backup does when its store fails where the primary's did not [Inconsistent errors].

"Abort the backup broker allowing it to be re-started", or "raise a critical error on the backup broker but carry on
with the message lost": by default as the option ``store_errors`` says, or as the queue's argument of that name. Whoever
carries on keeps in memory what it could not store, and stores it as soon as it can.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from nodes.reference.api import Broker
from nodes.reference.designs.qpid.configuration import QUEUE, STORE_ERRORS, Configuration
from nodes.reference.designs.qpid.messages import CREATE, DELETE, DEQUEUE, ENQUEUE, RESET, Events
from nodes.reference.designs.qpid.options import CARRY_ON, Options
from nodes.reference.engine.engine import StoreEngine


class StoreErrors:
    """Stores what a backup applies; ``error`` is why the last of it could not be stored, empty when it was."""

    def __init__(self, broker: Broker, engine: StoreEngine, options: Options, configuration: Configuration) -> None:
        self._broker, self._engine, self._options = broker, engine, options
        self._configuration = configuration
        self.error = ""

    @contextmanager
    def transaction(self, groups: Iterable[Events], besides: bool = False) -> Iterator[None]:
        """As the broker's transaction. When it can't be stored, and all queues of these groups carry on, no exception
        comes of it, and it is stored together with a later one. ``besides``: it changes what is no queue's, too.

        Raises:
            sqlite3.Error: it can't be stored, and the broker ends.
        """
        failed: list[sqlite3.Error] = []
        before = {queue: self._choice_of(queue) for queue in (*_queues(groups), *[""] * besides)}

        def forgives(error: sqlite3.Error) -> bool:
            # A queue may be new, or gone, by these groups.
            choices = [self._choice_of(queue) or before[queue] or self._options.store_errors for queue in before]
            if self._engine.overflows or any(choice != CARRY_ON for choice in choices):
                return False
            failed.append(error)
            return True

        with self._broker.transaction(forgives):
            yield
        log = self._broker.runtime.log
        if failed and not self.error:
            log("store failed; carrying on in memory", level="critical", error=str(failed[0]))
        elif self.error and not failed:
            log("store works again")
        self.error = str(failed[0]) if failed else ""

    def try_again(self) -> None:
        """Store what could not be stored before, if there is any."""
        if self.error:
            with self.transaction(()):
                pass

    def _choice_of(self, queue: str) -> str:
        """What a queue says itself; empty: nothing."""
        return str((self._configuration.get((QUEUE, queue)) or {}).get(STORE_ERRORS, ""))


def _queues(groups: Iterable[Events]) -> Iterator[str]:
    """The queues that groups of events change; an empty name for what is of no queue."""
    for group in groups:
        for name, *parts in group.events:
            if name in (ENQUEUE, DEQUEUE, RESET):
                yield parts[0]
            elif name in (CREATE, DELETE) and parts[0] == QUEUE:
                yield parts[1]
            else:
                yield ""
