"""A backup's reaction when its store fails while the primary's did not [Inconsistent errors].

"Abort the backup broker allowing it to be re-started", or "raise a critical error on the backup broker but carry on
with the message lost": the queue's argument ``store_errors`` decides, else the option of that name. A broker that
carries on keeps unstored data in memory, and stores them as soon as it can.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from nodes.reference.api import Broker
from nodes.reference.designs.qpid.configuration import QUEUE, STORE_ERRORS, Configuration
from nodes.reference.designs.qpid.messages import CREATE, DELETE, DEQUEUE, ENQUEUE, RESET, EventGroup
from nodes.reference.designs.qpid.options import CARRY_ON, QpidOptions
from nodes.reference.engine.engine import StoreEngine


class StoreErrors:
    """Stores what a backup applies; ``error`` is the reason why the last of it could not be stored, empty if it was."""

    def __init__(self, broker: Broker, engine: StoreEngine, options: QpidOptions, configuration: Configuration) -> None:
        self._broker, self._engine, self._options = broker, engine, options
        self._configuration = configuration
        self.error = ""

    @contextmanager
    def transaction(self, groups: Iterable[EventGroup], besides: bool = False) -> Iterator[None]:
        """Open the broker's transaction. If it can't be stored, and all queues of these groups carry on, no exception
        is raised, and the data are stored together with a later transaction. ``besides``: the transaction also changes
        data that belong to no queue.

        Raises:
            sqlite3.Error: it can't be stored, and the broker ends.
        """
        failed: list[sqlite3.Error] = []
        before = {queue: self._choice_of(queue) for queue in (*_queues(groups), *[""] * besides)}

        def forgives(error: sqlite3.Error) -> bool:
            # These groups may create or delete a queue.
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
        """Try again to store data that could not be stored before, if there are any."""
        if self.error:
            with self.transaction(()):
                pass

    def _choice_of(self, queue: str) -> str:
        """Return a queue's argument; empty without one."""
        return str((self._configuration.get((QUEUE, queue)) or {}).get(STORE_ERRORS, ""))


def _queues(groups: Iterable[EventGroup]) -> Iterator[str]:
    """Yield the queues that groups of events change; an empty name for changes that belong to no queue."""
    for group in groups:
        for name, *parts in group.events:
            if name in (ENQUEUE, DEQUEUE, RESET):
                yield parts[0]
            elif name in (CREATE, DELETE) and parts[0] == QUEUE:
                yield parts[1]
            else:
                yield ""
