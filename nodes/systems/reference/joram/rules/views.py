"""Invariants of the views that HA Joram's masters install, and of the entries they commit and the effects they release,
with ``partitions=primary-partition``."""

from __future__ import annotations

from bisect import bisect_right, insort

from nodes.reference.designs.joram.decisions import round_of
from nodes.reference.designs.joram.design import Joram
from nodes.reference.designs.joram.leader import JOIN_LAG
from nodes.reference.designs.joram.probes import Observed
from nodes.reference.replication.positions import plan_feed
from nodes.reference.replication.quorum import majority
from stormproof.contracts.invariant import Invariant, Watcher

PRIMARY = {"partitions": ("primary-partition",)}
SAFE = {**PRIMARY, "propagation": ("synchronous",)}


class ViewsInOrder(Watcher):
    """Tracks the programs, and the view of each master at its last check."""

    def __init__(self) -> None:
        self._programs: dict[str, Joram] = {}
        self._views: dict[str, tuple[int, tuple[str, ...]]] = {}

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check a view's order: the master, then the members of the previous view in their order, then new ones."""
        self._programs[node] = program
        if not now.leads:
            self._views.pop(node, None)
            return ""
        members, (epoch, former) = tuple(program.members), self._views.get(node, (0, ()))
        if epoch == now.leads and former == members and before is not None and before.group_index == now.group_index:
            return ""
        self._views[node] = now.leads, members
        told = f"its view is {','.join(members)}"
        if members[:1] != (node,) or len(set(members)) < len(members) or not set(members) <= set(program.group):
            return f"{told}, and the group {','.join(program.group)}"
        if tuple(program.log.view) != members:
            return f"{told}, and that of its log {','.join(program.log.view)}"
        first = epoch != now.leads
        if first:
            if now.view_index != now.last or now.last - 1 < now.base:
                return ""
            former = tuple(program.log.view_at(now.last - 1))
        kept = [name for name in former if name in members and name != node]
        joined = [name for name in members if name not in former and name != node]
        if first:
            joined.sort(key=list(program.group).index)
        if list(members[1:]) != [*kept, *joined]:
            return f"{told}, and that before {','.join(former)}"
        if not first and len(members) < len(former) and len(members) < majority(len(program.group)):
            return f"{told}, which is no majority of {len(program.group)}, and before it had {len(former)} members"
        lacks = (self._lacks(name, program, now, first) for name in (members[1:] if first else joined))
        return next(filter(None, lacks), "")

    def _lacks(self, name: str, program: Joram, now: Observed, first: bool) -> str:
        """Describe why a member has not nearly caught up; empty if it has."""
        if not first:
            acknowledged, least = program.acknowledged.get(name), min(now.committed, now.last - 2 * JOIN_LAG)
            if acknowledged is not None and acknowledged >= least:
                return ""
            return f"{name} joins the view, and has acknowledged {acknowledged or 'nothing'} of {now.committed}"
        other = self._programs.get(name)
        if other is None or other.log.promised != now.leads:
            return ""
        needs = plan_feed(other.log.position(), program.log.epoch_at).state
        return f"{name} is in the first view, and needs the whole state" if needs else ""

    def ended(self, node: str) -> None:
        """Forget the ended replica."""
        self._programs.pop(node, None)
        self._views.pop(node, None)


class ViewsMatch(Watcher):
    """Tracks the views installed by entries, with their epochs, and which of them are known to be committed."""

    fields = ("base", "view_index", "committed")

    def __init__(self) -> None:
        self._views: dict[int, dict[int, list[str]]] = {}
        self._indices: list[int] = []
        self._committed: set[tuple[int, int]] = set()

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that the view at the base of a replica's log is the newest that was committed there: one that may have
        been committed in the meantime, or the newest that is known to be committed."""
        if before is not None and (before.base, before.view_index, before.committed >= before.view_index) == (
                now.base, now.view_index, now.committed >= now.view_index):
            return ""
        log = program.log
        for index, members in log.views[1:]:
            epoch = log.epoch_at(index) or 0
            if index not in self._views:
                insort(self._indices, index)
            self._views.setdefault(index, {})[epoch] = members
            if index <= now.committed:
                self._committed.add((index, epoch))
        mine = log.view_at(now.base)
        for place in reversed(self._indices[: bisect_right(self._indices, now.base)]):
            installed = self._views[place]
            if mine in installed.values():
                return ""
            for epoch, members in installed.items():
                if (place, epoch) in self._committed:
                    return f"at entry {now.base} its view is {','.join(mine)}, and that of others {','.join(members)}"
        return ""


class AllHaveIt(Watcher):
    """Tracks the entries that each replica has on disk."""

    fields = ("durable", "leads", "committed")

    def __init__(self) -> None:
        self._durable: dict[str, int] = {}
        self._programs: dict[str, Joram] = {}

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that the entries that a master commits are on the disks of all members of its view."""
        self._durable[node] = now.durable
        self._programs[node] = program
        if not now.leads or before is None or before.leads != now.leads or now.committed <= before.committed:
            return ""  # a new master may have learned of it from the source of its log
        without = [name for name in program.members if self._durable.get(name, 0) < now.committed]
        return f"it commits entry {now.committed}, which {without[0]} does not have on disk" if without else ""

    def ended(self, node: str) -> None:
        """Keep the ended replica's durable index: it may have ended in a callback, after the last check."""
        if (program := self._programs.pop(node, None)) is not None:
            self._durable[node] = program.observed().durable


class CountsForWhatItHas(Watcher):
    """Tracks the programs."""

    def __init__(self) -> None:
        self._programs: dict[str, Joram] = {}

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that a master does not count a follower as having more entries than the follower's log has: entries
        from before the loss of its disk do not count."""
        self._programs[node] = program
        master = self._programs.get(now.follows)
        if master is None or now.takes != master.leads_in:
            return ""
        index = master.acknowledged.get(node, -1)
        return f"its log ends at {now.last}, and its master takes it to have entry {index}" if index > now.last else ""

    def ended(self, node: str) -> None:
        """Forget the ended replica; it is checked again after its restart."""
        self._programs.pop(node, None)


class StatesAreNeeded(Watcher):
    """Tracks the programs."""

    fields = ("states",)

    def __init__(self) -> None:
        self._programs: dict[str, Joram] = {}

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that a replica gets the whole state only if its master's log has neither its last entry nor its last
        committed one.
        """
        self._programs[node] = program
        if before is None or now.states == before.states:
            return ""
        master = self._programs.get(now.follows)
        if master is None or now.takes != master.leads_in:
            return ""
        log = master.log
        if log.epoch_at(before.last) == before.last_epoch or log.base <= before.committed <= log.last:
            return (f"it is sent the whole state by {now.follows}, and its log ended at {before.last}, of which "
                    f"{before.committed} were committed; that of its master begins behind {log.base}")
        return ""

    def ended(self, node: str) -> None:
        """Forget the ended replica."""
        self._programs.pop(node, None)


class CommitsItsOwn(Watcher):
    """Stateless check of a master that commits."""

    fields = ("committed",)

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that a master commits by counting only entries of its epoch: counting proves nothing for older ones."""
        if before is None or not now.leads or before.leads != now.leads or now.committed <= before.committed:
            return ""
        epoch = program.log.epoch_at(now.committed)
        if epoch in (now.leads, None):
            return ""
        return f"it commits entry {now.committed} of epoch {round_of(epoch or 0)} in epoch {round_of(now.leads)}"


class ReleasesInLease(Watcher):
    """Stateless check of a master that releases effects."""

    fields = ("unleased",)

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that a master releases effects only while its lease holds; the count covers every release between two
        checks.
        """
        return f"it has let out {now.unleased} effects without a lease" if now.unleased else ""


class StatusTells(Watcher):
    """Stateless check of a replica's status."""

    period = 1.5

    def inspect(self, node: str, program: Joram) -> str:
        """Check that the status shown to administrators matches the replica's state."""
        now, said, log = program.observed(), program.status(), program.log
        suspects = [name for name in program.group if name != node and not program.believes(name)]
        is_ = {
            "serving": now.leads > 0 and bool(program.admission().accepted),
            "epoch": round_of(now.leads or now.promised), "view": list(log.view), "applied": program.step,
            "committed": now.committed, "log_first": now.base + 1, "log_last": now.last,
            "suspects": suspects,
        }  # fmt: skip
        if wrong := [name for name, value in is_.items() if said[name] != value]:
            return f"its status tells {wrong[0]} {said[wrong[0]]}, which is {is_[wrong[0]]}"
        if said["learners"] and not now.leads:
            return f"its status tells of {','.join(said['learners'])}, whom only a master takes in"
        roles = _roles(node, program, now, len(program.group) - len(suspects))
        return "" if said["role"] in roles else f"its status tells that it is {said['role']}, and it is {roles[0]}"


def _roles(node: str, program: Joram, now: Observed, living: int) -> tuple[str, ...]:
    """Return the roles that a replica may report, according to docs/designs/joram.md."""
    if now.leads:
        return ("master",)
    if program.is_apart:
        return ("apart",)
    if program.hears_master():
        return ("slave",) if node in program.log.view else ("joining",)
    return ("minority", "starting") if living < majority(len(program.group)) else ("electing", "starting")


VIEWS = (
    Invariant("views-in-order", "a master comes first in its view, then those of the view before, in their order, "
              "then who has caught up; a view that gets smaller is a majority of the group",
              "4.8: the master is the first in the group list; docs/designs/joram.md, Roles, views, epochs",
              ViewsInOrder, where=PRIMARY),
    Invariant("views-match", "the view at an entry that is committed is the same everywhere",
              "4.5: when a replica fails, a new view of the group is sent to each replica", ViewsMatch,
              unless=("disk",), where=SAFE),
    Invariant("all-have-it", "with ack=all a master commits what every member of its view has on disk",
              "4.2.1; docs/designs/joram.md: ack, every member of the view", AllHaveIt, unless=("disk",),
              where={**SAFE, "ack": ("all",)}),
    Invariant("counts-for-what-it-has", "a replica counts at its master for no more than its log has",
              "Raft paper, Figure 2: matchIndex; docs/designs/joram.md, Start and restart: a replica whose disk is "
              "empty doesn't count", CountsForWhatItHas, where=PRIMARY),
    Invariant("states-are-needed", "who is sent the whole state lacks more than its master's log has",
              "docs/designs/joram.md, Catching up: if the master has the same entry, it sends what comes after; "
              "otherwise the whole state", StatesAreNeeded, unless=("disk",), where=SAFE),
    Invariant("commits-its-own", "a master commits entries of its own epoch, and with them those before",
              "Raft paper, 5.4.2", CommitsItsOwn, where=PRIMARY),
    Invariant("releases-in-lease", "a master lets nothing out without a lease",
              "Ongaro's dissertation, 6.4.1; docs/designs/joram.md: the master releases effects only while it holds a "
              "lease", ReleasesInLease, where=PRIMARY),
    Invariant("status-tells", "the status of a replica tells how it is", "docs/designs/joram.md, Roles, views, epochs",
              StatusTells, where=PRIMARY),
)  # fmt: skip
