"""The steps by which a replica becomes master: pre-vote, proposal, adoption of the most complete log."""

from __future__ import annotations

from typing import Protocol

from nodes.reference.designs.joram.decisions import (
    Candidate,
    Voter,
    best_log,
    candidates,
    has_quorum,
    may_stand,
    new_view,
    refusal,
    round_of,
)
from nodes.reference.designs.joram.messages import (
    Fetch,
    PrepareReply,
    PreVoteReply,
    PreVoteRequest,
    Propose,
    ReplicaHeartbeat,
)
from nodes.reference.designs.joram.replica import JoramReplica
from nodes.reference.replication.follower_log import FollowerLog
from nodes.reference.replication.messages import position_of
from nodes.reference.replication.positions import LogId, Position, plan_feed

_ASK_AGAIN = 0.1
"""The minimum pause after a pre-vote that all have answered without success, in detection time-outs."""

IDLE, PREVOTING, PROPOSING, ADOPTING = "idle", "pre-voting", "proposing", "adopting"


class Node(Protocol):
    """The interface of a node that its election needs."""

    started: bool

    def hears_master(self) -> bool:
        """Tell whether this node is master or follows a live one."""
        ...

    def leads(self) -> bool:
        """Tell whether this node is master."""
        ...

    def reports(self) -> dict[str, ReplicaHeartbeat]:
        """Return the newest heartbeat of each connected peer."""
        ...

    def receive_from(self, source: FollowerLog | None) -> None:
        """Receive the log from that source from now on (None: from no peer), and follow no master."""
        ...

    def become_leader(self, epoch: int, members: list[str]) -> None:
        """Become master after a won election."""
        ...


class Election:
    """One node's part in elections, as candidate and as voter.

    A pre-vote changes no state anywhere. A candidate that can't win (its link to the master is broken, but other nodes
    hear the master well) therefore disturbs no other node (Ongaro's dissertation, 9.6). A proposal is promised on disk.
    """

    def __init__(self, replica: JoramReplica, node: Node) -> None:
        self._replica = replica
        self._node = node
        timeout = replica.options.detection_timeout
        self._rests_until = replica.now() + timeout if replica.log.last else float("-inf")
        self.phase = IDLE
        self.epoch = 0
        self._asked: list[str] = []
        self.answers: dict[str, str] = {}
        self.promises: dict[str, Position] = {}
        self.target: LogId | None = None
        self._deadline = self._grace = 0.0
        self.ready_at: float | None = None
        self.retry_at = 0.0
        self.failed_at: float | None = None
        """The time at which this node's last round of pre-votes failed: all had answered, and too few had agreed."""
        self._favoured = ""
        self.favoured_until = 0.0

    # As candidate.

    def tick(self) -> None:
        """Stand for election if it is this node's turn; give up a phase that takes too long."""
        replica, now = self._replica, self._replica.now()
        if self._node.hears_master():
            self.decided()
            return
        if self.phase != IDLE:
            self._evaluate()
            if self.phase != IDLE and now > self._deadline:
                replica.runtime.log("election given up", epoch=round_of(self.epoch), phase=self.phase)
                self.cancel()
                self._back_off(replica.runtime.random.random())
            return
        if not self.may_stand_now():
            self.ready_at = None
            return
        if self.ready_at is None:
            self.ready_at = now
        if now >= max(self.retry_at, self.ready_at + self.turn_wait()):
            self._ask_for_pre_votes()

    def decided(self) -> None:
        """Note that there is a master. Once that master is lost, which may be before the next ``tick``, this node waits
        for its turn from the beginning."""
        self.cancel()
        self.ready_at = None
        self.retry_at = self.favoured_until = 0.0

    def cancel(self) -> None:
        """Stop standing for election."""
        if self.phase == ADOPTING:
            self._node.receive_from(None)
        self.phase, self.failed_at = IDLE, None

    def answered(self, peer: str, message: PreVoteReply) -> None:
        """Handle a peer's pre-vote, or its refusal to promise."""
        self._replica.note_promised(message.promised)
        if message.epoch == self.epoch and self.phase in (PREVOTING, PROPOSING) and peer in self._asked:
            if self.phase == PROPOSING and not message.refusal:
                return
            self.answers[peer] = message.refusal
            self._evaluate()

    def promised(self, peer: str, message: PrepareReply) -> None:
        """Handle a peer's promise."""
        if message.epoch == self.epoch and self.phase == PROPOSING and peer in self._asked:
            self.promises[peer] = position_of(message)
            self._evaluate()

    def adopted(self, source: FollowerLog) -> None:
        """Handle progress in receiving the most complete log from its source."""
        if self.phase == ADOPTING and source.epoch == self.epoch and source.matched >= 0:
            self._finish_if_complete()

    def lost_link(self, peer: str) -> None:
        """Stop waiting for the peer, or end an adoption that depends on it."""
        if self.phase in (PREVOTING, PROPOSING) and peer in self._asked and peer not in self.promises:
            self.answers[peer] = "link lost"
            self._evaluate()
        elif self.phase == ADOPTING and peer in self.promises:
            self.cancel()
            self._back_off(0.0)

    def may_stand_now(self) -> bool:
        replica, options = self._replica, self._replica.options
        if replica.name not in replica.order or (replica.log.last and not replica.has_log):
            return False
        reports = self._node.reports()
        for report in reports.values():
            if report.claim and (not options.primary or report.claim >= replica.log.promised):
                return False
        return may_stand(
            len(replica.alive()), len(replica.order), options.nb_cluster_expected, options.restart_expected,
            options.primary, replica.has_log, self._node.started,
        ) and replica.name in self.ranked_candidates()

    def ranked_candidates(self) -> list[str]:
        replica, reports = self._replica, self._node.reports()
        alive = [Candidate(replica.name, replica.has_log)]
        alive += [
            Candidate(name, reports[name].last > 0) for name in replica.alive() if name in reports
        ]
        return candidates(alive, replica.log.view, replica.order)

    def turn_wait(self) -> float:
        """Return the seconds to wait for the candidates before this node, which may be unable to win."""
        return 2 * self._replica.options.detection_timeout * self.ranked_candidates().index(self._replica.name)

    def _back_off(self, share: float) -> None:
        self.retry_at = self._replica.now() + share * self._replica.options.detection_timeout

    def _ask(self, phase: str, asked: list[str]) -> None:
        now, timeout = self._replica.now(), self._replica.options.detection_timeout
        self.phase, self._asked, self.answers = phase, asked, {}
        self._deadline, self._grace = now + timeout, now + timeout / 4

    def _ask_for_pre_votes(self) -> None:
        replica = self._replica
        self.epoch = replica.next_epoch()
        reports = self._node.reports()
        self._ask(PREVOTING, [name for name in replica.alive() if name in reports])
        for peer in self._asked:
            replica.send(peer, PreVoteRequest(self.epoch, not replica.has_log))
        self._evaluate()

    def _evaluate(self) -> None:
        if self.phase == PREVOTING:
            willing = [peer for peer in self._asked if self.answers.get(peer) == ""]
            if self._is_enough(len(willing), len(self.answers)):
                self._propose(willing)
            elif len(self.answers) >= len(self._asked):
                # The usual reason: a peer has heard the master a moment longer than this node. Repeating the request is
                # cheap.
                self.cancel()
                self.failed_at = self._replica.now()
                self._back_off(_ASK_AGAIN * (1 + self._replica.runtime.random.random()))
        elif self.phase == PROPOSING and self._is_enough(
            len(self.promises) - 1, len(self.promises) - 1 + len(self.answers)
        ):
            self._adopt()

    def _is_enough(self, granted: int, answered: int) -> bool:
        """Tell whether to continue with the nodes that have agreed (this node is not counted in ``granted``)."""
        replica, primary, now = self._replica, self._replica.options.primary, self._replica.now()
        complete = answered >= len(self._asked)
        if not primary and not self._node.started and granted + 1 < replica.options.nb_cluster_expected:
            return False  # one that hasn't answered may know more (may_stand)
        if not has_quorum(granted + 1, len(self._asked) + 1, len(replica.order), primary):
            if primary:
                return False
            # Some follow another master, or can't be reached: continue without them, but not at once.
            patience = (self.ready_at or now) + replica.options.detection_timeout
            return (complete or now > self._grace) and (now > patience or self.phase == PROPOSING)
        return complete or now > self._grace

    def _propose(self, willing: list[str]) -> None:
        replica = self._replica
        first_start = not replica.has_log
        self.promises = {replica.name: replica.log.position()}
        self._ask(PROPOSING, willing)
        self._node.receive_from(None)
        replica.promise(self.epoch)
        replica.runtime.log("proposing", epoch=round_of(self.epoch), to=",".join(willing))
        for peer in willing:
            replica.send(peer, Propose(self.epoch, first_start))
        self._evaluate()

    def _adopt(self) -> None:
        replica = self._replica
        source = best_log(self.promises, replica.name)
        self.target = self.promises[source].last
        self.phase = ADOPTING
        self._deadline = replica.now() + 10 * replica.options.detection_timeout
        if source != replica.name and self.target != self.promises[replica.name].last:
            replica.runtime.log(
                "adopting the most complete log", source=source, last=self.target.idx,
                epoch=round_of(self.target.epoch),
            )
            self._node.receive_from(FollowerLog(replica, source, self.epoch))
            last, applied = replica.log.position()
            replica.send(source, Fetch(self.epoch, last.epoch, last.idx, applied.epoch, applied.idx))
            if source in replica.links.missing():  # lost after its promise, while others were awaited
                self.lost_link(source)
            return
        self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        replica, log = self._replica, self._replica.log
        if self.target is None or log.position().last < self.target:
            return
        self.phase = IDLE
        self._node.receive_from(None)
        # The adopted log defines the group. That may be larger than this replica knew: a majority of its members must
        # have promised. Or it may never have included this replica, whose acknowledgements then do not count.
        granted = sum(name in replica.order for name in self.promises)
        if replica.name not in replica.order or not has_quorum(
            granted, len(self.promises), len(replica.order), replica.options.primary
        ):
            self._back_off(0.5)
            return
        willing = [
            peer for peer, position in self.promises.items()
            if peer != replica.name and peer in replica.order and replica.is_alive(peer)
            and not plan_feed(position, log.epoch_at).state
        ]
        self._node.become_leader(self.epoch, new_view(replica.name, log.view, willing, replica.order))

    # As voter.

    def pre_vote_requested(self, peer: str, message: PreVoteRequest) -> None:
        """Answer a peer that asks whether this node would support it."""
        replica, now = self._replica, self._replica.now()
        reason = self._refusal(peer, message.epoch, message.first_start)
        if reason is None and self.phase != IDLE:
            if self.phase == PREVOTING and replica.ranks[peer] < replica.rank:
                replica.runtime.log("candidate deferred", to=peer)
                self.cancel()
                self._back_off(1.0)
            else:
                reason = "i stand myself"
        if reason is None and self._favoured not in ("", peer) and now < self.favoured_until:
            reason = f"i support {self._favoured}"
        if reason is None:
            self._favour(peer)
        replica.send(peer, PreVoteReply(message.epoch, replica.log.promised, reason or ""))

    def proposed(self, peer: str, message: Propose) -> None:
        """Answer a peer that asks for this node's promise."""
        replica = self._replica
        reason = self._refusal(peer, message.epoch, message.first_start)
        if reason is not None:
            replica.runtime.log("proposal refused", candidate=peer, epoch=round_of(message.epoch), why=reason)
            replica.send(peer, PreVoteReply(message.epoch, replica.log.promised, reason))
            return
        self.cancel()
        self._node.receive_from(None)
        replica.promise(message.epoch)
        self._favour(peer)
        self._back_off(2.0)
        last, applied = replica.log.position()
        replica.send(peer, PrepareReply(message.epoch, last.epoch, last.idx, applied.epoch, applied.idx))

    def _favour(self, peer: str) -> None:
        self._favoured = peer
        self.favoured_until = self._replica.now() + self._replica.options.detection_timeout / 2

    def _refusal(self, peer: str, epoch: int, first_start: bool) -> str | None:
        replica, options = self._replica, self._replica.options
        # This node's log may not show yet that the group has grown: the candidate's log determines whose promises count
        # (Ongaro's dissertation, 4.1).
        if peer not in replica.peers:
            return "not of my group"
        voter = Voter(
            promised=replica.log.promised,
            has_log=replica.log.last > 0,
            whole=replica.log.whole,
            leading=self._node.leads(),
            master_alive=self._node.hears_master(),
            resting=replica.now() < self._rests_until,
        )
        return refusal(voter, epoch, first_start, options.primary)
