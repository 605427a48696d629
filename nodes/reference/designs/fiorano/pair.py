"""Mode replicated: two databases, and a server's actions in each of its states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nodes.reference.api import Broker, Command, ConfigError
from nodes.reference.designs.fiorano.active import ActiveSide
from nodes.reference.designs.fiorano.configuration import FioranoOptions
from nodes.reference.designs.fiorano.gateway.grants import ALONE, ANY
from nodes.reference.designs.fiorano.lock import NoLock, Wish
from nodes.reference.designs.fiorano.messages import Message, StoredUpTo
from nodes.reference.designs.fiorano.repository import RepositoryStamp, StoredStamp, is_newer
from nodes.reference.designs.fiorano.server import NOT_SERVING, HAServer
from nodes.reference.designs.fiorano.standby import Sent, Standby
from nodes.reference.designs.fiorano.states import (
    ACTIVE_TRANSITION,
    PASSIVE,
    PASSIVE_TRANSITION,
    SERVING,
    STANDALONE,
    WAITING,
)
from nodes.reference.designs.fiorano.tables import Tables
from nodes.reference.designs.fiorano.transitions import (
    MET,
    NEWER,
    OLDER,
    REPLICATED,
    START_ALONE,
    SYNCED,
    WHOLE,
    Transition,
)
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.engine.trace import COPY, STATE


class Pair(HAServer):
    """One server of a replicated pair."""

    def __init__(self, broker: Broker, engine: StoreEngine, options: FioranoOptions,
                 send: Callable[[Message], None]) -> None:
        self._engine = engine
        self._repository = StoredStamp(broker.database)
        self._tables = Tables(broker.database, options.page)
        self._standby = Standby(broker, self._repository, self._tables, send)
        self.active: ActiveSide | None = None
        self._met = self._synced = self._accepted = False
        self._above = 0
        stamp = self._repository.stamp
        self._syncs = 0
        super().__init__(broker, options, REPLICATED, WAITING, max(stamp.asked, stamp.epoch), send)

    @property
    def serves(self) -> bool:
        """Tell whether clients are admitted."""
        return self.active is not None

    @property
    def stamp(self) -> RepositoryStamp:
        """The repository's stamp."""
        return self._repository.stamp

    def stop(self) -> None:
        """Stop serving, and end."""
        super().stop()
        if self.active is not None:
            self.active.stop()

    def submit(self, command: Command) -> None:
        """Carry out a command if this server serves."""
        if self.active is not None:
            self.active.submit(command)

    def link_down(self) -> None:
        """Handle the loss of the channel; the formerly active server's epoch is refused before the lock is sought."""
        self._standby.refuse()
        if self.active is not None:
            self.active.part()
        super().link_down()

    def take_sent(self, messages: Sequence[Sent]) -> None:
        """Apply the messages that the active server replicates; raises LinkError if one is malformed."""
        if self.state not in (PASSIVE_TRANSITION, PASSIVE):
            return
        synchronised = self._standby.apply(messages)
        self._engine.trace_copies(STATE if synchronised else COPY)
        if synchronised:
            self._synced = True
            self.decide()

    def take_stored(self, message: StoredUpTo) -> None:
        """Handle the standby's acknowledgement."""
        if self.active is not None and self.active.stored(message) and not self._synced:
            self._synced = True
            self.decide()

    def accept(self, alone: bool) -> None:
        """Declare this server's repository whole and up to date. An administrator decides this if neither repository
        may be used, or if nobody can know which changes the other server has confirmed. The partial result of an
        interrupted synchronisation is dropped, and so are changes that the other server has confirmed alone. ``alone``:
        serve without the other server, too.

        Raises:
            ConfigError: this server is not in state WAITING, or the other server's repository is the better one.
        """
        mine, peer = self.stamp, self.peer
        if self.state != WAITING:
            raise ConfigError(f"this server is {self.state}; only one that is {WAITING} can accept its repository")
        if peer is None and not alone:
            raise ConfigError("no channel to the other server: connect them, or give alone=1 if it "
                              "will not return with its data")
        if peer is not None and peer.whole and (peer.epoch, peer.counter) > (mine.epoch, mine.counter):
            raise ConfigError("the other server's repository is whole and newer: accept that one")
        with self._broker.transaction():
            self._tables.drop_staged()
            self._repository.write(whole=True, epoch=max(mine.epoch, peer.epoch if peer is not None else 0))
        self._standby.stale = self._accepted = True
        self.accepts += 1
        self._met = self._met or alone
        self._runtime.log("repository accepted", level="warning", epoch=mine.epoch, counter=mine.counter,
                          was_whole=mine.whole, alone=alone)
        self.decide()
        self.greet()

    def _note_asked(self, epoch: int) -> None:
        with self._broker.transaction():
            self._repository.write(asked=epoch)

    def _facts(self) -> Mapping[str, bool]:
        options, mine, peer = self._options, self.stamp, self.peer
        primary = options.layer.primary
        facts = {
            WHOLE: mine.whole,
            # Without epochs, it can't be proven that the other server has not served in the meantime.
            MET: self._met and options.lock and options.fencing,
            START_ALONE: options.start_alone,
            SYNCED: self._synced,
        }
        if peer is not None:
            other = RepositoryStamp(peer.whole, peer.epoch, peer.counter, peer.changed, peer.asked)
            facts[NEWER] = is_newer(mine, other, primary, options.stamps)
            facts[OLDER] = is_newer(other, mine, not primary, options.stamps)
        return facts

    def _wish(self) -> Wish:
        mine, peer = self.stamp, self.peer
        if self._accepted and self.state == WAITING:
            return Wish(ANY, ALONE)
        if peer is not None and self.state == WAITING:
            return Wish(max(mine.epoch, peer.epoch), max(peer.asked, 0))
        # A standby may be up to date in an epoch up to this one: any change that it misses belongs to a later one.
        alone = self.active is not None and not self.active.shares
        return Wish(mine.epoch, ALONE, self._shared_epoch() if alone else 0)

    def _shared_epoch(self) -> int:
        return max(self._above, self.active.above if self.active is not None else 0)

    def _entered(self, line: Transition) -> None:
        self._met = self._met or line.to != WAITING
        self._synced = self._synced and line.to not in (WAITING, STANDALONE, ACTIVE_TRANSITION)
        self._accepted = False
        if line.to == WAITING:
            self._standby.refuse()
        if line.to in SERVING and self.active is None:
            self._begin_serving()
        elif line.to not in SERVING and self.active is not None:
            self._above = self._shared_epoch()
            self.active.stop()
            self.active = None
            self._broker.drop_clients(NOT_SERVING)
        self._tell_state()
        if line.to == ACTIVE_TRANSITION and self.active is not None:
            self._syncs += 1
            self.active.synchronise(self._syncs)

    def _begin_serving(self) -> None:
        if self._standby.stale:
            self._engine.reload()
            self._standby.stale = False
        if isinstance(self.lock, NoLock):
            self.lock.want(Wish(self.stamp.epoch, ALONE))
        options = self._options
        self.active = ActiveSide(self._broker, self._engine, self._repository, self._tables, self.lock, self._send,
                                  self._above, options.lock and options.fencing, self.tally, options.page_window)
        self.active.adopt_epoch()
        self._broker.began_serving()

    def _decided(self) -> None:
        if self.active is not None and self.lock.holds():
            self.lock.use()
            self.active.adopt_epoch()
