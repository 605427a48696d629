"""Mode replicated: two databases, and a server's actions in each of its states."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

from nodes.reference.api import Broker, Command, ConfigError, Image, Pending
from nodes.reference.bugs.flags import OLDER_REPOSITORY_WINS, PASSIVE_SERVES
from nodes.reference.designs.fiorano.active import ActiveSide
from nodes.reference.designs.fiorano.configuration import Options
from nodes.reference.designs.fiorano.gateway.grants import ALONE, ANY
from nodes.reference.designs.fiorano.lock import NoLock, Wish
from nodes.reference.designs.fiorano.messages import Message, Stored
from nodes.reference.designs.fiorano.repository import Repository, Stamp, is_newer
from nodes.reference.designs.fiorano.server import NOT_SERVING, Server
from nodes.reference.designs.fiorano.standby import Sent, Standby
from nodes.reference.designs.fiorano.states import (
    ACTIVE,
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
from nodes.reference.engine.audit import stored
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.engine.trace import COPY, STATE


class Pair(Server):
    """One server of a replicated pair."""

    def __init__(self, broker: Broker, engine: StoreEngine, options: Options, send: Callable[[Message], None]) -> None:
        self._engine = engine
        self._repository = Repository(broker.database)
        self._tables = Tables(broker.database, options.page)
        self._standby = Standby(broker, self._repository, self._tables, send)
        self._active: ActiveSide | None = None
        self._met = self._synced = self._accepted = False
        self._above = 0
        stamp = self._repository.stamp
        self._syncs = 0
        super().__init__(broker, options, REPLICATED, WAITING, max(stamp.asked, stamp.epoch), send)

    @property
    def serves(self) -> bool:
        """Tell whether clients are admitted."""
        return self._active is not None

    @property
    def alone(self) -> bool:
        """Tell whether changes that only this server has may be confirmed now."""
        return self._active is not None and not self._active.shares and self._active.may_go_alone()

    @property
    def untold(self) -> bool:
        """Tell whether a standby that has everything has not yet been informed of this server's newest stamp."""
        return self._active is not None and self._active.untold

    @property
    def stored(self) -> int:
        """The newest change-set up to which the standby reports all on disk; -1 without a standby or a report."""
        standing = self._active.standing if self._active is not None else None
        return standing.stored if standing is not None else -1

    @property
    def confirmed(self) -> tuple[int, int]:
        """Epoch and number of the newest change-set that was confirmed to clients since this server began to serve."""
        return self._active.confirmed if self._active is not None else (0, 0)

    @property
    def began(self) -> Stamp:
        """The repository's stamp when this server began to serve."""
        return self._active.began if self._active is not None else self.stamp

    @property
    def stamp(self) -> Stamp:
        """The repository's stamp."""
        return self._repository.stamp

    def stop(self) -> None:
        """Stop serving, and end."""
        super().stop()
        if self._active is not None:
            self._active.stop()

    def submit(self, command: Command) -> None:
        """Carry out a command if this server serves."""
        if self._active is not None:
            self._active.submit(command)

    def link_down(self) -> None:
        """Handle the loss of the channel; the formerly active server's epoch is refused before the lock is sought."""
        self._standby.refuse()
        if self._active is not None:
            self._active.part()
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

    def pending(self) -> Pending:
        """Return pending work: the standby's missing answers and the confirmations that clients therefore wait for; on
        the standby, the changes it has not received; on a server that is alone, the changes that it may not confirm
        yet."""
        found: dict[str, Collection[Hashable]] = dict(self._active.pending()) if self._active is not None else {}
        mine, peer = self.stamp, self.peer
        if self.state == PASSIVE and peer is not None and peer.state in (ACTIVE, ACTIVE_TRANSITION):
            if (peer.epoch, peer.counter) > (mine.epoch, mine.counter):
                found["behind"] = [(peer.epoch, peer.counter)]
        elif self.state == STANDALONE and self.lock.holds() and not self.alone:
            found["unconfirmed"] = [self.lock.asked]
        return found

    def miscounted(self) -> str:
        """Check that every change-set since this server began to serve was counted."""
        return self._active.miscounted() if self._active is not None else ""

    def replicated(self) -> tuple[Hashable, Image] | None:
        """Return the stamp and the content: once a standby has everything, equal stamps mean equal repositories."""
        stamp = self._repository.stamp
        if not stamp.whole or (self._active is None and self.state != PASSIVE):
            return None
        return (stamp.epoch, stamp.counter), stored(self._broker.database)

    def take_stored(self, message: Stored) -> None:
        """Handle the standby's acknowledgement."""
        if self._active is not None and self._active.stored(message) and not self._synced:
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
            other = Stamp(peer.whole, peer.epoch, peer.counter, peer.changed, peer.asked)
            facts[NEWER] = is_newer(mine, other, primary, options.stamps)
            facts[OLDER] = is_newer(other, mine, not primary, options.stamps)
            if OLDER_REPOSITORY_WINS in self._bugs:
                facts[NEWER], facts[OLDER] = facts[OLDER], facts[NEWER]
        return facts

    def _wish(self) -> Wish:
        mine, peer = self.stamp, self.peer
        if self._accepted and self.state == WAITING:
            return Wish(ANY, ALONE)
        if peer is not None and self.state == WAITING:
            return Wish(max(mine.epoch, peer.epoch), max(peer.asked, 0))
        # A standby may be up to date in an epoch up to this one: any change that it misses belongs to a later one.
        alone = self._active is not None and not self._active.shares
        return Wish(mine.epoch, ALONE, self._shared_epoch() if alone else 0)

    def _shared_epoch(self) -> int:
        return max(self._above, self._active.above if self._active is not None else 0)

    def _entered(self, line: Transition) -> None:
        self._met = self._met or line.to != WAITING
        self._synced = self._synced and line.to not in (WAITING, STANDALONE, ACTIVE_TRANSITION)
        self._accepted = False
        if line.to == WAITING:
            self._standby.refuse()
        serving = (*SERVING, PASSIVE) if PASSIVE_SERVES in self._bugs else SERVING
        if line.to in serving and self._active is None:
            self._begin_serving()
        elif line.to not in serving and self._active is not None:
            self._above = self._shared_epoch()
            self._active.stop()
            self._active = None
            self._broker.drop_clients(NOT_SERVING)
        self._tell_state()
        if line.to == ACTIVE_TRANSITION and self._active is not None:
            self._syncs += 1
            self._active.synchronise(self._syncs)

    def _begin_serving(self) -> None:
        if self._standby.stale:
            self._engine.reload()
            self._standby.stale = False
        if isinstance(self.lock, NoLock):
            self.lock.want(Wish(self.stamp.epoch, ALONE))
        options = self._options
        self._active = ActiveSide(self._broker, self._engine, self._repository, self._tables, self.lock, self._send,
                                  self._above, options.lock and options.fencing, self.tally, options.page_window,
                                  self._bugs)
        self._active.adopt_epoch()
        self._broker.began_serving()

    def _decided(self) -> None:
        if self._active is not None and self.lock.holds():
            self.lock.use()
            self._active.adopt_epoch()
