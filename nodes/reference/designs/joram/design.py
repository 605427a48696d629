"""The design ``joram``: combines one replica's links, roles and timers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from nodes.reference.api import Admission, Broker, Command, ConfigError
from nodes.reference.designs.joram.decisions import LeaderClaim, LocalState, judge_claim, round_of
from nodes.reference.designs.joram.election import Election
from nodes.reference.designs.joram.leader import Leader
from nodes.reference.designs.joram.log import Member
from nodes.reference.designs.joram.messages import (
    Fetch,
    GroupMembers,
    Leave,
    Message,
    PrepareReply,
    PreVoteReply,
    PreVoteRequest,
    Propose,
    Reject,
    ReplicaHeartbeat,
    unpack,
)
from nodes.reference.designs.joram.options import JoramOptions
from nodes.reference.designs.joram.replica import JoramReplica
from nodes.reference.points import ELECTED
from nodes.reference.replication.follower_log import FollowerLog
from nodes.reference.replication.messages import (
    Ack,
    Append,
    LogPosition,
    StateAck,
    StateBegin,
    StateChunk,
    StateEnd,
    position_of,
)
from nodes.reference.replication.quorum import majority
from nodes.reference.replication.replicator import Replicator, SharedFrames

NOT_MASTER = "not master"
QUIET = 1.0
"""Seconds without a commit after which applied entries are written as well, so that a restart repeats only a few."""


class JoramDesign:
    """A group of replicas behind one master. Options: ``nodes.reference.designs.joram.options.JoramOptions``.

    At any time a replica is master (``leader``), follows one (``master``), or neither: then it takes part in an
    election. ``received`` is the log it receives, from its master or from the peer whose log it adopts.
    """

    has_topic_manager = False
    has_services = True

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.options = JoramOptions.from_config(broker.config)
        self.replica = JoramReplica(broker, self.options, self)
        self.replica.tell_peers = self._send_heartbeats
        self.election = Election(self.replica, self)
        self.leader: Leader | None = None
        self.master: str | None = None
        self.received: FollowerLog | None = None
        self.catch_up_feeds: dict[str, tuple[int, Replicator]] = {}
        self._reports: dict[str, ReplicaHeartbeat] = {}
        self.left: set[str] = set()
        """Peers that have announced their stop, and have not returned."""
        self.states_begun = 0
        """The number of whole states that other nodes have begun to send to this node."""
        self._spoken: dict[str, float] = {}
        """Master -> the time at which this node last confirmed to it that it follows it."""
        self._ticker: asyncio.Task[None] | None = None
        self.started = False
        self._handlers: dict[type[Message], Callable[[str, Any], None]] = {
            ReplicaHeartbeat: self._heartbeat, LogPosition: self._log_position, Append: self._append, Ack: self._acked,
            Reject: self._rejected, PreVoteRequest: self.election.pre_vote_requested,
            PreVoteReply: self.election.answered,
            Propose: self.election.proposed, PrepareReply: self.election.promised, Fetch: self._fetch,
            StateBegin: self._state_begin, StateChunk: self._state_chunk, StateEnd: self._state_end,
            StateAck: self._state_acked, Leave: self._leave,
            GroupMembers: lambda peer, message: self.replica.introduced(peer, message.members),
        }

    # The design's protocol.

    async def start(self) -> None:
        """Open the links and begin to search for the group.

        Raises:
            ConfigError: the address for the links can't be listened on.
        """
        options, log = self.options, self.replica.log
        self.replica.runtime.log(
            "joining the group", ack=options.ack, partitions=options.partitions,
            expected=options.nb_cluster_expected, replicas=len(self.replica.order),
            log_last=log.last, applied=log.applied, promised=round_of(log.promised),
        )
        try:
            await self.replica.links.start()
        except OSError as error:
            host, port = self.broker.config.peers[self.replica.name]
            raise ConfigError(
                f"peers.{self.replica.name}: can't listen on {host}:{port} ({error.strerror or error})"
            ) from error
        self._ticker = self.replica.runtime.spawn(self._tick_forever(), "joram timers")

    async def stop(self) -> None:
        """Leave the group in good order, so that the others need not wait until they suspect this node."""
        if self._ticker is not None:
            self._ticker.cancel()
        if self.leader is not None:
            self.leader.stop()
            self.leader = None
        self.replica.persist()
        for peer in self.replica.peers:
            self.replica.send(peer, Leave())
        await self.replica.links.stop()

    def admission(self) -> Admission:
        """Admit clients on the master only; other nodes name the master if they know it."""
        if self.leader is not None and self.leader.serving:
            listed = tuple(member.client for member in self.replica.group if member.client)
            return Admission(True, early=self.options.early, replicas=listed)
        master = self.live_master()
        address = next((member.client for member in self.replica.group if member.name == master), None)
        return Admission(False, NOT_MASTER, address or None)

    def submit(self, command: Command) -> None:
        """Replicate a command; it is dropped if this node does not serve (its clients are being dropped too)."""
        if self.leader is not None:
            self.leader.submit(command)

    def add_replica(self, name: str, link: tuple[str, int], client: str) -> None:
        """Add a replica to the group; it is a learner first, and ``status`` lists it in ``replicas`` once it is a
        member.

        Raises:
            ConfigError: this node is not the master, or the group can't add it now.
        """
        if self.leader is None or not self.leader.serving:
            raise ConfigError(f"not master{self._where()}; ask the master to add a replica")
        self.leader.add_replica(Member(name, *link, client))

    async def administer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Handle ``{"op": "remove-replica", "name": NAME}``: the group continues without a replica; ``status`` shows
        when the removal is complete.

        Raises:
            ConfigError: this node is not the master, or the group can't do without it now.
        """
        match dict(request):
            case {"op": "remove-replica", "name": str(name), **others} if not others:
                if self.leader is None or not self.leader.serving:
                    raise ConfigError(f"not master{self._where()}; ask the master to remove a replica")
                self.leader.remove_replica(name)
                return {}
        raise ConfigError('a request is {"op": "remove-replica", "name": NAME}')

    def _where(self) -> str:
        master, address = self.live_master(), self.admission().master
        return f" (that is {master}{f' at {address}' if address else ''})" if master else ""

    def status(self) -> dict[str, Any]:
        """Return the status for an administrator; epochs are given as their rounds."""
        replica, leader = self.replica, self.leader
        view = leader.members if leader is not None else replica.log.view
        alive = replica.alive()
        return {
            "role": self._role(),
            "serving": leader is not None and leader.serving,
            "epoch": round_of(leader.epoch if leader is not None else replica.log.promised),
            "view": list(view),
            "replicas": list(replica.order),
            "learners": [member.name for member in replica.learners],
            "master": replica.name if leader is not None else self.live_master(),
            "applied": replica.log.applied,
            "committed": replica.committed,
            "log_first": replica.log.base + 1,
            "log_last": replica.log.last,
            "suspects": [peer for peer in replica.order if peer not in alive],
        }

    # The interface for elections.

    def hears_master(self) -> bool:
        """Tell whether this node is master or follows a live one."""
        return self.leader is not None or self.live_master() is not None

    def leads(self) -> bool:
        """Tell whether this node is master."""
        return self.leader is not None

    def reports(self) -> dict[str, ReplicaHeartbeat]:
        """Return the newest heartbeat of each connected peer."""
        return self._reports

    def receive_from(self, received: FollowerLog | None) -> None:
        """Receive the log from that source from now on, and follow no master."""
        self.received, self.master = received, None

    def become_leader(self, epoch: int, members: list[str]) -> None:
        """Become master after a won election."""
        self.receive_from(None)
        self._end_all_catch_up_feeds()
        self.started = True
        self.replica.runtime.point(ELECTED)
        self.leader = Leader(self.replica, epoch, members)
        self.election.decided()
        self._send_heartbeats()

    # Links.

    def link_up(self, peer: str) -> None:
        """Introduce this node and the group."""
        self.left.discard(peer)
        self._send_heartbeat(peer)
        self.replica.introduce(peer)

    def link_down(self, peer: str) -> None:
        """Drop the work in progress with the peer."""
        self._reports.pop(peer, None)
        self._end_catch_up_feeds(peer)
        if self.leader is not None:
            self.leader.lost_link(peer)
        if self.received is not None and self.received.source == peer and self.master == peer:
            self.received = None
        self.election.lost_link(peer)

    def frames(self, peer: str, frames: Sequence[Any]) -> None:
        """Handle the frames of one read; entries stored because of them are acknowledged once, at the end.

        A replica whose store has failed answers nothing more: its memory holds entries that are not on its disk.
        """
        if self.broker.store_failed:
            return
        for frame in frames:
            message = unpack(frame)
            self._handlers[type(message)](peer, message)
        if self.received is not None and self.received.source == peer:
            if self.received.settle():
                self._spoken[peer] = self.replica.now()
            self.election.adopted(self.received)

    # Messages.

    def _heartbeat(self, peer: str, beat: ReplicaHeartbeat) -> None:
        replica = self.replica
        self._reports[peer] = beat
        replica.note_promised(beat.promised)
        if self.leader is not None and beat.following == self.leader.epoch:
            self.leader.heard(peer, beat.echo)
        if beat.claim:
            self._claimed(peer, beat)
        elif self.master == peer:
            self._lose_master("it is no longer master")

    def _claimed(self, peer: str, beat: ReplicaHeartbeat) -> None:
        replica = self.replica
        master = self.live_master()
        stance = LocalState(
            rank=replica.rank, promised=replica.log.promised,
            leading=self.leader.epoch if self.leader is not None else 0,
            master=replica.ranks[master] if master is not None else None,
        )
        verdict = judge_claim(stance, LeaderClaim(replica.ranks[peer], beat.claim), self.options.primary)
        if verdict == "follow":
            received = self.received
            if self.master != peer or received is None or received.epoch != beat.claim:
                received = self._follow(peer, beat.claim)
            received.echo = max(received.echo, beat.sent)
            received.commit(beat.commit)
            self._send_heartbeat(peer)
            self._spoken[peer] = replica.now()
        elif verdict == "reject":
            replica.send(peer, Reject(replica.log.promised))
        elif verdict == "raise":
            self._raise_epoch()

    def _follow(self, peer: str, epoch: int) -> FollowerLog:
        replica = self.replica
        if self.leader is not None:
            self._step_down(f"{peer} is master in epoch {round_of(epoch)}")
        self.election.decided()
        self._end_all_catch_up_feeds()
        # A replica that begins without a log, and has not promised this epoch in a first start, may have lost its log.
        if self.options.primary and not replica.log.last and replica.log.promised < epoch:
            replica.log.whole = False
        replica.promise(epoch)
        self.started = True
        if self.master != peer:
            replica.runtime.log("following", master=peer, epoch=round_of(epoch))
        self.master = peer
        self.received = FollowerLog(replica, peer, epoch)
        self.received.introduce()
        return self.received

    def _log_position(self, peer: str, message: LogPosition) -> None:
        if self.leader is not None:
            self.leader.introduced(peer, message)

    def _append(self, peer: str, message: Append) -> None:
        received = self.received
        if received is not None and received.source == peer and received.epoch == message.epoch:
            received.append(message)
        elif self.options.primary and message.epoch < self.replica.log.promised:
            self.replica.send(peer, Reject(self.replica.log.promised))

    def _acked(self, peer: str, message: Ack) -> None:
        epoch, replicator = self.catch_up_feeds.get(peer, (0, None))
        if replicator is not None and epoch == message.epoch:
            replicator.acked(message.match)
            replicator.pump(self.replica.now())
        elif self.leader is not None:
            self.leader.acked(peer, message)

    def _rejected(self, peer: str, message: Reject) -> None:
        self.replica.note_promised(message.promised)
        if self.leader is None or message.promised <= self.leader.epoch:
            return
        if self.options.primary:
            self._step_down(f"{peer} has promised epoch {round_of(message.promised)}")
        else:
            self._raise_epoch()

    def _fetch(self, peer: str, message: Fetch) -> None:
        if self.leader is None and message.epoch == self.replica.log.promised:
            replicator = Replicator(self.replica, peer, message.epoch, position_of(message), SharedFrames())
            self._end_catch_up_feeds(peer)
            self.catch_up_feeds[peer] = (message.epoch, replicator)
            replicator.pump(self.replica.now())

    def _end_all_catch_up_feeds(self) -> None:
        """End all feeds to candidates: now that a master exists, they do not need this node's log."""
        for peer in list(self.catch_up_feeds):
            self._end_catch_up_feeds(peer)

    def _end_catch_up_feeds(self, peer: str) -> None:
        _, replicator = self.catch_up_feeds.pop(peer, (0, None))
        if replicator is not None:
            replicator.close()

    def _state_begin(self, peer: str, message: StateBegin) -> None:
        if self.received is not None and (self.received.source, self.received.epoch) == (peer, message.epoch):
            self.states_begun += 1
            self.received.begin_state(message)

    def _state_chunk(self, peer: str, message: StateChunk) -> None:
        if self.received is not None and (self.received.source, self.received.epoch) == (peer, message.epoch):
            self.received.receive_chunk(message)

    def _state_end(self, peer: str, message: StateEnd) -> None:
        if self.received is not None and (self.received.source, self.received.epoch) == (peer, message.epoch):
            self.received.end_state(message)

    def _state_acked(self, peer: str, message: StateAck) -> None:
        epoch, replicator = self.catch_up_feeds.get(peer, (0, None))
        if replicator is not None and epoch == message.epoch:
            replicator.acked_chunks(message.chunks)
            replicator.pump(self.replica.now())
        elif self.leader is not None:
            self.leader.acked_chunks(peer, message)

    def _leave(self, peer: str, message: Leave) -> None:
        self.replica.runtime.log("peer leaves", peer=peer)
        self.left.add(peer)
        self.replica.links.forget(peer)
        self._reports.pop(peer, None)
        if self.master == peer:
            self._lose_master("it leaves")

    # Roles.

    def live_master(self) -> str | None:
        return self.master if self.master is not None and self.replica.is_alive(self.master) else None

    def _lose_master(self, why: str) -> None:
        self.replica.runtime.log("master lost", master=self.master, why=why)
        self.master = self.received = None

    def _step_down(self, why: str) -> None:
        if self.leader is None:
            return
        self.replica.runtime.log(
            "stepped down", epoch=round_of(self.leader.epoch), why=why, pending=self.leader.unfinished()
        )
        self.leader.stop()
        self.leader = None
        self.broker.drop_clients(NOT_MASTER)
        self._send_heartbeats()

    def _raise_epoch(self) -> None:
        if self.leader is not None:
            epoch = self.replica.next_epoch()
            self.replica.promise(epoch)
            self.leader.raise_epoch(epoch)
            self._send_heartbeats()

    def _role(self) -> str:
        replica = self.replica
        if self.leader is not None:
            return "master"
        if replica.is_apart:
            return "apart"
        if self.live_master() is not None:
            return "slave" if replica.name in replica.log.view else "joining"
        if self.options.primary and len(replica.alive()) < majority(len(replica.order)):
            return "minority" if self.started else "starting"
        return "electing" if self.started else "starting"

    # Time.

    async def _tick_forever(self) -> None:
        interval = self.options.heartbeat_interval / 2
        last, beat = self.replica.now(), False
        while True:
            await asyncio.sleep(interval)
            now = self.replica.now()
            stood_still = now - last - interval
            last = now
            if stood_still > self.options.detection_timeout / 2:
                self._forgive(stood_still)
            beat = not beat
            self._tick(beat)

    def _forgive(self, seconds: float) -> None:
        self.replica.runtime.log("process stalled", seconds=round(seconds, 3))
        self.replica.links.forgive(seconds)
        if self.leader is not None:
            self.leader.forgive(seconds)

    def _tick(self, beat: bool) -> None:
        replica = self.replica
        replica.links.cut_silent()
        if self.master is not None and not replica.is_alive(self.master):
            replica.runtime.log("suspected", members=self.master)
            self._lose_master("suspected")
        if self.leader is not None:
            why = self.leader.tick()
            if why is not None:
                self._step_down(why)
        else:
            self.election.tick()
        if beat:
            self._send_heartbeats(but=self._informed())
        # Applied entries are in the log on disk already; their effects are written with the next entry.
        if replica.log.has_unwritten or (replica.log.dirty and replica.unpersisted_for() >= QUIET):
            if self.leader is not None:
                self.leader.compact()  # the group's views may be all that is written
            replica.persist()

    def _informed(self) -> Collection[str]:
        """Return the peers that need no heartbeat now, because recent messages carry the same information.

        A master still sends something in every one and a half intervals, other nodes in every half of the detection
        time-out (or in every interval, if that is longer). A commit index that no heartbeat reports is reported with
        the next entries, or by the next heartbeat.
        """
        if self.leader is not None:
            return self.leader.in_touch(self.options.heartbeat_interval / 2)
        oldest = self.replica.now() - self.options.detection_timeout / 2 + self.options.heartbeat_interval
        return [peer for peer, stamp in self._spoken.items() if peer == self.master and stamp > oldest]

    def _send_heartbeats(self, but: Collection[str] = ()) -> None:
        for peer in self.replica.peers:
            if peer not in but:
                self._send_heartbeat(peer)

    def _send_heartbeat(self, peer: str) -> None:
        replica, leader, received = self.replica, self.leader, self.received
        follows = received is not None and self.master == peer
        replica.send(peer, ReplicaHeartbeat(
            claim=leader.epoch if leader is not None else 0,
            following=received.epoch if received is not None and follows else 0,
            promised=replica.log.promised,
            last=replica.log.last,
            commit=replica.committed,
            sent=replica.now(),
            echo=received.echo if received is not None and follows else -1.0,
        ))
