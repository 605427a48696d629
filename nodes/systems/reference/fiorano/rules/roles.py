"""Watchers of the roles of a FioranoMQ pair: the lock and its epochs, the gateway's leases, the states of a server."""

from __future__ import annotations

from nodes.reference.designs.fiorano.gateway.protocol import HELD, RELEASED, SERVICE
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
from nodes.reference.designs.fiorano.transitions import REACHABLE, REPLICATED, SHARED, View
from nodes.systems.reference.fiorano.probes import FioranoObserved, FioranoProbe, GatewayObserved, GatewayProbe
from nodes.systems.reference.rules.disks import DiskWatcher
from stormproof.contracts.invariant import EagerWatcher, Watcher

_CHANGES = {(line.state, line.to) for line in (*REPLICATED, *SHARED)}

_HOLDING = (*SERVING, ACTIVATING)

_LONGER = 1.25
"""The ratio of the gateway's lease to the holder's."""

_NEARLY = 0.002
"""The share of a lease by which healthy clocks may diverge during it."""


class OneHolds(EagerWatcher):
    """Tracks the holders of the lock, and whether the leases of both servers run at the same time."""

    def __init__(self) -> None:
        self._holders: dict[str, FioranoProbe] = {}

    def look(self, node: str, program: FioranoProbe, now: FioranoObserved, before: FioranoObserved | None) -> str:
        """Check that only one lease runs; every step is checked while both have an epoch."""
        if now.lock:
            self._holders[node] = program
        else:
            self._holders.pop(node, None)
        self.eager = len(self._holders) > 1
        if not self.eager or not now.holds:
            return ""
        others = [name for name, each in self._holders.items() if name != node and each.holds_lock()]
        return f"it holds the lock, in epoch {now.lock}, and so does {others[0]}" if others else ""

    def ended(self, node: str) -> None:
        """Forget the server: its program has ended, and so has its lease."""
        self._holders.pop(node, None)
        self.eager = False


class EpochsGrow(Watcher):
    """Tracks the server that was granted the lock in each epoch."""

    def __init__(self) -> None:
        self._holders: dict[int, str] = {}
        self._known: dict[str, int] = {}

    def ended(self, node: str) -> None:
        """Forget the server's epoch: its program has ended, and so has its lease."""
        self._known.pop(node, None)

    def look(self, node: str, program: FioranoProbe, now: FioranoObserved, before: FioranoObserved | None) -> str:
        """Check that each new epoch is the highest so far. A server that was suspended until its lease had ended,
        before it learned of that lease, never held the lock."""
        if not now.lock:
            self._known.pop(node, None)
            return ""
        if self._known.get(node) == now.lock or not program.holds_lock():
            return ""
        self._known[node] = now.lock
        highest = max(self._holders, default=0)
        other = self._holders.setdefault(now.lock, node)
        if other != node:
            return f"it was granted the lock in epoch {now.lock}, in which {other} had it"
        return f"it was granted the lock in epoch {now.lock}, after {highest}" if now.lock < highest else ""


class GrantedByGateway(Watcher):
    """Tracks the gateway, and the servers whose leases may run."""

    def __init__(self) -> None:
        self._gateway: GatewayProbe | None = None
        self._servers: dict[str, FioranoProbe] = {}

    def look(self, node: str, program: FioranoProbe | GatewayProbe, now: FioranoObserved | GatewayObserved,
             before: FioranoObserved | GatewayObserved | None) -> str:  # fmt: skip
        """Check that the gateway has granted the lock to each server that holds it, and keeps it for that server."""
        if isinstance(program, GatewayProbe):
            self._gateway = program
            servers = self._servers
        elif isinstance(now, FioranoObserved) and now.lock:
            servers = {node: program}
            self._servers |= servers
        else:
            self._servers.pop(node, None)
            return ""
        if self._gateway is None or not self._gateway.observed().ready:
            return ""
        for name, server in servers.items():
            if server.holds_lock() and not self._gateway.is_held_by(name):
                return f"{name} holds the lock, and the gateway does not keep it for that server"
        return ""

    def ended(self, node: str) -> None:
        """Forget an ended program: a server holds no lock then, and a gateway grants none."""
        if self._servers.pop(node, None) is None and node == SERVICE:
            self._gateway = None


class KeepsLonger(Watcher):
    """Tracks the gateway, and the servers that hold an epoch."""

    def __init__(self) -> None:
        self._gateway: GatewayProbe | None = None
        self._servers: dict[str, FioranoProbe] = {}

    def look(self, node: str, program: FioranoProbe | GatewayProbe, now: FioranoObserved | GatewayObserved,
             before: FioranoObserved | GatewayObserved | None) -> str:  # fmt: skip
        """Check that the gateway keeps the lock for a quarter of a lease beyond the end of each holder's lease."""
        if isinstance(program, GatewayProbe):
            self._gateway = program
        elif isinstance(now, FioranoObserved) and now.lock:
            self._servers[node] = program
        else:
            self._servers.pop(node, None)
        gateway = self._gateway
        if gateway is None or not gateway.observed().ready:
            return ""
        for name, server in self._servers.items():
            left, kept = server.lease_left(), gateway.keeps_for(name)
            if left > 0 and kept < left + (_LONGER - 1 - _NEARLY) * gateway.lease:
                return f"the lease of {name} runs for {left:.4g} s, and the gateway keeps the lock for {kept:.4g} s"
        return ""

    def ended(self, node: str) -> None:
        """Forget an ended program: a server holds no lock then, and a gateway grants none."""
        if self._servers.pop(node, None) is None and node == SERVICE:
            self._gateway = None


class AnswersAsItIs(Watcher):
    """Stateless check of the gateway."""

    def look(self, node: str, program: GatewayProbe, now: GatewayObserved, before: GatewayObserved | None) -> str:
        """Check that the gateway keeps a lock no longer than its lease, not after its release, and only from other
        servers.
        """
        left = now.until - program.now()
        if left > (_LONGER + _NEARLY) * program.lease:
            return f"it keeps the lock for {left:.4g} s, and a lease is {program.lease:g} s"
        if before is None or before.told == now.told:
            return ""
        kind, server, epoch = now.told
        if kind == HELD and (server == now.holder or left <= 0):
            return f"it tells {server} that somebody else holds the lock, which is {now.holder or 'nobody'}"
        if kind == RELEASED and (epoch, server) == (now.epoch, now.holder) and left > 0:
            return f"{server} has let go of the lock in epoch {epoch}, and it is kept for {left:.4g} s more"
        return ""


class RemembersWho(Watcher):
    """Tracks the holder of the newest epoch, as far as the gateway knew it."""

    def __init__(self) -> None:
        self._last: tuple[int, str] = (0, "")

    def look(self, node: str, program: GatewayProbe, now: GatewayObserved, before: GatewayObserved | None) -> str:
        """Check that epochs only grow while the gateway runs, and that each epoch keeps its holder."""
        last, self._last = self._last, (now.last.epoch, now.last.holder)
        if before is None or now.last.epoch > last[0] or self._last == last or not last[1]:
            return ""
        return f"the newest epoch was {last[0]}, of {last[1]}, and is {now.last.epoch}, of {now.last.holder or 'none'}"


class AskedOnDisk(DiskWatcher):
    """Stateless check of a server's epochs."""

    def look(self, node: str, program: FioranoProbe, now: FioranoObserved, before: FioranoObserved | None) -> str:
        """Check that a server has an epoch on disk before it requests it: in its stamp, and on the disk itself."""
        super().look(node, program, now, before)
        noted = max(now.stamp.asked, now.stamp.epoch)
        rows = self.rows(node, "fiorano_repository") if before is not None and now.asked > before.asked else None
        if rows is not None:
            noted = min(noted, max((max(epoch, asked) for _, _, epoch, _, _, asked in rows), default=0))
        return "" if now.asked <= noted else f"it asks for epoch {now.asked}, and on its disk is {noted}"


class DisownedStays(Watcher):
    """Tracks the highest epoch that each server has disowned."""

    def __init__(self) -> None:
        self._disowned: dict[str, int] = {}

    def look(self, node: str, program: FioranoProbe, now: FioranoObserved, before: FioranoObserved | None) -> str:
        """Check that a server does not obtain the lock in an epoch that it has disowned."""
        disowned = self._disowned.get(node, 0)
        self._disowned[node] = max(disowned, now.disowned)
        if not now.lock or now.lock > disowned or (before is not None and before.lock == now.lock):
            return ""
        return f"it holds the lock in epoch {now.lock}, and had said that it will use none up to {disowned}"

    def disk_lost(self, node: str) -> None:
        """Expect nothing of what a server has said before its disk forgot that."""
        self._disowned.pop(node, None)


class DisownedAsSaid(Watcher):
    """Tracks the servers, and the highest epochs that ended servers had disowned."""

    def __init__(self) -> None:
        self._programs: dict[str, FioranoProbe] = {}
        self._disowned: dict[str, int] = {}

    def look(self, node: str, program: FioranoProbe, now: FioranoObserved, before: FioranoObserved | None) -> str:
        """Check that a server's record of the epochs its peer disowned does not exceed what that peer has disowned."""
        self._programs[node] = program
        if not now.peer_disowned or (before is not None and before.peer_disowned == now.peer_disowned):
            return ""
        said = max([self._disowned.get(name, 0) for name in self._disowned if name != node]
                   + [each.observed().disowned for name, each in self._programs.items() if name != node], default=None)
        if said is None or now.peer_disowned <= said:
            return ""
        return f"it has heard that the other server uses no epoch up to {now.peer_disowned}, which said so up to {said}"

    def ended(self, node: str) -> None:
        """Keep the server's disowned epoch: it may have ended in the middle of a callback, after it had sent it."""
        if (program := self._programs.pop(node, None)) is not None:
            self._disowned[node] = max(self._disowned.get(node, 0), program.observed().disowned)


class SeeksTheLock(Watcher):
    """Tracks the servers that have served or been the standby since their start."""

    def __init__(self) -> None:
        self._met: set[str] = set()

    def look(self, node: str, program: FioranoProbe, now: FioranoObserved, before: FioranoObserved | None) -> str:
        """Check that a server that may continue alone requests the lock, a serving one keeps it, and a standby does not
        seek it.
        """
        if before is None:
            self._met.discard(node)
        elif now.state != WAITING:
            self._met.add(node)
        waits = now.state == PASSIVE or (now.state == WAITING and node in self._met)
        if waits and not now.channel and now.stamp.whole and not now.seeks:
            return f"it is {now.state}, alone, with a whole repository, and does not ask for the lock"
        if now.state in SERVING and not now.seeks:
            return f"it is {now.state}, and lets the lock go"
        if now.seeks and (now.state == PASSIVE_TRANSITION or (now.state == PASSIVE and now.channel)):
            return f"it is {now.state}, and asks for the lock of the server that serves"
        return ""


class SeeksTheSharedLock(Watcher):
    """Stateless check of a server that shares its database."""

    fields = ("state", "reachable", "peer", "seeks")

    def look(self, node: str, program: FioranoProbe, now: FioranoObserved, before: FioranoObserved | None) -> str:
        """Check that a standby asks for the lock exactly if nobody serves and the database is there, and that an active
        server keeps it."""
        if before is None or program.failed:
            return ""
        if now.state in (ACTIVE, ACTIVATING):
            return "" if now.seeks or not now.reachable else f"it is {now.state}, and lets the lock go"
        free = now.peer in (DEAD, PASSIVE)
        if free and now.reachable and not now.seeks:
            return "nobody serves, the database is there, and it does not ask for the lock"
        if now.seeks and not (free and now.reachable):
            return f"it asks for the lock, and the other server is {now.peer}" + ", without a database" * (
                not now.reachable)
        return ""


class StatesByTable(Watcher):
    """Stateless check against the table of transitions."""

    def look(self, node: str, program: FioranoProbe, now: FioranoObserved, before: FioranoObserved | None) -> str:
        """Check that the step from the previous state to the present one is a line of the table."""
        if before is None or (before.state, before.before) == (now.state, now.before):
            return ""
        if (now.before, now.state) in _CHANGES:
            return ""
        return f"it was {now.before} and is {now.state}, which no line of the table says"


class ChangesForAReason(Watcher):
    """Stateless check of the conditions under which a server changed its state."""

    def look(self, node: str, program: FioranoProbe, now: FioranoObserved, before: FioranoObserved | None) -> str:
        """Check state changes against the document's rules, which are written here independently of the table."""
        if before is None or before.changes == now.changes:
            return ""
        for view, to in list(program.reasons)[before.changes - now.changes :]:
            if wrong := _wrong(view, to):
                return f"it was {view.state} and became {to}, and {wrong}"
        return ""


def _wrong(view: View, to: str) -> str:
    """Describe the violated condition of a change from one state to another."""
    begins = to in _HOLDING and view.state not in _HOLDING
    stops = view.state in _HOLDING and to not in _HOLDING
    if begins and not view.lock:
        return "it does not hold the lock, which whoever begins to serve has"
    if begins and to != ACTIVATING and view.channel and view.peer != WAITING:
        return f"the other server is {view.peer}, and has to be {WAITING}"
    if stops and view.lock and view.state != ACTIVATING and view.peer != STANDALONE and not _without_database(view, to):
        return "it holds the lock, and nobody else serves"
    if stops and view.state == ACTIVE and view.channel and to == WAITING:
        return "it has its standby, with which it serves without the lock as well"
    if to in (ACTIVE, PASSIVE) and view.state in (ACTIVE_TRANSITION, PASSIVE_TRANSITION) and not view.channel:
        return "there is no channel on which the synchronisation could have ended"
    if to == STANDALONE and view.channel:
        return "there is a channel to the other server"
    if to == PASSIVE_TRANSITION and view.peer not in (STANDALONE, ACTIVE_TRANSITION):
        return f"the other server is {view.peer}, which synchronises nobody"
    return ""


def _without_database(view: View, to: str) -> bool:
    """Tell whether this is a server of a shared-database pair whose database does not answer."""
    return to == PASSIVE and REACHABLE not in view.facts


class ServesWhereItMay(Watcher):
    """Stateless check of a server's state."""

    def look(self, node: str, program: FioranoProbe, now: FioranoObserved, before: FioranoObserved | None) -> str:
        """Check that clients are admitted only in serving states."""
        if now.serves and now.state not in (*SERVING, ACTIVE):
            return f"it is {now.state} and lets clients in"
        return ""


class ServerStatusTells(Watcher):
    """Stateless check of a server's status."""

    period = 2.0

    def inspect(self, node: str, program: FioranoProbe) -> str:
        """Check that the status shown to administrators matches the server's state."""
        if program.failed:
            return ""
        status, now = program.status(), program.observed()
        peer = [name for name in status["view"] if name != node]
        stands = {"role": now.state, "state": now.state, "previous": now.before, "serving": now.serves,
                  "lock": now.holds, "lock epoch": now.lock, "channel": now.channel, "whole": now.stamp.whole,
                  "repository": [now.stamp.epoch, now.stamp.counter], "epoch": now.stamp.epoch}
        wrong = [f"{name} {status[name]}, which is {stands[name]}" for name in stands if status[name] != stands[name]]
        if bool(peer) != now.channel or (status["peer"] == DEAD) == now.channel:
            wrong.append(f"the other server {status['peer']}, in view: {', '.join(peer) or 'nobody'}")
        return f"its status tells {wrong[0]}" if wrong else ""
