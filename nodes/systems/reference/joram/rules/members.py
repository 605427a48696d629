"""Watchers of the members of HA Joram's group and of its views, with ``partitions=primary-partition``."""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import Any

from nodes.reference.designs.joram.leader import JOIN_LAG
from nodes.reference.replication.positions import plan_feed
from nodes.reference.replication.quorum import majority
from nodes.systems.reference.joram.probes import JoramObserved, JoramProbe
from stormproof.contracts.invariant import Watcher


class GroupsOverlap(Watcher):
    """Tracks the members of the group according to each replica's log."""

    fields = ("group_index",)

    def __init__(self) -> None:
        self._groups: dict[str, frozenset[str]] = {}

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
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

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
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

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        """Check this whenever the group has changed, or the replica begins to serve."""
        if before is not None and (before.base, before.group_index, before.serving) == (
                now.base, now.group_index, now.serving):
            return ""
        group = [member for member in program.log.group_at(now.last) if member[-1] is not True]
        if not group:  # no entry has changed it, or none any longer
            group = program.configured
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


class ViewsInOrder(Watcher):
    """Tracks the programs, and the view of each master at its last check."""

    def __init__(self) -> None:
        self._programs: dict[str, JoramProbe] = {}
        self._views: dict[str, tuple[int, tuple[str, ...]]] = {}

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
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

    def _lacks(self, name: str, program: JoramProbe, now: JoramObserved, first: bool) -> str:
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

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
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
