"""Changes of the database: made by the coordinator, confirmed when a majority of all replicas has them on disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from nodes.reference.api import Runtime
from nodes.reference.designs.icestorm.decisions import Stamp
from nodes.reference.designs.icestorm.election import NORMAL, InvitationElection
from nodes.reference.designs.icestorm.peers import Peers
from nodes.reference.designs.icestorm.topics import Change, RequestError, TopicDatabase
from nodes.reference.points import AGREED, CHANGED, UPDATED


class Unavailable(Exception):
    """This replica does not coordinate a group that replicates: nothing was done, and the request may be repeated."""


class Unknown(Exception):
    """The majority was lost during the change, which may or may not survive (IceStorm's ``UnknownException``)."""


class Replication:
    """Changes and questions, as the coordinator carries them out and as its slaves take part."""

    def __init__(self, runtime: Runtime, election: InvitationElection, database: TopicDatabase, peers: Peers,
                 wall: Callable[[], float] | None) -> None:
        """Create the replication. ``wall`` returns the time of day for stamps; None if stamps are counters."""
        self._runtime = runtime
        self._election = election
        self._database = database
        self._peers = peers
        self._wall = wall
        self._turn = asyncio.Lock()
        self.agreed = Stamp(0, 0)
        """The last change that this replica, as coordinator, considers agreed."""
        self.begun = 0
        """The number of changes and questions that it has begun to carry out."""
        self.answered = (0, 0)
        """The number of the last of them that it has answered, and the epoch in which that one had begun."""

    async def change(self, change: Change) -> None:
        """Carry out a change as coordinator.

        Raises:
            CommandError: the change is not possible.
            Unavailable: this replica does not coordinate a group that replicates; nothing was done.
            Unknown: the majority was lost on the way.
        """
        async with self._one_turn():
            election, database = self._election, self._database
            group, epoch = self._serving()
            try:
                database.check(change)
            except RequestError:
                await self._confirm(group)
                raise
            stamp = Stamp(epoch, database.stamp.counter + 1, self._wall() if self._wall is not None else 0.0)
            database.apply(change, stamp)
            self._runtime.point(CHANGED)
            members = list(election.up)
            answers = await self._peers.ask_all(members, "update", group, epoch, list(stamp), list(change))
            if election.group != group or election.state != NORMAL:
                raise Unknown
            election.drop([name for name in members if not answers.get(name)])
            if election.group != group or 1 + len(election.up) < election.needed:
                raise Unknown
            self.agreed = stamp
            self._runtime.point(AGREED)

    async def read(self, question: Callable[[], Any]) -> Any:
        """Return an answer from this replica's database after a majority has confirmed that it is current.

        Raises:
            CommandError: the question can't be answered. Unavailable, Unknown: as for ``change``; nothing was done.
        """
        async with self._one_turn():
            group, _ = self._serving()
            await self._confirm(group)
            return question()

    def told_to_update(self, peer: str, group: str, epoch: int, stamp: list[Any], change: list[Any]) -> bool:
        """Apply a change made by the coordinator of the group; refuse it if it is not the next one."""
        election, database = self._election, self._database
        mine = election.state == NORMAL and (election.coordinator, election.group) == (peer, group)
        following = database.stamp.epoch == epoch and database.stamp.counter + 1 == stamp[1]
        if not mine or epoch != database.promised or not following:
            return False
        database.apply(change, Stamp(*stamp))
        self._runtime.point(UPDATED)
        return True

    @asynccontextmanager
    async def _one_turn(self) -> AsyncIterator[None]:
        """Serialise changes and questions; one that can't be carried out counts as answered, too."""
        async with self._turn:
            self.begun += 1
            number, epoch = self.begun, self._election.epoch
            try:
                yield
            except RequestError:
                self.answered = number, epoch
                raise
            self.answered = number, epoch

    def _serving(self) -> tuple[str, int]:
        election = self._election
        if election.state != NORMAL or not election.leads:
            raise Unavailable
        return election.group, election.epoch

    async def _confirm(self, group: str) -> None:
        """Confirm that a majority still is in this group, so no other replica can have changed anything."""
        election = self._election
        members = list(election.up)
        answers = await self._peers.ask_all(members, "are-you-mine", group)
        if election.group != group or election.state != NORMAL:
            raise Unavailable
        election.drop([name for name in members if not answers.get(name)])
        if election.group != group or election.state != NORMAL:
            raise Unavailable
