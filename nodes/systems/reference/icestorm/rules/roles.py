"""Watchers of the roles of HA IceStorm's replicas: coordinators, the steps of an election, and what replicas say of
themselves.

The sources are named as in ``table``. A replica is not judged by messages that it can't have received: once it has left
a question unanswered since a group began, it is no longer checked in that group.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from nodes.reference.designs.icestorm.decisions import EPOCH_STEP, majority, may_replicate, round_of
from nodes.reference.designs.icestorm.election import ELECTION, INACTIVE, NORMAL, REORGANIZATION
from nodes.systems.reference.icestorm.probes import IceStormObserved, IceStormProbe
from stormproof.contracts.invariant import Watcher

FORMED_STATES = (INACTIVE, NORMAL)
"""The states of a replica whose group is formed."""
ROUNDING_SECONDS = 1e-6
"""Differences of times that are no more than errors of rounding."""


class OneCoordinatorAnEpoch(Watcher):
    """Tracks the coordinator of the normal group of each epoch."""

    def __init__(self) -> None:
        self._coordinators: dict[int, str] = {}

    def look(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved | None) -> str:
        """Check that the replica has the same coordinator as others in its epoch."""
        if now.state != NORMAL or not now.epoch:
            return ""
        other = self._coordinators.setdefault(now.epoch, now.coordinator)
        if other == now.coordinator:
            return ""
        return f"its coordinator in epoch {round_of(now.epoch)} is {now.coordinator}, and that of others {other}"


class OneCoordinatorAGroup(Watcher):
    """Tracks the coordinator of each group, as its members see it."""

    def __init__(self) -> None:
        self._coordinators: dict[str, str] = {}

    def look(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved | None) -> str:
        """Check that the replica has the same coordinator as others in its group, if that is reorganized or normal."""
        if now.state not in (REORGANIZATION, NORMAL):
            return ""
        other = self._coordinators.setdefault(now.group, now.coordinator)
        if other == now.coordinator:
            return ""
        return f"its coordinator in group {now.group} is {now.coordinator}, and that of others {other}"


class InvitesInTurn(Watcher):
    """Tracks the members of each coordinator's group."""

    def __init__(self) -> None:
        self._members: dict[str, tuple[str, ...]] = {}

    def look(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved | None) -> str:
        """Check that a coordinator takes its members along, and leaves coordinators of higher priority the time to
        invite it.
        """
        former = self._members.get(node, ())
        self._members[node] = tuple(program.members)
        if before is None or now.state != ELECTION or now.coordinator != node or before.group == now.group:
            return ""
        election, timeout = program.election, program.options.election_timeout
        invited = list(election.issued)
        if set(invited) <= set(former):
            return "it begins an election among the members of its group, and has found nobody else"
        if left := [name for name in former if name not in invited]:
            return f"it invites {', '.join(invited)} into another group, and leaves its member {left[0]} behind"
        higher = [name for name in invited if name not in former and election.idents[name] > election.ident]
        least = timeout * (1 + 1 / program.replicas)
        if higher and election.lasted < least - ROUNDING_SECONDS:
            return (f"it invites {higher[0]}, of higher priority, {election.lasted:.3f} s after its group began, and "
                    f"leaves it {least:.3f} s at least")
        return ""

    def ended(self, node: str) -> None:
        """Forget the ended coordinator's group."""
        self._members.pop(node, None)


class Commences(Watcher):
    """Tracks each replica's state."""

    def __init__(self) -> None:
        self._seen: dict[str, IceStormObserved] = {}

    def look(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved | None) -> str:
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

    def look(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved | None) -> str:
        """Check that its answers are true."""
        election, leads, formed = program.election, now.coordinator == node, now.state in FORMED_STATES
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


class TellsItsState(Watcher):
    """Stateless check of a replica's status."""

    period = 2.0

    def inspect(self, node: str, program: IceStormProbe) -> str:
        """Check that ``admin replica`` shows the replica's state."""
        if program.failed:
            return ""
        now, told, idents = program.observed(), program.status(), program.election.idents
        normal = now.state == NORMAL
        leads = now.coordinator == node
        expected: dict[str, Any] = {
            "state": now.state, "id": idents[node], "coord": idents[now.coordinator], "group": now.group,
            "max": now.max_seen, "stamp": list(now.stamp), "epoch": now.epoch // EPOCH_STEP,
            "role": ("master" if leads else "slave") if normal else now.state, "serving": normal and leads,
            "master": now.coordinator if normal else None, "up": sorted(idents[name] for name in program.members),
        }
        wrong = [name for name, value in expected.items() if told.get(name) != value]
        if wrong:
            return f"it shows as {wrong[0]} {told.get(wrong[0])}, which is {expected[wrong[0]]}"
        if told["up"] and not leads:
            return f"it shows {told['up']} as its group, which it does not coordinate"
        view = set(told["view"])
        ours = {node, now.coordinator, *program.members}
        if bool(view) != normal or (normal and (not view >= ours or (leads and view != ours))):
            return f"it shows {sorted(view)} as its view, and is {now.state} in the group of {now.coordinator}"
        known = {ident for topic in program.database.topics.values() for ident in topic.subscribers}
        missing = sorted(known - set(told["waiting"]))
        if missing:
            return f"it does not show what waits for {missing[0]}"
        shown, there = +Counter(told["waiting"]), program.waiting()
        return "" if shown == there else f"it shows that {dict(shown)} events wait, and {dict(there)} do"
