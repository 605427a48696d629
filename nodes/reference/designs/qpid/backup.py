"""A backup: browses the primary's queues and keeps copies of them [Replicating browsers, Replicating configuration]."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nodes.reference.api import Broker
from nodes.reference.designs.qpid.configuration import CREATED, QUEUE, Configuration
from nodes.reference.designs.qpid.levels import Levels
from nodes.reference.designs.qpid.messages import (
    CAUGHT_UP,
    CREATE,
    DELETE,
    DEQUEUE,
    ENQUEUE,
    MAX_GROUP,
    RESET,
    SNAPSHOT,
    Attach,
    Event,
    EventGroup,
    check_events,
    size_of,
)
from nodes.reference.designs.qpid.options import LC3, LC4, LC6, LM2, MESSAGES, QpidOptions
from nodes.reference.designs.qpid.positions import Generations, from_wire, ranges, to_wire
from nodes.reference.designs.qpid.store_errors import StoreErrors
from nodes.reference.designs.qpid.store_status import BACKUP_STORE, DIRTY, StoreStatus
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.replication.handshake import LinkError
from nodes.reference.replication.messages import MAX_NUMBER


class Backup:
    """A backup's copies and its replication progress.

    ``discard``: the store belongs to a broker that was not shut down in order; it is emptied once a primary has
    accepted this backup, and not before [Backup failure]. ``completed`` is the number of the last group on this
    connection.
    """

    def __init__(self, broker: Broker, engine: StoreEngine, options: QpidOptions, store: StoreStatus,
                 configuration: Configuration, generations: Generations, discard: bool) -> None:
        self._broker, self._engine, self._options = broker, engine, options
        self._store, self._configuration, self._generations = store, configuration, generations
        self._levels = Levels(options, configuration)
        self.discard = discard
        self.completed = 0
        self.store_errors = StoreErrors(broker, engine, options, configuration)
        self._queues = engine.replicas()
        self._epochs = LM2 not in options.as_documented
        self._snapshot_number = 0
        self._new_primary = False
        self._begun: list[Event] = []
        """The parts of an incomplete group received so far; ``_begun_bytes`` is their size."""
        self._begun_bytes = 0
        self._handlers: dict[str, Callable[..., None]] = {
            ENQUEUE: self._enqueue, DEQUEUE: self._dequeue, RESET: self._reset, CREATE: self._create,
            DELETE: self._delete, SNAPSHOT: self._take_snapshot,
        }  # fmt: skip

    @property
    def begun(self) -> bool:
        """Tell whether a group is incomplete: some of its parts were received, and others were not."""
        return bool(self._begun)

    def forget(self) -> None:
        """Stop treating the queues as copies: this broker serves them from now on."""
        self._queues.forget()

    def attach(self, generation: int) -> Attach:
        """Return the message for a primary; it lists no queues if the content is going to be discarded."""
        self.completed = self._begun_bytes = 0
        self._begun = []
        if self.discard:
            return Attach(generation, "", [])
        bits, told = self._options.sequence_bits, []
        for (kind, name), arguments in self._configuration.items():
            if kind == QUEUE and self._levels.of(kind, name, arguments) == MESSAGES:
                held = ranges(self._queues.holds(name))
                told.append([
                    name, arguments.get(CREATED, ""), [list(each) for each in self._generations.of(name)],
                    to_wire(self._queues.position(name), bits, self._epochs), [list(each) for each in held],
                ])
        clean = self._store.now.uuid if self._store.now.state != DIRTY else ""
        return Attach(generation, clean, told)

    def apply(self, parts: Sequence[EventGroup]) -> bool:
        """Apply and store the primary's complete groups; return whether this backup is caught up now.

        Raises:
            LinkError: an event is malformed, or a group is too big; nothing was applied.
            sqlite3.Error: it can't be stored, and the broker ends.
        """
        for part in parts:
            check_events(part.events)
        groups = list(self._whole(parts))
        if not groups:
            return False
        caught_up = False
        if self.discard:
            self._empty()
        with self.store_errors.transaction(groups):
            status = self._store.now
            generation = groups[-1].generation
            self._new_primary = 0 < status.generation < generation
            if (status.state, status.role, status.generation) != (DIRTY, BACKUP_STORE, generation):
                self._store.write(state=DIRTY, role=BACKUP_STORE, generation=generation)
            for group in groups:
                for name, *parts in group.events:
                    if name == CAUGHT_UP:
                        caught_up = True
                    else:
                        self._handlers[name](*parts)
                self.completed = max(self.completed, group.number)
        return caught_up

    def _whole(self, parts: Sequence[EventGroup]) -> Iterator[EventGroup]:
        for part in parts:
            if not part.more and not self._begun:
                yield part
                continue
            self._begun += part.events
            self._begun_bytes += size_of(part.events)
            if self._begun_bytes > MAX_GROUP:
                raise LinkError(f"a group of events has more than {MAX_GROUP} bytes")
            if not part.more:
                events, self._begun, self._begun_bytes = self._begun, [], 0
                yield part._replace(events=events)

    def _empty(self) -> None:
        with self._broker.transaction():
            self._engine.load([])
            self._configuration.clear()
            self._generations.clear()
            self._store.write(state=DIRTY, role=BACKUP_STORE, uuid="")
        self._queues = self._engine.replicas()
        self.discard = False

    def _position(self, queue: str, told: Sequence[int]) -> int:
        position = from_wire(told, self._options.sequence_bits, self._epochs, self._queues.position(queue))
        return min(max(0, position), MAX_NUMBER)

    def _enqueue(self, queue: str, generation: int, told: Sequence[int], headers: dict[str, str], body: bytes) -> None:
        position = self._position(queue, told)
        if self._queues.enqueue(queue, position, headers, body):
            self._generations.note(queue, generation, position)

    def _dequeue(self, queue: str, told: Sequence[int]) -> None:
        self._queues.dequeue(queue, self._position(queue, told))

    def _reset(self, queue: str, told: Sequence[int], generations: Sequence[tuple[int, int]]) -> None:
        discarded = self._queues.reset(queue, self._position(queue, told))
        self._generations.replace(queue, [(generation, first) for generation, first in generations])
        if discarded:
            self._broker.runtime.log("queue reset", queue=queue, discarded=discarded)

    def _create(self, kind: str, name: str, arguments: dict[str, str], number: int) -> None:
        if self._is_news(number):
            self._configuration.number = max(self._configuration.number, number)
            self._put(kind, name, arguments)

    def _put(self, kind: str, name: str, arguments: dict[str, str]) -> None:
        known = self._configuration.get((kind, name))
        # If creations are reported late, messages may have arrived first.
        if kind == QUEUE and known is not None and known.get(CREATED) != arguments.get(CREATED):
            self._remove(kind, name)
        self._configuration.put(kind, name, arguments)
        if kind == QUEUE:
            self._queues.declare(name)

    def _delete(self, kind: str, name: str, number: int) -> None:
        if self._is_news(number):
            self._configuration.number = max(self._configuration.number, number)
            self._remove(kind, name)

    def _is_news(self, number: int) -> bool:
        """Tell whether an event is newer than the snapshot; an unnumbered one always counts as newer."""
        return number == 0 or number > self._snapshot_number

    def _remove(self, kind: str, name: str) -> None:
        self._configuration.remove(kind, name)
        if kind == QUEUE:
            self._queues.delete(name)
            self._generations.forget(name)

    def _take_snapshot(self, number: int, objects: Sequence[Sequence[Any]]) -> None:
        """Apply the list of all objects at the primary; replicated objects that are not in it are removed."""
        self._snapshot_number = 0 if LC6 in self._options.as_documented else number
        self._configuration.number = number
        listed = {(kind, name) for kind, name, _ in objects}
        if LC3 not in self._options.as_documented and (not self._new_primary or LC4 not in self._options.as_documented):
            for key, _ in self._configuration.items():
                if key not in listed:
                    self._remove(*key)
        for kind, name, arguments in objects:
            if kind == QUEUE and self._levels.of(kind, name, arguments) != MESSAGES and self._queues.holds(name):
                self._remove(kind, name)  # left from another role: these messages are no longer kept up to date
            self._put(kind, name, arguments)
