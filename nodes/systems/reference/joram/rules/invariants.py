"""Invariants of HA Joram's replicas with ``partitions=primary-partition``, which hold at every instant.

The group is the core of Raft and of Viewstamped Replication, and so are its invariants: the *Raft paper* is Ongaro and
Ousterhout, "In Search of an Understandable Consensus Algorithm", 2014.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import Any

from nodes.reference.designs.joram.decisions import round_of
from nodes.reference.designs.joram.design import Joram
from nodes.reference.designs.joram.probes import Observed
from nodes.reference.replication.quorum import majority
from nodes.systems.reference.joram.rules.candidacies import CANDIDACIES
from nodes.systems.reference.joram.rules.log_invariants import (
    AcknowledgedIsThere,
    CommittedIsDurable,
    CommittedStays,
    LogIsLongEnough,
    LogIsShort,
    LogsMatch,
    NewestLogLeads,
)
from nodes.systems.reference.joram.rules.views import VIEWS
from nodes.systems.reference.rules.audits import COUNTS_ADD_UP, STORE_HOLDS, same_state
from stormproof.contracts.invariant import EagerWatcher, Invariant, Watcher

_PRIMARY = {"partitions": ("primary-partition",)}
_NEARLY = 0.98
_SAFE = {**_PRIMARY, "propagation": ("synchronous",)}


class OneMasterAnEpoch(Watcher):
    """Tracks the master of each epoch."""

    fields = ("leads",)

    def __init__(self) -> None:
        self._masters: dict[int, str] = {}

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that the master's epoch had no other master."""
        if not now.leads or (before is not None and before.leads == now.leads):
            return ""
        other = self._masters.setdefault(now.leads, node)
        return "" if other == node else f"it is master in epoch {round_of(now.leads)}, in which {other} was"


class LeadsInItsPromise(Watcher):
    """Stateless check of a master's promise."""

    fields = ("leads", "promised")

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that a master's promised epoch equals its own epoch; a newer promise supersedes it."""
        if now.leads in (0, now.promised):
            return ""
        return f"it is master in epoch {round_of(now.leads)}, and has promised {round_of(now.promised)}"


class OneServes(EagerWatcher):
    """Tracks the masters, and whether the leases of two hold at the same time."""

    fields = ("leads", "serving")

    def __init__(self) -> None:
        self._masters: dict[str, Joram] = {}

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that only one lease holds; while two replicas believe that they are masters, each of their steps is
        checked.
        """
        if now.leads:
            self._masters[node] = program
        else:
            self._masters.pop(node, None)
        self.eager = len(self._masters) > 1
        if not self.eager or not now.serving:
            return ""
        others = [name for name, each in self._masters.items() if name != node and each.holds_lease()]
        return f"its lease holds, and that of {others[0]} as well" if others else ""

    def ended(self, node: str) -> None:
        """Forget the ended master."""
        self._masters.pop(node, None)
        self.eager = len(self._masters) > 1


class Promises(Watcher):
    """Tracks each replica's promise on disk."""

    fields = ("promised", "durable_promise")

    def __init__(self) -> None:
        self._durable: dict[str, int] = {}

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that a promise only grows, even across restarts."""
        if before is not None and now.promised < before.promised:
            return f"it had promised epoch {round_of(before.promised)}, and now {round_of(now.promised)}"
        kept = self._durable.get(node, 0)
        if before is None and now.promised < kept:
            return f"it was started with the promise {round_of(now.promised)}, and had {round_of(kept)} on its disk"
        self._durable[node] = max(kept, now.durable_promise)
        return ""


class PromisesOnDisk(Watcher):
    """Stateless check of a replica's promise."""

    fields = ("promised", "durable_promise")

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that a promise is on disk before it can be sent."""
        if now.durable_promise >= now.promised:
            return ""
        return f"it has promised epoch {round_of(now.promised)}, and on its disk is {round_of(now.durable_promise)}"


class RestsAfterStart(Watcher):
    """Tracks the time, by its own clock, at which each replica was started with a log."""

    fields = ("promised",)

    def __init__(self) -> None:
        self._started: dict[str, float] = {}

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that a replica makes no promise to another candidate within a detection time-out after its start: a
        master may rely on messages from before the replica's end. Its own epoch, and that of a master that it follows,
        are allowed. A replica may gain and lose a master within one step."""
        if before is None:
            if now.last:
                self._started[node] = program.now()
            return ""
        if now.promised == before.promised or program.hears_master() or not program.favours():
            return ""
        if node not in self._started:
            return ""
        ran = program.now() - self._started[node]
        if ran >= _NEARLY * program.detection_timeout or now.promised == program.own_epoch(now.promised):
            return ""
        return f"it has promised epoch {round_of(now.promised)} {ran:.3g} s after its start"

    def ended(self, node: str) -> None:
        """Forget the start; the next one is noted when it happens."""
        self._started.pop(node, None)


class LeaseProtects(Watcher):
    """Tracks the masters, and the epoch that each replica has promised."""

    fields = ("leads", "promised", "serving")

    def __init__(self) -> None:
        self._masters: dict[str, tuple[int, Joram]] = {}
        self._promised: dict[str, int] = {}

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that no majority has promised a newer epoch than that of a master whose lease holds."""
        if now.leads:
            self._masters[node] = now.leads, program
        else:
            self._masters.pop(node, None)
        if self._promised.get(node) == now.promised and (before is None or before.serving == now.serving):
            return ""
        self._promised[node] = now.promised
        for name, (epoch, master) in self._masters.items():
            newer = [each for each in master.group if self._promised.get(each, 0) > epoch]
            if len(newer) >= majority(len(master.group)) and master.holds_lease():
                return (f"{len(newer)} of {len(master.group)} replicas have promised a newer epoch than "
                        f"{round_of(epoch)}, in which the lease of {name} holds")  # fmt: skip
        return ""

    def ended(self, node: str) -> None:
        """Forget the ended master; the promise stays."""
        self._masters.pop(node, None)


class ServesAfterOwnEntry(Watcher):
    """Stateless check of a master that begins to serve."""

    fields = ("serving",)

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that the last entry that a master has committed belongs to its epoch before it serves."""
        if not now.serving or (before is not None and before.serving):
            return ""
        epoch = program.log.epoch_at(now.committed)
        if epoch in (now.leads, None):  # with asynchronous propagation it may have been dropped
            return ""
        return f"it serves in epoch {round_of(now.leads)}, and the last entry committed is of {round_of(epoch or 0)}"


class GroupsOverlap(Watcher):
    """Tracks the members of the group according to each replica's log."""

    fields = ("group_index",)

    def __init__(self) -> None:
        self._groups: dict[str, frozenset[str]] = {}

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that a master changes the group by one replica at a time."""
        if before is not None and before.group_index == now.group_index:
            return ""
        group = frozenset(program.group)
        former = self._groups.get(node)
        self._groups[node] = group
        if former == group:  # a truncated log falls back to its previous group
            return ""
        if before is None or not now.leads or before.leads != now.leads:  # it may have adopted another replica's log
            return ""
        if former is not None and len(former ^ group) > 1:
            return f"the group changed by {len(former ^ group)} replicas at once"
        if now.group_index == now.base:
            return ""  # where a log begins, the group is the previous one
        if former is not None and len(group) < len(former) and not program.has_majority_of(group):
            return f"the group becomes {', '.join(sorted(group))}, of which no majority is there"
        if now.group_index > before.group_index > max(now.committed, before.base):
            return f"the group changes with entry {now.group_index}, and entry {before.group_index}, by which it " \
                   "changed before, is not committed"
        return ""


class GroupsMatch(Watcher):
    """Tracks the committed groups, each with the index of its entry."""

    fields = ("base", "group_index", "committed")

    def __init__(self) -> None:
        self._groups: dict[int, list[list[Any]]] = {}
        self._indices: list[int] = []

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that the group at the base of a replica's log is the one that was committed there."""
        if before is not None and (before.base, before.group_index, before.committed >= before.group_index) == (
                now.base, now.group_index, now.committed >= now.group_index):
            return ""
        place = bisect_right(self._indices, now.base)
        if place and (mine := program.log.group_at(now.base)) != (known := self._groups[self._indices[place - 1]]):
            return f"at entry {now.base} its group is {_names(mine)}, and that of others {_names(known)}"
        if now.group_index <= now.committed and now.group_index not in self._groups:
            self._groups[now.group_index] = program.log.group_at(now.group_index)
            insort(self._indices, now.group_index)
        return ""


class TellsItsGroup(Watcher):
    """Stateless check: compares the group that a replica uses and reports with its log."""

    fields = ("base", "group_index", "serving")

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check this whenever the group has changed, or the replica begins to serve."""
        if before is not None and (before.base, before.group_index, before.serving) == (
                now.base, now.group_index, now.serving):
            return ""
        group = [member for member in program.log.group_at(now.last) if member[-1] is not True]
        if not group:  # as configured: no entry has changed it
            return ""
        names = [member[0] for member in group]
        if list(program.group) != names:
            return f"it goes by a group of {','.join(program.group)}, and that of its log is {_names(group)}"
        if (listed := list(program.status()["replicas"])) != names:
            return f"its status lists the replicas {','.join(listed)}, and those of its log are {_names(group)}"
        told = program.admission()
        if told.accepted and list(told.replicas or ()) != [client for *_, client in group if client]:
            return f"it tells clients of {','.join(told.replicas or ())}, and its group is {_names(group)}"
        return ""


def _names(members: list[list[Any]]) -> str:
    """Return the names of a group's members, without those that are apart."""
    return ",".join(str(name) for name, *_, last in members if last is not True) or "nobody"


INVARIANTS = (
    Invariant("one-master-an-epoch", "in each epoch at most one replica is master",
              "Raft paper, Figure 3, Election Safety", OneMasterAnEpoch, where=_PRIMARY),
    Invariant("leads-in-its-promise", "a master has promised its own epoch, and no newer one",
              "Raft paper, Figure 2, Rules for Servers: a newer term makes a follower of it", LeadsInItsPromise,
              where=_PRIMARY),
    Invariant("one-serves", "at any instant the lease of at most one master holds",
              "Ongaro's dissertation, 6.4.1", OneServes, where=_PRIMARY),
    Invariant("promises-survive", "what a replica has promised only grows, also beyond a restart",
              "Raft paper, Figure 2, Persistent state", Promises, unless=("disk",), where=_PRIMARY),
    Invariant("promises-on-disk", "what a replica has promised is on its disk before it says so",
              "Raft paper, Figure 2: updated on stable storage before responding", PromisesOnDisk, unless=("disk",),
              where=_PRIMARY),
    Invariant("rests-after-start", "a replica that has just started promises no epoch to a candidate",
              "Ongaro's dissertation, 6.4.1: a lease outlasts the restart of who granted it", RestsAfterStart,
              unless=("clock", "disk"), where=_PRIMARY),
    Invariant("log-is-short", "the log holds what is kept for replicas that come back, and little more",
              "docs/designs/joram.md: log_keep", LogIsShort, where=_PRIMARY),
    Invariant("log-is-long-enough", "a master's log holds what is kept for replicas that come back, and what "
              "those need that it feeds",
              "docs/designs/joram.md: log_keep, how much of the log is kept for replicas that come back",
              LogIsLongEnough, where=_PRIMARY),
    Invariant("lease-protects", "while a master's lease holds, no majority promises a newer epoch",
              "Ongaro's dissertation, 6.4.1", LeaseProtects, where=_PRIMARY),
    Invariant("newest-log-leads", "a master's log is as complete as those of a majority that promised its epoch",
              "Raft paper, 5.4.1", NewestLogLeads, unless=("disk",), where=_PRIMARY),
    Invariant("serves-after-own-entry", "a master serves when an entry of its own epoch is committed",
              "Raft paper, 5.4.2", ServesAfterOwnEntry, where=_PRIMARY),
    Invariant("logs-match", "entries of the same index and epoch hold the same, as do all before them",
              "Raft paper, Figure 3, Log Matching", LogsMatch, where=_PRIMARY),
    Invariant("committed-stays", "what is committed never changes, and every later master has it",
              "Raft paper, Figure 3, Leader Completeness and State Machine Safety", CommittedStays,
              unless=("disk",), where=_SAFE),
    Invariant("committed-is-durable", "what a master commits is on the disks of most of the group",
              "Raft paper, 5.3", CommittedIsDurable,
              unless=("disk",), where=_SAFE),
    Invariant("acknowledged-is-there", "what a replica has acknowledged is in its log",
              "Raft paper, Figure 2: matchIndex, the highest entry known to be replicated on a server",
              AcknowledgedIsThere, unless=("disk",), where=_PRIMARY),
    Invariant("groups-overlap", "the group changes by one replica at a time, and not before the last change is "
              "committed", "Ongaro's dissertation, 4.1", GroupsOverlap, where=_PRIMARY),
    Invariant("groups-match", "who belongs to the group at an entry that is committed is the same everywhere",
              "Ongaro's dissertation, 4.1: the configuration is in the log", GroupsMatch, unless=("disk",),
              where=_SAFE),
    Invariant("tells-its-group", "a replica goes by the group of its log, and tells of it",
              "Ongaro's dissertation, 4.1: the newest configuration in the log is used; docs/stomp.md: x-replicas",
              TellsItsGroup, where=_PRIMARY),
    *CANDIDACIES,
    *VIEWS,
    STORE_HOLDS,
    COUNTS_ADD_UP,
    same_state("that have applied the same entries", _SAFE),
)  # fmt: skip
