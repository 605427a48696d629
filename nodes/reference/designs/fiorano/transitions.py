"""The state transitions as data: each line quotes the sentence that it implements, or is marked as this project's own.

A line holds if all its conditions are met; the first line that holds determines the next state. A server seeks the lock
if the lock would let it begin to serve, and keeps it while it serves; no other rule decides who seeks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nodes.reference.designs.fiorano.states import (
    ACTIVATING,
    ACTIVE,
    ACTIVE_TRANSITION,
    DEAD,
    PASSIVE,
    PASSIVE_TRANSITION,
    STANDALONE,
    WAITING,
)

NEWER = "newer"
"""This repository is whole and the one to use: the other is older, or equally new and not the primary's."""
OLDER = "older"
"""The other server's repository is whole and the one to use."""
WHOLE = "whole"
"""This repository was not left in the middle of a synchronisation."""
MET = "met"
"""This server has served or been the standby since it was started, so it does not count as starting alone."""
START_ALONE = "start_alone"
"""The option ``start_alone`` is set."""
SYNCED = "synced"
"""The standby has all that this server has: the synchronisation is complete."""
ACTIVATED = "activated"
"""Shared mode: the database is held and loaded, and all services run."""
REACHABLE = "reachable"
"""Shared mode: the database answers."""

OURS = "ours"


@dataclass(frozen=True)
class View:
    """Everything that a state change depends on.

    ``channel`` is true when the HA channel is established and the other server has reported its state; ``peer`` and
    ``peer_before`` are its present and previous state (DEAD without the channel); ``lock``: whether this server holds
    the lock; ``facts`` are the facts above that are true now.
    """

    state: str
    channel: bool
    peer: str = DEAD
    peer_before: str = DEAD
    lock: bool = False
    facts: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Transition:
    """One line: from ``state`` to ``to`` if all other conditions are met; None or an empty tuple imposes none.

    ``sentence`` is the document's, or gives the reason for a line of this project.
    """

    state: str
    to: str
    sentence: str
    channel: bool | None = None
    peer: tuple[str, ...] = ()
    peer_before: tuple[str, ...] = ()
    lock: bool | None = None
    facts: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    ours: bool = False

    def holds(self, view: View) -> bool:
        """Tell whether a server with this view changes its state by this line."""
        return (
            view.state == self.state
            and self.channel in (None, view.channel)
            and (not self.peer or view.peer in self.peer)
            and (not self.peer_before or view.peer_before in self.peer_before)
            and self.lock in (None, view.lock)
            and view.facts.issuperset(self.facts)
            and view.facts.isdisjoint(self.unless)
        )


REPLICATED = (
    Transition(
        DEAD, WAITING, "On startup, the Server enters into WAITING state.",
    ),
    Transition(
        WAITING, PASSIVE_TRANSITION,
        "Switch to PASSIVE SYNC state: If the HA channel is established and the other server is in STANDALONE state.",
        channel=True, peer=(STANDALONE,),
    ),
    Transition(
        WAITING, PASSIVE_TRANSITION,
        "Switch to PASSIVE(STANDBY) SYNC or ACTIVE SYNC state: If the HA channel is established and the other server "
        "is also in WAITING state [...]",
        channel=True, peer=(ACTIVE_TRANSITION,), peer_before=(WAITING, STANDALONE),
    ),
    Transition(
        WAITING, ACTIVE_TRANSITION,
        "[...] then the servers assumes themselves as being in Active or Passive roles depending on the Repository "
        "Timestamps and remote server status. [...] based on which server obtains the lock",
        channel=True, peer=(WAITING,), lock=True, facts=(NEWER,),
    ),
    Transition(
        WAITING, STANDALONE,
        "Nobody has held the lock since this server was up to date: it goes on alone.",
        channel=False, lock=True, facts=(WHOLE, MET), ours=True,
    ),
    Transition(
        WAITING, STANDALONE,
        "A server that starts alone waits for its peer, unless it is told not to.",
        channel=False, lock=True, facts=(WHOLE, START_ALONE), ours=True,
    ),
    Transition(
        ACTIVE_TRANSITION, ACTIVE,
        "Completion of the Runtime Synchronization Protocol causes a transition of the ACTIVE SYNC server to the "
        "ACTIVE state [...] A server can switch to Active only if it holds a lock over the LockFile.",
        channel=True, lock=True, facts=(SYNCED,),
    ),
    Transition(
        ACTIVE_TRANSITION, WAITING,
        "Without the lock nothing says that it may serve.",
        lock=False, ours=True,
    ),
    Transition(
        ACTIVE_TRANSITION, STANDALONE,
        "When the Server is actively serving clients and [...] the HA transport channel is broken and it has the lock "
        "over the Lockfile, then the state of the active server is STANDALONE.",
        channel=False, lock=True,
    ),
    Transition(
        PASSIVE_TRANSITION, PASSIVE,
        "[...] to the ACTIVE state and the server in PASSIVE SYNC state to PASSIVE state.",
        channel=True, facts=(SYNCED,),
    ),
    Transition(
        PASSIVE_TRANSITION, WAITING,
        "The channel broke before it had everything: its repository is incomplete, and it never seeks the lock.",
        channel=False, ours=True,
    ),
    Transition(
        PASSIVE_TRANSITION, WAITING,
        "The other server serves no longer: nobody will complete this repository.",
        channel=True, peer=(WAITING,), ours=True,
    ),
    Transition(
        PASSIVE, STANDALONE,
        "[...] a passive (standby) server can switch to STANDALONE if the other server is not running or if the "
        "transport channel is broken and passive server acquires the lock over the LockFile.",
        channel=False, lock=True,
    ),
    Transition(
        PASSIVE, WAITING,
        "The channel was broken meanwhile, so it may lack changes; it waits, as after its start.",
        channel=True, peer=(WAITING, STANDALONE), ours=True,
    ),
    Transition(
        ACTIVE, STANDALONE,
        "When the Server is actively serving clients and its backup server is not running or if the HA transport "
        "channel is broken and it has the lock over the Lockfile, then the state of the active server is STANDALONE.",
        channel=False, lock=True,
    ),
    Transition(
        ACTIVE, WAITING,
        "An ACTIVE server can switch to WAITING if the transport channel is broken and it loses the lock over the "
        "LockFile.",
        channel=False, lock=False,
    ),
    Transition(
        STANDALONE, WAITING,
        "[...] a STANDALONE server can switch to WAITING if it loses the lock over the LockFile.",
        lock=False,
    ),
    Transition(
        STANDALONE, ACTIVE_TRANSITION,
        "If the server in STANDALONE state establishes the HA channel and the other server is in WAITING state, then "
        "the STANDALONE server shifts to ACTIVE SYNC state and further to ACTIVE state.",
        channel=True, peer=(WAITING, PASSIVE_TRANSITION), lock=True,
    ),
    Transition(
        STANDALONE, WAITING,
        "Both served alone, which only happens without the lock: the older repository gives way.",
        channel=True, peer=(STANDALONE,), facts=(OLDER,), ours=True,
    ),
)  # fmt: skip
"""The lines of the replicated mode [How does a Server State Change?]."""

SHARED = (
    Transition(
        DEAD, PASSIVE,
        "A server that does not hold the lock is standby; when the server starts up, it tries to acquire a lock.",
        ours=True,
    ),
    Transition(
        PASSIVE, ACTIVATING,
        "When the server starts up, the server tries to acquire a lock on the lock file. If it acquires the lock "
        "successfully, it switches to the ACTIVATING state.",
        peer=(DEAD, PASSIVE), lock=True, facts=(REACHABLE,),
    ),
    Transition(
        ACTIVATING, PASSIVE,
        "Lock Lost – lock over the LockFile is lost",
        lock=False,
    ),
    Transition(
        ACTIVATING, PASSIVE,
        "The database is out of reach: it releases the lock, and says so.",
        unless=(REACHABLE,), ours=True,
    ),
    Transition(
        ACTIVATING, ACTIVE,
        "It then switches to ACTIVE state once all its services have been activated.",
        lock=True, facts=(ACTIVATED,),
    ),
    Transition(
        ACTIVE, PASSIVE,
        "Lock Lost – lock over the LockFile is lost",
        lock=False,
    ),
    Transition(
        ACTIVE, PASSIVE,
        "The database is out of reach: it stops serving, says so, and releases the lock.",
        unless=(REACHABLE,), ours=True,
    ),
)  # fmt: skip
"""The lines of the shared mode [Working of Fiorano Shared High Availability]."""

_HOLDERS = (ACTIVE, ACTIVE_TRANSITION, STANDALONE, ACTIVATING)


def next_step(table: Sequence[Transition], view: View) -> Transition | None:
    """Return the line by which a server changes its state now; None if the state stays."""
    return next((line for line in table if line.holds(view)), None)


def wants_lock(table: Sequence[Transition], view: View) -> bool:
    """Tell whether a server seeks or keeps the lock."""
    with_lock = next_step(table, replace(view, lock=True))
    if with_lock is not None and with_lock.lock:
        return with_lock.to in _HOLDERS
    return view.state in _HOLDERS and (with_lock is None or with_lock.to in _HOLDERS)
