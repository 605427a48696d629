"""The election of a coordinator: Garcia-Molina's invitation election, and the reorganization that follows it.

H. Garcia-Molina, Elections in a Distributed Computing System, IEEE Transactions on Computers C-31 (1), 1982, section
"The invitation algorithm" (procedures Check, Merge, Ready, Timeout, Recovery, and the answers to Invitation, Accept,
AreYouCoordinator, AreYouThere). The paper elects and does not replicate; this module decides the points it leaves open.
Before a coordinator compares databases, every member promises on disk to refuse changes of older epochs. Any change
that a majority has confirmed is therefore in one of the compared databases.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from nodes.reference.api import Broker
from nodes.reference.designs.icestorm.decisions import (
    ELECTION,
    INACTIVE,
    NORMAL,
    REORGANIZATION,
    Stamp,
    follows,
    majority,
    may_replicate,
    merge_delay,
    most_recent,
    next_epoch,
    round_of,
)
from nodes.reference.designs.icestorm.options import CHECKED, IceStormOptions
from nodes.reference.designs.icestorm.peers import PeerFailed, Peers
from nodes.reference.designs.icestorm.topics import TopicDatabase
from nodes.reference.points import (
    ACCEPTED,
    ACCEPTING,
    COMPARED,
    DROPPED,
    FORMED,
    ICE_PROMISED,
    INSTALLED,
    INVITED,
    INVITING,
    READY,
    REPLACED,
)
from nodes.timeouts import within

__all__ = ["ELECTION", "INACTIVE", "NORMAL", "REORGANIZATION", "InvitationElection"]


class InvitationElection:
    """One replica's part in elections.

    ``state``, ``coordinator`` (a name), ``group`` (``priority:uuid``) and ``max_seen`` are what ``admin replica``
    shows. ``up`` are the other members; only a coordinator knows them. ``epoch`` is the normal group's epoch.
    ``changed`` is called after the state or the coordinator has changed.
    """

    def __init__(self, broker: Broker, options: IceStormOptions, database: TopicDatabase, peers: Peers,
                 changed: Callable[[], None]) -> None:
        self.name = broker.config.node
        self.replicas = list(broker.config.peers)
        self.idents = {name: place for place, name in enumerate(self.replicas, 1)}
        self.state = INACTIVE
        self.coordinator = self.name
        self.group = ""
        self.up: dict[str, None] = {}
        self.members: list[str] = []
        self.max_seen = 0
        self.epoch = 0
        self._runtime = broker.runtime
        self._options = options
        self._database = database
        self._peers = peers
        self._changed = changed
        self.issued: dict[str, None] = {}
        self._brought: dict[str, None] = {}
        """The replicas that members of the new group bring along; some of them may also have been invited directly."""
        self._seen_by: dict[str, int] = {}
        self.merge_due: tuple[str, float] | None = None
        self.highest = 0
        """The highest priority among the coordinators that were found when the merge delay was set."""
        self._accepted: asyncio.Event = asyncio.Event()
        self._deadline = 0.0
        self.invites = False
        """Whether answers to invitations are outstanding."""
        self.entered = self.lasted = 0.0
        """The time at which this replica entered its state, and the duration of the previous state."""
        self.passed_on: tuple[str, tuple[str, ...]] = ("", ())
        """The group whose invitation it last accepted, and the members that it has brought along."""
        self.refused = ""
        """The group whose coordinator did not count this replica's acceptance."""
        self.checks = False
        self.astray: list[tuple[str, str]] = []
        """State changes that no procedure allows."""
        self._task: asyncio.Task[None] | None = None

    @property
    def ident(self) -> int:
        """This replica's id, which is its priority."""
        return self.idents[self.name]

    @property
    def leads(self) -> bool:
        """Tell whether this replica coordinates its group."""
        return self.coordinator == self.name

    @property
    def needed(self) -> int:
        """The minimum number of replicas that may confirm a change."""
        return majority(len(self.replicas))

    def start(self) -> None:
        """Begin as a group of one."""
        self.recover("start")
        self._task = self._runtime.spawn(self._run(), "icestorm election")

    def stop(self) -> None:
        """Stop taking part."""
        if self._task is not None:
            self._task.cancel()

    def recover(self, why: str) -> None:
        """Form a group of one, coordinated by this replica (procedure Recovery)."""
        self._enter(INACTIVE, self.name, self._new_group(), why)
        self.up = {}

    def drop(self, members: Iterable[str]) -> None:
        """Continue without failed members; if the majority is lost, the group ends."""
        gone = [member for member in members if member in self.up]
        if not gone:
            return
        for member in gone:
            del self.up[member]
        self.members = [name for name in self.members if name not in gone]
        self._runtime.log("members lost", members=",".join(gone), group=self.group)
        self._runtime.point(DROPPED)
        if self.state == NORMAL and 1 + len(self.up) < self.needed:
            self.recover("the majority is lost")

    # Questions of other replicas.

    def are_you_coordinator(self) -> bool:
        """Tell whether this replica coordinates a group that may be merged now."""
        return self.leads and self.state in (INACTIVE, NORMAL)

    def are_you_there(self, peer: str, group: str) -> bool:
        """Tell whether the peer is a member of the group that this replica coordinates."""
        return self.leads and self.group == group and peer in self.up

    def are_you_mine(self, peer: str, group: str) -> bool:
        """Tell whether this replica follows the peer in that group."""
        return self.coordinator == peer and self.group == group and self.state in (INACTIVE, NORMAL)

    def invited(self, peer: str, inviter: str, group: str) -> bool:
        """Handle a coordinator's invitation, which a peer may have passed on; return whether it is taken."""
        busy = self.state in (ELECTION, REORGANIZATION)
        if busy or inviter == self.name or inviter not in self.idents or group == self.group:
            return False
        former = list(self.up) if self.leads else []
        self.up = {}
        self._enter(ELECTION, inviter, group, f"invited by {inviter}")
        self._runtime.point(INVITED)
        self._runtime.spawn(self._accept(inviter, group, former), "icestorm accept")
        return True

    def accepted(self, peer: str, group: str, passed_on: list[str], max_seen: int) -> bool:
        """Count a replica that has accepted an invitation to the group, and has passed it on to its own members."""
        if self.state != ELECTION or not self.leads or self.group != group:
            return False
        self.up[peer] = None
        self._brought.update(dict.fromkeys(name for name in passed_on if name != self.name))
        self.issued.update(self._brought)
        self._seen_by[peer] = max_seen
        self._runtime.point(ACCEPTED)
        if all(name in self.up for name in self.issued):
            self._accepted.set()
        return True

    def asked_to_promise(self, peer: str, group: str, epoch: int) -> list[Any] | None:
        """Promise an epoch to the coordinator of the group; return the stamp of the database."""
        if not self._reorganizing(peer, group) or epoch <= self._database.promised:
            return None
        self._database.promise(epoch)
        self._runtime.point(ICE_PROMISED)
        return list(self._database.stamp)

    def asked_for_database(self, peer: str, group: str) -> list[list[Any]] | None:
        """Return the whole database to the coordinator of the group."""
        return self._database.dump() if self._reorganizing(peer, group) else None

    def told_to_install(self, peer: str, group: str, epoch: int, stamp: list[Any],
                        rows: list[list[Any]] | None) -> bool:
        """Take over the group's database; return whether that was done."""
        if not self._reorganizing(peer, group) or epoch != self._database.promised:
            return False
        self._database.replace(rows, Stamp(*stamp))
        self._runtime.point(INSTALLED)
        return True

    def told_ready(self, peer: str, group: str, epoch: int, members: list[str], max_seen: int) -> bool:
        """Note that the group is formed; with epoch 0 it is too small to replicate."""
        if not self._reorganizing(peer, group):
            return False
        self._form(peer, group, epoch, members, max_seen)
        self._runtime.point(READY)
        return True

    # Inner workings.

    def _reorganizing(self, peer: str, group: str) -> bool:
        return self.state == REORGANIZATION and self.coordinator == peer and self.group == group

    def _enter(self, state: str, coordinator: str, group: str, why: str) -> None:
        if (state, coordinator, group) != (self.state, self.coordinator, self.group):
            self._runtime.log("replica state", state=state, coordinator=coordinator, leads=coordinator == self.name,
                              group=group, why=why)
            if not follows((self.state, self.coordinator, self.group), (state, coordinator, group), self.name):
                self.astray.append((self.state, state))
            now = self._runtime.now()
            self.entered, self.lasted = now, now - self.entered
        self.state, self.coordinator, self.group = state, coordinator, group
        if state != NORMAL:
            self.epoch = 0
            self.members = []
        self._deadline = self._runtime.now() + 2 * self._options.election_timeout + self._options.response_timeout
        self._changed()

    def _form(self, coordinator: str, group: str, epoch: int, members: list[str], max_seen: int) -> None:
        """Form the group, normal in its epoch; with epoch 0 it is too small to replicate.

        The members then have seen as many replicas as any of them had before, and at least as many as the group has.
        """
        self.epoch, self.members, self.max_seen = epoch, members, max_seen
        self._enter(NORMAL if epoch else INACTIVE, coordinator, group, f"group of {len(members)}")

    def _new_group(self) -> str:
        number = uuid.UUID(int=self._runtime.random.getrandbits(128), version=4)
        return f"{self.ident}:{number}".upper()

    async def _run(self) -> None:
        """Check forever: as coordinator, for other groups; as member, for the coordinator."""
        options = self._options
        last = self._runtime.now()
        while True:
            idle = options.master_timeout if self.state == NORMAL else options.election_timeout
            # A little less than the time-out, at random, so that replicas started together don't stay in step. The
            # duration of the last check is deducted, so that a replica that lost its coordinator or majority notices it
            # within its bound.
            await asyncio.sleep(last + idle * self._runtime.random.uniform(0.8, 1.0) - self._runtime.now())
            last = self._runtime.now()
            if self.state in (ELECTION, REORGANIZATION):
                if self._runtime.now() >= self._deadline:
                    self.recover("the election does not end")
            elif self.leads:
                self.checks = True
                await self._check()
                self.checks = False
            else:
                await self._ask_coordinator()

    async def _ask_coordinator(self) -> None:
        """Ask the coordinator whether it still counts this replica as a member (procedure Timeout)."""
        coordinator, group = self.coordinator, self.group
        try:
            there = await self._peers.ask(coordinator, "are-you-there", group)
            why = f"{coordinator} no longer counts this replica as member"
        except PeerFailed as error:
            there, why = False, str(error)
        if not there and (self.coordinator, self.group) == (coordinator, group) and self.state in (INACTIVE, NORMAL):
            self.recover(why)

    async def _check(self) -> None:
        """Check this coordinator's members, then search for other coordinators to merge with (procedure Check)."""
        group = self.group
        others = [name for name in self._peers.names if name not in self.up]
        if self.up and self._options.step_down == CHECKED:
            answers = await self._peers.ask_all(list(self.up), "are-you-mine", group)
            if self.group != group or self.state not in (INACTIVE, NORMAL):
                return
            self.drop([name for name in self.up if not answers.get(name)])
            group = self.group
        answers = await self._peers.ask_all(others, "are-you-coordinator")
        coordinators = [name for name in others if answers.get(name)]
        if not coordinators:
            self.merge_due = None
            return
        if self.group != group or not self.leads or self.state not in (INACTIVE, NORMAL):
            return
        if self._may_merge(max(self.idents[name] for name in coordinators)):
            await self._merge(coordinators)

    def _may_merge(self, highest: int) -> bool:
        """Tell whether this coordinator, which has found others, has left those of higher priority enough time."""
        now = self._runtime.now()
        if self.merge_due is None or self.merge_due[0] != self.group:
            self.highest = highest
            delay = merge_delay(self.ident, highest, len(self.replicas), self._options.election_timeout)
            self.merge_due = (self.group, now + delay)
        return now >= self.merge_due[1]

    async def _merge(self, coordinators: list[str]) -> None:
        """Form a new group of this one's members and those of the other coordinators (procedure Merge)."""
        invited = [*coordinators, *self.up]
        group = self._new_group()
        self.up = {}
        self.issued, self._brought = dict.fromkeys(invited), {}
        self._seen_by = {}
        self._accepted = asyncio.Event()
        self.invites = True
        self._enter(ELECTION, self.name, group, f"inviting {','.join(invited)}")
        self._runtime.point(INVITING)
        taken = await self._peers.ask_all(invited, "invitation", self.name, group)
        if self.group != group or self.state != ELECTION:
            return
        for name in invited:
            if not taken.get(name) and name not in self._brought:  # a brought one refuses: it is in the group already
                self.issued.pop(name, None)
        self.invites = False
        if any(name not in self.up for name in self.issued):
            with suppress(TimeoutError):
                async with within(self._options.election_timeout):
                    await self._accepted.wait()
        if self.group == group and self.state == ELECTION:
            await self._reorganize(group)

    async def _accept(self, inviter: str, group: str, former: list[str]) -> None:
        """Accept an invitation, after it was passed on to this replica's own members."""
        taken = await self._peers.ask_all([name for name in former if name != inviter], "invitation", inviter, group)
        passed_on = [name for name, answer in taken.items() if answer]
        if self.state != ELECTION or self.group != group:
            return
        self.passed_on = group, tuple(passed_on)
        # The coordinator's next message may overtake its answer to this one.
        self._enter(REORGANIZATION, inviter, group, "accepting")
        self._runtime.point(ACCEPTING)
        try:
            agreed = await self._peers.ask(inviter, "accept", group, passed_on, self.max_seen)
        except PeerFailed:
            agreed = False
        self.refused = group if not agreed else ""
        if not agreed and self.state == REORGANIZATION and self.group == group:
            self.recover(f"{inviter} withdrew its invitation")

    async def _reorganize(self, group: str) -> None:
        """Compare the databases of a group that is large enough, and begin to replicate."""
        self._enter(REORGANIZATION, self.name, group, "all have answered")
        epoch = 0
        if self._large_enough():
            epoch = await self._agree(group)
            if self.group != group or self.state != REORGANIZATION:
                return
            if not epoch:
                self.recover("the group fell apart while it was reorganized")
                return
        members = [self.name, *self.up]
        self._runtime.log("group replicates" if epoch else "group waits", group=group, epoch=round_of(epoch),
                          members=",".join(members))
        self._form(self.name, group, epoch, members, max(self._max_among_us(), len(members)))
        self._runtime.point(FORMED)
        ready = await self._peers.ask_all(list(self.up), "ready", group, epoch, members, self.max_seen)
        if self.group == group:
            self.drop([name for name in self.up if not ready.get(name)])

    async def _agree(self, group: str) -> int:
        """Collect promises, and distribute the most recent database; return the epoch, or 0 if too few replicas took
        part.
        """
        newest = await self._peers.ask_all(list(self.up), "promised")
        epoch = next_epoch(max([self._database.promised, *newest.values()]), self.ident)
        self._database.promise(epoch)
        answers = await self._peers.ask_all(list(self.up), "promise", group, epoch)
        stamps = {name: Stamp(*stamp) for name, stamp in answers.items() if stamp is not None}
        if not self._enough(group, stamps):
            return 0
        stamps[self.name] = self._database.stamp
        best = most_recent(stamps)
        rows = None
        self._runtime.point(COMPARED)
        if stamps[best] != self._database.stamp:
            self._runtime.log("database transfer", source=best, stamp=str(tuple(stamps[best])))
            try:
                rows = await self._peers.ask(best, "database", group, timeout=self._options.election_timeout)
            except PeerFailed:
                return 0
            if rows is None or not self._enough(group, stamps):
                return 0
        stamp = Stamp(epoch, 0, stamps[best].wall)
        self._database.replace(rows, stamp)
        self._runtime.point(REPLACED)
        dump = self._database.dump()
        installed = await asyncio.gather(
            *(self._install(name, group, epoch, stamp, None if stamps[name] == stamps[best] else dump)
              for name in list(self.up))
        )
        done = dict(zip(list(self.up), installed, strict=True))
        return epoch if self._enough(group, {name: None for name, ok in done.items() if ok}) else 0

    async def _install(self, name: str, group: str, epoch: int, stamp: Stamp, rows: list[list[Any]] | None) -> bool:
        try:
            return bool(await self._peers.ask(name, "install", group, epoch, list(stamp), rows,
                                              timeout=self._options.election_timeout))
        except PeerFailed:
            return False

    def _enough(self, group: str, present: Iterable[str]) -> bool:
        """Drop all other members; return whether the remaining ones are enough."""
        if self.group != group or self.state != REORGANIZATION:
            return False
        alive = set(present)
        self.up = {name: None for name in self.up if name in alive}
        return self._large_enough()

    def _large_enough(self) -> bool:
        """Tell whether this replica and those in ``up`` may replicate, or may continue to form a group that does."""
        return may_replicate(1 + len(self.up), len(self.replicas), self._max_among_us(), self.needed)

    def _max_among_us(self) -> int:
        """Return the size of the largest group in which any of the present members has been."""
        return max(self.max_seen, *(self._seen_by.get(name, 0) for name in self.up), 0)
