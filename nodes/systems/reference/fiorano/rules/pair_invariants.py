"""Invariants of the two servers of a FioranoMQ pair together: one server's confirmations against the other's content.

*The page* is docs/designs/fiorano.md. A server's disk still counts after its program has ended.
"""

from __future__ import annotations

from nodes.reference.designs.fiorano.configuration import REPLICATED_MODE
from nodes.reference.designs.fiorano.repository import COUNTER, RepositoryStamp
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
from nodes.reference.designs.fiorano.transitions import REACHABLE, View
from nodes.systems.reference.fiorano.probes import FioranoObserved, FioranoProbe
from nodes.systems.reference.probes.images import Rows, unlike
from nodes.systems.reference.probes.storage import STORAGE, StorageObserved, StorageProbe
from stormproof.contracts.invariant import BROKER, Invariant, Watcher

LOCKED = {"lock": (True,), "fencing": (True,)}
REPLICATED_PAIR = {**LOCKED, "mode": (REPLICATED_MODE,), "stamps": (COUNTER,)}
_HOLDING = (*SERVING, ACTIVATING)


class _Servers(Watcher):
    """Tracks the servers, and the stamps of those that have ended."""

    def __init__(self) -> None:
        self._programs: dict[str, FioranoProbe] = {}
        self._left: dict[str, RepositoryStamp] = {}

    def others(self, node: str) -> list[tuple[str, RepositoryStamp]]:
        """Return each other server with the stamp of its repository."""
        found = {**self._left, **{name: program.stamp for name, program in self._programs.items()}}
        return [(name, stamp) for name, stamp in found.items() if name != node]

    def ended(self, node: str) -> None:
        """Keep the server's last stamp. It may have ended in the middle of a callback, after the last check: it may
        then have stored and acknowledged more than that check saw."""
        if (program := self._programs.pop(node, None)) is not None:
            self._left[node] = program.stamp


class ServesWithAllConfirmed(Watcher):
    """Tracks the newest change-set that was confirmed to clients, and the last server that began to serve, with its
    stamp.
    """

    def __init__(self) -> None:
        self._newest = (0, 0)
        self._by = ""
        self._reign: tuple[int, str, tuple[int, int]] = (0, "", (0, 0))

    def look(self, node: str, program: FioranoProbe, now: FioranoObserved, before: FioranoObserved | None) -> str:
        """Check that a server that begins to serve has all confirmed change-sets, and that its predecessor then
        confirms no change-set that it lacks.

        A change-set is identified by its number and the epoch in which it was created."""
        if now.serves and not (before is not None and before.serves):
            stamp = program.began
            mine = (stamp.epoch, stamp.counter)
            if program.accepts:  # an administrator has accepted the loss
                self._newest = min(self._newest, mine)
            if mine < self._newest:
                return (f"it begins to serve with what there was up to {_told(mine)}, and {self._by} has confirmed "
                        f"{_told(self._newest)}")
            self._reign = (now.stamp.epoch, node, mine)
        if before is None or now.confirmed == before.confirmed or now.confirmed <= self._newest:
            return ""
        epoch, since, began = self._reign
        self._newest, self._by = now.confirmed, node
        if since not in ("", node) and epoch > now.stamp.epoch and began < now.confirmed:
            return f"it confirms {_told(now.confirmed)}, and {since} serves since epoch {epoch}, from {_told(began)} on"
        return ""


def _told(stamp: tuple[int, int]) -> str:
    return f"change {stamp[1]} of epoch {stamp[0]}"


class AloneInItsOwnEpoch(_Servers):
    """Tracks the servers and their stamps."""

    def look(self, node: str, program: FioranoProbe, now: FioranoObserved, before: FioranoObserved | None) -> str:
        """Check that, where one server may confirm changes that only it has, the other's repository is not whole in the
        same epoch.
        """
        self._programs[node] = program
        self._left.pop(node, None)
        for name, stamp in self.others(node):
            other = self._programs.get(name)
            if now.stamp.epoch != stamp.epoch:
                continue
            if now.alone and stamp.whole:
                return f"it may confirm alone in epoch {stamp.epoch}, of which the repository of {name} is, too"
            if other is not None and now.stamp.whole and other.alone:
                return f"its repository is of epoch {stamp.epoch}, in which {name} may confirm alone"
        return ""


class AcknowledgedIsStored(_Servers):
    """Tracks the servers and their stamps."""

    def look(self, node: str, program: FioranoProbe, now: FioranoObserved, before: FioranoObserved | None) -> str:
        """Check that change-sets that a server believes its standby to have stored are on the standby's disk."""
        self._programs[node] = program
        self._left.pop(node, None)
        if now.stored < 0 or (before is not None and before.stored == now.stored):
            return ""
        lacking = [f"{name}, which has those up to {stamp.counter}" for name, stamp in self.others(node)
                   if stamp.counter < now.stored]
        return f"it takes changes up to {now.stored} for stored by {lacking[0]}" if lacking else ""


class StandbyIsTold(Watcher):
    """Stateless check of a server after each of its steps."""

    fields = ("untold",)

    def look(self, node: str, program: FioranoProbe, now: FioranoObserved, before: FioranoObserved | None) -> str:
        """Check that a change-set or a new epoch is sent to the standby in the step in which the repository gets it."""
        stamp = now.stamp.epoch, now.stamp.counter
        return f"its repository is at {_told(stamp)}, and its standby was not told" if now.untold else ""


class StandbyIsWhole(_Servers):
    """Tracks the servers and their stamps."""

    def look(self, node: str, program: FioranoProbe, now: FioranoObserved, before: FioranoObserved | None) -> str:
        """Check that a standby has a whole repository, and that an active server's peer has one."""
        self._programs[node] = program
        self._left.pop(node, None)
        if now.state == PASSIVE and not now.stamp.whole:
            return "it is PASSIVE, and its repository is in the middle of a synchronisation"
        if now.state != ACTIVE or (before is not None and before.state == ACTIVE):
            return ""
        parts = [name for name, stamp in self.others(node) if not stamp.whole]
        return f"it is ACTIVE, and the repository of {parts[0]} is in the middle of a synchronisation" if parts else ""


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


class ServerStatusTells(Watcher):
    """Stateless check of a server's status."""

    period = 2.0

    def inspect(self, node: str, program: FioranoProbe) -> str:
        """Check that the status shown to administrators matches the server's state."""
        status, now = program.status(), program.observed()
        peer = [name for name in status["view"] if name != node]
        stands = {"role": now.state, "state": now.state, "previous": now.before, "serving": now.serves,
                  "lock": now.holds, "lock epoch": now.lock, "channel": now.channel, "whole": now.stamp.whole,
                  "repository": [now.stamp.epoch, now.stamp.counter], "epoch": now.stamp.epoch}
        wrong = [f"{name} {status[name]}, which is {stands[name]}" for name in stands if status[name] != stands[name]]
        if bool(peer) != now.channel or (status["peer"] == DEAD) == now.channel:
            wrong.append(f"the other server {status['peer']}, in view: {', '.join(peer) or 'nobody'}")
        return f"its status tells {wrong[0]}" if wrong else ""


class FenceGrows(Watcher):
    """Tracks the holder of the shared database in each epoch, and the number of its applied commits."""

    def __init__(self) -> None:
        self._last: StorageObserved | None = None

    def look(self, node: str, program: StorageProbe, now: StorageObserved, before: StorageObserved | None) -> str:
        """Check that epochs only grow, each with one holder, and so do its commits, even across restarts."""
        last, self._last = self._last, now
        if last is None or now.epoch > last.epoch:
            return ""
        if (now.epoch, now.holder) == (last.epoch, last.holder) and now.applied >= last.applied:
            return ""
        return (f"commit {last.applied} of {last.holder} in epoch {last.epoch} was the last one, and now it is "
                f"{now.applied} of {now.holder or 'nobody'} in epoch {now.epoch}")


class DatabaseHolds(Watcher):
    """Tracks the service that keeps the shared database."""

    period = 2.0

    def __init__(self) -> None:
        self._service: StorageProbe | None = None

    def look(self, node: str, program: FioranoProbe | StorageProbe, now: FioranoObserved | StorageObserved,
             before: FioranoObserved | StorageObserved | None) -> str:  # fmt: skip
        """Note the service that keeps the database."""
        if isinstance(program, StorageProbe):
            self._service = program
        return ""

    def inspect(self, node: str, program: FioranoProbe | StorageProbe) -> str:
        """Check that the database has the active server's content if no commit is in flight."""
        service = self._service
        if service is None or isinstance(program, StorageProbe) or (found := program.in_database()) is None:
            return ""
        at, mine = found
        known = service.observed()
        theirs: Rows | None = service.rows() if (known.epoch, known.applied) == at else None
        return unlike(mine, theirs, (node, "the database")) if theirs is not None else ""

    def ended(self, node: str) -> None:
        """Forget the service: its content is on disk, and is checked again after its restart."""
        if self._service is not None and node == self._service.name:
            self._service = None


_DISK = ("disk",)

PAIR_INVARIANTS = (
    Invariant("serves-with-all-confirmed", "who begins to serve has all that clients were told of",
              "the document, HA Locking Mechanism: no message loss; the page: a server that served alone must not be "
              "followed by one that was its standby before", ServesWithAllConfirmed, unless=_DISK,
              where=REPLICATED_PAIR),
    Invariant("alone-in-its-own-epoch", "what only one server has is confirmed in an epoch that no standby has",
              "the page, HA locking mechanism: STANDALONE serves in an epoch that no standby has", AloneInItsOwnEpoch,
              unless=_DISK, where=REPLICATED_PAIR),
    Invariant("acknowledged-is-stored", "what a standby is taken to have stored is on its disk",
              "the page: effects go to clients when the standby has it on disk", AcknowledgedIsStored, unless=_DISK,
              where=REPLICATED_PAIR),
    Invariant("standby-is-told", "a standby that has everything is told of each change and each epoch at once",
              "the document: the Active Server replicates its data store and state to the Passive Server",
              StandbyIsTold, unless=_DISK, where=REPLICATED_PAIR),
    Invariant("standby-is-whole", "a standby, and that of an active server, has a whole repository",
              "the document: completion of the Runtime Synchronization Protocol causes ACTIVE and PASSIVE",
              StandbyIsWhole, unless=_DISK, where=REPLICATED_PAIR),
    Invariant("disowned-as-said", "a server has heard of the other one's epochs what that one may say",
              "the page: told to the peer once it can't be used any more", DisownedAsSaid, unless=_DISK,
              where=REPLICATED_PAIR),
    Invariant("seeks-the-lock", "whoever may go on alone asks for the lock, and whoever serves keeps it",
              "the page: a server seeks the lock where it would then begin to serve, and keeps it while it serves",
              SeeksTheLock, where=REPLICATED_PAIR),
    Invariant("changes-for-a-reason", "a server changes its state for the reasons that the document has",
              "the document: a server can switch to Active only if it holds a lock; States and state transition",
              ChangesForAReason, where={**LOCKED, "as_documented": ("",)}),
    Invariant("status-tells", "what a person is shown of a server is how it stands",
              "the page: admin fiorano status prints both servers' states, locks and repositories", ServerStatusTells),
    Invariant("fence-grows", "the shared database is held in ever later epochs, each by one server",
              "docs/stomp.md: claim lets this epoch write, and fences all older ones; the fence is written with the "
              "rows", FenceGrows, unless=("disk", "shared-db"), where={**LOCKED, "mode": ("shared",)}, of=(STORAGE,)),
    Invariant("database-has-all", "the shared database has what the active server has",
              "the document, Working of Fiorano Shared High Availability: only the active server makes changes to the "
              "common database", DatabaseHolds, unless=("disk", "shared-db"),
              where={**LOCKED, "mode": ("shared",), "as_documented": ("",)}, of=(BROKER, STORAGE)),
)  # fmt: skip
