"""The common parts of a server in either mode: its state, its knowledge of its peer, the lock, and the transition
table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nodes.reference.api import Broker, Command, ConfigError
from nodes.reference.designs.fiorano.configuration import FioranoOptions
from nodes.reference.designs.fiorano.lock import GatewayLock, NoLock, Wish
from nodes.reference.designs.fiorano.messages import Message, ServerStatus, StoredUpTo
from nodes.reference.designs.fiorano.repository import RepositoryStamp
from nodes.reference.designs.fiorano.standby import Sent
from nodes.reference.designs.fiorano.states import DEAD
from nodes.reference.designs.fiorano.tally import DiskWriteCounter
from nodes.reference.designs.fiorano.transitions import Transition, View, next_step, wants_lock
from nodes.reference.points import CHANNEL_LOST, ENTERED
from nodes.reference.replication.handshake import LinkError

NOT_SERVING = "this server does not serve now"


class HAServer(ABC):
    """A server in one mode, driven by the transitions in ``table``; ``first`` is its initial state.

    ``asked`` is the highest epoch of the lock that this server has ever asked for, ``send`` sends a message over the HA
    channel. A mode supplies the facts that are true (``_facts``), its demand for the lock (``_wish``), and the actions
    on entering a state (``_entered``).
    """

    def __init__(self, broker: Broker, options: FioranoOptions, table: Sequence[Transition], first: str, asked: int,
                 send: Callable[[Message], None]) -> None:
        self._broker, self._options, self.table, self._send = broker, options, table, send
        self._runtime = broker.runtime
        self.tally = DiskWriteCounter(self._runtime)
        self.state, self.before = first, DEAD
        self.peer: ServerStatus | None = None
        """The other server's last message on the present channel; None if there was none, or without a channel."""
        self.linked = self._deciding = False
        self.reasons: deque[tuple[View, str]] = deque(maxlen=3)
        """The views at the latest state changes, each with the state that resulted."""
        self.changes = 0
        self.accepts = 0
        """The number of times that an administrator declared this server's repository valid."""
        self.decided_lock = False
        """Whether the lock was held at this server's last decision."""
        self.greetings = 0
        self.told: tuple[str, str] | None = None
        """The present and the previous state as last broadcast on the present channel."""
        self.disowned = 0
        """The highest epoch that this server has disowned to the other server: it will never use it."""
        self.lock: GatewayLock | NoLock
        if options.lock:
            self.lock = GatewayLock(self._runtime, broker.config.node, options, asked, self._note_asked, self.decide)
        else:
            self.lock = NoLock(asked, self._note_asked)

    # Defined by the mode.

    @property
    @abstractmethod
    def serves(self) -> bool:
        """Tell whether clients are admitted."""

    @property
    @abstractmethod
    def stamp(self) -> RepositoryStamp:
        """The repository's stamp."""

    @abstractmethod
    def submit(self, command: Command) -> None:
        """Carry out a command if this server serves; otherwise drop it (then clients are being dropped, too)."""

    @abstractmethod
    def _facts(self) -> Mapping[str, bool]:
        """Return the facts, as named in ``transitions.py``, that are true now."""

    @abstractmethod
    def _wish(self) -> Wish:
        """Return this server's demand for the lock; called only while it wants the lock."""

    @abstractmethod
    def _entered(self, line: Transition) -> None:
        """Act on the state change of this line, which has not been reported yet."""

    @abstractmethod
    def _decided(self) -> None:
        """Act after a decision: no further line holds, and the lock knows this server's demand."""

    @abstractmethod
    def _note_asked(self, epoch: int) -> None:
        """Store this epoch of the lock before it is requested."""

    def accept(self, alone: bool) -> None:
        """Declare this server's repository the valid one, even if it lacks changes; requested by an administrator.

        Raises:
            ConfigError: the mode leaves no such decision to an administrator.
        """
        raise ConfigError("mode shared has one repository, so no decision is needed")

    def take_sent(self, messages: Sequence[Sent]) -> None:
        """Apply the messages that the active server replicates; raises LinkError if one is malformed."""

    def take_stored(self, message: StoredUpTo) -> None:
        """Handle the standby's acknowledgement."""

    # Lifecycle.

    def start(self) -> None:
        """Enter the first state."""
        stamp = self.stamp
        self._runtime.log("state", present=self.state, previous=DEAD, epoch=stamp.epoch, counter=stamp.counter,
                          whole=stamp.whole)
        self.lock.start()
        self.decide()

    def stop(self) -> None:
        """Stop without notice; the other server sees the channel break."""
        self.lock.stop()

    def tick(self) -> None:
        """Check the lease, and send the other server a heartbeat."""
        self.lock.tick()
        self.decide()
        self.greet()
        self.tally.tell(self._broker.disk_writes)

    # The channel.

    def link_up(self) -> None:
        """Greet the other server; the channel counts as established once that server has reported its state."""
        self.linked = True
        self.greet()

    def link_down(self) -> None:
        """Handle the loss of the channel: messages on it no longer count."""
        self.linked, self.peer, self.told = False, None, None
        self._runtime.point(CHANNEL_LOST)
        self.decide()

    def greet(self) -> None:
        """Broadcast the present and the previous state, and the repository's stamp."""
        if self.linked:
            stamp = self.stamp
            self.disowned = max(self.disowned, self.lock.settled)
            self._send(ServerStatus(self.state, self.before, self._options.layer.primary, stamp.whole, stamp.epoch,
                             stamp.counter, stamp.changed, self.lock.settled))
            self.told = self.state, self.before
            self.greetings += 1

    def take_hello(self, hello: ServerStatus) -> None:
        """Note the other server's status."""
        if hello.primary == self._options.layer.primary:
            said = "true" if hello.primary else "false"
            raise LinkError(f"Primary is {said} on both servers; it must be true on one of them")
        self.peer = hello
        self.decide()

    # Decisions.

    def view(self) -> View:
        """Return everything that a state change depends on."""
        lock = self.lock.holds() if self._options.fencing else self.lock.looked_at()
        facts = frozenset(name for name, fact in self._facts().items() if fact)
        if self.peer is None:
            return View(self.state, False, lock=lock, facts=facts)
        return View(self.state, True, self.peer.state, self.peer.before, lock, facts)

    def decide(self) -> None:
        """Change the state by the table as long as a line holds, then seek, keep or release the lock."""
        if self._deciding:
            return  # the running decision sees the consequences of entering a state
        self._deciding = True
        try:
            while (line := next_step(self.table, view := self.view())) is not None:
                self.before, self.state = self.state, line.to
                self.reasons.append((view, line.to))
                self.changes += 1
                self._runtime.point(ENTERED)
                self._entered(line)
        finally:
            self._deciding = False
        self.decided_lock = view.lock
        self.lock.want(self._wish() if wants_lock(self.table, self.view()) else None)
        self._decided()

    def _tell_state(self) -> None:
        """Log the state, and broadcast it."""
        stamp, peer = self.stamp, self.peer
        self._runtime.log("state", present=self.state, previous=self.before, epoch=stamp.epoch, counter=stamp.counter,
                          whole=stamp.whole, lock=self.lock.holds(), peer=peer.state if peer is not None else DEAD)
        self.greet()

    def status(self) -> dict[str, Any]:
        """Return the status for an administrator."""
        stamp, peer = self.stamp, self.peer
        return {
            "state": self.state, "previous": self.before, "lock": self.lock.holds(), "lock epoch": self.lock.epoch,
            "channel": peer is not None, "peer": peer.state if peer is not None else DEAD, "whole": stamp.whole,
            "repository": [stamp.epoch, stamp.counter],
        }  # fmt: skip
