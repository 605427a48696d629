"""Watchers of the questions and answers that replicas of HA IceStorm send each other, as they are on the wire.

What an answer says is compared with the rows that would survive a power loss, so a replica that is wrong about its own
disk is found out; and with what its coordinator makes of it. A replica asks only the questions of its role.
"""

from __future__ import annotations

import struct
from typing import Any

from nodes.reference.designs.icestorm.election import ELECTION, NORMAL, REORGANIZATION
from nodes.systems.reference.icestorm.probes import IceStormObserved, IceStormProbe
from nodes.systems.reference.icestorm.rules.roles import FORMED_STATES
from nodes.systems.reference.wire_reader import LinkReader
from stormproof.contracts.invariant import Watcher

_PROMISE, _UPDATE, _INSTALL = "promise", "update", "install"
_UPDATES_A_CHECK = 16
"""One of this number of confirmed changes is compared with the disk: each check takes a copy of it."""

_COORDINATORS = {
    "are-you-coordinator": FORMED_STATES, "are-you-mine": FORMED_STATES, "ready": FORMED_STATES,
    "promised": (REORGANIZATION,), "promise": (REORGANIZATION,), "database": (REORGANIZATION,),
    "install": (REORGANIZATION,), "update": (NORMAL,),
}  # fmt: skip
"""Questions of coordinators, each with the states in which they ask it."""
_MEMBERS = {"are-you-there": FORMED_STATES, "accept": (REORGANIZATION,), "request": (NORMAL,)}
"""Questions of members to their coordinator, each with the states in which they ask it."""
_OF_NO_GROUP = ("are-you-coordinator", "promised", "request")
"""Questions that name no group."""
_Role = tuple[str, str, str]
"""A state, a coordinator and a group."""


class AsksInItsRole(Watcher):
    """Tracks the last two roles of each replica: a question may leave one step after it was decided on."""

    fields = ("state", "coordinator", "group")

    def __init__(self) -> None:
        self._roles: dict[str, tuple[_Role, _Role]] = {}
        self._programs: dict[str, IceStormProbe] = {}

    def look(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved | None) -> str:
        """Note a change of the replica's role."""
        self._programs[node] = program
        role = now.state, now.coordinator, now.group
        _, last = self._roles.get(node, (role, role))
        if last != role or node not in self._roles:
            self._roles[node] = last, role
        return ""

    def sent(self, node: str, peer: str, frame: Any) -> str:
        """Check that the replica has the role of this question, or had it one step before."""
        match frame:
            case ["ask", int(), str(question), list(about)] if node in self._programs:
                election = self._programs[node].election
                now = election.state, election.coordinator, election.group
                if any(self._asks(node, peer, question, about, role) for role in (now, *self._roles[node])):
                    return ""
                state, coordinator, group = now
                return f"it asks {peer} {question!r} {about[:2]}, and is {state} in group {group} of {coordinator}"
        return ""

    def ended(self, node: str) -> None:
        """Forget the ended replica."""
        self._roles.pop(node, None)
        self._programs.pop(node, None)

    def _asks(self, node: str, peer: str, question: str, about: list[Any], role: _Role) -> bool:
        """Return whether a replica of a role asks this."""
        state, coordinator, group = role
        if question == "invitation":  # a coordinator's own, or one that is passed on to the members of before
            return state == ELECTION and [coordinator, group] == about
        if question not in _OF_NO_GROUP and about[0] != group:
            return False
        if question in _COORDINATORS:
            return coordinator == node and state in _COORDINATORS[question]
        return (state in _MEMBERS.get(question, ()) and coordinator != node
                and (peer == coordinator or peer not in self._programs))


class AnswersAsItHas(Watcher):
    """Tracks the questions on the wire that are not answered yet, by asking replica, asked replica and number; the
    epochs that each replica has promised; and who has refused which change of a coordinator."""

    fields = ("agreed",)

    def __init__(self) -> None:
        self._asked: dict[tuple[str, str, int], tuple[str, list[Any]]] = {}
        self._promised: dict[str, set[int]] = {}
        self._refused: dict[tuple[str, int, int], set[str]] = {}
        self._updates = 0

    def sent(self, node: str, peer: str, frame: Any) -> str:
        """Check that a promise is new and on disk, and that an installed database, or a change, is on disk."""
        match frame:
            case ["ask", int(number), ("promise" | "update" | "install") as question, list(arguments)]:
                self._asked[node, peer, number] = question, arguments
            case ["answer", int(number), answer]:
                question, arguments = self._asked.pop((peer, node, number), ("", []))
                if question == _PROMISE and answer is not None:
                    return self._promises(node, peer, arguments[1])
                if question == _UPDATE and answer is False:
                    self._refused.setdefault((peer, *arguments[2][:2]), set()).add(node)
                elif answer is True and question in (_UPDATE, _INSTALL):
                    self._updates += 1
                    if question == _INSTALL or not self._updates % _UPDATES_A_CHECK:
                        return self._has(node, peer, question, arguments[2])
        return ""

    def look(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved | None) -> str:
        """Check that a coordinator that considers a change agreed upon has dropped those who refused it."""
        refused = self._refused.pop((node, now.agreed.epoch, now.agreed.counter), set())
        counted = [name for name in program.members if name in refused]
        return f"it considers a change agreed upon, and counts {counted[0]}, which has refused it" if counted else ""

    def _promises(self, node: str, peer: str, epoch: int) -> str:
        promised = self._promised.setdefault(node, set())
        if epoch in promised:
            return f"it promises epoch {epoch} to {peer}, and has promised it before"
        promised.add(epoch)
        kept = self._meta(node)[0]
        return f"it promises epoch {epoch} to {peer}, and its disk holds {kept}" if kept < epoch else ""

    def _has(self, node: str, peer: str, question: str, stamp: list[Any]) -> str:
        _, epoch, counter, *_ = self._meta(node)
        if (epoch, counter) >= (stamp[0], stamp[1]):
            return ""
        return f"it confirms {question} {stamp[0]}.{stamp[1]} to {peer}, and its disk holds {epoch}.{counter}"

    def _meta(self, node: str) -> list[Any]:
        """Return the promise and the stamp on a node's disk."""
        for _, value in self.outside.durable(node).rows("icestorm_meta"):
            found: list[Any] = LinkReader().feed(struct.pack(">I", len(value)) + value)[0]
            return found
        return [0, 0, 0, 0.0]

    def ended(self, node: str) -> None:
        """Forget the ended replica's questions, whose numbers begin again."""
        self._asked = {key: asked for key, asked in self._asked.items() if key[0] != node}

    def disk_lost(self, node: str) -> None:
        """Forget the promises that were on the node's disk."""
        self._promised.pop(node, None)
