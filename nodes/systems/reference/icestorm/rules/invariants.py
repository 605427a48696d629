"""Invariants of HA IceStorm's replicas, which hold at every instant.

*The document* is ZeroC's "Highly Available IceStorm"; *Garcia-Molina* is "Elections in a Distributed Computing System",
1982, whose invitation algorithm it uses. It is not a defect that two coordinators may be *normal* at the same time: the
older one can't confirm anything any longer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter

from nodes.reference.designs.icestorm.decisions import Stamp, majority, round_of
from nodes.reference.designs.icestorm.design import IceStorm, Observed
from nodes.reference.designs.icestorm.election import INACTIVE, NORMAL, REORGANIZATION
from nodes.reference.designs.icestorm.topics import Subscriber
from nodes.systems.reference.icestorm.rules.databases import (
    AnswersInItsGroup,
    AnswersWhileItLeads,
    ChangesAsAsked,
    ChangesInTheirEpoch,
    DeliversToSubscribers,
    MostRecentWins,
    TellsItsState,
)
from nodes.systems.reference.icestorm.rules.elections import (
    AnswersAsItStands,
    AwaitsWhoComes,
    Commences,
    GroupsShrink,
    InvitesInTurn,
    KeepsWhoFollows,
)
from nodes.systems.reference.rules.audits import COUNTS_ADD_UP, STORE_HOLDS
from stormproof.contracts.invariant import Invariant, Watcher

_COUNTER = {"stamp": ("counter",)}
_NOTHING = Stamp(0, 0)
_SUBSCRIBER = attrgetter(*(each.name for each in fields(Subscriber)))


class OneCoordinatorAnEpoch(Watcher):
    """Tracks the coordinator of the normal group of each epoch."""

    def __init__(self) -> None:
        self._coordinators: dict[int, str] = {}

    def look(self, node: str, program: IceStorm, now: Observed, before: Observed | None) -> str:
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

    def look(self, node: str, program: IceStorm, now: Observed, before: Observed | None) -> str:
        """Check that the replica has the same coordinator as others in its group, if that is reorganized or normal."""
        if now.state not in (REORGANIZATION, NORMAL):
            return ""
        other = self._coordinators.setdefault(now.group, now.coordinator)
        if other == now.coordinator:
            return ""
        return f"its coordinator in group {now.group} is {now.coordinator}, and that of others {other}"


class AllKnowHowMany(Watcher):
    """Tracks the size of each normal group when it was formed."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    def look(self, node: str, program: IceStorm, now: Observed, before: Observed | None) -> str:
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
        self._seen: dict[str, Observed] = {}
        self._members: dict[str, Sequence[str]] = {}
        self._invited: dict[str, tuple[str, str, dict[str, int]]] = {}

    def look(self, node: str, program: IceStorm, now: Observed, before: Observed | None) -> str:
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

    def look(self, node: str, program: IceStorm, now: Observed, before: Observed | None) -> str:
        """Check that the coordinator of a normal group has a majority of all replicas in it."""
        if now.state != NORMAL or not now.members or now.members >= majority(program.replicas):
            return ""
        return f"it is the coordinator of a normal group of {now.members} of {program.replicas} replicas"


class FullStart(Watcher):
    """Checks the number of replicas that each replica has seen since its program was started."""

    def look(self, node: str, program: IceStorm, now: Observed, before: Observed | None) -> str:
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


class StampsGrow(Watcher):
    """Tracks the newest stamp and promise of each replica."""

    def __init__(self) -> None:
        self._stamps: dict[str, tuple[int, int]] = {}
        self._promises: dict[str, int] = {}

    def look(self, node: str, program: IceStorm, now: Observed, before: Observed | None) -> str:
        """Check that stamps and promises only grow, even across restarts: both are on disk before they are sent."""
        stamp = (now.stamp.epoch, now.stamp.counter)
        newest, promise = self._stamps.get(node, stamp), self._promises.get(node, 0)
        if stamp < newest:
            return f"its database had the stamp {newest}, and now {stamp}"
        if now.promised < promise:
            return f"it had promised epoch {round_of(promise)}, and now {round_of(now.promised)}"
        self._stamps[node], self._promises[node] = stamp, now.promised
        return ""


class OneDatabaseAStamp(Watcher):
    """Tracks the database content at each stamp."""

    def __init__(self) -> None:
        self.digests: dict[Stamp, bytes] = {}

    def look(self, node: str, program: IceStorm, now: Observed, before: Observed | None) -> str:
        """Check that the database equals those that others had at the same stamp."""
        if before is not None and before.stamp == now.stamp:
            return ""
        topics = program.database.topics
        # Faster than the topics' own encoding; a run has thousands of them.
        held = json.dumps([[name, list(map(_SUBSCRIBER, topics[name].subscribers.values())), topics[name].links]
                           for name in sorted(topics)])  # fmt: skip
        digest = hashlib.blake2b(held.encode(), digest_size=16).digest()
        if self.digests.setdefault(now.stamp, digest) == digest:
            return ""
        return f"its database of stamp {now.stamp.epoch}.{now.stamp.counter} is another than elsewhere"


class ConfirmedStays(Watcher):
    """Tracks the stamps that a majority had on disk, and the database contents at those stamps."""

    def __init__(self) -> None:
        self._databases = OneDatabaseAStamp()
        self._stamps: dict[str, Stamp] = {}
        self._settled = Stamp(0, 0)

    def look(self, node: str, program: IceStorm, now: Observed, before: Observed | None) -> str:
        """Check that a new group begins with a database that contains everything that a majority had."""
        if before is not None and before.stamp == now.stamp:
            return ""
        seen = self._databases.digests
        fresh = now.stamp not in seen
        self._databases.look(node, program, now, before)
        # A group of an epoch that a majority has left behind, because its coordinator was suspended, is not a later
        # group.
        if fresh and not now.stamp.counter and now.stamp > self._settled:
            digest = seen[now.stamp]
            if not any(seen[each] == digest for each in seen if self._settled <= each < now.stamp):
                return (f"epoch {round_of(now.stamp.epoch)} begins with a database that lacks what a majority had at "
                        f"stamp {self._settled.epoch}.{self._settled.counter}")  # fmt: skip
        self._stamps[node] = now.stamp
        reached = sorted(self._stamps.values(), reverse=True)
        needed = majority(program.replicas)
        # Only stamps of one epoch share a history: of two epochs, the older may hold changes that no other replica has
        # had.
        if len(reached) >= needed and reached[needed - 1].epoch == reached[0].epoch:
            self._settled = max(self._settled, reached[needed - 1])
        return ""


class AgreedIsThere(Watcher):
    """Tracks the newest change in each replica's database in each epoch."""

    def __init__(self) -> None:
        self._reached: dict[str, dict[int, int]] = {}

    def look(self, node: str, program: IceStorm, now: Observed, before: Observed | None) -> str:
        """Check that a change that a coordinator considers agreed is on the disks of a majority."""
        if before is None or before.stamp != now.stamp:
            self._reached.setdefault(node, {})[now.stamp.epoch] = now.stamp.counter
        stamp = now.agreed
        if stamp == (before.agreed if before is not None else _NOTHING):
            return ""
        having = [name for name, reached in self._reached.items() if reached.get(stamp.epoch, -1) >= stamp.counter]
        if len(having) >= majority(program.replicas):
            return ""
        return (f"change {stamp.counter} of epoch {round_of(stamp.epoch)} is agreed upon, and on the disks of "
                f"{', '.join(having)} only")


INVARIANTS = (
    Invariant("one-coordinator-an-epoch", "all members of a normal group have the same coordinator",
              "Garcia-Molina, Assertion 3", OneCoordinatorAnEpoch),
    Invariant("one-coordinator-a-group", "whoever is in a group that is reorganized or normal has the same coordinator",
              "Garcia-Molina, Assertion 3", OneCoordinatorAGroup),
    Invariant("all-know-how-many", "whoever is in a normal group has seen as many replicas as that had",
              "the document: max, the maximum number of replicas seen by this replica", AllKnowHowMany),
    Invariant("members-come-along", "a coordinator that accepts an invitation passes it on to its members",
              "Garcia-Molina, the answer to Invitation", MembersComeAlong),
    Invariant("majority-replicates", "a coordinator replicates with a majority of all replicas only",
              "the document: Replication commences once a group contains a majority of replicas", MajorityReplicates),
    Invariant("full-start", "until all replicas have been seen, only a group of all of them replicates",
              "the document: during full system startup ... the participation of every replica", FullStart),
    Invariant("stamps-grow", "the stamp of a database, and what its replica promised, only grow",
              "the document: a time stamp recorded upon each database change", StampsGrow, unless=("disk",)),
    Invariant("one-database-a-stamp", "databases of the same stamp hold the same",
              "the document: the most recent database state is transferred to all replicas", OneDatabaseAStamp,
              unless=("disk",), where=_COUNTER),
    Invariant("agreed-is-there", "what is agreed upon is on the disks of a majority",
              "the document: a replica that loses the majority during request processing leaves it indeterminate",
              AgreedIsThere,
              unless=("disk",)),
    Invariant("confirmed-stays", "what a majority had on disk is in the database of every later group",
              "the document: The most recent database state ... is transferred to all replicas", ConfirmedStays,
              unless=("disk",), where=_COUNTER),
    Invariant("groups-shrink", "whoever begins a group is alone in it, and nobody comes into it after its election",
              "Garcia-Molina, procedures Recovery and Merge: a group has a name of its own, and whom it has is settled "
              "when it is reorganized", GroupsShrink),
    Invariant("invites-in-turn", "a coordinator invites its members, too, and not before those of higher priority",
              "Garcia-Molina, procedures Check and Merge", InvitesInTurn, unless=("clock",)),
    Invariant("awaits-who-comes", "a coordinator waits for those that have taken its invitation, and for nobody else",
              "Garcia-Molina, procedure Merge", AwaitsWhoComes, unless=("clock",)),
    Invariant("keeps-who-follows", "nobody leaves, drops or gives up who answers and follows",
              "Garcia-Molina, procedures Check, Timeout and Recovery: that is for failures; the document: If a failure "
              "occurs, the replica considers itself in error", KeepsWhoFollows, unless=("disk", "clock")),
    Invariant("commences", "a group that is large enough replicates, and its members have its epoch and database",
              "the document: Replication commences once a group contains a majority of replicas; "
              "docs/designs/icestorm.md: each member promises on disk to take no more changes of older epochs",
              Commences, unless=("disk",)),
    Invariant("changes-in-their-epoch", "a change is of the epoch that its replica has promised, and its coordinator's",
              "docs/designs/icestorm.md: stamps are (epoch, counter), counted by the coordinator", ChangesInTheirEpoch,
              unless=("disk",)),
    Invariant("changes-as-asked", "a change of the database does what was asked for, and nothing else",
              "docs/designs/icestorm.md: the table of requests", ChangesAsAsked, unless=("disk",), where=_COUNTER),
    Invariant("most-recent-wins", "a group begins with the most recent of its members' databases; others are given it",
              "the document: The most recent database state ... is transferred to all replicas", MostRecentWins,
              unless=("disk",), where=_COUNTER),
    Invariant("answers-while-it-leads", "nobody answers requests in an epoch that a majority had left before",
              "docs/designs/icestorm.md: reads are confirmed by a majority, so they never are stale",
              AnswersWhileItLeads, unless=("disk",)),
    Invariant("answers-in-its-group", "whoever answers a request coordinates the group in which it has begun it",
              "docs/designs/icestorm.md: reads are confirmed by a majority, so they never are stale",
              AnswersInItsGroup),
    Invariant("delivers-to-subscribers", "events wait for subscribers only",
              "the document: The subscriber will stop receiving events", DeliversToSubscribers, unless=("disk",)),
    Invariant("answers-as-it-stands", "whoever asks a replica whether it coordinates, counts or follows is told so",
              "Garcia-Molina, the answers to AreYouCoordinator and AreYouThere", AnswersAsItStands),
    Invariant("tells-its-state", "what a replica shows is how it stands",
              "the document: the state of the replicas, using the replica command", TellsItsState),
    STORE_HOLDS,
    COUNTS_ADD_UP,
)  # fmt: skip
