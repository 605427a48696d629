"""Invariants of a FioranoMQ pair, its lock and its epochs, which hold at every instant.

*The document* is Fiorano's "FioranoMQ High Availability". It is not a defect that two servers believe for a moment that
they serve: without the lock and without its peer's acknowledgement, a server can't confirm anything.
"""

from __future__ import annotations

from nodes.reference.designs.fiorano.gateway.protocol import SERVICE
from nodes.reference.designs.fiorano.states import ACTIVE, SERVING
from nodes.reference.designs.fiorano.transitions import REPLICATED, SHARED
from nodes.systems.reference.fiorano.probes import GATEWAY, FioranoObserved, FioranoProbe, GatewayObserved, GatewayProbe
from nodes.systems.reference.fiorano.rules.lock_invariants import LOCK_INVARIANTS
from nodes.systems.reference.fiorano.rules.pair_invariants import LOCKED as _LOCKED
from nodes.systems.reference.fiorano.rules.pair_invariants import PAIR_INVARIANTS
from nodes.systems.reference.fiorano.rules.pair_invariants import REPLICATED_PAIR as _REPLICATED
from nodes.systems.reference.rules.audits import COUNTS_ADD_UP, STORE_HOLDS, same_state
from stormproof.contracts.invariant import BROKER, EagerWatcher, Invariant, Watcher

_CHANGES = {(line.state, line.to) for line in (*REPLICATED, *SHARED)}


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


class AskedOnDisk(Watcher):
    """Stateless check of a server's epochs."""

    def look(self, node: str, program: FioranoProbe, now: FioranoObserved, before: FioranoObserved | None) -> str:
        """Check that a server has an epoch on disk before it requests it."""
        noted = max(now.stamp.asked, now.stamp.epoch)
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


class ConfirmsInItsEpoch(Watcher):
    """Stateless check of a server's epochs."""

    def look(self, node: str, program: FioranoProbe, now: FioranoObserved, before: FioranoObserved | None) -> str:
        """Check that changes confirmed without the other server belong to the lock's epoch, which is the repository's
        epoch, too.
        """
        if not now.alone or now.stamp.epoch == now.lock:
            return ""
        return f"it may confirm alone in epoch {now.lock}, and its repository is of epoch {now.stamp.epoch}"


class StatesByTable(Watcher):
    """Stateless check against the table of transitions."""

    def look(self, node: str, program: FioranoProbe, now: FioranoObserved, before: FioranoObserved | None) -> str:
        """Check that the step from the previous state to the present one is a line of the table."""
        if before is None or (before.state, before.before) == (now.state, now.before):
            return ""
        if (now.before, now.state) in _CHANGES:
            return ""
        return f"it was {now.before} and is {now.state}, which no line of the table says"


class ServesWhereItMay(Watcher):
    """Stateless check of a server's state."""

    def look(self, node: str, program: FioranoProbe, now: FioranoObserved, before: FioranoObserved | None) -> str:
        """Check that clients are admitted only in serving states."""
        if now.serves and now.state not in (*SERVING, ACTIVE):
            return f"it is {now.state} and lets clients in"
        return ""


class RepositoryStampsGrow(Watcher):
    """Tracks the newest stamp of each whole repository, and the highest requested epoch."""

    def __init__(self) -> None:
        self._stamps: dict[str, tuple[int, int]] = {}
        self._asked: dict[str, int] = {}

    def look(self, node: str, program: FioranoProbe, now: FioranoObserved, before: FioranoObserved | None) -> str:
        """Check that stamps and epochs only grow, even across restarts: both are on disk before they count."""
        stamp = now.stamp
        mine = (stamp.epoch, stamp.counter)
        newest, asked = self._stamps.get(node, mine), self._asked.get(node, 0)
        if stamp.asked < asked:
            return f"it had asked for the lock up to epoch {asked}, and now up to {stamp.asked}"
        self._asked[node] = stamp.asked
        if not stamp.whole:
            return ""
        if mine < newest:
            return f"its repository had the stamp {newest}, and now {mine}"
        self._stamps[node] = mine
        return ""


INVARIANTS = (
    Invariant("one-holds-the-lock", "at any instant the lease of at most one server runs",
              "the document: the lock can be held by only one server at a time", OneHolds, unless=("clock",),
              where=_LOCKED),
    Invariant("lock-epochs-grow", "the lock is granted in ever later epochs, each to one server",
              "Gray and Cheriton 1989; Kleppmann, How to do distributed locking, 2016", EpochsGrow,
              unless=("lockfile", "disk"), where=_LOCKED),
    Invariant("granted-by-gateway", "who holds the lock is whom the gateway keeps it for",
              "Gray and Cheriton 1989: the holder's lease ends before the server's", GrantedByGateway,
              unless=("clock", "lockfile", "disk"), where=_LOCKED, of=(BROKER, GATEWAY)),
    Invariant("asked-on-disk", "an epoch that is asked for is on disk before",
              "docs/designs/fiorano.md: it is written down before it is asked for", AskedOnDisk, unless=("disk",),
              where=_REPLICATED),
    Invariant("disowned-stays", "who has said that it will not use an epoch never holds the lock in it",
              "grants.py: the other server has said that it knows nothing of it", DisownedStays, unless=("disk",),
              where=_REPLICATED),
    Invariant("confirms-in-its-epoch", "what only one server has is confirmed in the epoch of its repository",
              "the document: Repository Timestamps", ConfirmsInItsEpoch, where=_REPLICATED),
    Invariant("states-by-the-table", "a server changes its state only as the table of transitions says",
              "the document: States and state transition", StatesByTable),
    Invariant("serves-where-it-may", "clients are let in by a server that is ACTIVE, ACTIVE_TRANSITION or STANDALONE",
              "the document: The server does not accept client connections in this state", ServesWhereItMay),
    Invariant("repository-stamps-grow", "the stamp of a whole repository, and the epochs asked for, only grow",
              "the document: Repository Timestamps", RepositoryStampsGrow, unless=("disk",), where=_REPLICATED),
    *PAIR_INVARIANTS,
    *LOCK_INVARIANTS,
    STORE_HOLDS,
    COUNTS_ADD_UP,
    same_state("with repositories of the same stamp", _REPLICATED),
)  # fmt: skip
