"""Read-only probes of a FioranoMQ server and of the gateway."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from nodes.reference.api import Image, Pending
from nodes.reference.designs.fiorano.active import ActiveSide
from nodes.reference.designs.fiorano.design import FioranoDesign
from nodes.reference.designs.fiorano.gateway.grants import LockRecord
from nodes.reference.designs.fiorano.gateway.service import LockGateway
from nodes.reference.designs.fiorano.lock import GatewayLock
from nodes.reference.designs.fiorano.pair import Pair
from nodes.reference.designs.fiorano.repository import RepositoryStamp
from nodes.reference.designs.fiorano.server import HAServer
from nodes.reference.designs.fiorano.shared import SharedPair
from nodes.reference.designs.fiorano.states import (
    ACTIVATING,
    ACTIVE,
    ACTIVE_TRANSITION,
    DEAD,
    PASSIVE,
    PASSIVE_TRANSITION,
    SERVING,
    STANDALONE,
    WAITING,
)
from nodes.reference.designs.fiorano.transitions import View, next_step
from nodes.reference.engine.audit import stored
from nodes.systems.reference.probes.broker import BrokerProbe
from nodes.systems.reference.probes.images import Rows, rows_of
from nodes.systems.reference.probes.replication import silent_links

GATEWAY = "gateway"
"""The kind of the gateway's program, for invariants."""
_TRANSITIONAL = (WAITING, ACTIVATING, ACTIVE_TRANSITION, PASSIVE_TRANSITION)


class FioranoObserved(NamedTuple):
    """The values that invariants observe.

    - ``state`` and ``before``: the present and the previous state. ``changes`` is the number of state changes.
    - ``serves``: whether clients are admitted.
    - ``lock``: the epoch in which this server holds the lock (0: it does not); ``holds``: whether its lease runs.
    - ``stamp``: the repository's stamp.
    - ``asked`` and ``disowned``: the highest epoch that this server has asked for, and the highest that it has
      disowned; ``peer_disowned``: the highest that the other server says it has disowned.
    - ``alone``: whether it may confirm changes that only it has.
    - ``stored``: the newest change-set up to which its standby has everything, as far as this server knows.
    - ``confirmed``: epoch and number of the newest change-set that was confirmed to clients.
    - ``channel``: whether there is a channel; ``seeks``: whether it seeks or keeps the lock.
    - ``untold``: whether its standby has not yet been informed of its newest stamp.
    - ``unwoken``: whether commands wait, and nothing wakes up who carries them out.
    - ``reachable``: whether the shared database counts as reachable (mode shared). ``peer``: the other server's state.
    """

    state: str
    before: str
    serves: bool
    lock: int
    holds: bool
    stamp: RepositoryStamp
    asked: int
    disowned: int
    alone: bool
    stored: int = -1
    confirmed: tuple[int, int] = (0, 0)
    peer_disowned: int = 0
    channel: bool = False
    seeks: bool = False
    changes: int = 0
    untold: bool = False
    unwoken: bool = False
    reachable: bool = True
    peer: str = DEAD


class FioranoProbe:
    """Observes one server, in either mode."""

    def __init__(self, design: FioranoDesign) -> None:
        self._design, self._server = design, design.server
        self._broker = BrokerProbe(design.broker)
        self._seen: FioranoObserved | None = None

    @property
    def _active(self) -> ActiveSide | None:
        """The serving side of a server in mode replicated; None while it does not serve."""
        return self._server.active if isinstance(self._server, Pair) else None

    def observed(self) -> FioranoObserved:
        """Return the server's state. A server whose store has failed is ending: it stays as it was seen before."""
        if self._seen is not None and self._broker.failed:
            return self._seen
        server, lock, peer, active = self._server, self._server.lock, self._server.peer, self._active
        stamp, shares, standing = server.stamp, False, None
        if active is not None:
            shares, standing = active.shares, active.standing
        self._seen = FioranoObserved(
            server.state, server.before, server.serves, lock.epoch, lock.holds(), stamp, lock.asked, server.disowned,
            active is not None and not shares and active.may_go_alone(),
            standing.stored if standing is not None else -1, active.confirmed if active is not None else (0, 0),
            peer.asked if peer is not None else 0, peer is not None,
            isinstance(lock, GatewayLock) and lock.wish is not None, server.changes,
            active is not None and shares and active.told != (stamp.epoch, stamp.counter),
            active is not None and active.unwoken,
            not isinstance(server, SharedPair) or server.reachable, peer.state if peer is not None else DEAD,
        )
        return self._seen

    @property
    def alone(self) -> bool:
        """Tell whether it may now confirm changes that only it has."""
        active = self._active
        return active is not None and not active.shares and active.may_go_alone()

    @property
    def stamp(self) -> RepositoryStamp:
        """The repository's stamp."""
        return self._server.stamp

    @property
    def began(self) -> RepositoryStamp:
        """The repository's stamp when this server began to serve."""
        active = self._active
        return active.began if active is not None else self._server.stamp

    @property
    def accepts(self) -> int:
        """The number of times that an administrator declared this server's repository valid."""
        return self._server.accepts

    @property
    def primary(self) -> bool:
        """Tell whether it runs with the primary profile."""
        return self._design.options.layer.primary

    @property
    def reasons(self) -> Sequence[tuple[View, str]]:
        """The views at its latest state changes, each with the state that resulted."""
        return self._server.reasons

    @property
    def step(self) -> int:
        """The number of the last replicated step on this node, comparable with other nodes (``replicated``)."""
        return self._server.stamp.counter

    @property
    def failed(self) -> bool:
        """Tell whether its store has failed, so that it is ending."""
        return self._broker.failed

    def status(self) -> dict[str, Any]:
        """Return the status that an administrator gets."""
        return self._design.status()

    def lease_left(self) -> float:
        """Return the seconds left of its lease of the lock, by its clock; negative without a lease."""
        lock = self._server.lock
        if not isinstance(lock, GatewayLock) or not lock.epoch:
            return -math.inf
        return lock.until - self._design.broker.runtime.now()

    def holds_lock(self) -> bool:
        """Tell whether its lease runs now."""
        return self._server.lock.epoch > 0 and self._server.lock.holds()

    def replicated(self) -> tuple[Hashable, Image] | None:
        """Return the stamp and the content; None while the other server's content may differ.

        Once a standby has everything, equal stamps mean equal repositories.
        """
        server, stamp = self._server, self._server.stamp
        if not isinstance(server, Pair) or not stamp.whole or (server.active is None and server.state != PASSIVE):
            return None
        if self._broker.failed:
            return None
        return (stamp.epoch, stamp.counter), stored(self._design.broker.database)

    def in_database(self) -> tuple[tuple[int, int], Rows] | None:
        """Return the epoch and number of the last commit, and the content of the shared database.

        None if that is unknown: there is no shared database, this server is not active, or a commit is in flight.
        """
        server = self._server
        if not isinstance(server, SharedPair) or server.state != ACTIVE or self._broker.failed:
            return None
        if server.waiting or server.commands or not server.store.epoch:
            return None
        return server.store.position, rows_of(self._design.broker.database)

    @property
    def common(self) -> BrokerProbe:
        """The probe of the part that all designs share."""
        return self._broker

    def unlike_store(self) -> str:
        """Describe a difference between memory and store if this server serves; a standby writes to the store only."""
        return self._broker.unlike_store() if self._server.serves else ""

    def miscounted(self) -> str:
        """Describe the first wrong counter; empty if all are right."""
        if self._broker.failed:
            return ""
        if wrong := self._broker.miscounted() if self._server.serves else self._broker.left_over():
            return wrong
        if isinstance(self._server, SharedPair):
            return left_of_database(self._server)
        return miscounted_sets(self._active) if self._active is not None else ""

    def pending(self) -> Pending:
        """Return pending work: the server's actions and the messages it expects."""
        design, server = self._design, self._server
        if design.broker.stopping or self._broker.failed:
            return self._broker.pending() if self._broker.failed else {}
        found: dict[str, Collection[Hashable]] = {**self._broker.pending(), **self._of_lock(), **self._of_mode(),
                                                  **_unsaid(server)}  # fmt: skip
        if missing := design.links.missing():
            found["link"] = missing
        elif server.peer is None:
            found["hello"] = [""]
        if unspoken := design.links.unspoken():
            found["greeting"] = unspoken
        if heard := design.links.last_heard():
            found["silent-peer"] = heard
        found |= silent_links(design.links, 4 * design.options.heartbeat)
        view = server.view()
        if line := next_step(server.table, view):
            found["undecided"] = [(server.state, line.to)]
        # A lease that ended since the last decision may wait for the next tick; other news must lead to a decision.
        if line := next_step(server.table, replace(view, lock=view.lock or server.decided_lock)):
            found["overdue"] = [(server.state, line.to)]
        if not server.serves and design.admission().master != self._who_serves():
            found["unnamed"] = [self._who_serves()]
        if server.state in _TRANSITIONAL or (server.state == STANDALONE and server.peer is not None):
            found["state"] = found["state-or-person"] = [server.state]
        return found

    def _who_serves(self) -> str | None:
        """Return the other server's client address if that server says that it serves."""
        design, peer = self._design, self._server.peer
        serves = peer is not None and peer.state in SERVING
        return design.broker.config.client_addresses.get(design.options.peer) if serves else None

    def _of_lock(self) -> Pending:
        """Return the requests to the gateway that are due, and the answer that is awaited."""
        lock = self._server.lock
        found: dict[str, Collection[Hashable]] = {}
        if not isinstance(lock, GatewayLock):
            return found
        if lock.connected and lock.awaited is None and (about := lock.about()):
            found["asking"] = [lock.number]
            if about != lock.said:
                found["unasked"] = [about[0]]
        if not lock.connected:
            found["gateway"] = [""]
        elif lock.epoch and lock.wish is not None:
            found["renewal"] = [lock.until]
        elif lock.wish is not None:
            found["taking"] = [lock.number]
        if lock.awaited is not None:
            found["answer"] = [lock.awaited]
        return found

    def _of_mode(self) -> Pending:
        return _of_database(self._server) if isinstance(self._server, SharedPair) else self._of_pair()

    def _of_pair(self) -> Pending:
        """Return the standby's missing answers and the confirmations that clients therefore wait for; on the standby,
        the changes it has not received; on a server that is alone, the changes that it may not confirm yet."""
        server, active = self._server, self._active
        found: dict[str, Collection[Hashable]] = dict(_of_active(active)) if active is not None else {}
        mine, peer = server.stamp, server.peer
        if server.state == PASSIVE and peer is not None and peer.state in (ACTIVE, ACTIVE_TRANSITION):
            if (peer.epoch, peer.counter) > (mine.epoch, mine.counter):
                found["behind"] = [(peer.epoch, peer.counter)]
        elif server.state == STANDALONE and server.lock.holds() and not self.alone:
            found["unconfirmed"] = [server.lock.asked]
        return found


def _unsaid(server: HAServer) -> Pending:
    """Return pending messages to the other server: a heartbeat when the next is due, a new state at once."""
    if not server.linked:
        return {}
    found: dict[str, Collection[Hashable]] = {"sign-of-life": [server.greetings]}
    if server.told != (server.state, server.before):
        found["broadcast"] = [server.state]
    return found


def _of_active(active: ActiveSide) -> Pending:
    """Return waiting commands, unconfirmed change-sets, pages not acknowledged and pages not yet sent."""
    found: dict[str, Collection[Hashable]] = {}
    if active.commands:
        found["command"] = [active.repository.stamp.counter]
    if active.waiting:
        found["completion"] = [active.waiting[0][0]]
        if active.waiting[0][0] <= active.safe():
            found["unreleased"] = [active.waiting[0][0]]
    standing = active.standing
    if standing is not None and standing.under_way:
        found["page"] = [(standing.sync, standing.under_way)]
    if standing is not None and not standing.complete and standing.under_way < active.window:
        found["copying"] = [(standing.sync, standing.sent)]
    return found


def miscounted_sets(active: ActiveSide) -> str:
    """Check that every change-set since this server began to serve was counted, and that no finished synchronisation
    still runs."""
    present = active.standing.sync if active.standing is not None else 0
    if over := [sync for task, sync in active.copying.items() if sync != present and not task.cancelling()]:
        return f"synchronisations that are over: {over[0]} goes on"
    made = active.repository.stamp.counter - active.began.counter
    counted = active.tally.changes - active.counted_before
    return f"change-sets: {counted} are counted, and {made} were made" if made != counted else ""


def _of_database(server: SharedPair) -> Pending:
    """Return the database's missing answers, due requests to it, and commands that are not carried out."""
    found: dict[str, Collection[Hashable]] = {"database-look": [server.checks]}
    if asked := list(server.client.asked):
        found["database-answer"] = asked
    if lost := server.client.unanswerable():
        found["database-lost"] = lost
    if not server.reachable:
        found["database"] = [""]  # during a rest, too: only a damaged database is a reason to rest
    if server.waiting:
        found["commit"] = [(server.epoch, server.commits - len(server.waiting))]
        task = server.waiting[0][0]
        if task is not None and task.done() and not task.cancelled() and task.exception() is None:
            found["unreleased"] = found["commit"]
    if server.commands:
        found["command"] = [(server.epoch, server.commits)]
    return found


def left_of_database(server: SharedPair) -> str:
    """Describe state left over from the time when this server was active."""
    left = {"commits that wait": len(server.waiting), "commands": len(server.commands),
            "databases that are held": int(server.activated)}  # fmt: skip
    wrong = [f"{what}: {count} are left" for what, count in left.items() if count]
    return wrong[0] if wrong and server.state == PASSIVE else ""


class GatewayObserved(NamedTuple):
    """The values that invariants observe.

    - ``ready``: whether the gateway has read its lock file.
    - ``holder``, ``epoch``, ``until``: the holder according to that file, its epoch, and the end of its lease by the
      gateway's clock.
    - ``last``: the newest epoch and its holder, even if the file is gone.
    - ``told``: the last answer, the server that it went to, and the epoch in that server's request."""

    ready: bool
    epoch: int
    holder: str
    until: float
    last: LockRecord
    told: tuple[str, str, int]


class GatewayProbe:
    """Observes the gateway."""

    kind = GATEWAY

    def __init__(self, gateway: LockGateway) -> None:
        self._gateway = gateway

    def observed(self) -> GatewayObserved:
        """Return the holder of the lock and its lease."""
        gateway = self._gateway
        record = gateway.grants.record
        return GatewayObserved(gateway.written is not None, record.epoch, record.holder, gateway.grants.holder_until,
                               gateway.grants.last, gateway.told)  # fmt: skip

    def pending(self) -> Pending:
        """Return the lock-file checks only: servers do not wait for a gateway, because they repeat their requests."""
        return {"file": [self._gateway.file_checks]}

    def now(self) -> float:
        """Return the time of its clock."""
        return self._gateway.runtime.now()

    @property
    def lease(self) -> float:
        """The servers' lease in seconds."""
        return self._gateway.config.lease

    def keeps_for(self, server: str) -> float:
        """Return the seconds for which it keeps the lock for that server, by its clock; negative if it does not."""
        grants = self._gateway.grants
        return grants.holder_until - self.now() if grants.record.holder == server else -math.inf

    def is_held_by(self, server: str) -> bool:
        """Tell whether that server may believe now that it holds the lock."""
        return self.keeps_for(server) > 0
