"""What a server of either mode is made of: its state, what it knows of the other one, the lock, and the table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nodes.reference.api import Broker, Command, ConfigError, Image, Pending
from nodes.reference.bugs import switched_on
from nodes.reference.designs.fiorano.configuration import Options
from nodes.reference.designs.fiorano.lock import GatewayLock, NoLock, Wish
from nodes.reference.designs.fiorano.messages import Hello, Message, Stored
from nodes.reference.designs.fiorano.repository import Stamp
from nodes.reference.designs.fiorano.standby import Sent
from nodes.reference.designs.fiorano.states import DEAD
from nodes.reference.designs.fiorano.tally import Tally
from nodes.reference.designs.fiorano.transitions import Transition, View, next_step, wants_lock
from nodes.reference.points import CHANNEL_LOST, ENTERED
from nodes.reference.replication.links import LinkError

NOT_SERVING = "this server does not serve now"


class Server(ABC):
    """A server in one mode, whose ``table`` decides; ``first`` is the state that it starts in.

    ``asked`` is the highest epoch of the lock that this server has ever asked for, ``send`` sends a message over the
    HA channel. A mode says what is true (``_facts``), what it wants of the lock (``_wish``), and does what entering a
    state means (``_entered``).
    """

    def __init__(self, broker: Broker, options: Options, table: Sequence[Transition], first: str, asked: int,
                 send: Callable[[Message], None]) -> None:
        self._broker, self._options, self._table, self._send = broker, options, table, send
        self._runtime = broker.runtime
        self._bugs = switched_on(broker.config.options)
        self.tally = Tally(self._runtime)
        self.state, self.before = first, DEAD
        self.peer: Hello | None = None
        """What the other server said last on the channel as it is now; None: nothing yet, or there is no channel."""
        self._linked = self._deciding = False
        self.reasons: deque[tuple[View, str]] = deque(maxlen=3)
        """How things stood at the latest changes of the state, each with the state that came of it."""
        self.changes = 0
        self.accepts = 0
        """How often a person has said that this server's repository is the one to go on with."""
        self._lock_then = False
        """Whether the lock was held when this server decided last."""
        self._greetings = 0
        self._told: tuple[str, str] | None = None
        """The present and the previous state as they were broadcast last on the channel as it is now."""
        self.disowned = 0
        """The highest epoch of which the other server was told that this one will not come to use it."""
        self.lock: GatewayLock | NoLock
        if options.lock:
            self.lock = GatewayLock(self._runtime, broker.config.node, options, asked, self._note_asked, self.decide,
                                    self._bugs)
        else:
            self.lock = NoLock(asked, self._note_asked)

    # A mode.

    @property
    @abstractmethod
    def serves(self) -> bool:
        """Whether clients are let in."""

    @property
    def alone(self) -> bool:
        """Whether what only this server has may be confirmed now."""
        return False

    @property
    def untold(self) -> bool:
        """Whether a standby that has everything has not been told how far this server is."""
        return False

    @property
    def stored(self) -> int:
        """Up to which change-set the standby has everything on disk, as it says; -1: nobody says so."""
        return -1

    @property
    def confirmed(self) -> tuple[int, int]:
        """Epoch and number of the newest change-set of which clients were told; zeros where nobody counts them."""
        return 0, 0

    @property
    def began(self) -> Stamp:
        """How far the repository was when this server began to serve."""
        return self.stamp

    @property
    @abstractmethod
    def stamp(self) -> Stamp:
        """How far the repository is."""

    @abstractmethod
    def submit(self, command: Command) -> None:
        """Carry it out, if this server serves; dropped otherwise (then clients are being dropped, too)."""

    @abstractmethod
    def _facts(self) -> Mapping[str, bool]:
        """The words of ``transitions.py`` that are true now."""

    @abstractmethod
    def _wish(self) -> Wish:
        """What this server wants of the lock, while it wants it."""

    @abstractmethod
    def _entered(self, line: Transition) -> None:
        """The state has changed by this line; nobody has been told yet."""

    @abstractmethod
    def _decided(self) -> None:
        """No line holds any more, and the lock knows what is wanted of it."""

    @abstractmethod
    def _note_asked(self, epoch: int) -> None:
        """This epoch of the lock is going to be asked for."""

    def pending(self) -> Pending:
        """What waits for the other server, or the database."""
        return {}

    def miscounted(self) -> str:
        """What this server has counted otherwise than it is there."""
        return ""

    def replicated(self) -> tuple[Hashable, Image] | None:
        """How far the repository is, and what it then holds; None where that is not the same elsewhere."""
        return None

    def accept(self, alone: bool) -> None:
        """A person says that this server's repository is the one to go on with, whatever it lacks.

        Raises:
            ConfigError: there is nothing to be decided by a person.
        """
        raise ConfigError("mode shared has one repository, on which nobody has to decide")

    def take_sent(self, messages: Sequence[Sent]) -> None:
        """What the active server replicates; raises LinkError when it is malformed."""

    def take_stored(self, message: Stored) -> None:
        """What the standby has."""

    # From start to stop.

    def start(self) -> None:
        """Enter the first state."""
        stamp = self.stamp
        self._runtime.log("state", present=self.state, previous=DEAD, epoch=stamp.epoch, counter=stamp.counter,
                          whole=stamp.whole)
        self.lock.start()
        self.decide()

    def stop(self) -> None:
        """End; nobody is told, the other server sees the channel break."""
        self.lock.stop()

    def tick(self) -> None:
        """Look at the lease, tell the other server that this one lives."""
        self.lock.tick()
        self.decide()
        self.greet()
        self.tally.tell(self._broker.disk_writes)

    # The channel.

    def link_up(self) -> None:
        """The channel carries; it is established when the other server has said how it is."""
        self._linked = True
        self.greet()

    def link_down(self) -> None:
        """The channel is broken: what comes on it no longer counts."""
        self._linked, self.peer, self._told = False, None, None
        self._runtime.point(CHANNEL_LOST)
        self.decide()

    def greet(self) -> None:
        """Broadcast the present and the previous state, and how far the repository is."""
        if self._linked:
            stamp = self.stamp
            self.disowned = max(self.disowned, self.lock.settled)
            self._send(Hello(self.state, self.before, self._options.layer.primary, stamp.whole, stamp.epoch,
                             stamp.counter, stamp.changed, self.lock.settled))
            self._told = self.state, self.before
            self._greetings += 1

    def take_hello(self, hello: Hello) -> None:
        """How things stand at the other server."""
        if hello.primary == self._options.layer.primary:
            said = "true" if hello.primary else "false"
            raise LinkError(f"Primary is {said} on both servers; it must be true on one of them")
        self.peer = hello
        self.decide()

    # What follows.

    def view(self) -> View:
        """How things stand."""
        lock = self.lock.holds() if self._options.fencing else self.lock.looked_at()
        facts = frozenset(name for name, fact in self._facts().items() if fact)
        if self.peer is None:
            return View(self.state, False, lock=lock, facts=facts)
        return View(self.state, True, self.peer.state, self.peer.before, lock, facts)

    def decide(self) -> None:
        """Change the state by the table for as long as a line holds, and seek or keep or release the lock."""
        if self._deciding:
            return  # what entering a state brings about is seen by whoever enters it
        self._deciding = True
        try:
            while (line := next_step(self._table, view := self.view())) is not None:
                self.before, self.state = self.state, line.to
                self.reasons.append((view, line.to))
                self.changes += 1
                self._runtime.point(ENTERED)
                self._entered(line)
        finally:
            self._deciding = False
        self._lock_then = view.lock
        self.lock.want(self._wish() if wants_lock(self._table, self.view()) else None)
        self._decided()

    def _tell_state(self) -> None:
        """One line in the log, and a broadcast."""
        stamp, peer = self.stamp, self.peer
        self._runtime.log("state", present=self.state, previous=self.before, epoch=stamp.epoch, counter=stamp.counter,
                          whole=stamp.whole, lock=self.lock.holds(), peer=peer.state if peer is not None else DEAD)
        self.greet()

    def undecided(self) -> str:
        """The state into which the table has this server change, and it has not; empty: none."""
        line = next_step(self._table, self.view())
        return line.to if line is not None else ""

    def overdue(self) -> str:
        """The same, but for a lease that has ended since this server looked: it decides by whatever else it learns."""
        view = self.view()
        line = next_step(self._table, replace(view, lock=view.lock or self._lock_then))
        return line.to if line is not None else ""

    def unsaid(self) -> Pending:
        """What the other server is to be told: a sign of life before long, a new state at once."""
        if not self._linked:
            return {}
        found: dict[str, Collection[Hashable]] = {"sign-of-life": [self._greetings]}
        if self._told != (self.state, self.before):
            found["broadcast"] = [self.state]
        return found

    def status(self) -> dict[str, Any]:
        """What a person needs to see."""
        stamp, peer = self.stamp, self.peer
        return {
            "state": self.state, "previous": self.before, "lock": self.lock.holds(), "lock epoch": self.lock.epoch,
            "channel": peer is not None, "peer": peer.state if peer is not None else DEAD, "whole": stamp.whole,
            "repository": [stamp.epoch, stamp.counter],
        }  # fmt: skip
