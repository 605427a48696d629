"""The steps by which a replica becomes master: pre-vote, proposal, adoption of the most complete log."""

from __future__ import annotations

from typing import Protocol

from nodes.reference.api import Pending
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
from nodes.reference.designs.joram.messages import Fetch, Heartbeat, PrepareReply, PreVoteReply, PreVoteRequest, Propose
from nodes.reference.designs.joram.replica import Replica
from nodes.reference.replication.follower_log import FollowerLog
from nodes.reference.replication.messages import position_of
from nodes.reference.replication.positions import LogId, Position, plan_feed
from nodes.reference.replication.quorum import majority

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

    def reports(self) -> dict[str, Heartbeat]:
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

    def __init__(self, replica: Replica, node: Node) -> None:
        self._replica = replica
        self._node = node
        timeout = replica.options.detection_timeout
        self._rests_until = replica.now() + timeout if replica.log.last else float("-inf")
        self.phase = IDLE
        self._epoch = 0
        self._asked: list[str] = []
        self._answers: dict[str, str] = {}
        self._promises: dict[str, Position] = {}
        self._target: LogId | None = None
        self._deadline = self._grace = 0.0
        self._ready_at: float | None = None
        self._retry_at = 0.0
        self._in_vain: float | None = None
        """The time at which this node's last round of pre-votes failed: all had answered, and too few had agreed."""
        self._favoured = ""
        self._favoured_until = 0.0

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
                replica.runtime.log("election given up", epoch=round_of(self._epoch), phase=self.phase)
                self.cancel()
                self._back_off(replica.runtime.random.random())
            return
        if not self._may_stand():
            self._ready_at = None
            return
        if self._ready_at is None:
            self._ready_at = now
        if now >= max(self._retry_at, self._ready_at + self._turn()):
            self._ask_for_pre_votes()

    def turn(self) -> tuple[int, float, float] | None:
        """Return, for a node that waits for its turn: the number of candidates before it, the earliest time of its next
        attempt, and the seconds that it is going to wait. None for other nodes."""
        if self.phase != IDLE or self._ready_at is None or not self._may_stand():
            return None
        due = max(self._retry_at, self._ready_at + self._turn())
        place = self._candidates().index(self._replica.name)
        return place, self._retry_at, max(0.0, due - self._replica.now())

    def decided(self) -> None:
        """Note that there is a master. Once that master is lost, which may be before the next ``tick``, this node waits
        for its turn from the beginning."""
        self.cancel()
        self._ready_at = None
        self._retry_at = self._favoured_until = 0.0

    def cancel(self) -> None:
        """Stop standing for election."""
        if self.phase == ADOPTING:
            self._node.receive_from(None)
        self.phase, self._in_vain = IDLE, None

    def pending(self) -> Pending:
        """Return pending work: the next step of a candidate."""
        agreed = len(self._promises) if self.phase == PROPOSING else 1 + list(self._answers.values()).count("")
        if self.phase in (PREVOTING, PROPOSING) and agreed >= majority(len(self._replica.order)):
            return {"enough": [(self._epoch, self.phase)]}
        if self.phase == IDLE and self._in_vain is not None and (turn := self.turn()) is not None and turn[0] == 0:
            return {"asks-again": [self._in_vain]}
        return {}

    def answered(self, peer: str, message: PreVoteReply) -> None:
        """Handle a peer's pre-vote, or its refusal to promise."""
        self._replica.note_promised(message.promised)
        if message.epoch == self._epoch and self.phase in (PREVOTING, PROPOSING) and peer in self._asked:
            if self.phase == PROPOSING and not message.refusal:
                return
            self._answers[peer] = message.refusal
            self._evaluate()

    def promised(self, peer: str, message: PrepareReply) -> None:
        """Handle a peer's promise."""
        if message.epoch == self._epoch and self.phase == PROPOSING and peer in self._asked:
            self._promises[peer] = position_of(message)
            self._evaluate()

    def adopted(self, source: FollowerLog) -> None:
        """Handle progress in receiving the most complete log from its source."""
        if self.phase == ADOPTING and source.epoch == self._epoch and source.matched >= 0:
            self._finish_if_complete()

    def lost_link(self, peer: str) -> None:
        """Stop waiting for the peer, or end an adoption that depends on it."""
        if self.phase in (PREVOTING, PROPOSING) and peer in self._asked and peer not in self._promises:
            self._answers[peer] = "link lost"
            self._evaluate()
        elif self.phase == ADOPTING and peer in self._promises:
            self.cancel()
            self._back_off(0.0)

    def _may_stand(self) -> bool:
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
        ) and replica.name in self._candidates()

    def _candidates(self) -> list[str]:
        replica, reports = self._replica, self._node.reports()
        alive = [Candidate(replica.name, replica.has_log)]
        alive += [
            Candidate(name, reports[name].last > 0) for name in replica.alive() if name in reports
        ]
        return candidates(alive, replica.log.view, replica.order)

    def _turn(self) -> float:
        """Return the seconds to wait for the candidates before this node, which may be unable to win."""
        return 2 * self._replica.options.detection_timeout * self._candidates().index(self._replica.name)

    def _back_off(self, share: float) -> None:
        self._retry_at = self._replica.now() + share * self._replica.options.detection_timeout

    def _ask(self, phase: str, asked: list[str]) -> None:
        now, timeout = self._replica.now(), self._replica.options.detection_timeout
        self.phase, self._asked, self._answers = phase, asked, {}
        self._deadline, self._grace = now + timeout, now + timeout / 4

    def _ask_for_pre_votes(self) -> None:
        replica = self._replica
        self._epoch = replica.next_epoch()
        reports = self._node.reports()
        self._ask(PREVOTING, [name for name in replica.alive() if name in reports])
        for peer in self._asked:
            replica.send(peer, PreVoteRequest(self._epoch, not replica.has_log))
        self._evaluate()

    def _evaluate(self) -> None:
        if self.phase == PREVOTING:
            willing = [peer for peer in self._asked if self._answers.get(peer) == ""]
            if self._is_enough(len(willing), len(self._answers)):
                self._propose(willing)
            elif len(self._answers) >= len(self._asked):
                # The usual reason: a peer has heard the master a moment longer than this node. Repeating the request is
                # cheap.
                self.cancel()
                self._in_vain = self._replica.now()
                self._back_off(_ASK_AGAIN * (1 + self._replica.runtime.random.random()))
        elif self.phase == PROPOSING and self._is_enough(
            len(self._promises) - 1, len(self._promises) - 1 + len(self._answers)
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
            patience = (self._ready_at or now) + replica.options.detection_timeout
            return (complete or now > self._grace) and (now > patience or self.phase == PROPOSING)
        return complete or now > self._grace

    def _propose(self, willing: list[str]) -> None:
        replica = self._replica
        first_start = not replica.has_log
        self._promises = {replica.name: replica.log.position()}
        self._ask(PROPOSING, willing)
        self._node.receive_from(None)
        replica.promise(self._epoch)
        replica.runtime.log("proposing", epoch=round_of(self._epoch), to=",".join(willing))
        for peer in willing:
            replica.send(peer, Propose(self._epoch, first_start))
        self._evaluate()

    def _adopt(self) -> None:
        replica = self._replica
        source = best_log(self._promises, replica.name)
        self._target = self._promises[source].last
        self.phase = ADOPTING
        self._deadline = replica.now() + 10 * replica.options.detection_timeout
        if source != replica.name and self._target != self._promises[replica.name].last:
            replica.runtime.log(
                "adopting the most complete log", source=source, last=self._target.idx,
                epoch=round_of(self._target.epoch),
            )
            self._node.receive_from(FollowerLog(replica, source, self._epoch))
            last, applied = replica.log.position()
            replica.send(source, Fetch(self._epoch, last.epoch, last.idx, applied.epoch, applied.idx))
            if source in replica.links.missing():  # lost after its promise, while others were awaited
                self.lost_link(source)
            return
        self._finish_if_complete()

    @property
    def adopts(self) -> bool:
        """Tell whether a candidate waits for the most complete log."""
        return self.phase == ADOPTING

    def has_adopted(self) -> bool:
        """Tell whether a candidate has received all of the most complete log, and has not yet acted on it."""
        complete = self._target is not None and self._replica.log.position().last >= self._target
        return self.phase == ADOPTING and complete

    def _finish_if_complete(self) -> None:
        replica, log = self._replica, self._replica.log
        if self._target is None or log.position().last < self._target:
            return
        self.phase = IDLE
        self._node.receive_from(None)
        # The adopted log defines the group. That may be larger than this replica knew: a majority of its members must
        # have promised. Or it may never have included this replica, whose acknowledgements then do not count.
        granted = sum(name in replica.order for name in self._promises)
        if replica.name not in replica.order or not has_quorum(
            granted, len(self._promises), len(replica.order), replica.options.primary
        ):
            self._back_off(0.5)
            return
        willing = [
            peer for peer, position in self._promises.items()
            if peer != replica.name and peer in replica.order and replica.is_alive(peer)
            and not plan_feed(position, log.epoch_at).state
        ]
        self._node.become_leader(self._epoch, new_view(replica.name, log.view, willing, replica.order))

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
        if reason is None and self._favoured not in ("", peer) and now < self._favoured_until:
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

    def favours(self) -> bool:
        """Tell whether this node has just supported a candidate, by its vote or by its promise."""
        return self._replica.now() < self._favoured_until

    def _favour(self, peer: str) -> None:
        self._favoured = peer
        self._favoured_until = self._replica.now() + self._replica.options.detection_timeout / 2

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
