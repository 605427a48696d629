"""The master's work: orders commands, replicates them, commits, releases effects, and changes the view."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nodes.reference.api import Command, ConfigError
from nodes.reference.designs.joram.decisions import MAX_MEMBERS, committed_index, round_of
from nodes.reference.designs.joram.log import Member, encode_command, encode_group, encode_view
from nodes.reference.designs.joram.outbox import MAX_AHEAD, Outbox
from nodes.reference.designs.joram.replica import JoramReplica
from nodes.reference.points import COMMITTED, LEASE_ENDS, REGROUPED, SHIPPED, VIEWED
from nodes.reference.replication.handshake import LinkError
from nodes.reference.replication.lease import Lease
from nodes.reference.replication.messages import Ack, LogPosition, StateAck, position_of
from nodes.reference.replication.quorum import majority
from nodes.reference.replication.replicator import Replicator, SharedFrames

BATCH_COMMANDS = 500
BATCH_BYTES = 8 << 20
JOIN_LAG = 1000
LEAST_MEMBERS = 2
LATE = 0.6
"""Share of a lease after which it has nearly ended."""


class Leader:
    """A node's time as master.

    The view entry that begins its epoch must be committed before it serves: that commits all earlier entries too,
    whereas counting acknowledgements of entries of older epochs would prove nothing (Raft, 5.4.2). Under
    ``primary-partition`` effects are released only while the master holds a lease: within ``Options.lease`` of the time
    by which a majority had heard it, no other master can have been elected. A master that was paused therefore delivers
    no message that another master may have delivered in the meantime.

    With asynchronous propagation it applies commands when they are on its own disk. It ships them to the other replicas
    every ``sync_interval``, or at once when a client waits for that (``Outbox``).
    """

    def __init__(self, replica: JoramReplica, epoch: int, members: Sequence[str]) -> None:
        self._replica = replica
        self.epoch = epoch
        self.members = list(members)
        self.serving = False
        self.unleased = 0
        """Effects that were released without a lease; must stay 0."""
        self._frames = SharedFrames()
        self.replicators: dict[str, Replicator] = {}
        self.acknowledged: dict[str, int] = {}
        self._lease = Lease()
        self._needs_lease, self._lease_seconds = replica.options.primary, replica.options.lease
        self._patient_from = replica.now()
        self.seen = dict.fromkeys(members, self._patient_from)
        self._pending: list[bytes] = []
        self.outbox = Outbox()
        self.ship_upto = 0
        self._held_back = False
        self._wake = asyncio.Event()
        self._epoch_start = replica.log.append(epoch, encode_view(self.members))
        self._tasks = [replica.runtime.spawn(self._write(), "replication")]
        if replica.options.early:
            self._tasks.append(replica.runtime.spawn(self._synchronise(), "synchronisation"))
        self._wake.set()
        replica.runtime.log("view installed", epoch=round_of(epoch), members=",".join(self.members))

    def stop(self) -> None:
        """Stop being master: drop pending commands, and release no further effects."""
        for task in self._tasks:
            task.cancel()
        self.serving = False
        self._pending.clear()
        self.outbox.clear()
        self._close_replicators()
        self._replica.learners = []
        self._replica.regroup()

    def _close_replicators(self) -> None:
        for replicator in self.replicators.values():
            replicator.close()
        self.replicators.clear()

    def add_replica(self, member: Member) -> None:
        """Let a replica learn the log; it becomes part of the group when it has nearly caught up (4.7.3).

        Several may learn at the same time; the group adds them one by one. A replica that was removed gets its former
        place, as it alone may have opened the epochs of that rank.

        Raises:
            ConfigError: the group can't add it, or not now.
        """
        replica = self._replica
        if member in replica.group or member in replica.learners:
            return
        if member.name in replica.order:
            raise ConfigError(f"{member.name} is a replica already, at other addresses")
        self._forget_learner(member.name)
        placed = {each.name for each in (*replica.places, *replica.learners)}
        if len(placed | {member.name}) > MAX_MEMBERS:
            raise ConfigError(f"a group has at most {MAX_MEMBERS} replicas in its time")
        replica.runtime.log("learner added", name=member.name, address=f"{member.host}:{member.port}")
        replica.learners.append(member)
        replica.regroup()

    def remove_replica(self, name: str) -> None:
        """Remove a replica from the group; its place in the list stays reserved for it.

        Raises:
            ConfigError: no replica has that name, or the group can't do without it, or not now.
        """
        replica = self._replica
        if not replica.options.primary:
            raise ConfigError("only a group with partitions=primary-partition gives up a replica: elsewhere nothing "
                              "tells one that is gone from one that serves on another side")
        if any(each.name == name for each in replica.learners):
            self._forget_learner(name)
            return
        if name not in replica.order:
            if any(each.name == name for each in replica.places):
                return
            raise ConfigError(f"{name} is not a replica of this group ({', '.join(replica.order)})")
        if name == replica.name:
            raise ConfigError(f"{name} is the master: stop it, and ask its successor")
        if not self._may_regroup():
            raise ConfigError("the group is changing already; ask again")
        staying = [each for each in self.members if each != name]
        others = len(replica.order) - 1
        if others < LEAST_MEMBERS:
            raise ConfigError(f"a group has at least {LEAST_MEMBERS} replicas")
        if len(staying) < majority(others):
            raise ConfigError(f"without {name}, only {len(staying)} of {others} replicas remain, less than a majority")
        self._regroup([each._replace(apart=True) if each.name == name else each for each in replica.places])
        if name in self.members:
            self._install(staying, "member removed")

    def _forget_learner(self, name: str) -> None:
        """Drop a learner that turns out to be at another address: the address given first was a mistake."""
        replica = self._replica
        if any(each.name == name for each in replica.learners):
            replica.learners = [each for each in replica.learners if each.name != name]
            self.lost_link(name)
            replica.regroup()

    def _may_regroup(self) -> bool:
        """Tell whether the group's membership may change now.

        Only one change at a time is allowed, so that majorities before and after it intersect. A change must wait until
        an entry of this master's epoch is committed, since a change that a former master began might otherwise be
        committed behind it (Ongaro's dissertation, 4.1, with his correction of 2015).

        Under ``unspecified`` each side of a partition has a master that might add a replica. Therefore all replicas
        must be in the view and must hold the previous change.
        """
        replica, index = self._replica, self._replica.log.group_index
        if not self.serving or index > replica.committed:
            return False
        return replica.options.primary or all(
            name in self.members and self.acknowledged.get(name, 0) >= index for name in replica.order
        )

    def _take_in(self, learner: Member) -> None:
        """Give a learner its place, and, when it has that, make it a member of the group.

        Under ``unspecified`` these are two entries: all replicas know the owner of the place before the owner acts in
        it. Whichever side's log survives a partition, no place is ever given to two replicas, and no epoch is opened by
        two.
        """
        places = self._replica.places
        if any(each.name == learner.name for each in places):
            self._regroup([learner if each.name == learner.name else each for each in places])
        else:
            self._regroup([*places, learner._replace(apart=not self._replica.options.primary)])

    def _regroup(self, places: Sequence[Member]) -> None:
        replica = self._replica
        replica.log.append(self.epoch, encode_group(places))
        replica.runtime.log("group changed", members=",".join(each.name for each in places if not each.apart))
        replica.runtime.point(REGROUPED)
        self.ship_upto = replica.log.last
        self._wake.set()

    def submit(self, command: Command) -> None:
        """Order a command; it is replicated with the next batch."""
        if not self.serving:
            return
        self._pending.append(encode_command(command))
        self._wake.set()

    def raise_epoch(self, epoch: int) -> None:
        """Continue in a newer epoch (``unspecified`` only), which must have been promised."""
        self.epoch = epoch
        self._close_replicators()
        self.acknowledged.clear()
        self._epoch_start = 0
        self._install(self.members, "epoch raised")
        self._epoch_start = self._replica.log.last

    # Reports of peers.

    def lost_link(self, peer: str) -> None:
        """Drop the transfers to the peer; it will introduce itself again."""
        replicator = self.replicators.pop(peer, None)
        if replicator is not None:
            replicator.close()
        self.acknowledged.pop(peer, None)

    def heard(self, peer: str, echo: float) -> None:
        """Note that the peer follows this master, and had heard the message sent at ``echo``."""
        now = self._replica.now()
        self.seen[peer] = now
        if self._lease.heard(peer, echo) and self.outbox:
            self._release()

    def introduced(self, peer: str, message: LogPosition) -> None:
        """Feed the peer from the log position that it reports."""
        if message.epoch == self.epoch:
            self.lost_link(peer)
            self.replicators[peer] = Replicator(
                self._replica, peer, self.epoch, position_of(message), self._frames
            )
            self.replicators[peer].pump(self._replica.now())

    def acked(self, peer: str, message: Ack) -> None:
        """Note that the peer holds everything up to an index; raises LinkError for an index beyond the log."""
        replicator = self.replicators.get(peer)
        if replicator is None or message.epoch != self.epoch:
            return
        if message.match > self._replica.log.last:
            raise LinkError(f"entry {message.match} is acknowledged, which there is not")
        replicator.acked(message.match)
        if replicator.in_step:
            self.acknowledged[peer] = replicator.match
        self.heard(peer, message.echo)
        self._wake.set()

    def in_touch(self, seconds: float) -> list[str]:
        """Return the peers in step that have acknowledged a message sent within the last ``seconds``."""
        now = self._replica.now()
        return [peer for peer in self.acknowledged if self._lease.heard_within(peer, seconds, now)]

    def acked_chunks(self, peer: str, message: StateAck) -> None:
        """Note that the peer has received a part of the state."""
        replicator = self.replicators.get(peer)
        if replicator is not None and message.epoch == self.epoch:
            replicator.acked_chunks(message.chunks)
            replicator.pump(self._replica.now())

    # Time.

    def forgive(self, seconds: float) -> None:
        """Exclude the ``seconds`` for which this node itself was suspended from the silence of its peers."""
        now = self._replica.now()
        for peer in self.seen:
            self.seen[peer] = min(now, self.seen[peer] + seconds)
        # Leaves time to learn whether it still is master; until then it has no lease.
        self._patient_from = now - self._replica.options.detection_timeout / 2

    def tick(self) -> str | None:
        """Update the view after peers have gone or joined; return the reason to step down, if there is one."""
        replica = self._replica
        if replica.options.primary and not self._within(replica.options.detection_timeout, self._patient_from):
            return "no majority"
        if self.serving and replica.options.primary and not self._within(LATE * replica.options.lease):
            replica.runtime.point(LEASE_ENDS)
        silent = [name for name in self.members[1:] if self._is_silent(name)]
        staying = [name for name in self.members if name not in silent]
        if silent and (not replica.options.primary or len(staying) >= majority(len(replica.order))):
            replica.runtime.log("suspected", members=",".join(silent))
            self._install(staying, "member lost")
        for learner in list(replica.learners):
            if self._has_caught_up(learner.name) and self._may_regroup():
                self._take_in(learner)
        for peer in replica.peers:
            if peer in replica.order and peer not in self.members and self._may_join(peer):
                self._install([*self.members, peer], "member joined")
        return None

    def holds_lease(self) -> bool:
        """Tell whether effects may be released now."""
        replica = self._replica
        return not self._needs_lease or self._lease.holds(self._lease_seconds, replica.now(), replica.order)

    def unfinished(self) -> int:
        """Return the number of commands that have been submitted but have had no effect yet."""
        log = self._replica.log
        return len(self._pending) + log.last - log.applied + len(self.outbox)

    def _within(self, seconds: float, floor: float = float("-inf")) -> bool:
        return self._lease.holds(seconds, self._replica.now(), self._replica.order, floor)

    def _is_silent(self, peer: str) -> bool:
        seen = self.seen.get(peer, float("-inf"))
        gone = self._replica.links.silent_for(peer) == float("inf")
        return gone or self._replica.now() - seen > self._replica.options.detection_timeout

    def _may_join(self, peer: str) -> bool:
        replicator = self.replicators.get(peer)
        if replicator is None or not replicator.in_step or self._is_silent(peer):
            return False
        return replicator.match >= min(self._replica.committed, self._replica.log.last - JOIN_LAG)

    def _has_caught_up(self, learner: str) -> bool:
        """Tell whether a learner may become part of the group.

        Without a log its vote would not count in elections (``refusal``), and it would only make majorities larger.
        """
        return self._may_join(learner) and self.replicators[learner].match > 0

    def _install(self, members: list[str], why: str) -> None:
        self.members = members
        self._replica.log.append(self.epoch, encode_view(members))
        self._replica.runtime.log("view installed", epoch=round_of(self.epoch), members=",".join(members), why=why)
        self._replica.runtime.point(VIEWED)
        self.ship_upto = self._replica.log.last
        self._wake.set()

    # Replication.

    async def _synchronise(self) -> None:
        """Bring the other replicas up to date at regular intervals."""
        while True:
            await asyncio.sleep(self._replica.options.sync_interval)
            if self._replica.committed < self._replica.log.last:
                self.ship_upto = self._replica.log.last
                self._wake.set()

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._flush()
            # Lets the sockets be read, so that the next batch contains the commands that have arrived in the meantime.
            await asyncio.sleep(0)

    def _flush(self) -> None:
        """Do one round of group commit: send the batch to peers, write it to disk, and apply committed entries."""
        replica, log = self._replica, self._replica.log
        for entry in self._next_batch():
            log.append(self.epoch, entry)
        if not (self.serving and replica.options.early) or self._apply_ahead():
            self.ship_upto = log.last
        stamp = replica.now()
        for replicator in self.replicators.values():
            if replicator.next <= self.ship_upto or not replicator.in_step:
                replicator.pump(stamp)
        if log.has_unwritten:
            replica.runtime.point(SHIPPED)
        self._commit()
        if log.has_unwritten:
            self.compact()
            replica.persist()
        if self.acknowledged.get(replica.name) != log.last:
            self.acknowledged[replica.name] = log.last
            self._commit()
        if self.serving:
            self._release()
        elif replica.committed >= self._epoch_start:
            self.serving = True
            replica.runtime.log("promoted: serving as master", epoch=round_of(self.epoch), committed=replica.committed)
            replica.broker.began_serving()

    def _commit(self) -> None:
        """Apply all entries that are committed now; queue their effects for release if this master serves."""
        effects = self._replica.advance(self._committed())
        if effects:
            self._replica.runtime.point(COMMITTED)
        if self.serving:
            self.outbox.add(effects)
            self.outbox.commit(self._replica.committed)
        else:
            self._replica.broker.observe(effects)

    def _apply_ahead(self) -> bool:
        """Apply all entries, committed or not; return whether a client waits for their commitment."""
        replica = self._replica
        early = replica.log.last - replica.committed <= MAX_AHEAD
        wanted = not early
        for index, command, effects in replica.apply(replica.log.last):
            wanted |= self.outbox.add_ahead(index, command, effects, early)
        return wanted

    def _next_batch(self) -> list[bytes]:
        size = 0
        for count, entry in enumerate(self._pending):
            size += len(entry)
            if count >= BATCH_COMMANDS or size > BATCH_BYTES:
                batch, self._pending = self._pending[: count or 1], self._pending[count or 1 :]
                self._wake.set()
                return batch
        batch, self._pending = self._pending, []
        return batch

    def _committed(self) -> int:
        options, order = self._replica.options, self._replica.order
        acked = {name: index for name, index in self.acknowledged.items() if name in order}
        index = committed_index(acked, self.members, len(order), options.ack, options.primary)
        return index if index >= self._epoch_start else self._replica.committed

    def _release(self) -> None:
        if self.holds_lease():
            self._held_back = False
            effects = self.outbox.release()
            if effects and not self.holds_lease():
                self.unleased += len(effects)
            self._replica.broker.release(effects)
        elif self.outbox and not self._held_back:
            self._held_back = True
            self._replica.runtime.log("lease expired", epoch=round_of(self.epoch), waiting=len(self.outbox))

    def compact(self) -> None:
        """Drop the part of the log that need not be kept, before it is written."""
        options, log = self._replica.options, self._replica.log
        hold = min((replicator.hold for replicator in self.replicators.values()), default=log.last)
        # A peer that lags further than this is better served with the whole state.
        hold = max(hold, log.last - 8 * options.log_keep)
        # A peer that is receiving the state now must be able to continue from it; otherwise it would need one after
        # another.
        under_way = [replicator.must_hold for replicator in self.replicators.values()]
        hold = min([hold, *(index for index in under_way if index is not None)])
        log.compact(options.log_keep, options.log_keep_bytes, hold)
