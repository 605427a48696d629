"""Watchers of the data of a FioranoMQ pair: one server's confirmations against the other's repository, and the shared
database.

A server's disk still counts after its program has ended."""

from __future__ import annotations

import re

from nodes.reference.designs.fiorano.repository import RepositoryStamp
from nodes.reference.designs.fiorano.states import (
    ACTIVE,
    ACTIVE_TRANSITION,
    PASSIVE,
    WAITING,
)
from nodes.systems.reference.fiorano.probes import FioranoObserved, FioranoProbe
from nodes.systems.reference.probes.images import Rows, unlike
from nodes.systems.reference.probes.storage import StorageObserved, StorageProbe
from nodes.systems.reference.rules.disks import DiskWatcher
from stormproof.contracts.invariant import Watcher

_UNREACHABLE, _UNANSWERED = re.compile(r" database unreachable\b"), re.compile(r"reason=\"?(no answer|no connection)\b")
_UNUSABLE = "database can't be used"


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

    def disk_lost(self, node: str) -> None:
        """Forget the stamp of a repository that the disk has lost."""
        self._left.pop(node, None)


class ServesWithAllConfirmed(Watcher):
    """Tracks the newest change-set that was confirmed to clients, and the last server that began to serve, with its
    stamp.
    """

    def __init__(self) -> None:
        self._newest = (0, 0)
        self._by = ""
        self._reign: tuple[int, str, tuple[int, int]] = (0, "", (0, 0))
        self._stored: dict[str, tuple[int, int]] = {}
        """The stamp of each server's whole repository."""

    def disk_lost(self, node: str) -> None:
        """Expect no change-set that only the lost repository had."""
        self._stored.pop(node, None)
        self._newest = min(self._newest, max(self._stored.values(), default=(0, 0)))

    def look(self, node: str, program: FioranoProbe, now: FioranoObserved, before: FioranoObserved | None) -> str:
        """Check that a server that begins to serve has all confirmed change-sets, and that its predecessor then
        confirms no change-set that it lacks.

        A change-set is identified by its number and the epoch in which it was created."""
        if now.stamp.whole:
            self._stored[node] = now.stamp.epoch, now.stamp.counter
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


class ConfirmsInItsEpoch(Watcher):
    """Stateless check of a server's epochs."""

    def look(self, node: str, program: FioranoProbe, now: FioranoObserved, before: FioranoObserved | None) -> str:
        """Check that changes confirmed without the other server belong to the lock's epoch, which is the repository's
        epoch, too.
        """
        if not now.alone or now.stamp.epoch == now.lock:
            return ""
        return f"it may confirm alone in epoch {now.lock}, and its repository is of epoch {now.stamp.epoch}"


class RepositoryStampsGrow(DiskWatcher):
    """Tracks the newest stamp of each whole repository, and the highest requested epoch."""

    def __init__(self) -> None:
        super().__init__()
        self._stamps: dict[str, tuple[int, int]] = {}
        self._asked: dict[str, int] = {}

    def look(self, node: str, program: FioranoProbe, now: FioranoObserved, before: FioranoObserved | None) -> str:
        """Check that stamps and epochs only grow, even across restarts: both are on disk before they count.

        What a server finds at its start may not be on disk: the kernel still has what a failed sync left there."""
        super().look(node, program, now, before)
        if self.lacks_files(node):
            return ""
        stamp = now.stamp
        mine = (stamp.epoch, stamp.counter)
        newest, asked = self._stamps.get(node, mine), self._asked.get(node, 0)
        if stamp.asked < asked:
            return f"it had asked for the lock up to epoch {asked}, and now up to {stamp.asked}"
        written = before is not None and before.stamp != stamp
        if written:
            self._asked[node] = stamp.asked
        if not stamp.whole:
            return ""
        if mine < newest:
            return f"its repository had the stamp {newest}, and now {mine}"
        if written:
            self._stamps[node] = mine
        return ""

    def disk_lost(self, node: str) -> None:
        """Expect nothing of a repository that the disk has lost."""
        super().disk_lost(node)
        self._stamps.pop(node, None)
        self._asked.pop(node, None)


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


class BetterRepositoryLeads(_Servers):
    """Tracks the servers and their stamps, and how often a person has accepted a server's repository."""

    def __init__(self) -> None:
        super().__init__()
        self._accepts: dict[str, int] = {}

    def look(self, node: str, program: FioranoProbe, now: FioranoObserved, before: FioranoObserved | None) -> str:
        """Check that whoever begins to serve has a whole repository, and the newer of two, and that a person's decision
        is taken of a waiting server only, whose peer has no better repository."""
        self._programs[node] = program
        self._left.pop(node, None)
        accepted = program.accepts > self._accepts.get(node, 0)
        self._accepts[node] = program.accepts
        if before is None:
            return ""
        if accepted and (wrong := self._accepts_wrongly(node, before)):
            return wrong
        if not now.serves or before.serves:
            return ""
        if not now.stamp.whole:
            return "it begins to serve with a repository that is in the middle of a synchronisation"
        if now.state != ACTIVE_TRANSITION or before.state != WAITING or program.accepts:
            return ""
        mine = before.stamp.epoch, before.stamp.counter
        for name, stamp in self.others(node):
            other = self._programs.get(name)
            theirs = stamp.epoch, stamp.counter
            if other is None or not stamp.whole or theirs < mine:
                continue
            if theirs > mine:
                return f"it begins to serve from {_told(mine)}, and {name}, which waits, is at {_told(theirs)}"
            if not program.primary and other.primary:
                return f"it begins to serve, and {name}, which is the primary and waits, has the same repository"
        return ""

    def _accepts_wrongly(self, node: str, before: FioranoObserved) -> str:
        mine = before.stamp.epoch, before.stamp.counter
        if before.state != WAITING:
            return f"it is {before.state}, and accepts its repository"
        better = [name for name, stamp in self.others(node)
                  if before.channel and stamp.whole and (stamp.epoch, stamp.counter) > mine]  # fmt: skip
        return f"it accepts its repository, at {_told(mine)}, and that of {better[0]} is newer" if better else ""

    def ended(self, node: str) -> None:
        """Forget how often the repository of an ended server was accepted."""
        super().ended(node)
        self._accepts.pop(node, None)


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


class FenceGrows(Watcher):
    """Tracks the holder of the shared database in each epoch, and the number of its applied commits."""

    def __init__(self) -> None:
        self._last: StorageObserved | None = None
        self._node = ""

    def disk_lost(self, node: str) -> None:
        """Expect nothing of a fence that the service's disk has lost."""
        if node == self._node:
            self._last = None

    def look(self, node: str, program: StorageProbe, now: StorageObserved, before: StorageObserved | None) -> str:
        """Check that epochs only grow, each with one holder, and so do its commits, even across restarts."""
        last, self._last = self._last, now
        self._node = node
        if last is None or now.epoch > last.epoch:
            return ""
        if (now.epoch, now.holder) == (last.epoch, last.holder) and now.applied >= last.applied:
            return ""
        return (f"commit {last.applied} of {last.holder} in epoch {last.epoch} was the last one, and now it is "
                f"{now.applied} of {now.holder or 'nobody'} in epoch {now.epoch}")


class DatabaseBlamedRightly(Watcher):
    """Tracks whether the shared database's disk has lost or changed something, ever."""

    def __init__(self) -> None:
        self._service: str | None = None
        self._damaged = False

    def look(self, node: str, program: FioranoProbe | StorageProbe, now: FioranoObserved | StorageObserved,
             before: FioranoObserved | StorageObserved | None) -> str:  # fmt: skip
        """Note the service that keeps the database."""
        if isinstance(program, StorageProbe):
            self._service = node
        return ""

    def disk_lost(self, node: str) -> None:
        """Note that the database may be damaged."""
        self._damaged = self._damaged or node == self._service

    def logged(self, node: str, line: str) -> str:
        """Check that a database which answers that another epoch holds it is taken neither for unreachable nor for
        damaged."""
        if _UNREACHABLE.search(line) and not _UNANSWERED.search(line):
            return f"it says that the database is unreachable, which has answered: {line[:300]}"
        if _UNUSABLE in line and not self._damaged:
            return f"it says that the database can't be used, which nothing has damaged: {line[:300]}"
        return ""


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
