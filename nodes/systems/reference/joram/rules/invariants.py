"""Invariants of HA Joram's replicas with ``partitions=primary-partition``, which hold at every instant.

The group is the core of Raft and of Viewstamped Replication, and so are its invariants: the *Raft paper* is Ongaro and
Ousterhout, "In Search of an Understandable Consensus Algorithm", 2014.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import Any

from nodes.reference.designs.joram.decisions import round_of
from nodes.reference.designs.joram.design import Joram
from nodes.reference.designs.joram.leader import BATCH_COMMANDS
from nodes.reference.designs.joram.probes import Observed
from nodes.reference.replication.quorum import majority
from nodes.systems.reference.joram.rules.candidacies import CANDIDACIES
from nodes.systems.reference.joram.rules.views import VIEWS
from nodes.systems.reference.rules.audits import COUNTS_ADD_UP, STORE_HOLDS, same_state
from stormproof.contracts.invariant import EagerWatcher, Invariant, Watcher

_PRIMARY = {"partitions": ("primary-partition",)}
_NEARLY = 0.98
_KEPT = 9
"""Upper bound of the log's length, as a multiple of the entries kept for other replicas; one batch is added."""
_FOR_THE_SLOW = 8
"""Entries that a master keeps for a lagging replica, as a multiple of those that it keeps in any case."""
_ENOUGH = min(_KEPT, _FOR_THE_SLOW)
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


class LogIsShort(Watcher):
    """Tracks the replicas that were sending the whole state at their last check."""

    def __init__(self) -> None:
        self._sending: set[str] = set()

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that the committed entries in the log do not exceed those kept for others, unless a whole state is
        sent.

        A master drops surplus entries when it writes to its disk; entries that were committed in that step are
        excepted.
        """
        keep, sent, there = program.log_keep, node in self._sending, now.committed - now.base
        if there <= _ENOUGH * keep:  # also holds one step earlier
            self._sending.discard(node)
            return ""
        if program.transfers:
            self._sending.add(node)
            return ""
        self._sending.discard(node)
        held, most = there, _KEPT * keep + BATCH_COMMANDS
        wrote = (before is not None and before.leads == now.leads > 0 and before.promised == now.promised
                 and now.durable > before.durable)  # fmt: skip
        if before is not None and wrote and not sent:
            held, most = before.committed - now.base, _FOR_THE_SLOW * keep
        return f"its log holds {held} entries that are committed, and {most} are enough" if held > most else ""


class LogIsLongEnough(Watcher):
    """Stateless check of a master whose log has become shorter."""

    fields = ("base",)

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that the log still holds the entries that are kept for returning replicas, and those that a replica fed
        from it needs, unless that lags too far. A replica that receives the whole state keeps nothing, but it is never
        a master."""
        if before is None or now.base <= before.base or not now.leads or before.leads != now.leads:
            return ""
        keep, there = program.log_keep, now.last - now.base
        if there < keep and program.log.size <= program.log_keep_bytes / 2:
            return f"its log holds {there} entries, and {keep} are to be kept"
        if there < _FOR_THE_SLOW * keep and (slow := program.lacking(now.base)):
            return f"its log begins behind entry {now.base}, which it has not sent {slow[0]}"
        return ""


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


class NewestLogLeads(Watcher):
    """Tracks the log position of each replica when it promised its present epoch."""

    fields = ("leads", "promised")

    def __init__(self) -> None:
        self._positions: dict[str, tuple[int, tuple[int, int]]] = {}

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that a master begins with a log that is as complete as those of a majority that promised its epoch."""
        if before is None or before.promised != now.promised:
            self._positions[node] = now.promised, (now.last_epoch or 0, now.last)
        if not now.leads or (before is not None and before.leads):
            return ""
        log, group = program.log, program.group
        mine = log.epoch_at(now.last - 1) or 0, now.last - 1
        promised = [self._positions[name][1] for name in group
                    if name in self._positions and self._positions[name][0] == now.leads]
        behind = sum(position <= mine for position in promised)
        if len(promised) < majority(len(group)) or behind >= majority(len(group)):
            return ""
        return (f"it is master in epoch {round_of(now.leads)} with a log that ends at {mine[1]} of epoch "
                f"{round_of(mine[0])}, and only {behind} of those that promised have none that is more complete")


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


class LogsMatch(Watcher):
    """Tracks each entry by index and epoch: its content, and the epoch of the entry before it."""

    fields = ("last", "last_epoch")

    def __init__(self) -> None:
        self._entries: dict[tuple[int, int], tuple[int | None, bytes]] = {}
        self._known: dict[str, dict[int, int]] = {}

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check the new entries of the log, from its end back to the last checked one."""
        log = program.log
        known = self._known.setdefault(node, {})
        for gone in range(now.last + 1, before.last + 1 if before is not None else 0):
            known.pop(gone, None)
        for index in range(now.last, now.base, -1):
            epoch = log.epoch_at(index)
            if epoch is None or known.get(index) == epoch:
                break
            known[index] = epoch
            held = (log.epoch_at(index - 1), log.entry(index))
            other = self._entries.setdefault((index, epoch), held)
            if other[1] != held[1]:
                return f"entry {index} of epoch {round_of(epoch)} holds something else than elsewhere"
            if other[0] != held[0] and None not in (other[0], held[0]):
                return f"before entry {index} of epoch {round_of(epoch)} there is another one than elsewhere"
        return ""


class CommittedStays(Watcher):
    """Tracks the epoch of each committed entry, and the epoch in which it was committed, which may be later.

    ``newest`` is the highest committed index: because logs match, a replica that has this entry has all of them.
    """

    fields = ("leads", "committed", "last")

    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}
        self._committed_in: dict[int, int] = {}
        self.newest = 0

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check a replica's committed entries, its log, and the log with which it begins as master."""
        return self._lost(program, now, before) or self._other(program, now, before)

    def _lost(self, program: Joram, now: Observed, before: Observed | None) -> str:
        if now.leads and (before is None or before.leads != now.leads):
            # A replica that was suspended when it was elected may begin when a newer master has already committed more.
            newest = next((index for index in range(self.newest, 0, -1)
                           if index in self._epochs and self._committed_in[index] < now.leads), 0)  # fmt: skip
            has = program.log.epoch_at(newest) if newest > now.base else self._epochs.get(newest)
            if newest and has != self._epochs.get(newest):
                return f"it is master in epoch {round_of(now.leads)} without the committed entry {newest}"
        if before is not None and now.committed < before.committed:
            return f"entries up to {before.committed} were committed, and now only those up to {now.committed}"
        return f"entry {now.committed} is committed, and the log ends at {now.last}" if now.committed > now.last else ""

    def _other(self, program: Joram, now: Observed, before: Observed | None) -> str:
        start = before.committed if before is not None else now.base
        for index in range(max(start, now.base) + 1, now.committed + 1):
            epoch = program.log.epoch_at(index)
            if epoch is None:
                continue
            self._committed_in.setdefault(index, now.leads or now.promised)
            other = self._epochs.setdefault(index, epoch)
            if other != epoch:
                return (f"entry {index} is committed in epoch {round_of(epoch)}, and was before in epoch "
                        f"{round_of(other)}")  # fmt: skip
        self.newest = max(self.newest, now.committed)
        return ""


class CommittedIsDurable(Watcher):
    """Tracks the entries that each replica has on disk."""

    fields = ("durable", "leads", "committed")

    def __init__(self) -> None:
        self._durable: dict[str, int] = {}
        self._programs: dict[str, Joram] = {}

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that the entries that a master commits are on the disks of a majority of the group."""
        self._durable[node] = now.durable
        self._programs[node] = program
        if not now.leads or before is None or now.committed <= before.committed:
            return ""
        group = program.group
        having = sum(self._durable.get(name, 0) >= now.committed for name in group)
        if having >= majority(len(group)):
            return ""
        return f"it commits entry {now.committed}, which {having} of {len(group)} replicas have on disk"

    def ended(self, node: str) -> None:
        """Keep the ended replica's durable index: it may have ended in the middle of a callback, after the last check,
        with more entries on its disk, and may have acknowledged them."""
        if (program := self._programs.pop(node, None)) is not None:
            self._durable[node] = program.observed().durable


class AcknowledgedIsThere(Watcher):
    """Tracks the replicas, and the acknowledgements that each master counted at its last check."""

    def __init__(self) -> None:
        self._programs: dict[str, Joram] = {}
        self._acked: dict[str, dict[str, int]] = {}

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that acknowledged entries are in the replica's log, as long as it has promised no newer epoch."""
        self._programs[node] = program
        if not now.leads or (acked := program.acknowledged) == (known := self._acked.get(node, {})):
            return ""
        self._acked[node] = dict(acked)
        for name, index in acked.items():
            other = self._programs.get(name)
            if other is None or known.get(name) == index or other.log.promised > now.leads:
                continue
            mine, theirs = program.log.epoch_at(index), other.log.epoch_at(index)
            if index > other.log.last or (None not in (mine, theirs) and mine != theirs):
                return (f"{name} has acknowledged entry {index} of epoch {round_of(mine or 0)}, and its log has "
                        f"{'nothing' if theirs is None else f'one of epoch {round_of(theirs)}'} there")
        return ""

    def ended(self, node: str) -> None:
        """Forget the ended replica; it is checked again after its restart."""
        self._programs.pop(node, None)
        self._acked.pop(node, None)


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
