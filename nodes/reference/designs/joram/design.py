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
    Heartbeat,
    Leave,
    Membership,
    Message,
    PrepareReply,
    PreVoteReply,
    PreVoteRequest,
    Propose,
    Reject,
    unpack,
)
from nodes.reference.designs.joram.options import Options
from nodes.reference.designs.joram.probes import ProbedReplica
from nodes.reference.designs.joram.replica import Replica
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


class Joram(ProbedReplica):
    """A group of replicas behind one master. Options: ``nodes.reference.designs.joram.options.Options``.

    At any time a replica is master (``_leader``), follows one (``_master``), or neither: then it takes part in an
    election. ``_received`` is the log it receives, from its master or from the peer whose log it adopts.
    """

    has_topic_manager = False
    has_services = True

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._options = Options.from_config(broker.config)
        self._replica = Replica(broker, self._options, self)
        self._replica.tell_peers = self._send_heartbeats
        self._election = Election(self._replica, self)
        self._leader: Leader | None = None
        self._master: str | None = None
        self._received: FollowerLog | None = None
        self._catch_up_feeds: dict[str, tuple[int, Replicator]] = {}
        self._reports: dict[str, Heartbeat] = {}
        self._left: set[str] = set()
        """Peers that have announced their stop, and have not returned."""
        self._states = 0
        """The number of whole states that other nodes have begun to send to this node."""
        self._spoken: dict[str, float] = {}
        """Master -> the time at which this node last confirmed to it that it follows it."""
        self._ticker: asyncio.Task[None] | None = None
        self.started = False
        self._handlers: dict[type[Message], Callable[[str, Any], None]] = {
            Heartbeat: self._heartbeat, LogPosition: self._log_position, Append: self._append, Ack: self._acked,
            Reject: self._rejected, PreVoteRequest: self._election.pre_vote_requested,
            PreVoteReply: self._election.answered,
            Propose: self._election.proposed, PrepareReply: self._election.promised, Fetch: self._fetch,
            StateBegin: self._state_begin, StateChunk: self._state_chunk, StateEnd: self._state_end,
            StateAck: self._state_acked, Leave: self._leave,
            Membership: lambda peer, message: self._replica.introduced(peer, message.members),
        }

    # The design's protocol.

    async def start(self) -> None:
        """Open the links and begin to search for the group.

        Raises:
            ConfigError: the address for the links can't be listened on.
        """
        options, log = self._options, self._replica.log
        self._replica.runtime.log(
            "joining the group", ack=options.ack, partitions=options.partitions,
            expected=options.nb_cluster_expected, replicas=len(self._replica.order),
            log_last=log.last, applied=log.applied, promised=round_of(log.promised),
        )
        try:
            await self._replica.links.start()
        except OSError as error:
            host, port = self._broker.config.peers[self._replica.name]
            raise ConfigError(
                f"peers.{self._replica.name}: can't listen on {host}:{port} ({error.strerror or error})"
            ) from error
        self._ticker = self._replica.runtime.spawn(self._tick_forever(), "joram timers")

    async def stop(self) -> None:
        """Leave the group in good order, so that the others need not wait until they suspect this node."""
        if self._ticker is not None:
            self._ticker.cancel()
        if self._leader is not None:
            self._leader.stop()
            self._leader = None
        self._replica.persist()
        for peer in self._replica.peers:
            self._replica.send(peer, Leave())
        await self._replica.links.stop()

    def admission(self) -> Admission:
        """Admit clients on the master only; other nodes name the master if they know it."""
        if self._leader is not None and self._leader.serving:
            listed = tuple(member.client for member in self._replica.group if member.client)
            return Admission(True, early=self._options.early, replicas=listed)
        master = self._live_master()
        address = next((member.client for member in self._replica.group if member.name == master), None)
        return Admission(False, NOT_MASTER, address or None)

    def submit(self, command: Command) -> None:
        """Replicate a command; it is dropped if this node does not serve (its clients are being dropped too)."""
        if self._leader is not None:
            self._leader.submit(command)

    def add_replica(self, name: str, link: tuple[str, int], client: str) -> None:
        """Add a replica to the group; it is a learner first, and ``status`` lists it in ``replicas`` once it is a
        member.

        Raises:
            ConfigError: this node is not the master, or the group can't add it now.
        """
        if self._leader is None or not self._leader.serving:
            raise ConfigError(f"not master{self._where()}; ask the master to add a replica")
        self._leader.add_replica(Member(name, *link, client))

    async def administer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Handle ``{"op": "remove-replica", "name": NAME}``: the group continues without a replica; ``status`` shows
        when the removal is complete.

        Raises:
            ConfigError: this node is not the master, or the group can't do without it now.
        """
        match dict(request):
            case {"op": "remove-replica", "name": str(name), **others} if not others:
                if self._leader is None or not self._leader.serving:
                    raise ConfigError(f"not master{self._where()}; ask the master to remove a replica")
                self._leader.remove_replica(name)
                return {}
        raise ConfigError('a request is {"op": "remove-replica", "name": NAME}')

    def _where(self) -> str:
        master, address = self._live_master(), self.admission().master
        return f" (that is {master}{f' at {address}' if address else ''})" if master else ""

    def status(self) -> dict[str, Any]:
        """Return the status for an administrator; epochs are given as their rounds."""
        replica, leader = self._replica, self._leader
        view = leader.members if leader is not None else replica.log.view
        alive = replica.alive()
        return {
            "role": self._role(),
            "serving": leader is not None and leader.serving,
            "epoch": round_of(leader.epoch if leader is not None else replica.log.promised),
            "view": list(view),
            "replicas": list(replica.order),
            "learners": [member.name for member in replica.learners],
            "master": replica.name if leader is not None else self._live_master(),
            "applied": replica.log.applied,
            "committed": replica.committed,
            "log_first": replica.log.base + 1,
            "log_last": replica.log.last,
            "suspects": [peer for peer in replica.order if peer not in alive],
        }

    # The interface for elections.

    def hears_master(self) -> bool:
        """Tell whether this node is master or follows a live one."""
        return self._leader is not None or self._live_master() is not None

    def favours(self) -> bool:
        """Tell whether this node has just supported a candidate; following a master's claim does not count."""
        return self._election.favours()

    def leads(self) -> bool:
        """Tell whether this node is master."""
        return self._leader is not None

    def reports(self) -> dict[str, Heartbeat]:
        """Return the newest heartbeat of each connected peer."""
        return self._reports

    def receive_from(self, received: FollowerLog | None) -> None:
        """Receive the log from that source from now on, and follow no master."""
        self._received, self._master = received, None

    def become_leader(self, epoch: int, members: list[str]) -> None:
        """Become master after a won election."""
        self.receive_from(None)
        self._end_all_catch_up_feeds()
        self.started = True
        self._replica.runtime.point(ELECTED)
        self._leader = Leader(self._replica, epoch, members)
        self._election.decided()
        self._send_heartbeats()

    # Links.

    def link_up(self, peer: str) -> None:
        """Introduce this node and the group."""
        self._left.discard(peer)
        self._send_heartbeat(peer)
        self._replica.introduce(peer)

    def link_down(self, peer: str) -> None:
        """Drop the work in progress with the peer."""
        self._reports.pop(peer, None)
        self._end_catch_up_feeds(peer)
        if self._leader is not None:
            self._leader.lost_link(peer)
        if self._received is not None and self._received.source == peer and self._master == peer:
            self._received = None
        self._election.lost_link(peer)

    def frames(self, peer: str, frames: Sequence[Any]) -> None:
        """Handle the frames of one read; entries stored because of them are acknowledged once, at the end."""
        for frame in frames:
            message = unpack(frame)
            self._handlers[type(message)](peer, message)
        if self._received is not None and self._received.source == peer:
            if self._received.settle():
                self._spoken[peer] = self._replica.now()
            self._election.adopted(self._received)

    # Messages.

    def _heartbeat(self, peer: str, beat: Heartbeat) -> None:
        replica = self._replica
        self._reports[peer] = beat
        replica.note_promised(beat.promised)
        if self._leader is not None and beat.following == self._leader.epoch:
            self._leader.heard(peer, beat.echo)
        if beat.claim:
            self._claimed(peer, beat)
        elif self._master == peer:
            self._lose_master("it is no longer master")

    def _claimed(self, peer: str, beat: Heartbeat) -> None:
        replica = self._replica
        master = self._live_master()
        stance = LocalState(
            rank=replica.rank, promised=replica.log.promised,
            leading=self._leader.epoch if self._leader is not None else 0,
            master=replica.ranks[master] if master is not None else None,
        )
        verdict = judge_claim(stance, LeaderClaim(replica.ranks[peer], beat.claim), self._options.primary)
        if verdict == "follow":
            received = self._received
            if self._master != peer or received is None or received.epoch != beat.claim:
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
        replica = self._replica
        if self._leader is not None:
            self._step_down(f"{peer} is master in epoch {round_of(epoch)}")
        self._election.decided()
        self._end_all_catch_up_feeds()
        # A replica that begins without a log, and has not promised this epoch in a first start, may have lost its log.
        if self._options.primary and not replica.log.last and replica.log.promised < epoch:
            replica.log.whole = False
        replica.promise(epoch)
        self.started = True
        if self._master != peer:
            replica.runtime.log("following", master=peer, epoch=round_of(epoch))
        self._master = peer
        self._received = FollowerLog(replica, peer, epoch)
        self._received.introduce()
        return self._received

    def _log_position(self, peer: str, message: LogPosition) -> None:
        if self._leader is not None:
            self._leader.introduced(peer, message)

    def _append(self, peer: str, message: Append) -> None:
        received = self._received
        if received is not None and received.source == peer and received.epoch == message.epoch:
            received.append(message)
        elif self._options.primary and message.epoch < self._replica.log.promised:
            self._replica.send(peer, Reject(self._replica.log.promised))

    def _acked(self, peer: str, message: Ack) -> None:
        epoch, replicator = self._catch_up_feeds.get(peer, (0, None))
        if replicator is not None and epoch == message.epoch:
            replicator.acked(message.match)
            replicator.pump(self._replica.now())
        elif self._leader is not None:
            self._leader.acked(peer, message)

    def _rejected(self, peer: str, message: Reject) -> None:
        self._replica.note_promised(message.promised)
        if self._leader is None or message.promised <= self._leader.epoch:
            return
        if self._options.primary:
            self._step_down(f"{peer} has promised epoch {round_of(message.promised)}")
        else:
            self._raise_epoch()

    def _fetch(self, peer: str, message: Fetch) -> None:
        if self._leader is None and message.epoch == self._replica.log.promised:
            replicator = Replicator(self._replica, peer, message.epoch, position_of(message), SharedFrames())
            self._end_catch_up_feeds(peer)
            self._catch_up_feeds[peer] = (message.epoch, replicator)
            replicator.pump(self._replica.now())

    def _end_all_catch_up_feeds(self) -> None:
        """End all feeds to candidates: now that a master exists, they do not need this node's log."""
        for peer in list(self._catch_up_feeds):
            self._end_catch_up_feeds(peer)

    def _end_catch_up_feeds(self, peer: str) -> None:
        _, replicator = self._catch_up_feeds.pop(peer, (0, None))
        if replicator is not None:
            replicator.close()

    def _state_begin(self, peer: str, message: StateBegin) -> None:
        if self._received is not None and (self._received.source, self._received.epoch) == (peer, message.epoch):
            self._states += 1
            self._received.begin_state(message)

    def _state_chunk(self, peer: str, message: StateChunk) -> None:
        if self._received is not None and (self._received.source, self._received.epoch) == (peer, message.epoch):
            self._received.receive_chunk(message)

    def _state_end(self, peer: str, message: StateEnd) -> None:
        if self._received is not None and (self._received.source, self._received.epoch) == (peer, message.epoch):
            self._received.end_state(message)

    def _state_acked(self, peer: str, message: StateAck) -> None:
        epoch, replicator = self._catch_up_feeds.get(peer, (0, None))
        if replicator is not None and epoch == message.epoch:
            replicator.acked_chunks(message.chunks)
            replicator.pump(self._replica.now())
        elif self._leader is not None:
            self._leader.acked_chunks(peer, message)

    def _leave(self, peer: str, message: Leave) -> None:
        self._replica.runtime.log("peer leaves", peer=peer)
        self._left.add(peer)
        self._replica.links.forget(peer)
        self._reports.pop(peer, None)
        if self._master == peer:
            self._lose_master("it leaves")

    # Roles.

    def _live_master(self) -> str | None:
        return self._master if self._master is not None and self._replica.is_alive(self._master) else None

    def _lose_master(self, why: str) -> None:
        self._replica.runtime.log("master lost", master=self._master, why=why)
        self._master = self._received = None

    def _step_down(self, why: str) -> None:
        if self._leader is None:
            return
        self._replica.runtime.log(
            "stepped down", epoch=round_of(self._leader.epoch), why=why, pending=self._leader.unfinished()
        )
        self._leader.stop()
        self._leader = None
        self._broker.drop_clients(NOT_MASTER)
        self._send_heartbeats()

    def _raise_epoch(self) -> None:
        if self._leader is not None:
            epoch = self._replica.next_epoch()
            self._replica.promise(epoch)
            self._leader.raise_epoch(epoch)
            self._send_heartbeats()

    def _role(self) -> str:
        replica = self._replica
        if self._leader is not None:
            return "master"
        if replica.is_apart:
            return "apart"
        if self._live_master() is not None:
            return "slave" if replica.name in replica.log.view else "joining"
        if self._options.primary and len(replica.alive()) < majority(len(replica.order)):
            return "minority" if self.started else "starting"
        return "electing" if self.started else "starting"

    # Time.

    async def _tick_forever(self) -> None:
        interval = self._options.heartbeat_interval / 2
        last, beat = self._replica.now(), False
        while True:
            await asyncio.sleep(interval)
            now = self._replica.now()
            stood_still = now - last - interval
            last = now
            if stood_still > self._options.detection_timeout / 2:
                self._forgive(stood_still)
            beat = not beat
            self._tick(beat)

    def _forgive(self, seconds: float) -> None:
        self._replica.runtime.log("stood still", seconds=round(seconds, 3))
        self._replica.links.forgive(seconds)
        if self._leader is not None:
            self._leader.forgive(seconds)

    def _tick(self, beat: bool) -> None:
        replica = self._replica
        replica.links.cut_silent()
        if self._master is not None and not replica.is_alive(self._master):
            replica.runtime.log("suspected", members=self._master)
            self._lose_master("suspected")
        if self._leader is not None:
            why = self._leader.tick()
            if why is not None:
                self._step_down(why)
        else:
            self._election.tick()
        if beat:
            self._send_heartbeats(but=self._informed())
        # Applied entries are in the log on disk already; their effects are written with the next entry.
        if replica.log.has_unwritten or (replica.log.dirty and replica.unpersisted_for() >= QUIET):
            if self._leader is not None:
                self._leader.compact()  # the group's views may be all that is written
            replica.persist()

    def _informed(self) -> Collection[str]:
        """Return the peers that need no heartbeat now, because recent messages carry the same information.

        A master still sends something in every one and a half intervals, other nodes in every half of the detection
        time-out (or in every interval, if that is longer). A commit index that no heartbeat reports is reported with
        the next entries, or by the next heartbeat.
        """
        if self._leader is not None:
            return self._leader.in_touch(self._options.heartbeat_interval / 2)
        oldest = self._replica.now() - self._options.detection_timeout / 2 + self._options.heartbeat_interval
        return [peer for peer, stamp in self._spoken.items() if peer == self._master and stamp > oldest]

    def _send_heartbeats(self, but: Collection[str] = ()) -> None:
        for peer in self._replica.peers:
            if peer not in but:
                self._send_heartbeat(peer)

    def _send_heartbeat(self, peer: str) -> None:
        replica, leader, received = self._replica, self._leader, self._received
        follows = received is not None and self._master == peer
        replica.send(peer, Heartbeat(
            claim=leader.epoch if leader is not None else 0,
            following=received.epoch if received is not None and follows else 0,
            promised=replica.log.promised,
            last=replica.log.last,
            commit=replica.committed,
            sent=replica.now(),
            echo=received.echo if received is not None and follows else -1.0,
        ))
