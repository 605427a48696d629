"""Invariants of each step of an election of HA IceStorm; invariants of the resulting groups are in ``invariants``.

The sources are named as in ``invariants``. A replica is not judged by messages that it can't have received: once it has
left a question unanswered since a group began, it is no longer checked in that group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nodes.reference.designs.icestorm.decisions import majority, may_replicate
from nodes.reference.designs.icestorm.design import IceStorm, Observed
from nodes.reference.designs.icestorm.election import ELECTION, INACTIVE, NORMAL, REORGANIZATION
from stormproof.contracts.invariant import Watcher

_FORMED = (INACTIVE, NORMAL)
_ROUNDING = 1e-6


class GroupsShrink(Watcher):
    """Tracks the names of all groups."""

    def __init__(self) -> None:
        self._groups: set[str] = set()

    def look(self, node: str, program: IceStorm, now: Observed, before: Observed | None) -> str:
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


class InvitesInTurn(Watcher):
    """Tracks the members of each coordinator's group."""

    def __init__(self) -> None:
        self._members: dict[str, tuple[str, ...]] = {}

    def look(self, node: str, program: IceStorm, now: Observed, before: Observed | None) -> str:
        """Check that a coordinator takes its members along, and leaves coordinators of higher priority the time to
        invite it.
        """
        former = self._members.get(node, ())
        self._members[node] = tuple(program.members)
        if before is None or now.state != ELECTION or now.coordinator != node or before.group == now.group:
            return ""
        election, timeout = program.election, program.options.election_timeout
        invited = election.invited_here
        if set(invited) <= set(former):
            return "it begins an election among the members of its group, and has found nobody else"
        if left := [name for name in former if name not in invited]:
            return f"it invites {', '.join(invited)} into another group, and leaves its member {left[0]} behind"
        higher = [name for name in invited if name not in former and election.idents[name] > election.ident]
        least = timeout * (1 + 1 / program.replicas)
        if higher and election.lasted < least - _ROUNDING:
            return (f"it invites {higher[0]}, of higher priority, {election.lasted:.3f} s after its group began, and "
                    f"leaves it {least:.3f} s at least")
        return ""

    def ended(self, node: str) -> None:
        """Forget the ended coordinator's group."""
        self._members.pop(node, None)


class AwaitsWhoComes(Watcher):
    """Tracks the programs, and the replicas that have been in each group that has an election."""

    def __init__(self) -> None:
        self._been: dict[str, set[str]] = {}
        self._programs: dict[str, IceStorm] = {}

    def look(self, node: str, program: IceStorm, now: Observed, before: Observed | None) -> str:
        """Check that a coordinator waits only for replicas that have taken its invitation or that of its members."""
        self._programs[node] = program
        if before is None:  # a restarted replica may have been in any group before
            for group in self._been.values():
                group.add(node)
        been = self._been.setdefault(now.group, set())
        been.add(node)
        if now.coordinator != node:
            return ""
        awaited, election = program.election.awaited, program.election
        if now.state == ELECTION:
            others = [name for name in awaited if name not in been]
            return f"it waits for {others[0]}, which has not taken its invitation" if others else ""
        early = (now.state == REORGANIZATION and before is not None and before.state == ELECTION
                 and before.group == now.group and election.lasted < program.options.election_timeout - _ROUNDING)
        if early and not awaited:  # by its own account; its members know better which replicas they bring
            awaited = self._brought(node, program, now.group)
        return (f"it goes on after {election.lasted:.3f} s without {awaited[0]}, which has taken its invitation"
                if awaited and early else "")

    def ended(self, node: str) -> None:
        """Forget the ended replica: it brings no members along."""
        self._programs.pop(node, None)

    def _brought(self, node: str, program: IceStorm, group: str) -> list[str]:
        """Return the absent ones of the replicas to which members have passed on the group's invitation."""
        here = {node, *program.members}
        said = [self._programs[name].election.passed_on for name in program.members if name in self._programs]
        return [name for of, names in said if of == group for name in names if name not in here]


class KeepsWhoFollows(Watcher):
    """Tracks each replica's state, its group's members, and its counts of unanswered questions when it joined that
    group.
    """

    def __init__(self) -> None:
        self._seen: dict[str, Observed] = {}
        self._programs: dict[str, IceStorm] = {}
        self._failures: dict[str, Mapping[str, int]] = {}
        self._members: dict[str, tuple[str, ...]] = {}

    def look(self, node: str, program: IceStorm, now: Observed, before: Observed | None) -> str:
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

    def _left(self, node: str, program: IceStorm, now: Observed, before: Observed, members: Sequence[str]) -> str:
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

    def _follows(self, name: str, node: str, led: Observed) -> bool:
        seen = self._seen.get(name)
        if seen is None or (seen.coordinator, seen.group) != (node, led.group):
            return False
        return seen.state in ((REORGANIZATION,) if led.state == REORGANIZATION else _FORMED)

    def _left_coordinator(self, node: str, program: IceStorm, before: Observed, answering: set[str]) -> str:
        leader = self._seen.get(before.coordinator)
        counted = (leader is not None and before.coordinator in answering
                   and (leader.coordinator, leader.group) == (before.coordinator, before.group)
                   and node in self._programs[before.coordinator].members)
        options, lasted = program.options, program.election.lasted
        patience = 2 * options.election_timeout + options.response_timeout
        if before.state not in _FORMED and lasted >= patience - _ROUNDING:
            return ""
        if before.state == ELECTION and before.coordinator in answering:
            return f"it has given up an election after {lasted:.3f} s, and {before.coordinator} may wait for it"
        if not counted:
            return ""
        return f"it has left the group of {before.coordinator} after {lasted:.3f} s, which answers, and counts it in"


class Commences(Watcher):
    """Tracks each replica's state."""

    def __init__(self) -> None:
        self._seen: dict[str, Observed] = {}

    def look(self, node: str, program: IceStorm, now: Observed, before: Observed | None) -> str:
        """Check that a large enough group replicates, and that its members have promised its epoch."""
        self._seen[node] = now
        forming = before is not None and before.group == now.group and before.state in (ELECTION, REORGANIZATION)
        if before is None or now.coordinator != node or not forming:
            return ""
        members = {name: seen for name in program.members if (seen := self._seen.get(name)) is not None
                   and (seen.state, seen.coordinator, seen.group) == (REORGANIZATION, node, now.group)}
        if now.state == NORMAL:
            late = [name for name, seen in {**members, node: now}.items()
                    if seen.promised != now.epoch or seen.stamp.epoch != now.epoch]
            return f"its group is normal in an epoch of which {late[0]} has no promise, or no database" if late else ""
        most = max([before.max_seen, *(seen.max_seen for seen in members.values())])
        if now.state == INACTIVE and may_replicate(now.members, program.replicas, most, majority(program.replicas)):
            return (f"its group of {now.members} of {program.replicas} replicas does not replicate, though {most} have "
                    "been seen")
        return ""

    def ended(self, node: str) -> None:
        """Forget the ended replica."""
        self._seen.pop(node, None)


class AnswersAsItStands(Watcher):
    """Stateless check: asks a replica the questions that other replicas ask it."""

    def look(self, node: str, program: IceStorm, now: Observed, before: Observed | None) -> str:
        """Check that its answers are true."""
        election, leads, formed = program.election, now.coordinator == node, now.state in _FORMED
        if election.are_you_coordinator() != (leads and formed):
            return f"it {'does not say' if leads and formed else 'says'} that it coordinates, and is {now.state}"
        for name in election.idents:
            if name == node:
                continue
            counted = leads and name in program.members
            if election.are_you_there(name, now.group) != counted or election.are_you_there(name, f"{now.group}'"):
                return f"it tells {name} something else than whether it counts it in group {now.group}"
            follows = now.coordinator == name and formed
            if election.are_you_mine(name, now.group) != follows or election.are_you_mine(name, f"{now.group}'"):
                return f"it tells {name} something else than whether it follows it in group {now.group}"
        return ""
