"""Watchers of the groups of HA IceStorm's replicas: who is invited, awaited, kept and counted.

As in ``roles``, a replica is not judged by messages that it can't have received.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nodes.reference.designs.icestorm.decisions import majority, may_replicate
from nodes.reference.designs.icestorm.election import ELECTION, INACTIVE, NORMAL, REORGANIZATION
from nodes.systems.reference.icestorm.probes import IceStormObserved, IceStormProbe
from nodes.systems.reference.icestorm.rules.roles import FORMED_STATES, ROUNDING_SECONDS
from stormproof.contracts.invariant import Watcher


class AllKnowHowMany(Watcher):
    """Tracks the size of each normal group when it was formed."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    def look(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved | None) -> str:
        """Check that members know the size of their group: it allows them to replicate without those that leave."""
        if now.state != NORMAL or (before is not None and (before.state, before.group) == (NORMAL, now.group)):
            return ""
        if now.coordinator == node:
            self._sizes[now.group] = now.members
        size = self._sizes.get(now.group, 0)
        return f"it is in a group of {size}, and has seen {now.max_seen} replicas" if now.max_seen < size else ""


class MembersComeAlong(Watcher):
    """Tracks each replica's state, and the group of a coordinator that another one has invited."""

    def __init__(self) -> None:
        self._seen: dict[str, IceStormObserved] = {}
        self._members: dict[str, Sequence[str]] = {}
        self._invited: dict[str, tuple[str, str, dict[str, int]]] = {}

    def look(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved | None) -> str:
        """Check that, once it has accepted, no reachable member still follows it in the group that it has left."""
        self._seen[node] = now
        if now.coordinator == node:
            self._members[node] = program.members
        elif before is not None and before.coordinator == node:
            linked = program.linked()
            self._invited[node] = now.group, before.group, {
                name: linked[name] for name in self._members.get(node, ()) if name in linked and name != now.coordinator
            }
        if now.state != REORGANIZATION or self._invited.get(node, ("",))[0] != now.group:
            return ""
        _, left, members = self._invited.pop(node)
        linked = program.linked()
        behind = [name for name, broken in members.items() if linked.get(name) == broken and name in self._seen
                  and self._seen[name][:3] in ((INACTIVE, node, left), (NORMAL, node, left))]
        return f"it has accepted an invitation, and {behind[0]} follows it in group {left}" if behind else ""

    def ended(self, node: str) -> None:
        """Forget the ended replica: it follows no coordinator."""
        for known in (self._seen, self._members, self._invited):
            known.pop(node, None)


class MajorityReplicates(Watcher):
    """Stateless check of a coordinator's group."""

    def look(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved | None) -> str:
        """Check that the coordinator of a normal group has a majority of all replicas in it."""
        if now.state != NORMAL or not now.members or now.members >= majority(program.replicas):
            return ""
        return f"it is the coordinator of a normal group of {now.members} of {program.replicas} replicas"


class FullStart(Watcher):
    """Checks the number of replicas that each replica has seen since its program was started."""

    def look(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved | None) -> str:
        """Check that the maximum begins at 0, and that only a complete group raises it to the number that majorities
        need.
        """
        if before is None:
            return f"it has just been started, and has seen {now.max_seen} replicas" if now.max_seen else ""
        if now.max_seen < before.max_seen:
            return f"it had seen {before.max_seen} replicas, and now {now.max_seen}"
        begins = now.state == NORMAL != before.state and now.members
        if begins and now.members < program.replicas > now.max_seen:
            return (f"its group of {now.members} replicates, and the most that it has seen of {program.replicas} "
                    f"replicas is {now.max_seen}")  # fmt: skip
        return ""


class GroupsShrink(Watcher):
    """Tracks the names of all groups."""

    def __init__(self) -> None:
        self._groups: set[str] = set()

    def look(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved | None) -> str:
        """Check that a new group has one member, and that no replica joins a group after its election."""
        if not now.members:
            return ""
        if node in program.members:
            return f"it counts itself as a member of its group {now.group} twice"
        if before is None or before.group != now.group:
            if now.group in self._groups:
                return f"it begins a group of the name of another, {now.group}"
            self._groups.add(now.group)
            return f"it begins group {now.group} with {now.members} replicas in it" if now.members > 1 else ""
        if before.state != ELECTION and now.members > before.members:
            return f"its group had {before.members} replicas when it was formed, and has {now.members}"
        return ""


class AwaitsWhoComes(Watcher):
    """Tracks the programs, and the replicas that have been in each group that has an election."""

    def __init__(self) -> None:
        self._been: dict[str, set[str]] = {}
        self._programs: dict[str, IceStormProbe] = {}

    def look(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved | None) -> str:
        """Check that a coordinator waits only for replicas that have taken its invitation or that of its members."""
        self._programs[node] = program
        if before is None:  # a restarted replica may have been in any group before
            for group in self._been.values():
                group.add(node)
        been = self._been.setdefault(now.group, set())
        been.add(node)
        if now.coordinator != node:
            return ""
        awaited, election = program.awaited, program.election
        if now.state == ELECTION:
            others = [name for name in awaited if name not in been]
            return f"it waits for {others[0]}, which has not taken its invitation" if others else ""
        early = (now.state == REORGANIZATION and before is not None and before.state == ELECTION
                 and before.group == now.group
                 and election.lasted < program.options.election_timeout - ROUNDING_SECONDS)
        if early and not awaited:  # by its own account; its members know better which replicas they bring
            awaited = self._brought(node, program, now.group)
        return (f"it goes on after {election.lasted:.3f} s without {awaited[0]}, which has taken its invitation"
                if awaited and early else "")

    def ended(self, node: str) -> None:
        """Forget the ended replica: it brings no members along."""
        self._programs.pop(node, None)

    def _brought(self, node: str, program: IceStormProbe, group: str) -> list[str]:
        """Return the absent ones of the replicas to which members have passed on the group's invitation."""
        here = {node, *program.members}
        said = [self._programs[name].election.passed_on for name in program.members if name in self._programs]
        return [name for of, names in said if of == group for name in names if name not in here]


class KeepsWhoFollows(Watcher):
    """Tracks each replica's state, its group's members, and its counts of unanswered questions when it joined that
    group.
    """

    def __init__(self) -> None:
        self._seen: dict[str, IceStormObserved] = {}
        self._programs: dict[str, IceStormProbe] = {}
        self._failures: dict[str, Mapping[str, int]] = {}
        self._members: dict[str, tuple[str, ...]] = {}

    def look(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved | None) -> str:
        """Check that a replica leaves a group, drops a member or gives up an election only if another has not answered
        or has left."""
        members = self._members.get(node, ())
        self._seen[node], self._programs[node], self._members[node] = now, program, tuple(program.members)
        wrong = self._left(node, program, now, before, members) if before is not None and before.group else ""
        if before is None or before.group != now.group:
            self._failures[node] = program.failures()
        return wrong

    def ended(self, node: str) -> None:
        """Forget the ended replica: it neither follows nor leads."""
        for known in (self._seen, self._programs, self._failures, self._members):
            known.pop(node, None)

    def _left(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved,
              members: Sequence[str]) -> str:
        then, failures = self._failures.get(node, {}), program.failures()
        answering = {name for name, count in failures.items() if then.get(name) == count}
        recovered = now.state == INACTIVE and now.coordinator == node and now.group != before.group
        if before.coordinator != node:
            return self._left_coordinator(node, program, before, answering) if recovered else ""
        here = [name for name in members if name in answering and self._follows(name, node, before)]
        if now.group == before.group and now.state != ELECTION != before.state:
            dropped = [name for name in here if name not in program.members]
            return f"it has dropped {dropped[0]}, which answers, and follows it" if dropped else ""
        if not recovered:
            return ""
        if before.state == NORMAL and 1 + len(here) >= majority(program.replicas):
            return f"it has given up its group, in which {', '.join(here)} answer, and follow it"
        # If the member with the most recent database does not deliver it, the others start over.
        seen = max([now.max_seen, *(self._seen[name].max_seen for name in here)])
        enough = may_replicate(1 + len(here), program.replicas, seen, majority(program.replicas))
        if before.state == REORGANIZATION and enough and len(here) == len(members):
            return f"it has given up the group that it formed, for which {', '.join(here)} wait"
        return ""

    def _follows(self, name: str, node: str, led: IceStormObserved) -> bool:
        seen = self._seen.get(name)
        if seen is None or (seen.coordinator, seen.group) != (node, led.group):
            return False
        return seen.state in ((REORGANIZATION,) if led.state == REORGANIZATION else FORMED_STATES)

    def _left_coordinator(self, node: str, program: IceStormProbe, before: IceStormObserved,
                          answering: set[str]) -> str:
        leader = self._seen.get(before.coordinator)
        counted = (leader is not None and before.coordinator in answering
                   and (leader.coordinator, leader.group) == (before.coordinator, before.group)
                   and node in self._programs[before.coordinator].members)
        options, lasted = program.options, program.election.lasted
        patience = 2 * options.election_timeout + options.response_timeout
        if before.state not in FORMED_STATES and lasted >= patience - ROUNDING_SECONDS:
            return ""
        if before.state == ELECTION and before.coordinator in answering:
            return f"it has given up an election after {lasted:.3f} s, and {before.coordinator} may wait for it"
        if not counted:
            return ""
        return f"it has left the group of {before.coordinator} after {lasted:.3f} s, which answers, and counts it in"
