"""A broker's role and its transitions between roles [Broker discovery and lifecycle]."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any

from nodes.reference.api import Broker, Command, ConfigError
from nodes.reference.designs.qpid.backup import Backup
from nodes.reference.designs.qpid.configuration import Configuration
from nodes.reference.designs.qpid.eviction import Eviction
from nodes.reference.designs.qpid.lease_client import ManagerPermission
from nodes.reference.designs.qpid.levels import Levels
from nodes.reference.designs.qpid.messages import (
    Attach,
    BrokerStatus,
    Completed,
    EventGroup,
    Message,
    Refuse,
    check_attach,
)
from nodes.reference.designs.qpid.options import ASYNC, COLD, FENCING, LM6B, NO_STORE, QpidOptions
from nodes.reference.designs.qpid.positions import Generations
from nodes.reference.designs.qpid.primary import Primary
from nodes.reference.designs.qpid.states import CATCHUP, CONNECTING, PRIMARY, READY, STOPPED
from nodes.reference.designs.qpid.store_status import BACKUP_STORE, CLEAN, DIRTY, EMPTY, PRIMARY_STORE, StoreStatus
from nodes.reference.designs.qpid.urls import Urls
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.points import ATTACHING, CAUGHT_UP, COPIED, PRIMARY_LOST, PROMOTED, STEPPED_DOWN
from nodes.reference.replication.handshake import LinkError

NOT_PRIMARY = "not primary"


_MAX_REASON = 300


class BackupRefused(Exception):
    """The primary refuses this backup, which ends itself."""


class Roles:
    """The broker as a backup, as the primary, or stopped; ``state`` is one of ``states.py``.

    ``serves_at`` is the primary that this backup is attached to; ``primary`` is set while this broker is primary.
    ``was_ready``: it has had everything since it was started. ``forced``: an administrator has approved its data, and
    no primary has changed them since.
    """

    def __init__(self, broker: Broker, engine: StoreEngine, options: QpidOptions, urls: Urls,
                 send: Callable[[str, Message], None], cut: Callable[[str, str], None],
                 permission: ManagerPermission | None) -> None:
        self._broker, self.engine, self._runtime = broker, engine, broker.runtime
        self._options, self.urls, self.send, self._permission = options, urls, send, permission
        self._cut = cut
        self.name = broker.config.node
        self.store = StoreStatus(broker.database)
        self.configuration = Configuration(broker.database)
        self.levels = Levels(options, self.configuration)
        self.generations = Generations(broker.database)
        for kept in (self.store, self.configuration, self.generations):
            engine.store_with(kept.records)
        if options.store in (ASYNC, NO_STORE):
            broker.database.execute("PRAGMA synchronous=OFF")
        self._cold = options.standby == COLD
        """Whether the store is the only one, left by the last primary: waiting for a better one is useless."""
        self._check_store()
        if options.store == NO_STORE:
            self._empty_store()
        self.started_from = self.store.now
        """The store's status when this broker was started."""
        self.state = CONNECTING
        self.was_ready, self.forced = self._cold, False
        self.led_from_afar = False
        """Whether the last primary is a disaster-recovery broker while this one is not: an administrator has made it
        primary, and only an administrator ends that."""
        self.backup = self._as_backup(discard=self.store.now.state == DIRTY and not self._cold)
        self.primary: Primary | None = None
        self.serves_at: str | None = None
        self.times_ready = 0
        """The number of times that this broker has become ready."""
        self.told = CONNECTING
        """The state that was last reported."""
        self.heard: dict[str, BrokerStatus] = {}
        self._held_until = -math.inf
        self.replaced = False
        """Whether a copy has begun to overwrite the store, whose new content is not in memory."""

    def _as_backup(self, discard: bool) -> Backup:
        return Backup(self._broker, self.engine, self._options, self.store, self.configuration, self.generations,
                      discard)

    # The store.

    def _check_store(self) -> None:
        """Refuse to start from a store that was not left in order [Interaction with the store]."""
        status = self.store.now
        if status.state == DIRTY and not self._cold and LM6B in self._options.as_documented:
            raise ConfigError(f"data: the store is dirty (its broker was not shut down in order; generation "
                              f"{status.generation}, {status.role}); erase it, or accept it as the best one")

    def _empty_store(self) -> None:
        with self._broker.transaction():
            self.engine.load([])
            self.configuration.clear()
            self.generations.clear()
            self.store.write(state=EMPTY, generation=0, uuid="")

    def close_connections(self) -> None:
        """Close the connections of the previous run: their unacknowledged messages return to the queues."""
        if not self.backup.discard:
            self.end_connections()

    def end_connections(self) -> None:
        """Close them even in a store that may be discarded."""
        connections = list(self.engine.connections())
        if connections:
            with self._broker.transaction():
                for conn in connections:
                    self.engine.apply(Command("close", conn, 0, {"reason": "restart"}))

    def accept_store(self) -> None:
        """Declare a dirty store the best one, on an administrator's request: this broker may be promoted with it [LM6].

        Raises:
            ConfigError: there is nothing to accept.
        """
        self.check_free()
        if self.state != CONNECTING or not self.backup.discard:
            raise ConfigError(f"{self.name} is {self.state}: only a broker that was started from a dirty store, and "
                              "has found no primary, can have it accepted")
        found = self.store.now
        if (found.state, found.role, found.generation) == (DIRTY, BACKUP_STORE, 0):  # as ``begin_replacing`` leaves it
            raise ConfigError(f"{self.name} was written to by a copy that was broken off: begin the copy again, or "
                              "erase its store")
        self.backup = self._as_backup(discard=False)
        self.was_ready = self.forced = True
        self.close_connections()
        self._runtime.log("store accepted", generation=self.generation)

    def erase_store(self) -> None:
        """Erase everything: this broker starts from nothing, and catches up. Raises ConfigError if it can't."""
        self.check_free()
        if self.state != CONNECTING:
            raise ConfigError(f"{self.name} is {self.state}: only the store of a broker that is connecting is erased")
        self._empty_store()
        self.replaced = False
        self.was_ready = self.forced = False
        self.backup = self._as_backup(discard=False)
        self._runtime.log("store erased")

    def come_to_rest(self, uuid: str) -> None:
        """Stop after an orderly shutdown of the cluster: the store is clean, with this identifier."""
        if self.primary is not None:
            self.primary.stop()
            self.primary = None
        with self._broker.transaction():
            for conn in list(self.engine.connections()):
                self.engine.apply(Command("close", conn, 0, {"reason": "shutdown"}))
            self.store.write(state=CLEAN, uuid=uuid)
        self._change_state(STOPPED)

    # Copies of the store.

    @property
    def held(self) -> bool:
        """Tell whether this connecting broker takes part in a copy of a store, and in nothing else."""
        return self._runtime.now() < self._held_until

    def hold(self, seconds: float) -> None:
        """Do nothing else for this number of seconds."""
        self._held_until = self._runtime.now() + seconds

    def check_free(self) -> None:
        """Check that the broker is not held; raises ConfigError otherwise."""
        if self.held:
            raise ConfigError(f"{self.name} takes part in a copy of a store; wait until that has ended")

    def begin_replacing(self) -> None:
        """Prepare for another broker's store: until it is complete, this store is dirty, and that of a backup."""
        with self._broker.transaction():
            self.engine.load([])
            self.configuration.clear()
            self.generations.clear()
            self.store.write(state=DIRTY, role=BACKUP_STORE, generation=0, uuid="")
        self.replaced = True
        self.was_ready = self.forced = False
        self.backup = self._as_backup(discard=True)

    def stamp_store(self, uuid: str) -> None:
        """Mark this broker's store clean, with the identifier that all of its copies get."""
        with self._broker.transaction():
            self.store.write(state=CLEAN, uuid=uuid)
        self.was_ready = self.forced = False
        self.backup = self._as_backup(discard=False)
        self._held_until = -math.inf
        self._runtime.log("store clean", uuid=uuid)

    def change_of_no_queue(self) -> AbstractContextManager[None]:
        """Return a transaction that concerns no queue; a backup that carries on after store errors does so here."""
        if self.primary is not None:
            return self._broker.transaction()
        return self.backup.store_errors.transaction((), besides=True)

    # Primaries.

    @property
    def generation(self) -> int:
        """The generation of the last primary that this broker knew, or was."""
        return self.store.now.generation

    @property
    def eligible(self) -> bool:
        """Tell whether this backup has everything, as far as it knows (requirement Q10)."""
        had_all = self._has_all or (self.state == CONNECTING and self.was_ready)
        return had_all and not self.store_error and not self.held and not self.led_from_afar

    @property
    def _has_all(self) -> bool:
        return self.state == READY

    @property
    def store_error(self) -> str:
        """The reason why a backup that carries on could not store everything; empty if it could."""
        return self.backup.store_errors.error if self.primary is None else ""

    def may_go_on(self) -> bool:
        """Tell whether the manager, if there is one, permits this broker to confirm and deliver."""
        return self._permission is None or self._permission.holds()

    def vouch(self) -> None:
        """Note an administrator's approval of the data of this connecting broker."""
        if self.backup.discard:
            self.accept_store()
        self.was_ready = self.forced = True
        self.led_from_afar = False

    def become_primary(self, ended: Collection[str] = ()) -> None:
        """Take over [Failover]; ``ended`` are brokers that do not run, as a manager reports: completions do not wait
        for them.
        """
        generation = max([self.generation, *(hello.generation for hello in self.heard.values())]) + 1
        with self._broker.transaction():
            self.store.write(state=DIRTY, role=PRIMARY_STORE, generation=generation)
        self.replaced = False
        self._runtime.point(PROMOTED)
        self.serves_at, self.forced = None, False
        self.backup.forget()
        self.primary = Primary(
            self._broker, self.engine, self._options, self.configuration, self.generations, generation,
            self.urls, self.send, self._cut, self._permission or self._eviction(ended),
        )
        for name in ended:
            self.primary.expected.pop(name, None)
        self.primary.start()
        self._change_state(PRIMARY)
        self._broker.began_serving()

    def _eviction(self, ended: Collection[str]) -> Eviction | None:
        return Eviction(self._runtime, self._options.eviction, ended) if self._options.manager in FENCING else None

    def _step_down(self, why: str) -> None:
        """Give way to a newer primary: data that only this broker has were never complete, or are lost."""
        primary = self.primary
        assert primary is not None
        primary.stop()
        self.primary = None
        self._broker.drop_clients(NOT_PRIMARY)
        self._runtime.point(STEPPED_DOWN)
        if self._permission is not None:
            self._permission.lead(0)
        self.was_ready = False
        self.backup = self._as_backup(discard=True)
        self._change_state(CONNECTING, why=why)

    def _lose_primary(self) -> None:
        """Go back to connecting; a ready backup stays eligible until it begins to catch up with another primary."""
        lost, self.serves_at = self.serves_at, None
        if self.state in (CATCHUP, READY):
            self.was_ready = self._has_all
            self._change_state(CONNECTING, lost=lost)
            self._runtime.point(PRIMARY_LOST)

    def _change_state(self, state: str, **fields: Any) -> None:
        self.state = state
        self.times_ready += state == READY
        self._runtime.log(state, generation=self.generation, **fields)
        self.greet_all()

    def tick(self) -> None:
        """Report the state, and do all due work."""
        self.greet_all()
        if self.primary is not None:
            self.primary.tick()
        else:
            self.backup.store_errors.try_again()

    # Messages of peers.

    def greet(self, peer: str) -> None:
        """Report this broker's state to a peer."""
        generation = self.generation if self.primary is None else self.primary.generation
        self.told = self.state
        self.send(peer, BrokerStatus(self.state, generation, self.store.now.uuid))

    def greet_all(self) -> None:
        """Report this broker's state to all peers."""
        for peer in self.urls.others(self.name):
            self.greet(peer)

    def gone(self, peer: str) -> None:
        """Handle the loss of the connection to a backup or to the primary."""
        self.heard.pop(peer, None)
        if self.primary is not None:
            self.primary.detached(peer)
        elif peer == self.serves_at:
            self._lose_primary()

    def at_rest(self, peer: str, uuid: str) -> bool:
        """Tell whether a peer reports that its store is clean, with this identifier."""
        hello = self.heard.get(peer)
        return hello is not None and (hello.state, hello.uuid) == (STOPPED, uuid)

    def take_hello(self, peer: str, hello: BrokerStatus) -> None:
        """Note a peer's state; attach to it if it is the primary."""
        self.heard[peer] = hello
        if hello.state != PRIMARY or self.state == STOPPED:
            if peer == self.serves_at:
                self._lose_primary()
            return
        if self.serves_at not in (None, peer) and hello.generation > self.generation:
            self._lose_primary()
        if self.primary is not None:
            rank = self.urls.rank
            if (hello.generation, rank(self.name)) > (self.primary.generation, rank(peer)):
                self._step_down(f"{peer} is primary of generation {hello.generation}")
            return
        if self.state == CONNECTING and not self.held and (self.backup.discard or hello.generation >= self.generation):
            self.serves_at = peer
            self.state, self.forced = CATCHUP, False
            self.led_from_afar = peer in self._options.disaster and self.name not in self._options.disaster
            self._runtime.log(CATCHUP, primary=peer, generation=hello.generation)
            self.send(peer, self.backup.attach(self.generation))
            self._runtime.point(ATTACHING)

    def take_attach(self, peer: str, message: Attach) -> None:
        """Attach a backup that wants to browse this broker's queues; raises LinkError if its message is malformed."""
        check_attach(message)
        primary = self.primary
        if primary is None:
            return
        if message.uuid not in ("", self.store.now.uuid):
            self.send(peer, Refuse(f"its store is of another shutdown ({message.uuid}) than this cluster's"))
            return
        primary.attached(peer, message)

    def take_refusal(self, peer: str, message: Refuse) -> None:
        """End this broker because the primary refuses it."""
        if peer == self.serves_at:
            reason = message.reason[:_MAX_REASON]
            self._runtime.log("refused by the primary", level="error", primary=peer, reason=reason)
            self._runtime.spawn(_end(BackupRefused(reason)), "refusal")

    def apply(self, peer: str, groups: list[EventGroup]) -> None:
        """Apply the primary's events; raises LinkError if they are malformed."""
        if not groups or peer != self.serves_at or self.state not in (CATCHUP, READY):
            return
        told = self.heard[peer].generation
        if any(group.generation != told for group in groups):
            raise LinkError(f"events are of another generation than the primary's, {told}")
        caught_up = self.backup.apply(groups)
        self._runtime.point(COPIED)
        self.send(peer, Completed(self.backup.completed, sum(not group.more for group in groups)))
        if caught_up and self.state == CATCHUP:
            self._change_state(READY)
            self._runtime.point(CAUGHT_UP)


async def _end(reason: Exception) -> None:
    """End the broker."""
    raise reason
